"""Convolutions: forward, gradients of weights and bias (in partial sums), of the input."""

from __future__ import annotations

from client.backends.opencl.launch import Define, Memory, Symbol
from client.backends.opencl.lower import conv1d, depthwise, flat, interleaved, partial
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import InputGrad, Lowering
from client.backends.opencl.lower.partial import choice
from client.backends.opencl.tiles import Tile

ZERO_MARGIN = 64
"""As in conv.cl: zeros before column 0 of the row of zeros, and as many after its end."""


MOST_ACROSS = 8
"""Taps of a kernel's row whose gradients one work-item sums: a longer row is several items'."""


def forward(node: Node, low: Lowering) -> None:
    """y = conv(x, w) + b, perhaps with a ReLU."""
    rows, images = conv1d.rows_of(node, low), depthwise.images_of(node, low)
    if rows is not None:
        along = interleaved if interleaved.along_batch(rows, low) else conv1d
        along.forward(node, low, rows)
        return
    if images is not None and images.width < low.target.vector:
        depthwise.forward(node, low, images)
        return
    flattened = flat.chosen(node, low)
    if flattened is not None:
        flat.forward(node, low, flattened)
        return
    args, defines = partial.forward_operands(node, low)
    shape = partial.shape(node, low)
    groups, channels, height = int(shape["GROUPS"]), int(shape["OG"]), int(shape["OH"])
    columns = -(-int(shape["OW"]) // low.target.vector)
    t = _tile("conv_forward", shape, channels, height, low)
    low.zeros = max(low.zeros, int(shape["W"]) + 2 * ZERO_MARGIN)
    low.launch(
        node,
        "conv",
        "conv_forward",
        [*args, Memory.ZEROS, int(shape["W"]), Symbol.COUNT],
        lambda count: (columns * -(-height // t.columns), groups * -(-channels // t.rows), count),
        partial.local(low),
        backward=False,
        defines={
            **shape,
            "PASS": 0,
            "TC": t.rows,
            "TR": t.columns,
            **defines,
        },
        variant=f"direct {t}",
        choice=t.choice,
    )


def backward(node: Node, low: Lowering) -> None:
    """dw and db, then dx."""
    if node.op.trained:
        _weight_grad(node, low)
    dx = low.input_grad(node, over_gate=True)
    if dx is not None:
        _input_grad(node, low, dx)


def _weight_grad(node: Node, low: Lowering) -> None:
    rows, images = conv1d.rows_of(node, low), depthwise.images_of(node, low)
    flattened = flat.chosen(node, low)
    if interleaved.along_channels(node, low):
        interleaved.weight_grad(node, low)
    elif rows is not None:
        conv1d.weight_grad(node, low, rows)
    elif images is not None:
        depthwise.weight_grad(node, low, images)
    elif flattened is not None and flattened.vectors(low.target.vector) <= flat.MOST_VECTORS:
        flat.weight_grad(node, low, flattened)
    else:
        _direct_weight_grad(node, low)


def _input_grad(node: Node, low: Lowering, dx: InputGrad) -> None:
    rows, images = conv1d.rows_of(node, low), depthwise.images_of(node, low)
    flattened = flat.of_node(node, low)
    if rows is not None and rows.stride == 1:
        along = interleaved if interleaved.along_batch(rows.turned, low) else conv1d
        along.input_grad(node, low, rows, dx)
    elif rows is None and images is not None and images.width < low.target.vector:
        depthwise.input_grad(node, low, images, dx)
    elif flattened is not None and flattened.halves(low.target.vector):
        flat.halved_input_grad(node, low, flattened, dx)
    elif flattened is not None and flattened.stride == 1 and flattened.fills(low.target.vector):
        flat.input_grad(node, low, flattened, dx)
    else:
        _direct_input_grad(node, low, dx)


def _direct_weight_grad(node: Node, low: Lowering) -> None:
    shape = partial.shape(node, low)
    outputs, inputs, rows, taps = (int(shape[k]) for k in ("OG", "CG", "KH", "KW"))
    across = min(taps, MOST_ACROSS)  # taps of a row in one work-item
    sums = max(1, low.target.accumulators // across)
    t = low.tile(choice("conv_wgrad", shape), outputs, inputs, sums, row_load=1 / across)
    columns = rows * -(-taps // across) * -(-inputs // t.columns)
    partial.weight_grad(
        node,
        low,
        "conv",
        widths=(int(shape["W"]), int(shape["OW"])),
        blocks=(columns, int(shape["GROUPS"]) * -(-outputs // t.rows)),
        terms=int(shape["OH"]) * -(-int(shape["OW"]) // low.target.vector),
        defines={**shape, "PASS": 2, "TO": t.rows, "TC": t.columns, "TV": across},
        variant=f"direct {t}x{across}",
        choice=t.choice,
    )


def _direct_input_grad(node: Node, low: Lowering, dx: InputGrad) -> None:
    args, defines = partial.input_grad_operands(node, low, dx)
    shape = partial.shape(node, low)
    groups, channels, height = int(shape["GROUPS"]), int(shape["CG"]), int(shape["H"])
    columns = -(-int(shape["W"]) // low.target.vector)
    t = _tile("conv_dgrad", shape, channels, height, low)
    low.zeros = max(low.zeros, int(shape["OW"]) + 2 * ZERO_MARGIN)
    low.launch(
        node,
        "conv",
        "conv_dgrad",
        [*args, Memory.ZEROS, int(shape["OW"]), Symbol.COUNT],
        lambda count: (columns * -(-height // t.columns), groups * -(-channels // t.rows), count),
        partial.local(low),
        backward=True,
        defines={
            **shape,
            "PASS": 1,
            "TC": t.rows,
            "TR": t.columns,
            **defines,
        },
        variant=f"direct {t}",
        choice=t.choice,
    )


def _tile(kernel: str, shape: dict[str, Define], channels: int, rows: int, low: Lowering) -> Tile:
    """Channels x rows, in two thirds of the registers for sums: the others hold rows and masks."""
    sums = low.target.accumulators * 2 // 3
    return low.tile(choice(kernel, shape), channels, rows, sums, row_load=0.5)
