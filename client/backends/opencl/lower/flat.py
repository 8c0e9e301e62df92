"""Convolutions along images seen as one row: output as large as the input, or half as large.

These are taken where rows of the output, one after the other, would leave a third of the lanes of
vectors idle, or more.
"""

from __future__ import annotations

from typing import NamedTuple

from client.backends.opencl.launch import Arg, Define, Symbol
from client.backends.opencl.lower import partial
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import InputGrad, Lowering
from client.model.layers import Conv

MOST_TAPS = 25
"""All taps of a kernel are written out in a row."""

MOST_VECTORS = 4
"""Of an image, where weights' gradients are summed: they too are written out in a row."""


class Flat(NamedTuple):
    """A convolution, in conv_flat.cl's words; channels are those of a group."""

    groups: int
    inputs: int
    outputs: int
    image: tuple[int, int]
    output: tuple[int, int]
    kernel: tuple[int, int]
    stride: int
    dilation: tuple[int, int]
    top: int
    left: int

    @property
    def defines(self) -> dict[str, Define]:
        return {
            "GROUPS": self.groups, "CI": self.inputs, "CO": self.outputs,
            "H": self.image[0], "W": self.image[1], "OH": self.output[0], "OW": self.output[1],
            "KH": self.kernel[0], "KW": self.kernel[1], "S": self.stride,
            "DH": self.dilation[0], "DW": self.dilation[1], "PT": self.top, "PL": self.left,
        }  # fmt: skip

    @property
    def turned(self) -> Flat:
        """What the gradient of the input is, at stride 1: a convolution of the output's."""
        reach = [d * (k - 1) for k, d in zip(self.kernel, self.dilation, strict=True)]
        return self._replace(
            inputs=self.outputs,
            outputs=self.inputs,
            image=self.output,
            output=self.image,
            top=reach[0] - self.top,
            left=reach[1] - self.left,
        )

    def vectors(self, width: int) -> int:
        """Of ``width`` floats, of an image of the output."""
        return -(-self.output[0] * self.output[1] // width)

    def fills(self, width: int) -> bool:
        """Whether rows of the output, each by itself, take half as many vectors again or more."""
        return 3 * self.vectors(width) <= 2 * self.output[0] * -(-self.output[1] // width)

    def halves(self, width: int) -> bool:
        """Whether conv_halved.cl pays: it has much to sum, or stores whole vectors."""
        columns = self.output[1]
        whole = self.image[1] == 2 * columns and columns % max(1, width // 2) == 0
        return self.stride == 2 and self.dilation == (1, 1) and (self.outputs > 1 or whole)


def of_node(node: Node, low: Lowering) -> Flat | None:
    """A node's convolution as one of these, or None where it is none."""
    layer = node.op.layer
    assert isinstance(layer, Conv)
    x = low.graph.segment.model.tensors[node.op.inputs[0]]
    (channels, h, w), window = layer.image(x), layer.window(x)
    output, stride = window.output(h, w), window.stride[0]
    fits = (
        window.stride in ((1, 1), (2, 2))
        and output == (-(-h // stride), -(-w // stride))
        and window.taps <= MOST_TAPS
    )
    if not fits:
        return None
    return Flat(
        layer.groups, channels // layer.groups, layer.out_channels // layer.groups,
        (h, w), output, window.kernel, stride, window.dilation, window.pads[0], window.pads[2],
    )  # fmt: skip


def chosen(node: Node, low: Lowering) -> Flat | None:
    """The same where conv_flat.cl can compute it and leaves far fewer lanes idle than conv.cl."""
    flat, vector = of_node(node, low), low.target.vector
    if flat is None or not flat.fills(vector):
        return None
    return flat if flat.stride == 1 or flat.output[1] % max(1, vector // 2) == 0 else None


def forward(node: Node, low: Lowering, flat: Flat) -> None:
    """y = conv(x, w) + b, perhaps with a ReLU."""
    args, defines = partial.forward_operands(node, low)
    _launch(node, low, flat, args, backward=False, defines=defines)


def weight_grad(node: Node, low: Lowering, flat: Flat) -> None:
    """dw and db."""
    height, width = flat.image
    sums, groups = max(1, low.target.accumulators // flat.kernel[1]), flat.groups
    choice = partial.choice("conv_flat_wgrad", flat.defines)
    t = low.tile(choice, flat.outputs, flat.inputs, sums, row_load=1 / flat.kernel[1])
    partial.weight_grad(
        node,
        low,
        "conv_flat",
        widths=(width, height, flat.output[0] * flat.output[1]),
        blocks=(flat.kernel[0] * -(-flat.inputs // t.columns), groups * -(-flat.outputs // t.rows)),
        terms=flat.vectors(low.target.vector),
        defines={**flat.defines, "PASS": 2, "TO": t.rows, "TC": t.columns},
        variant=f"flat {t}x{flat.kernel[1]}",
        choice=t.choice,
    )


def input_grad(node: Node, low: Lowering, flat: Flat, dx: InputGrad) -> None:
    """dx, of a convolution of stride 1."""
    args, defines = partial.input_grad_operands(node, low, dx)
    _launch(node, low, flat.turned, args, backward=True, defines={"TURNED": 1, **defines})


def halved_input_grad(node: Node, low: Lowering, flat: Flat, dx: InputGrad) -> None:
    """dx, of a convolution of stride 2."""
    vectors = flat.vectors(low.target.vector)
    sums = max(1, low.target.accumulators * 2 // 3 // 4)  # four phases; the others hold places
    choice = partial.choice("conv_halved_dgrad", flat.defines)
    t = low.tile(choice, flat.inputs, vectors, sums, row_load=0.5, column_load=0.5)
    tiles, blocks = -(-vectors // t.columns), flat.groups * -(-flat.inputs // t.rows)
    args, defines = partial.input_grad_operands(node, low, dx)
    shape = {k: v for k, v in flat.defines.items() if k not in ("CI", "CO", "S", "DH", "DW")}
    low.launch(
        node,
        "conv_halved",
        "conv_halved_dgrad",
        [*args, flat.output[1], flat.output[0], Symbol.COUNT],
        lambda count: (tiles, blocks, count),
        partial.local(low),
        backward=True,
        defines={
            **shape,
            "CG": flat.inputs,
            "OG": flat.outputs,
            "TC": t.rows,
            "TV": t.columns,
            **defines,
        },
        variant=f"phases {t}",
        choice=t.choice,
    )


def _launch(
    node: Node,
    low: Lowering,
    flat: Flat,
    args: list[Arg],
    *,
    backward: bool,
    defines: dict[str, Define],
) -> None:
    vectors = flat.vectors(low.target.vector)
    choice = partial.choice(f"conv_flat{'_dgrad' if backward else ''}", flat.defines)
    t = low.tile(choice, flat.outputs, vectors, low.target.accumulators, row_load=0.25)
    tiles, blocks = -(-vectors // t.columns), flat.groups * -(-flat.outputs // t.rows)
    low.launch(
        node,
        "conv_flat",
        "conv_flat",
        [*args, flat.image[1], flat.image[0], Symbol.COUNT],
        lambda count: (tiles, blocks, count),
        partial.local(low),
        backward=backward,
        defines={**flat.defines, "PASS": 0, "TO": t.rows, "TV": t.columns, **defines},
        variant=f"flat {t}",
        choice=t.choice,
    )
