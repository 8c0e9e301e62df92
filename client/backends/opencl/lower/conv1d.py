"""Convolutions along rows: of sequences, and 1x1 at stride 1, where an image is one row.

1x1 convolutions of images that are smaller than a vector have kernels of their own, in which a
vector holds several examples.
"""

from __future__ import annotations

from typing import NamedTuple

from client.backends.opencl.launch import Arg, Define, Symbol
from client.backends.opencl.lower import partial
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import InputGrad, Lowering
from client.model.layers import Conv


class Rows(NamedTuple):
    """A convolution along rows, in conv1d.cl's words; channels are those of a group."""

    groups: int
    inputs: int
    outputs: int
    length: int
    out_length: int
    taps: int
    stride: int = 1
    dilation: int = 1
    pad: int = 0

    @property
    def defines(self) -> dict[str, Define]:
        return {
            "GROUPS": self.groups, "CI": self.inputs, "CO": self.outputs,
            "L": self.length, "OL": self.out_length,
            "K": self.taps, "S": self.stride, "D": self.dilation, "P": self.pad,
        }  # fmt: skip

    def shared(self, vector: int) -> int:
        """Examples that lie in one vector, where images are that small; else 0."""
        small = self.taps == 1 and self.length < vector and vector % self.length == 0
        plain = self.length == self.out_length and not self.pad
        return vector // self.length if small and plain else 0

    @property
    def turned(self) -> Rows:
        """What the gradient of the input is, at stride 1: a convolution of the output's."""
        pad = self.dilation * (self.taps - 1) - self.pad
        return Rows(
            self.groups, self.outputs, self.inputs, self.out_length, self.length,
            self.taps, 1, self.dilation, pad,
        )  # fmt: skip


def rows_of(node: Node, low: Lowering) -> Rows | None:
    """A node's convolution as one along rows, or None where it is none."""
    layer = node.op.layer
    assert isinstance(layer, Conv)
    x = low.graph.segment.model.tensors[node.op.inputs[0]]
    (channels, h, w), window = layer.image(x), layer.window(x)
    oh, ow = window.output(h, w)
    groups = layer.groups, channels // layer.groups, layer.out_channels // layer.groups
    if window.taps == 1 and window.stride == (1, 1) and not any(window.pads):
        return Rows(*groups, h * w, oh * ow, 1)
    if h == window.kernel[0] == oh == 1 and not any(window.pads[:2]):
        return Rows(
            *groups, w, ow, window.kernel[1], window.stride[1], window.dilation[1], window.pads[2]
        )
    return None


def forward(node: Node, low: Lowering, rows: Rows) -> None:
    """y = conv(x, w) + b, perhaps with a ReLU."""
    args, defines = partial.forward_operands(node, low)
    _launch(node, low, rows, args, backward=False, defines=defines)


def weight_grad(node: Node, low: Lowering, rows: Rows) -> None:
    """dw and db."""
    terms = rows.inputs * rows.taps
    sums, shared = low.target.accumulators, rows.shared(low.target.vector)
    source = "conv1x1" if shared else "conv1d"
    choice = partial.choice(f"{source}_wgrad", rows.defines)
    t = low.tile(choice, rows.outputs, terms, sums, row_load=1.0)
    partial.weight_grad(
        node,
        low,
        source,
        widths=(rows.length, rows.out_length),
        blocks=(-(-terms // t.columns), rows.groups * -(-rows.outputs // t.rows)),
        terms=1 if shared else -(-rows.out_length // low.target.vector),
        defines={**rows.defines, "PASS": 2, "TO": t.rows, "TERMS": t.columns},
        variant=f"rows {t}",
        choice=t.choice,
    )


def input_grad(node: Node, low: Lowering, rows: Rows, dx: InputGrad) -> None:
    """dx, of a convolution of stride 1."""
    args, defines = partial.input_grad_operands(node, low, dx)
    _launch(node, low, rows.turned, args, backward=True, defines={"TURNED": 1, **defines})


def _launch(
    node: Node,
    low: Lowering,
    rows: Rows,
    args: list[Arg],
    *,
    backward: bool,
    defines: dict[str, Define],
) -> None:
    sums, shared = low.target.accumulators, rows.shared(low.target.vector)
    source = "conv1x1" if shared else "conv1d"
    vectors = -(-low.capacity // shared) if shared else -(-rows.out_length // low.target.vector)
    choice = partial.choice(f"{source}{'_dgrad' if backward else ''}", rows.defines)
    t = low.tile(choice, rows.outputs, vectors, sums, row_load=0.25)
    tiles, blocks = -(-vectors // t.columns), rows.groups * -(-rows.outputs // t.rows)
    examples = t.columns * shared
    low.launch(
        node,
        source,
        source,
        [*args, Symbol.COUNT] if shared else [*args, rows.length, Symbol.COUNT],
        (lambda count: (blocks, -(-count // examples), 1))
        if shared
        else (lambda count: (tiles, blocks, count)),
        partial.local(low),
        backward=backward,
        defines={**rows.defines, "PASS": 0, "TO": t.rows, "TV": t.columns, **defines},
        variant=f"rows {t}",
        choice=t.choice,
    )
