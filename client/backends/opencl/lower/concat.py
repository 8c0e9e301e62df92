"""Concat: each input's rows are copied into their part of the output's, and gradients back.

A row is what one example has; in the output the inputs' rows lie one after the other.
"""

from __future__ import annotations

from client.backends.opencl.launch import Slot, Symbol
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import Lowering


def forward(node: Node, low: Lowering) -> None:
    """y's channels are those of all inputs, perhaps with a ReLU."""
    y = low.value(node.output)
    for x, begin in _parts(node, low):
        _copy(node, low, x, low.value(x), y, (0, begin), backward=False, accumulate=False)


def backward(node: Node, low: Lowering) -> None:
    """Each input's gradient is its part of dy."""
    dy = low.grad(node.output)
    for x, begin in _parts(node, low):
        if x in low.graph.needs_grad:
            dx, accumulate = low.add_to_grad(x)
            _copy(node, low, x, dy, dx, (begin, 0), backward=True, accumulate=accumulate)


def _parts(node: Node, low: Lowering) -> list[tuple[int, int]]:
    """Each input and where it begins in a row of the output."""
    parts, begin = [], 0
    for x in node.inputs:
        parts.append((x, begin))
        begin += low.graph.elements(x)
    return parts


def _copy(
    node: Node,
    low: Lowering,
    part: int,
    source: Slot,
    target: Slot,
    begin: tuple[int, int],
    *,
    backward: bool,
    accumulate: bool,
) -> None:
    """The elements of ``part`` in each row, from one row's place ``begin`` to the other's."""
    elements, whole = low.graph.elements(part), low.graph.elements(node.output)
    rows = (whole, elements) if backward else (elements, whole)
    vectors = -(-elements // low.target.vector)
    relu = node.relu and not backward
    low.launch(
        node,
        "concat",
        "copy_rows",
        [source, target, *rows, *begin, elements, Symbol.COUNT],
        lambda count: (vectors, count),
        (low.target.group, 1),
        backward=backward,
        defines={"RELU": int(relu), "ACCUMULATE": int(accumulate)},
        busy="compute" if relu or accumulate else "copy",
    )
