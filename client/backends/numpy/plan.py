"""A segment's operations bound to memory that is allocated once for the full batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from client.backends.numpy.ops import FUNCTIONS, Array, Function, Tensors
from client.model.graph import Op, Param, Segment
from client.model.layers import Shape


class Memory:
    """Flat buffers by name, allocated for the capacity at their first use."""

    def __init__(self, capacity: int, dtype: np.dtype[Any]) -> None:
        self._capacity = capacity
        self._dtype = dtype
        self._buffers: dict[str, Array] = {}

    def view(self, name: str, shape: Shape, per_batch: int, dtype: Any = None) -> Array:
        """``shape`` for a batch of ``per_batch``; memory is reserved for a full batch."""
        if name not in self._buffers:
            size = -(-prod(shape) * self._capacity // per_batch)
            self._buffers[name] = np.zeros(size, self._dtype if dtype is None else dtype)
        return self._buffers[name][: prod(shape)].reshape(shape)

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for b in self._buffers.values())

    def poison(self) -> None:
        for buffer in self._buffers.values():
            if buffer.dtype.kind == "i":
                buffer.fill(np.iinfo(buffer.dtype).min)  # an index that is none
            else:
                buffer.fill(True if buffer.dtype == np.bool_ else np.nan)


class Plan:
    """Operations of a segment bound to views for one batch size.

    ``backward`` holds with each function the gradients that it completes: where several operations
    read a tensor, each after the first writes its part aside, to be added.
    """

    def __init__(
        self, segment: Segment, count: int, memory: Memory, values: Array, grads: Array
    ) -> None:
        self._segment, self._count, self._memory = segment, count, memory
        self._readers: dict[int, int] = {}
        for op in segment.ops:
            for i in op.inputs:
                self._readers[i] = self._readers.get(i, 0) + 1
        self._values: dict[int, Array] = {segment.input: self._tensor("x", segment.input)}
        self._gradients: dict[int, Array] = {}
        if segment.needs_input_grad:
            self._gradients[segment.input] = self._tensor("dx", segment.input)
        producers: dict[int, Op] = {}
        for op in segment.ops:
            self._place(op, producers)
            producers[op.output] = op

        self.forward: list[Function] = []
        self.backward: list[tuple[Function, list[tuple[Array, Array]]]] = []
        begun: set[int] = set()
        for op in reversed(segment.ops):
            dx, sums = self._input_gradients(op, begun)
            tensors = Tensors(
                x=tuple(self._values[i] for i in op.inputs),
                y=self._values[op.output],
                dx=dx,
                dy=self._gradients.get(op.output, self._values[op.output]),
                params=_by_suffix(op.params, segment.place, values),
                grads=_by_suffix(op.params if op.trained else (), segment.grad_place, grads),
                buffers=_by_suffix(op.buffers, segment.place, values),
                memory=partial(self._working_memory, op),
            )
            function = FUNCTIONS[type(op.layer)](op, tensors)
            self.forward.insert(0, function)
            if op.output in self._gradients:
                self.backward.append((function, sums))
        self.x, self.y = self._values[segment.input], self._values[segment.output]
        self.dx, self.dy = self._gradients.get(segment.input), self._gradients.get(segment.output)
        if segment.is_last and self.dy is None:  # the loss writes it all the same
            self.dy = self._tensor("dx", segment.output)

    def _tensor(self, name: str, number: int) -> Array:
        shape = (*self._segment.model.tensors[number], self._count)
        return self._memory.view(f"{name}{number}", shape, self._count)

    def _working_memory(self, op: Op, name: str, shape: Shape, dtype: Any) -> Array:
        return self._memory.view(f"{op.index}.{name}", shape, self._count, dtype)

    def _place(self, op: Op, producers: dict[int, Op]) -> None:
        """Memory for the output of ``op`` and, where one is needed, for its gradient."""
        x, y = op.inputs[0], op.output
        needs_gradient = op.trained or any(i in self._gradients for i in op.inputs)
        if self._shares_memory(op, producers.get(x)):
            shape = (*self._segment.model.tensors[y], self._count)
            self._values[y] = self._values[x].reshape(shape)
            if x in self._gradients:
                self._gradients[y] = self._gradients[x].reshape(shape)
                return
        else:
            self._values[y] = self._tensor("x", y)
        if needs_gradient:
            self._gradients[y] = self._tensor("dx", y)

    def _shares_memory(self, op: Op, producer: Op | None) -> bool:
        """Whether the output of ``op`` may lie where its input lies.

        Not where another operation reads the input, or the input's producer looks at it again;
        nor over the segment's input, which must outlast a forward pass.
        """
        return (
            FUNCTIONS[type(op.layer)].in_place
            and self._readers[op.inputs[0]] == 1
            and producer is not None
            and not FUNCTIONS[type(producer.layer)].reads_output
        )

    def _input_gradients(
        self, op: Op, begun: set[int]
    ) -> tuple[tuple[Array | None, ...], list[tuple[Array, Array]]]:
        """Where ``op`` writes the gradients of its inputs, and what is then added up."""
        dx: list[Array | None] = []
        sums = []
        for i in op.inputs:
            target = self._gradients.get(i)
            if target is not None and i in begun:
                part = self._tensor(f"part{op.index}.", i)
                sums.append((target, part))
                dx.append(part)
            else:
                dx.append(target)
            begun.add(i)
        return tuple(dx), sums


def _by_suffix(
    params: tuple[Param, ...], place: Callable[[Param], int], flat: Array
) -> dict[str, Array]:
    """Shaped views of parameters or buffers, each of which begins at its ``place`` in ``flat``."""
    return {p.name.rpartition(".")[2]: flat[place(p) :][: p.size].reshape(p.shape) for p in params}
