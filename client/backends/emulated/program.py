"""A segment's program on an emulated device: each method is a command on the device's timeline."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from client.backends.base import DeviceData, Program
from client.backends.emulated.data import EmulatedData
from client.backends.emulated.reference import Compute, References
from client.backends.emulated.sampling import SampledStep
from client.backends.emulated.schedule import Span
from client.backends.figures import Command, Metrics, Part
from client.backends.recipe import Hyper
from client.backends.state import State
from client.model.graph import Float32Array

if TYPE_CHECKING:
    from client.backends.emulated.device import EmulatedDevice

KEY_NBYTES = 8
"""The dropout key goes up with each epoch's order."""

METRICS_NBYTES = 12
"""Loss, right answers, weight."""


class EmulatedProgram(Program):
    """See ``Program``. A step is one command, so that little is handed over; not a timed one."""

    def __init__(self, device: EmulatedDevice, inner: Program) -> None:
        self.segment, self.capacity = inner.segment, inner.capacity
        self.recipe, self.usage = inner.recipe, inner.usage
        self._device, self._inner = device, inner
        self._references = References(prepares=device.inner.has_queue)
        self._data: EmulatedData | None = None
        self._order: NDArray[np.int32] = np.empty(0, np.int32)
        self._batch = 0  # the epoch's
        self._between_slices = False
        self._next_sample: SampledStep | None = None
        self._sample: SampledStep | None = None

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes

    # -- a round ---------------------------------------------------------------------------
    def upload(self, params: Float32Array) -> None:
        self._wait(lambda: self._inner.upload(params), up=params.size)

    def download(self) -> Float32Array:
        values: Float32Array = self._wait(self._inner.download, down=self.segment.num_values)
        return values

    def put_values(self, values: Float32Array) -> None:
        self._wait(lambda: self._inner.put_values(values), up=values.size)
        self._end_sample()

    def read_state(self) -> State:
        state: State = self._wait(self._inner.read_state)
        self._wait(_nothing, down=state.values.size + state.slots.size)
        return state

    def write_state(self, state: State) -> None:
        up = state.values.size + state.slots.size
        self._wait(lambda: self._inner.write_state(state), up=up)

    # -- an epoch --------------------------------------------------------------------------
    def begin_epoch(
        self, data: DeviceData, order: NDArray[np.int32], batch: int, dropout_key: int
    ) -> None:
        if not isinstance(data, EmulatedData):
            raise TypeError("the data set was loaded by another backend")
        self._check_batch(batch)
        self._check_order(order, data.num_examples)
        data.check(self.segment.model, self.recipe.loss)
        order = np.array(order, np.int32)
        self._data, self._order, self._batch = data, order, batch
        self._between_slices, self._sample = False, None
        up_nbytes = order.nbytes + KEY_NBYTES
        begin, inner_data = self._inner.begin_epoch, data.inner
        self._device.enqueue(lambda: begin(inner_data, order, batch, dropout_key), up=up_nbytes)

    def read_metrics(self) -> Metrics:
        metrics: Metrics = self._wait(self._inner.read_metrics, down=METRICS_NBYTES // 4)
        return metrics

    # -- a step ----------------------------------------------------------------------------
    def step(self, start: int, count: int, hyper: Hyper) -> None:
        if self._next_sample is not None or count > self.capacity:
            super().step(start, count, hyper)
            return
        self._check_proximal(hyper)
        nbytes = self._gather_nbytes(start, count)
        self._between_slices, self._sample = False, None
        pieces = (_gather(count), _forward(count, True), _loss(count), _backward(count))
        compute = Compute(self._references, ("step", count), (*pieces, _update(hyper, None)))
        step = self._inner.step
        self._device.enqueue(lambda: step(start, count, hyper), compute, nbytes)

    def gather(self, start: int, count: int) -> None:
        nbytes = self._gather_nbytes(start, count)
        self._check_count(count)
        if not self._between_slices:
            self._sample, self._next_sample = self._next_sample, None
            if self._sample is not None:
                commands = self._sample.commands
                self._device.insert(lambda: self._inner.sample_next_step(commands))
        self._between_slices = False
        gather = self._inner.gather
        self._enqueue(lambda: gather(start, count), _gather(count), "gather", up=nbytes)

    def _gather_nbytes(self, start: int, count: int) -> int:
        self._check_gather(start, count, len(self._order), self._batch)
        assert self._data is not None
        return self._data.gather_nbytes(count) if self.segment.is_first else 0

    def forward(self, count: int, training: bool = True) -> None:
        self._check_count(count)
        forward = self._inner.forward
        self._enqueue(lambda: forward(count, training), _forward(count, training), "forward")

    def weight(self, start: int, count: int) -> float:
        if self._data is None:
            raise RuntimeError("weight before begin_epoch")
        return self.recipe.loss.weight(self._data.labels[self._order[start : start + count]])

    def loss(self, count: int, total: float | None = None) -> None:
        if not self.segment.is_last:
            raise ValueError("the loss belongs to the last segment")
        self._check_count(count)
        loss = self._inner.loss
        self._enqueue(lambda: loss(count, total), _loss(count), "loss")

    def backward(self, count: int) -> None:
        self._check_count(count)
        backward = self._inner.backward
        self._enqueue(lambda: backward(count), _backward(count), "backward")

    def accumulate(self, first: bool, last: bool) -> None:
        self._check_accumulates()
        accumulate = self._inner.accumulate
        key = ("accumulate", first, last)
        self._enqueue(lambda: accumulate(first, last), key, "backward")
        self._between_slices = not last

    def update(self, hyper: Hyper, norm: float | None = None) -> None:
        self._check_proximal(hyper)
        update = self._inner.update
        self._enqueue(lambda: update(hyper, norm), _update(hyper, norm), "update")
        self._end_sample()

    def grad_squares(self, hyper: Hyper) -> float:
        self._check_proximal(hyper)
        squares: float = self._wait(
            lambda: self._inner.grad_squares(hyper), "grad_squares", "update", down=1
        )
        return squares

    def _end_sample(self) -> None:
        """The step that was timed, if one was, is over."""
        if self._sample is not None:
            end, traffic = self._sample.end, self._device.traffic
            self._device.insert(lambda: end(traffic))
            self._sample = None

    def sample_next_step(self, commands: list[Command] | None = None) -> None:
        self._next_sample = SampledStep(commands, self._references)

    # -- boundaries and tests --------------------------------------------------------------
    def put_input(self, x: Float32Array) -> None:
        self._wait(lambda: self._inner.put_input(x), up=x.size)

    def take_output(self, count: int) -> Float32Array:
        self._check_count(count)
        size = count * prod(self.segment.model.tensors[self.segment.output])
        y: Float32Array = self._wait(lambda: self._inner.take_output(count), down=size)
        return y

    def put_output_grad(self, dy: Float32Array) -> None:
        self._wait(lambda: self._inner.put_output_grad(dy), up=dy.size)

    def take_input_grad(self, count: int) -> Float32Array:
        self._check_input_grad()
        self._check_count(count)
        size = count * prod(self.segment.model.tensors[self.segment.input])
        dx: Float32Array = self._wait(lambda: self._inner.take_input_grad(count), down=size)
        return dx

    def take_grads(self) -> Float32Array:
        grads: Float32Array = self._wait(self._inner.take_grads, down=self.segment.num_trained)
        return grads

    def add_grads(self, grads: Float32Array, *, replace: bool = False) -> None:
        self._wait(
            lambda: self._inner.add_grads(grads, replace=replace),
            ("add_grads", replace),
            "backward",
            up=grads.size,
        )

    def read_grads(self) -> Float32Array:
        grads: Float32Array = self._wait(self._inner.read_grads, down=self.segment.num_trained)
        return grads

    def poison(self) -> None:
        self._device.enqueue(self._inner.poison)

    def release(self) -> None:
        self._device.release(self, self._inner.release)
        self._data = None

    # -- commands --------------------------------------------------------------------------
    def _enqueue(self, work: Callable[[], Any], key: Hashable, part: Part, up: int = 0) -> None:
        """A command of a step; ``up``: bytes that pass the link before it."""
        self._device.enqueue(work, self._compute(key), up, self._told(part))

    def _wait(
        self,
        work: Callable[[], Any],
        key: Hashable = None,
        part: Part | None = None,
        up: int = 0,
        down: int = 0,
    ) -> Any:
        """A transfer, or with a ``key`` also a computation, which is waited for: its result.

        ``up`` and ``down``: float32 numbers that pass the link.
        """
        compute = None if key is None else self._compute(key)
        return self._device.call(work, compute, 4 * up, 4 * down, self._told(part))

    def _compute(self, key: Hashable) -> Compute:
        """A timed step takes longer, on a queue of its own: its commands are held against others
        of timed steps."""
        return Compute(self._references, (key, self._sample is not None), (key,))

    def _told(self, part: Part | None) -> Callable[[Span], None] | None:
        """Who is told when a command ran."""
        return None if self._sample is None else partial(self._sample.ran, part)


# -- keys: commands of a program with equal ones take as long ------------------------------------
def _gather(count: int) -> Hashable:
    return "gather", count


def _forward(count: int, training: bool) -> Hashable:
    return "forward", count, training


def _loss(count: int) -> Hashable:
    return "loss", count


def _backward(count: int) -> Hashable:
    return "backward", count


def _update(hyper: Hyper, norm: float | None) -> Hashable:
    return "update", hyper.clip_norm > 0, norm is None


def _nothing() -> None:
    """What is read is here already: only its way over the link is left."""
