"""What the families of kernels share while a segment is lowered: tensors' places, launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from client.backends.opencl.launch import Arg, At, Define, Items, Launch, Memory, Slot
from client.backends.opencl.lower.graph import Graph, Node
from client.backends.opencl.tiles import Cover, Target, Tile
from client.model.graph import Param


@dataclass(frozen=True)
class InputGrad:
    """Where a kernel writes the gradient of a node's input, and how.

    ``accumulate``: it adds to what other readers of the input contributed before; ``gate``: the
    input, where the derivative of the ReLU that wrote it is multiplied in (see ``Node.gates``).
    """

    slot: Slot
    accumulate: bool = False
    gate: tuple[Slot, ...] = ()

    @property
    def defines(self) -> dict[str, Define]:
        """What kernels that write such a gradient are built with."""
        return {"GATE": len(self.gate), "ACCUMULATE": int(self.accumulate)}


@dataclass
class Lowering:
    """Launches of a segment for batches of up to ``capacity``, in order, as they are added."""

    graph: Graph
    capacity: int
    target: Target
    forward: list[Launch] = field(default_factory=list)
    backward: list[Launch] = field(default_factory=list)
    zeros: int = 0  # elements in the longest row of zeros that a kernel reads
    choices: dict[str, Cover] = field(default_factory=dict)  # of tiles, by name
    _kept: dict[tuple[int, str], Slot] = field(default_factory=dict)
    _values: dict[int, Slot] = field(default_factory=dict)
    _grads: dict[int, Slot] = field(default_factory=dict)

    # -- tensors -------------------------------------------------------------------------------
    def value(self, tensor: int) -> Slot:
        """Where a tensor lies."""
        if tensor not in self._values:
            self._values[tensor] = self.workspace(f"tensor {tensor}", self.graph.elements(tensor))
        return self._values[tensor]

    def overwrite(self, tensor: int, result: int) -> Slot:
        """Let ``result`` lie where ``tensor`` does."""
        self._values[result] = self.value(tensor)
        return self._values[result]

    def grad(self, tensor: int) -> Slot:
        """Where the gradient of a tensor lies."""
        if tensor not in self._grads:
            name = f"gradient of tensor {tensor}"
            self._grads[tensor] = self.workspace(name, self.graph.elements(tensor))
        return self._grads[tensor]

    def add_to_grad(self, tensor: int) -> tuple[Slot, bool]:
        """Where to write a contribution to a gradient, and whether to add to what is there.

        The readers of a tensor contribute one after the other, in reverse order of the forward.
        """
        there = tensor in self._grads
        return self.grad(tensor), there

    def input_grad(
        self, node: Node, *, in_place: bool = False, over_gate: bool = False
    ) -> InputGrad | None:
        """Where the gradient of a node's input goes; None where nobody needs it.

        ``in_place``: over the gradient of its output, if nothing else reads the input.
        ``over_gate``: over the input itself where that is a gate, for kernels that read each of its
        elements where they write the gradient, once, and are the last to read it.
        """
        x = node.inputs[0]
        if x not in self.graph.needs_grad:
            return None
        gate = (self.value(x),) if node.gates else ()
        if gate and over_gate:  # which has no other reader
            self._grads[x] = self.value(x)
            return InputGrad(self.grad(x), gate=gate)
        if in_place and self.pass_grad(node.output, x):
            return InputGrad(self.grad(x), gate=gate)
        return InputGrad(*self.add_to_grad(x), gate)

    def pass_grad(self, result: int, tensor: int) -> bool:
        """Let the gradient of ``tensor`` lie where that of ``result`` does, if nothing else reads.

        Returns False where the tensor has other readers: their contributions must be summed.
        """
        if self.graph.uses(tensor) != 1:
            return False
        self._grads[tensor] = self.grad(result)
        return True

    def workspace(self, name: str, row_elements: int) -> Slot:
        """A region for ``capacity`` rows."""
        return Slot(name, self.capacity * row_elements * 4)

    def keep(self, node: Node, name: str, elements: int) -> Slot:
        """A region that the forward of ``node`` writes and its backward reads, by its name."""
        key = (node.op.index, name)
        if key not in self._kept:
            self._kept[key] = Slot(f"{name} of {node.op.name}", 4 * elements)
        return self._kept[key]

    def param(self, param: Param) -> At:
        """Where a parameter or a buffer lies."""
        return At(Memory.PARAMS, self.graph.segment.place(param))

    def param_grad(self, param: Param) -> At:
        """Of a trained parameter."""
        return At(Memory.GRADS, self.graph.segment.grad_place(param))

    # -- variants ------------------------------------------------------------------------------
    def tile(
        self,
        choice: str,
        rows: int,
        columns: int,
        accumulators: int,
        *,
        row_load: float = 0.0,
        column_load: float = 1.0,
    ) -> Tile:
        """The tile tuned for a kernel at a shape, ``choice``, or else the one with least work."""
        cover = Cover(rows, columns, accumulators, row_load, column_load)
        self.choices[choice] = cover
        tuned = self.target.tiles.get(choice)
        return replace(cover.best if tuned is None else Tile(*tuned), choice=choice)

    # -- launches ------------------------------------------------------------------------------
    def launch(
        self,
        node: Node,
        source: str,
        kernel: str,
        args: Sequence[Arg],
        items: Items,
        local: tuple[int, ...],
        *,
        backward: bool,
        defines: dict[str, Define] | None = None,
        variant: str = "",
        choice: str = "",
        busy: Literal["compute", "copy"] = "compute",
        mode: Literal["always", "training", "evaluation"] = "always",
        flops: int | None = None,
        parts: Mapping[Slot, int] | None = None,
    ) -> None:
        """Append a launch to the forward or the backward pass.

        ``flops``: arithmetic for one example; by default that of the layer's forward pass, as each
        of its gradients has too, or none where the kernel only copies. ``parts`` as in Launch.
        """
        if flops is None:
            x = self.graph.segment.model.tensors[node.op.inputs[0]]
            flops = node.op.layer.flops(x) if busy == "compute" else 0
        every = {"VW": self.target.vector, **(defines or {})}
        launch = Launch(
            op=node.op.name,
            source=source,
            kernel=kernel,
            args=tuple(args),
            items=items,
            local=local,
            defines=tuple(sorted(every.items())),
            variant=variant,
            choice=choice,
            busy=busy,
            mode=mode,
            flops=flops,
            parts=tuple((parts or {}).items()),
        )
        (self.backward if backward else self.forward).append(launch)

    def sum_over_splits(
        self,
        node: Node,
        source: str,
        kernel: str,
        args: Callable[[Slot | At], Sequence[Arg]],
        items: tuple[int, ...],
        local: tuple[int, ...],
        result: At,
        size: int,
        defines: dict[str, Define] | None = None,
        variant: str = "",
        choice: str = "",
        flops: int | None = None,
    ) -> None:
        """Launches of a backward pass that add up a gradient of ``size`` elements in partial sums.

        The last of ``items`` numbers the splits, each of which writes ``size`` elements; ``args``
        are those of the kernel, given where it writes.
        """
        splits = items[-1]
        partial = Slot(f"partial sums of {node.op.name}", splits * size * 4)
        self.launch(
            node,
            source,
            kernel,
            args(partial if splits > 1 else result),
            lambda count: items,
            local,
            backward=True,
            defines=defines,
            variant=variant,
            choice=choice,
            flops=flops,
        )
        if splits > 1:
            vectors = -(-size // self.target.vector)
            self.launch(
                node,
                "reduce",
                "sum_partials",
                [partial, result, splits, size],
                lambda count: (vectors,),
                (self.target.group,),
                backward=True,
                flops=0,  # the kernel's are counted above
            )

    def vectors(self, tensor: int) -> Items:
        """Work-items of a kernel that goes over a tensor's elements by vectors."""
        elements, width = self.graph.elements(tensor), self.target.vector
        return lambda count: (-(-count * elements // width),)
