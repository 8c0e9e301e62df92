"""Layers for sequences that have no state: embedding, last step, transposition."""

from __future__ import annotations

from client.backends.opencl.launch import PerCount, Slot, Symbol
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import Lowering
from client.model.graph import Param


def embedding_forward(node: Node, low: Lowering) -> None:
    """y = rows of the weights."""
    vocabulary, dim = node.op.params[0].shape
    steps = low.graph.elements(node.inputs[0])
    vectors = -(-dim // low.target.vector)
    low.launch(
        node,
        "sequence",
        "embedding_forward",
        [
            low.value(node.inputs[0]),
            low.param(node.op.params[0]),
            low.value(node.output),
            PerCount(steps),
            vocabulary,
            dim,
        ],
        lambda count: (vectors, count * steps),
        _local(low),
        backward=False,
    )


def embedding_backward(node: Node, low: Lowering) -> None:
    """dW: rows of dy summed up by token, in as many partial sums as keep the device busy."""
    weight: Param = node.op.params[0]
    vocabulary, dim = weight.shape
    steps = low.graph.elements(node.inputs[0])
    vector = low.target.vector
    vectors = -(-dim // vector)
    rows = low.capacity * steps
    wanted = max(1, low.target.busy // (vectors * vocabulary))
    split_rows = -(-rows // wanted)
    splits = -(-rows // split_rows)
    low.sum_over_splits(
        node,
        "sequence",
        "embedding_backward",
        lambda partial: [
            low.value(node.inputs[0]),
            low.grad(node.output),
            partial,
            PerCount(steps),
            vocabulary,
            dim,
            split_rows,
        ],
        (vectors, vocabulary, splits),
        (1, low.target.group, 1),
        low.param_grad(weight),
        weight.size,
        variant=f"{splits} splits",
    )


def last_step_forward(node: Node, low: Lowering) -> None:
    """y = the last row of each example."""
    steps, features = _matrix(node, low)
    vectors = -(-features // low.target.vector)
    x = low.value(node.inputs[0])
    low.launch(
        node,
        "sequence",
        "last_step_forward",
        [x, low.value(node.output), Symbol.COUNT, steps, features],
        lambda count: (vectors, count),
        _local(low),
        backward=False,
        busy="copy",
        parts={x: steps},
    )


def last_step_backward(node: Node, low: Lowering) -> None:
    """dx = dy at the last step, else zero."""
    dx = low.input_grad(node)
    if dx is None:
        return
    steps, features = _matrix(node, low)
    vectors = -(-features // low.target.vector)
    low.launch(
        node,
        "sequence",
        "last_step_backward",
        [low.grad(node.output), dx.slot, Symbol.COUNT, steps, features],
        lambda count: (vectors, steps, count),
        (*_local(low), 1),
        backward=True,
        defines={"ACCUMULATE": int(dx.accumulate)},
        busy="compute" if dx.accumulate else "copy",
    )


def transpose_forward(node: Node, low: Lowering) -> None:
    """y = xᵀ."""
    rows, columns = _matrix(node, low)
    x, y = low.value(node.inputs[0]), low.value(node.output)
    _transpose(node, low, x, y, rows, columns, backward=False, accumulate=False)


def transpose_backward(node: Node, low: Lowering) -> None:
    """dx = dyᵀ."""
    dx = low.input_grad(node)
    if dx is None:
        return
    rows, columns = _matrix(node, low)
    dy, to_add = low.grad(node.output), dx.accumulate
    _transpose(node, low, dy, dx.slot, columns, rows, backward=True, accumulate=to_add)


def _transpose(
    node: Node,
    low: Lowering,
    x: Slot,
    y: Slot,
    rows: int,
    columns: int,
    *,
    backward: bool,
    accumulate: bool,
) -> None:
    blocks = -(-rows // low.target.vector)
    low.launch(
        node,
        "sequence",
        "transpose",
        [x, y, Symbol.COUNT, rows, columns],
        lambda count: (columns, blocks, count),
        (low.target.group, 1, 1),
        backward=backward,
        defines={"ACCUMULATE": int(accumulate)},
        busy="compute" if accumulate else "copy",
    )


def _matrix(node: Node, low: Lowering) -> tuple[int, int]:
    rows, columns = low.graph.segment.model.tensors[node.op.inputs[0]]
    return rows, columns


def _local(low: Lowering) -> tuple[int, int]:
    """A row has few vectors; a group of small work-items takes in several rows."""
    return low.target.block(low.target.group)
