"""Windows over images (C, H, W, N): padding, and what lies below each place of a kernel."""

from __future__ import annotations

from client.backends.numpy.ops.function import Array

Pair = tuple[int, int]


class Padded:
    """An image with a border: ``array`` is (C, top+H+bottom, left+W+right, N).

    Without a border, ``array`` is the image itself and nothing is copied.
    """

    def __init__(self, array: Array, pads: tuple[int, int, int, int], value: float) -> None:
        top, bottom, left, right = pads
        height, width = array.shape[1] - top - bottom, array.shape[2] - left - right
        self.array = array
        self.inside = array[:, top : top + height, left : left + width]
        edges = (
            array[:, :top],
            array[:, top + height :],
            array[:, :, :left],
            array[:, :, left + width :],
        )
        self.edges = tuple(edge for edge in edges if edge.size)
        self.value = value

    def fill(self, x: Array) -> None:
        """Copy ``x`` inside and set the border to ``value``."""
        self.inside[...] = x
        for edge in self.edges:
            edge[...] = self.value


def below_kernel(x: Array, kernel: Pair, stride: Pair, dilation: Pair, output: Pair) -> list[Array]:
    """For each place (i, j) of the kernel, row by row, the view of ``x`` that it meets.

    Each view is (C, OH, OW, N): element (c, u, v, n) is
    ``x[c, u*stride + i*dilation, v*stride + j*dilation, n]``.
    """
    views = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + stride[0] * (output[0] - 1) + 1, stride[0])
            columns = slice(left, left + stride[1] * (output[1] - 1) + 1, stride[1])
            views.append(x[:, rows, columns])
    return views
