"""Activations other than ReLU: one pair of kernels, built for each function."""

from __future__ import annotations

from client.backends.opencl.launch import Arg, Define, PerCount
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import Lowering
from client.model.layers import (
    GELU,
    Hardswish,
    LeakyReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Tanh,
)

LAYERS = (ReLU6, LeakyReLU, GELU, SiLU, Hardswish, Sigmoid, Tanh)
"""Each has its value and its slope in nonlinear.cl, under the layer's kind."""


def forward(node: Node, low: Lowering) -> None:
    """y = f(x), beside x, which the backward pass reads."""
    x, y = low.value(node.inputs[0]), low.value(node.output)
    _launch(node, low, "nonlinear_forward", [x, y], backward=False, defines={})


def backward(node: Node, low: Lowering) -> None:
    """dx = dy · f'(x), in place where it may be."""
    dx = low.input_grad(node, in_place=True)
    if dx is None:
        return
    tensors: list[Arg] = [low.value(node.inputs[0]), low.grad(node.output), dx.slot]
    _launch(node, low, "nonlinear_backward", tensors, backward=True, defines=dx.defines)


def _launch(
    node: Node,
    low: Lowering,
    kernel: str,
    tensors: list[Arg],
    *,
    backward: bool,
    defines: dict[str, Define],
) -> None:
    layer = node.op.layer
    setting = layer.negative_slope if isinstance(layer, LeakyReLU) else 0.0
    low.launch(
        node,
        "nonlinear",
        kernel,
        [*tensors, PerCount(low.graph.elements(node.output)), setting],
        low.vectors(node.output),
        (low.target.group,),
        backward=backward,
        defines={"VALUE": f"{layer.kind}_value", "SLOPE": f"{layer.kind}_slope", **defines},
    )
