"""Depthwise convolutions at stride 1 whose output is as large as their input."""

from __future__ import annotations

from typing import NamedTuple

from client.backends.opencl.launch import Arg, Define, Symbol
from client.backends.opencl.lower import partial
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import InputGrad, Lowering
from client.model.layers import Conv

MOST_TAPS = 25
"""All taps of a kernel are written out in a row."""


class Images(NamedTuple):
    """A depthwise convolution, in depthwise.cl's words."""

    channels: int
    height: int
    width: int
    kernel: tuple[int, int]
    dilation: tuple[int, int]
    top: int
    left: int

    @property
    def defines(self) -> dict[str, Define]:
        return {
            "C": self.channels, "H": self.height, "W": self.width,
            "KH": self.kernel[0], "KW": self.kernel[1],
            "DH": self.dilation[0], "DW": self.dilation[1], "PT": self.top, "PL": self.left,
        }  # fmt: skip

    @property
    def turned(self) -> Images:
        """What the gradient of the input is: a convolution of the output's."""
        reach = [d * (k - 1) for k, d in zip(self.kernel, self.dilation, strict=True)]
        return self._replace(top=reach[0] - self.top, left=reach[1] - self.left)

    def blocks(self, vector: int) -> tuple[int, int]:
        """Vectors of an image; channels, several together where they share a vector."""
        area = self.height * self.width
        shared = vector // area if area < vector and vector % area == 0 else 1
        return -(-area // vector), -(-self.channels // shared)


def images_of(node: Node, low: Lowering) -> Images | None:
    """A node's convolution as one of these, or None where it is none."""
    layer = node.op.layer
    assert isinstance(layer, Conv)
    x = low.graph.segment.model.tensors[node.op.inputs[0]]
    (channels, h, w), window = layer.image(x), layer.window(x)
    fits = (
        layer.groups == channels == layer.out_channels
        and window.stride == (1, 1)
        and window.output(h, w) == (h, w)
        and window.taps <= MOST_TAPS
    )
    if not fits:
        return None
    return Images(channels, h, w, window.kernel, window.dilation, window.pads[0], window.pads[2])


def forward(node: Node, low: Lowering, images: Images) -> None:
    """y = conv(x, w) + b, perhaps with a ReLU."""
    args, defines = partial.forward_operands(node, low)
    _launch(node, low, images, args, backward=False, defines=defines)


def weight_grad(node: Node, low: Lowering, images: Images) -> None:
    """dw and db."""
    vectors, channels = images.blocks(low.target.vector)
    partial.weight_grad(
        node,
        low,
        "depthwise",
        widths=(images.width, images.height),
        blocks=(channels, 1),
        terms=vectors,
        defines={**images.defines, "PASS": 2},
        variant="depthwise",
    )


def input_grad(node: Node, low: Lowering, images: Images, dx: InputGrad) -> None:
    """dx."""
    args, defines = partial.input_grad_operands(node, low, dx)
    _launch(node, low, images.turned, args, backward=True, defines={"TURNED": 1, **defines})


def _launch(
    node: Node,
    low: Lowering,
    images: Images,
    args: list[Arg],
    *,
    backward: bool,
    defines: dict[str, Define],
) -> None:
    vectors, channels = images.blocks(low.target.vector)
    splits = min(low.capacity, max(1, -(-low.target.busy // (vectors * channels))))
    examples = -(-low.capacity // splits)
    low.launch(
        node,
        "depthwise",
        "depthwise",
        [*args, images.width, images.height, Symbol.COUNT],
        lambda count: (vectors, channels, -(-count // examples)),
        partial.local(low),
        backward=backward,
        defines={**images.defines, "PASS": 0, "SPLIT": examples, **defines},
        variant=f"depthwise, {splits} splits",
    )
