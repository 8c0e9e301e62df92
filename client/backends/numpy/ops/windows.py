"""Windows over images (C, H, W, N): padding, what lies below each place of a kernel, columns.

Sequences (C, L, N) are images of height 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from numpy.lib.stride_tricks import as_strided

from client.backends.numpy.ops.function import Array
from client.model.layers import Shape, Window

Pair = tuple[int, int]

COLUMNS = 1 << 18
"""Numbers in a piece of columns: it is multiplied while it lies in the cache."""


def as_image(x: Array, dims: int) -> Array:
    """(C, H, W, N) of an array with that many axes between channels and batch."""
    return x[:, None] if dims == 1 else x


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


def padded_shape(shape: Shape, pads: tuple[int, int, int, int]) -> Shape:
    """Of an image (C, H, W, N) with its border."""
    top, bottom, left, right = pads
    return (shape[0], top + shape[1] + bottom, left + shape[2] + right, shape[3])


def below_kernel(x: Array, window: Window, output: Pair) -> list[Array]:
    """For each place (i, j) of the kernel, row by row, the view of ``x`` that it meets.

    Each view is (C, OH, OW, N): element (c, u, v, n) is
    ``x[c, u*stride + i*dilation, v*stride + j*dilation, n]``.
    """
    (dh, dw), (sh, sw) = window.dilation, window.stride
    views = []
    for i in range(window.kernel[0]):
        for j in range(window.kernel[1]):
            top, left = i * dh, j * dw
            rows = slice(top, top + sh * (output[0] - 1) + 1, sh)
            columns = slice(left, left + sw * (output[1] - 1) + 1, sw)
            views.append(x[:, rows, columns])
    return views


@dataclass(frozen=True)
class Piece:
    """A run of output rows (or, of a single row, of places) and its columns."""

    rows: slice
    places: slice
    windows: Array  # (C, KH, KW, rows, places, N), a view of the image
    copy: Array  # of the windows, as contiguous memory
    columns: Array  # the same memory, (G, C/G·KH·KW, rows·places·N)

    def of(self, y: Array, groups: int) -> Array:
        """The piece's part of an output (O, OH, OW, N), as (G, O/G, rows·places·N)."""
        part = y[:, self.rows, self.places]
        return part.reshape(groups, len(y) // groups, -1)


class Columns:
    """The columns of a convolution: column (u, v, n) holds what each weight meets there.

    They hold an image many times over (as often as a kernel has places), so that they are made
    piece by piece, each of about ``COLUMNS`` numbers. All pieces lie in the same memory; where the
    image itself has their form they are views of it.
    """

    def __init__(
        self,
        image: Array,
        window: Window,
        output: Pair,
        groups: int,
        memory: Callable[[str, Shape, Any], Array],
    ) -> None:
        channels, _, _, batch = image.shape
        (kh, kw), (oh, ow) = window.kernel, output
        (dh, dw), (sh, sw) = window.dilation, window.stride
        c, h, w, n = image.strides
        strides = (c, dh * h, dw * w, sh * h, sw * w, n)
        shape = (channels, kh, kw, oh, ow, batch)
        windows = as_strided(image, shape, strides, writeable=False)
        terms = channels // groups * window.taps
        if window.taps == 1 and window.stride == (1, 1):
            every = slice(0, oh), slice(0, ow)
            columns = image.reshape(groups, terms, -1)
            self.pieces = [Piece(*every, windows, windows, columns)]
            self.copied = False
            return
        self.copied = True
        total, length = prod(shape), oh if oh > 1 else ow
        smallest = total // length
        size = min(total, max(COLUMNS, smallest))
        flat = memory("columns", (size,), None)
        step = max(1, size // smallest)
        self.pieces = []
        for begin in range(0, length, step):
            run = slice(begin, min(begin + step, length))
            rows, places = (run, slice(0, ow)) if oh > 1 else (slice(0, 1), run)
            part = windows[:, :, :, rows, places]
            copy = flat[: part.size].reshape(part.shape)
            self.pieces.append(Piece(rows, places, part, copy, copy.reshape(groups, terms, -1)))

    def filled(self) -> Iterator[Piece]:
        """Each piece with its columns in place."""
        for piece in self.pieces:
            if self.copied:
                piece.copy[...] = piece.windows
            yield piece
