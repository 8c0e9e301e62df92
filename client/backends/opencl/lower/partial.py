"""What the kernels of convolutions share: operands, sums over the whole batch in parts, names."""

from __future__ import annotations

from client.backends.opencl.launch import Arg, Define, Slot, Symbol
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import InputGrad, Lowering
from client.model.layers import Conv

MOST_TERMS = 2048
"""Numbers that a gradient of a weight adds up one after the other; longer sums round more."""


def forward_operands(node: Node, low: Lowering) -> tuple[list[Arg], dict[str, Define]]:
    """Of y = conv(x, w) + b, perhaps with a ReLU: x, w, b, y."""
    weight, *bias = node.op.params
    args: list[Arg] = [low.value(node.inputs[0]), low.param(weight)]
    args += [*(low.param(b) for b in bias), low.value(node.output)]
    return args, {"BIAS": len(bias), "RELU": int(node.relu)}


def input_grad_operands(
    node: Node, low: Lowering, dx: InputGrad
) -> tuple[list[Arg], dict[str, Define]]:
    """Of the gradient of the input: dy, w, perhaps the gate, dx."""
    args: list[Arg] = [low.grad(node.output), low.param(node.op.params[0]), *dx.gate, dx.slot]
    return args, dx.defines


def weight_grad(
    node: Node,
    low: Lowering,
    source: str,
    *,
    widths: tuple[int, ...],
    blocks: tuple[int, int],
    terms: int,
    defines: dict[str, Define],
    variant: str,
    choice: str = "",
    x: Slot | None = None,
) -> None:
    """dw and db by the kernel ``<source>_wgrad``.

    A work-item adds up a block of weights over some examples (SPLIT of them), each of which has
    ``terms`` vectors for every weight. ``widths`` are the sizes that the kernel takes as arguments,
    mostly those of the input's rows and the output's. ``x``: the input as the kernel reads it,
    where that is not as it lies.
    """
    weight, *bias = node.op.params
    wanted = min(low.capacity, max(1, -(-low.target.busy // (blocks[0] * blocks[1]))))
    examples = min(-(-low.capacity // wanted), max(1, MOST_TERMS // terms))
    splits = -(-low.capacity // examples)
    size = weight.size + sum(b.size for b in bias)
    x, dy = x or low.value(node.inputs[0]), low.grad(node.output)
    low.sum_over_splits(
        node,
        source,
        f"{source}_wgrad",
        lambda partial: [x, dy, partial, *widths, Symbol.COUNT],
        (*blocks, splits),
        local(low),
        low.param_grad(weight),
        size,
        {**defines, "SPLIT": examples, "BIAS": len(bias)},
        variant=f"{variant}, {splits} splits",
        choice=choice,
    )


def shape(node: Node, low: Lowering) -> dict[str, Define]:
    """Sizes of a convolution, in the words of conv.cl; channels are those of a group."""
    layer = node.op.layer
    assert isinstance(layer, Conv)
    tensors = low.graph.segment.model.tensors
    x = tensors[node.op.inputs[0]]
    (c, h, w), window = layer.image(x), layer.window(x)
    (oh, ow), (top, _, left, _) = window.output(h, w), window.pads
    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.stride, window.dilation
    return {
        "GROUPS": layer.groups, "CG": c // layer.groups, "OG": layer.out_channels // layer.groups,
        "H": h, "W": w, "OH": oh, "OW": ow, "KH": kh, "KW": kw,
        "SH": sh, "SW": sw, "DH": dh, "DW": dw, "PT": top, "PL": left,
    }  # fmt: skip


def local(low: Lowering) -> tuple[int, int, int]:
    """Work-groups of convolutions, whose items are large."""
    return (*low.target.block(low.target.large_group), 1)


def choice(kernel: str, shape: dict[str, Define]) -> str:
    """Under which a kernel's tile for a shape is tuned."""
    return " ".join([kernel, *(f"{name}{value}" for name, value in shape.items())])
