"""Pooling: maximum, mean over windows, mean over the whole image."""

from __future__ import annotations

from client.backends.opencl.launch import Arg, Define, PerCount, Slot
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import Lowering
from client.model.layers import Windowed


def max_forward(node: Node, low: Lowering) -> None:
    """y = largest of each window; its place in the window is kept for the backward pass."""
    x, y = low.value(node.inputs[0]), low.value(node.output)
    _launch(node, low, "max_forward", [x, y, _places(node, low)], backward=False, defines={})


def max_backward(node: Node, low: Lowering) -> None:
    """dx = dy at the largest place of each window, else zero."""
    _backward(node, low, "max_backward", [low.grad(node.output), _places(node, low)])


def mean_forward(node: Node, low: Lowering) -> None:
    """y = mean of each window."""
    x, y = low.value(node.inputs[0]), low.value(node.output)
    _launch(node, low, "mean_forward", [x, y], backward=False, defines={})


def mean_backward(node: Node, low: Lowering) -> None:
    """dx = sum of dy over the windows it lies in, divided by their size."""
    _backward(node, low, "mean_backward", [low.grad(node.output)])


def _backward(node: Node, low: Lowering, kernel: str, reads: list[Slot]) -> None:
    dx = low.input_grad(node, over_gate=True)
    if dx is not None:
        args: list[Arg] = [*reads, *dx.gate, dx.slot]
        _launch(node, low, kernel, args, backward=True, defines=dx.defines)


def _places(node: Node, low: Lowering) -> Slot:
    return low.keep(node, "places", low.capacity * low.graph.elements(node.output))


def _launch(
    node: Node,
    low: Lowering,
    kernel: str,
    args: list[Arg],
    *,
    backward: bool,
    defines: dict[str, Define],
) -> None:
    layer, x = node.op.layer, low.graph.segment.model.tensors[node.op.inputs[0]]
    assert isinstance(layer, Windowed)
    (channels, h, w), window = layer.image(x), layer.window(x)
    (kh, kw), (sh, sw), (ph, _, pw, _) = window.kernel, window.stride, window.pads
    oh, ow = window.output(h, w)
    rows, columns = (h, w) if backward else (oh, ow)
    vector = _vector(columns, low.target.vector)
    vectors = -(-columns // vector)
    low.launch(
        node,
        "pool",
        kernel,
        [*args, PerCount(channels), h, w, oh, ow],
        lambda count: (rows * vectors, count * channels),
        low.target.block(low.target.group),
        backward=backward,
        defines={
            "KH": kh, "KW": kw, "SH": sh, "SW": sw, "PH": ph, "PW": pw, "VW": vector,
            **defines,
        },
    )  # fmt: skip


def _vector(columns: int, most: int) -> int:
    """Floats in a vector: the fewest that hold a row, as lanes beyond its end cost no less."""
    vector = 1
    while vector < min(columns, most):
        vector *= 2
    return vector
