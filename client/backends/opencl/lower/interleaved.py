"""Convolutions with vectors along the batch or along channels, on CPUs: where rows fill none.

A row of 10 places leaves 6 of 16 lanes idle, and taps that meet padding waste more of them. So the
operand that vectors are loaded from is packed first (interleave.cl), once for all that read it: a
small part of the convolution's work where each of its numbers is multiplied many times.
"""

from __future__ import annotations

from client.backends.opencl.launch import Arg, Define, Slot, Symbol
from client.backends.opencl.lower import partial
from client.backends.opencl.lower.conv1d import Rows
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import InputGrad, Lowering

LEAST_TERMS = 64
"""Products that each result sums up: with fewer, packing and storing by lanes would show."""

LEAST_OUTPUTS = 8
"""Results that each packed number goes into, of one tap."""

MOST_VECTORS = 4
"""Of an image of the output, where weights' gradients are summed along channels: with more of them,
masks and sums over lanes weigh little along rows."""

LEAST_VECTORS = 4
"""Of channels, at stride 1: in a narrow tile, numbers that are broadcast cost more than masks."""


def along_batch(rows: Rows, low: Lowering) -> bool:
    """Whether vectors along the batch have at least a third more lanes at work than along rows."""
    vector, taps = low.target.vector, range(rows.taps)
    met = sum(_places_met(rows, tap) for tap in taps)
    of_rows = met / (rows.taps * -(-rows.out_length // vector) * vector)
    of_batch = low.capacity / (-(-low.capacity // vector) * vector)
    worth = rows.inputs * rows.taps >= LEAST_TERMS and rows.outputs >= LEAST_OUTPUTS
    return low.target.kind == "cpu" and rows.taps > 1 and worth and 3 * of_batch >= 4 * of_rows


def along_channels(node: Node, low: Lowering) -> bool:
    """Whether gradients of weights are summed along channels.

    Where these fill vectors, and images are small: along their rows, vectors would be few, masked
    or shuffled, and their lanes to be summed after each few of them.
    """
    shape, vector = partial.shape(node, low), low.target.vector
    channels, places = int(shape["CG"]), int(shape["OH"]) * int(shape["OW"])
    vectors, taps = -(-channels // vector), int(shape["KH"]) * int(shape["KW"])
    fills = 4 * channels >= 3 * vectors * vector
    return (
        low.target.kind == "cpu"
        and shape["GROUPS"] == 1
        and fills
        and vectors * int(shape["SW"]) >= LEAST_VECTORS
        and places <= MOST_VECTORS * vector
        and (taps > 1 or places < vector)
    )


def forward(node: Node, low: Lowering, rows: Rows) -> None:
    """y = conv(x, w) + b, perhaps with a ReLU, vectors along the batch."""
    (x, *args), defines = partial.forward_operands(node, low)
    assert isinstance(x, Slot)
    _along_batch(node, low, rows, x, args, backward=False, defines=defines)


def input_grad(node: Node, low: Lowering, rows: Rows, dx: InputGrad) -> None:
    """dx, of a convolution of stride 1, vectors along the batch."""
    (dy, *args), defines = partial.input_grad_operands(node, low, dx)
    assert isinstance(dy, Slot)
    turned = {"TURNED": 1, **defines}
    _along_batch(node, low, rows.turned, dy, args, backward=True, defines=turned)


def weight_grad(node: Node, low: Lowering) -> None:
    """dw and db, vectors along the channels of the input."""
    shape = partial.shape(node, low)
    inputs, outputs, taps = int(shape["CG"]), int(shape["OG"]), int(shape["KH"]) * int(shape["KW"])
    places = int(shape["H"]) * int(shape["W"])
    vectors = -(-inputs // low.target.vector)
    packed = Slot(
        f"packed channels of {node.op.name}", _nbytes(vectors * low.capacity, places, low)
    )
    x = low.value(node.inputs[0])
    _pack(node, low, x, packed, vectors, places, [Symbol.COUNT, inputs, places], backward=True)
    sums = low.target.accumulators
    t = low.tile(partial.choice("conv_channels_wgrad", shape), outputs, vectors, sums, row_load=1.0)
    partial.weight_grad(
        node,
        low,
        "conv_channels",
        widths=(),
        blocks=(taps * -(-vectors // t.columns), -(-outputs // t.rows)),
        terms=int(shape["OH"]) * int(shape["OW"]),
        defines={**shape, "PASS": 2, "TO": t.rows, "TC": t.columns},
        variant=f"channels {t}",
        choice=t.choice,
        x=packed,
    )


def _along_batch(
    node: Node,
    low: Lowering,
    rows: Rows,
    x: Slot,
    args: list[Arg],
    *,
    backward: bool,
    defines: dict[str, Define],
) -> None:
    vectors = -(-low.capacity // low.target.vector)
    places = rows.groups * rows.inputs * rows.length
    packed = Slot(f"packed examples of {node.op.name}", _nbytes(vectors, places, low))
    _pack(node, low, x, packed, vectors, places, [1, Symbol.COUNT, places], backward=backward)
    choice = partial.choice(f"conv_batch{'_dgrad' if backward else ''}", rows.defines)
    t = low.tile(choice, rows.outputs, vectors, low.target.accumulators, row_load=0.25)
    blocks, vector = rows.groups * -(-rows.outputs // t.rows), low.target.vector
    low.launch(
        node,
        "conv_batch",
        "conv_batch",
        [packed, *args, Symbol.COUNT],
        lambda count: (rows.out_length, blocks, -(-count // (t.columns * vector))),
        partial.local(low),
        backward=backward,
        defines={**rows.defines, "TO": t.rows, "TV": t.columns, **defines},
        variant=f"batch {t}",
        choice=t.choice,
    )


def _pack(
    node: Node,
    low: Lowering,
    x: Slot,
    packed: Slot,
    blocks: int,
    columns: int,
    sizes: list[Arg],
    *,
    backward: bool,
) -> None:
    """Launch interleave.cl; ``sizes`` of it: matrices, rows, columns."""
    tiles = -(-columns // low.target.vector)
    matrices = low.capacity if sizes[0] is Symbol.COUNT else 1
    low.launch(
        node,
        "interleave",
        "interleave",
        [x, packed, *sizes],
        lambda count: (tiles, blocks, min(count, matrices)),
        partial.local(low),
        backward=backward,
        busy="copy",
    )


def _nbytes(vectors: int, columns: int, low: Lowering) -> int:
    return 4 * vectors * columns * low.target.vector


def _places_met(rows: Rows, tap: int) -> int:
    """Places of the output whose ``tap`` meets the input rather than padding."""
    at = tap * rows.dilation - rows.pad
    first = max(0, -(at // rows.stride))
    last = min(rows.out_length - 1, (rows.length - 1 - at) // rows.stride)
    return max(0, last - first + 1)
