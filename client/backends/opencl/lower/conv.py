"""Convolutions: forward, gradients of weights and bias (in partial sums), of the input."""

from __future__ import annotations

from client.backends.opencl.launch import Define, Memory, Slot, Symbol
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import Lowering
from client.backends.opencl.tiles import Tile
from client.model.layers import Conv

ZERO_MARGIN = 64
"""As in conv.cl: zeros before column 0 of the row of zeros, and as many after its end."""


MOST_TERMS = 2048
"""Numbers that a gradient of a weight adds up one after the other; longer sums round more."""


def forward(node: Node, low: Lowering) -> None:
    """y = conv(x, w) + b, perhaps with a ReLU."""
    weight, *bias = node.op.params
    shape = _shape(node, low)
    groups, channels, height = int(shape["GROUPS"]), int(shape["OG"]), int(shape["OH"])
    columns = -(-int(shape["OW"]) // low.target.vector)
    t = _tile("conv_forward", shape, channels, height, low)
    low.zeros = max(low.zeros, int(shape["W"]) + 2 * ZERO_MARGIN)
    low.launch(
        node,
        "conv",
        "conv_forward",
        [
            low.value(node.inputs[0]),
            low.param(weight),
            *(low.param(b) for b in bias),
            low.value(node.output),
            Memory.ZEROS,
            int(shape["W"]),
            Symbol.COUNT,
        ],
        lambda count: (columns * -(-height // t.columns), groups * -(-channels // t.rows), count),
        _local(low),
        backward=False,
        defines={
            **shape,
            "PASS": 0,
            "TC": t.rows,
            "TR": t.columns,
            "BIAS": len(bias),
            "RELU": int(node.relu),
        },
        variant=f"direct {t}",
        choice=t.choice,
    )


def backward(node: Node, low: Lowering) -> None:
    """dw and db, then dx."""
    if node.op.trained:
        _weight_grad(node, low)
    if node.inputs[0] in low.graph.needs_grad:
        _input_grad(node, low)


def _weight_grad(node: Node, low: Lowering) -> None:
    weight, *bias = node.op.params
    shape = _shape(node, low)
    outputs, inputs, rows, taps = (int(shape[k]) for k in ("OG", "CG", "KH", "KW"))
    sums = max(1, low.target.accumulators // taps)
    t = low.tile(_choice("conv_wgrad", shape), outputs, inputs, sums, row_load=1 / taps)
    blocks = (rows * -(-inputs // t.columns), int(shape["GROUPS"]) * -(-outputs // t.rows))
    wanted = min(low.capacity, max(1, -(-low.target.busy // (blocks[0] * blocks[1]))))
    terms = int(shape["OH"]) * -(-int(shape["OW"]) // low.target.vector)
    images = min(-(-low.capacity // wanted), max(1, MOST_TERMS // terms))
    splits = -(-low.capacity // images)
    size = weight.size + sum(b.size for b in bias)
    partial = Slot(f"partial sums of {node.op.name}", splits * size * 4)
    low.launch(
        node,
        "conv",
        "conv_wgrad",
        [
            low.value(node.inputs[0]),
            low.grad(node.output),
            partial if splits > 1 else low.param_grad(weight),
            int(shape["W"]),
            int(shape["OW"]),
            Symbol.COUNT,
        ],
        lambda count: (*blocks, splits),
        _local(low),
        backward=True,
        defines={
            **shape,
            "PASS": 2,
            "TO": t.rows,
            "TC": t.columns,
            "SPLIT": images,
            "BIAS": len(bias),
        },
        variant=f"direct {t}x{taps}, {splits} splits",
        choice=t.choice,
    )
    if splits > 1:
        vectors = -(-size // low.target.vector)
        low.launch(
            node,
            "reduce",
            "sum_partials",
            [partial, low.param_grad(weight), splits, size],
            lambda count: (vectors,),
            (low.target.group,),
            backward=True,
            flops=0,  # the products are counted above
        )


def _input_grad(node: Node, low: Lowering) -> None:
    shape = _shape(node, low)
    groups, channels, height = int(shape["GROUPS"]), int(shape["CG"]), int(shape["H"])
    columns = -(-int(shape["W"]) // low.target.vector)
    t = _tile("conv_dgrad", shape, channels, height, low)
    low.zeros = max(low.zeros, int(shape["OW"]) + 2 * ZERO_MARGIN)
    dx, accumulate = low.add_to_grad(node.inputs[0])
    low.launch(
        node,
        "conv",
        "conv_dgrad",
        [
            low.grad(node.output),
            low.param(node.op.params[0]),
            *([low.value(node.inputs[0])] if node.gates else []),
            dx,
            Memory.ZEROS,
            int(shape["OW"]),
            Symbol.COUNT,
        ],
        lambda count: (columns * -(-height // t.columns), groups * -(-channels // t.rows), count),
        _local(low),
        backward=True,
        defines={
            **shape,
            "PASS": 1,
            "TC": t.rows,
            "TR": t.columns,
            "GATE": int(node.gates),
            "ACCUMULATE": int(accumulate),
        },
        variant=f"direct {t}",
        choice=t.choice,
    )


def _tile(kernel: str, shape: dict[str, Define], channels: int, rows: int, low: Lowering) -> Tile:
    """Channels x rows, in two thirds of the registers for sums: the others hold rows and masks."""
    sums = low.target.accumulators * 2 // 3
    return low.tile(_choice(kernel, shape), channels, rows, sums, row_load=0.5)


def _choice(kernel: str, shape: dict[str, Define]) -> str:
    return " ".join([kernel, *(f"{name}{value}" for name, value in shape.items())])


def _local(low: Lowering) -> tuple[int, int, int]:
    return (1, 1, 1) if low.target.kind == "cpu" else (8, low.target.group // 8, 1)


def _shape(node: Node, low: Lowering) -> dict[str, Define]:
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
