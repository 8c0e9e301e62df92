"""Layers that go element by element: ReLU, Dropout, and the sum that ends a residual block."""

from __future__ import annotations

from client.backends.opencl.launch import Arg, Define, Memory, PerCount, Slot, Symbol, UInt
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import InputGrad, Lowering
from client.model.layers import Dropout


def relu_forward(node: Node, low: Lowering) -> None:
    """y = max(x, 0), in place where it may be."""
    x = low.value(node.inputs[0])
    y = _output(node, low)
    low.launch(
        node,
        "activation",
        "relu_forward",
        [x, y, PerCount(low.graph.elements(node.output))],
        low.vectors(node.output),
        (low.target.group,),
        backward=False,
    )


def relu_backward(node: Node, low: Lowering) -> None:
    """dx = dy where y is positive; nothing is left to do where the reader's kernel gates."""
    dx = low.input_grad(node, in_place=True)
    if dx is not None and not node.gated:
        _gate(node, low, dx)


def joined_relu_backward(node: Node, low: Lowering) -> None:
    """The gradient through a ReLU that the forward of ``node`` ends with, in place."""
    _gate(node, low, InputGrad(low.grad(node.output)))


def _gate(node: Node, low: Lowering, dx: InputGrad) -> None:
    low.launch(
        node,
        "activation",
        "relu_backward",
        [
            low.value(node.output),
            low.grad(node.output),
            dx.slot,
            PerCount(low.graph.elements(node.output)),
        ],
        low.vectors(node.output),
        (low.target.group,),
        backward=True,
        defines={"ACCUMULATE": int(dx.accumulate)},
        flops=low.graph.elements(node.output),  # of the ReLU, whatever layer it is joined to
    )


def add_forward(node: Node, low: Lowering) -> None:
    """y = a + b, perhaps with a ReLU."""
    low.launch(
        node,
        "activation",
        "add",
        [
            low.value(node.inputs[0]),
            low.value(node.inputs[1]),
            low.value(node.output),
            PerCount(low.graph.elements(node.output)),
        ],
        low.vectors(node.output),
        (low.target.group,),
        backward=False,
        defines={"RELU": int(node.relu)},
    )


def add_backward(node: Node, low: Lowering) -> None:
    """da = db = dy: one of them may lie where dy does, the other is a copy or is added to."""
    dy = low.grad(node.output)
    passed = False
    copies = []
    for x in node.inputs:
        if x not in low.graph.needs_grad:
            continue
        if not passed and low.pass_grad(node.output, x):
            passed = True
        else:
            copies.append(x)
    for x in copies:
        dx, accumulate = low.add_to_grad(x)
        low.launch(
            node,
            "activation",
            "copy",
            [dy, dx, PerCount(low.graph.elements(x))],
            low.vectors(x),
            (low.target.group,),
            backward=True,
            defines={"ACCUMULATE": int(accumulate)},
            busy="compute" if accumulate else "copy",
        )


def dropout_forward(node: Node, low: Lowering) -> None:
    """Masked and scaled in training; in evaluation as it is."""
    x = low.value(node.inputs[0])
    y = _output(node, low)
    _dropout(node, low, [x, y], backward=False, defines={"GATE": 0, "ACCUMULATE": 0})
    if y is not x:
        low.launch(
            node,
            "activation",
            "copy",
            [x, y, PerCount(low.graph.elements(node.output))],
            low.vectors(node.output),
            (low.target.group,),
            backward=False,
            busy="copy",
            mode="evaluation",
        )


def dropout_backward(node: Node, low: Lowering) -> None:
    """dx = the same mask and scale on dy; the mask is computed again."""
    dx = low.input_grad(node, in_place=True)
    if dx is not None:
        tensors: list[Arg] = [low.grad(node.output), *dx.gate, dx.slot]
        _dropout(node, low, tensors, backward=True, defines=dx.defines)


def _dropout(
    node: Node, low: Lowering, tensors: list[Arg], *, backward: bool, defines: dict[str, Define]
) -> None:
    layer = node.op.layer
    assert isinstance(layer, Dropout)
    elements = low.graph.elements(node.output)
    low.launch(
        node,
        "dropout",
        "dropout",
        [
            *tensors,
            Memory.EXAMPLES,
            Memory.DROPOUT_KEY,
            UInt(node.op.index),
            UInt(int(layer.p * 2**32)),
            1 / (1 - layer.p),
            elements,
            Symbol.COUNT,
        ],
        lambda count: (-(-elements // 4), count),
        (low.target.group, 1),
        backward=backward,
        defines=defines,
        mode="always" if backward else "training",
    )


def _output(node: Node, low: Lowering) -> Slot:
    """Where the result goes: over the input where nothing else reads that."""
    if low.graph.may_overwrite(node.inputs[0]):
        return low.overwrite(node.inputs[0], node.output)
    return low.value(node.output)
