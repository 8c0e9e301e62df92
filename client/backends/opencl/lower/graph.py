"""A segment's operations as the kernels see them: no Flatten, neighbours joined.

- Flatten writes nothing: its output is its input under another name.
- The sum that ends a residual block becomes the end of the kernel that writes one of its terms,
  where nothing else reads that term; the other term becomes a second input of that kernel.
- A ReLU whose input has no other reader becomes the end of the kernel that writes that input.
- A ReLU's backward becomes the end of the kernel that writes the gradient of its output, where
  that output has one reader only: the reader's kernel zeroes what the ReLU had zeroed (``gates``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from client.model.graph import Op, Segment
from client.model.layers import Add, Flatten, Layer, ReLU


@dataclass(frozen=True)
class Fusable:
    """What a family of kernels can take in: a ReLU after it; the gate of a ReLU before it.

    ``add``: a sum after it. ``own_gate``: its backward begins with the gate of its own ReLU.
    ``reads_output``: its backward reads what its forward wrote, which must not be overwritten.
    """

    relu: bool = False
    gate: bool = False
    add: bool = False
    own_gate: bool = False
    reads_output: bool = False


@dataclass
class Node:
    """An operation with the tensors it reads and writes (see the module's docstring).

    Inputs after the operation's own are added to its result.
    ``relu``: its kernel ends with a ReLU. ``gates``: its backward multiplies by the derivative of
    the ReLU that wrote its input. ``gated``: the gradient of its output comes multiplied so.
    """

    op: Op
    inputs: tuple[int, ...]
    output: int
    relu: bool = False
    gates: bool = False
    gated: bool = False


@dataclass(frozen=True)
class Graph:
    """Nodes in order; ``input`` and ``output`` are the tensors that enter and leave."""

    segment: Segment
    nodes: tuple[Node, ...]
    input: int
    output: int
    needs_grad: frozenset[int]
    read_again: frozenset[int]  # written by nodes whose backward reads their output

    def uses(self, tensor: int) -> int:
        """How often the segment's operations read a tensor."""
        return _uses(self.nodes, tensor)

    def elements(self, tensor: int) -> int:
        """Elements of a tensor for one example."""
        return prod(self.segment.model.tensors[tensor])

    def may_overwrite(self, tensor: int) -> bool:
        """Whether the one reader of a tensor may write its result in the tensor's place.

        No backward reads what a node wrote, except a ReLU's sign, which ReLU and Dropout keep
        wherever the gradient is not zero, and recurrent layers their state. The segment's input
        stays for another forward.
        """
        return tensor not in (self.input, *self.read_again) and self.uses(tensor) == 1


def build_graph(segment: Segment, fusable: Mapping[type[Layer], Fusable]) -> Graph:
    """The graph of a segment; ``fusable`` says what the kernels of a layer can take in."""
    same_as: dict[int, int] = {}
    nodes: list[Node] = []
    for op in segment.ops:
        inputs = tuple(same_as.get(t, t) for t in op.inputs)
        if isinstance(op.layer, Flatten):
            same_as[op.output] = inputs[0]
        else:
            nodes.append(Node(op, inputs, op.output))
    _join_sums(nodes, fusable)
    _join_relus(nodes, fusable)
    _join_gates(nodes, fusable)
    first = same_as.get(segment.input, segment.input)
    last = same_as.get(segment.output, segment.output)
    needs_grad = {first} if segment.needs_input_grad else set()
    for node in nodes:
        if node.op.trained or needs_grad.intersection(node.inputs):
            needs_grad.add(node.output)
    read_again = {node.output for node in nodes if fusable[type(node.op.layer)].reads_output}
    return Graph(segment, tuple(nodes), first, last, frozenset(needs_grad), frozenset(read_again))


def _uses(nodes: Sequence[Node], tensor: int) -> int:
    return sum(node.inputs.count(tensor) for node in nodes)


def _writer(nodes: Sequence[Node], tensor: int) -> Node | None:
    return next((node for node in nodes if node.output == tensor), None)


def _join_sums(nodes: list[Node], fusable: Mapping[type[Layer], Fusable]) -> None:
    for node in list(nodes):
        if not isinstance(node.op.layer, Add):
            continue
        for term, other in (node.inputs, node.inputs[::-1]):
            before = _writer(nodes, term)
            if (
                before is not None
                and fusable[type(before.op.layer)].add
                and len(before.inputs) == 1
                and _uses(nodes, term) == 1
            ):
                before.inputs, before.output = (*before.inputs, other), node.output
                nodes.remove(before)
                nodes[nodes.index(node)] = before  # the other term may be written in between
                break


def _join_relus(nodes: list[Node], fusable: Mapping[type[Layer], Fusable]) -> None:
    for node in list(nodes):
        if not isinstance(node.op.layer, ReLU):
            continue
        before = _writer(nodes, node.inputs[0])
        if (
            before is not None
            and fusable[type(before.op.layer)].relu
            and not before.relu
            and _uses(nodes, node.inputs[0]) == 1
        ):
            before.relu, before.output = True, node.output
            nodes.remove(node)


def _join_gates(nodes: list[Node], fusable: Mapping[type[Layer], Fusable]) -> None:
    for node in nodes:
        if not fusable[type(node.op.layer)].gate:
            continue
        before = _writer(nodes, node.inputs[0])
        if before is None or _uses(nodes, node.inputs[0]) > 1:
            continue
        alone = isinstance(before.op.layer, ReLU) and _uses(nodes, before.inputs[0]) == 1
        if before.relu or alone:
            node.gates = before.gated = True
