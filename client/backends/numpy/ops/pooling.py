"""Pooling: the largest or the mean of each window."""

from __future__ import annotations

import numpy as np

from client.backends.numpy.ops.function import Array, Function, Run, Tensors
from client.backends.numpy.ops.windows import Padded, as_image, below_kernel, padded_shape
from client.model import layers
from client.model.graph import Op


class _Pool(Function):
    """Windows of both kinds of pooling: ``windows[k]`` is what place k of each window holds.

    Inside, sequences and what global pooling leaves are images as well.
    """

    border = 0.0

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        layer = op.layer
        assert isinstance(layer, layers.Windowed)
        window = layer.window(t.x[0].shape[:-1])
        kernel, stride = window.kernel, window.stride
        image = self.x = as_image(t.x[0], layer.dims)
        output = window.output(image.shape[1], image.shape[2])
        shape = (image.shape[0], *output, image.shape[3])
        self.y, self.dy = t.y.reshape(shape), t.dy.reshape(shape if t.dy.size else t.dy.shape)
        self.size = window.taps
        self.padded: Padded | None = None
        self.dpadded: Padded | None = None
        self.dx = self.dimage = None if t.dx[0] is None else as_image(t.dx[0], layer.dims)
        if any(window.pads):
            with_border = padded_shape(image.shape, window.pads)
            image = t.memory("padded", with_border, None)
            self.padded = Padded(image, window.pads, self.border)
            self.dimage = t.memory("dpadded", with_border, None)
            self.dpadded = Padded(self.dimage, window.pads, 0.0)
        self.windows = below_kernel(image, window, output)
        self.dwindows = []
        if self.dimage is not None:
            self.dwindows = below_kernel(self.dimage, window, output)
        # Where windows do not overlap, gradients are written; elsewhere they are added up.
        self.overlap = stride[0] < kernel[0] or stride[1] < kernel[1]
        size = (kernel[0] * output[0], kernel[1] * output[1])
        self.covered = stride == kernel and image.shape[1:3] == size

    def _fill_border(self) -> None:
        if self.padded:
            self.padded.fill(self.x)

    def _begin_dx(self) -> None:
        if self.dimage is not None and not self.covered:
            self.dimage.fill(0)

    def _finish_dx(self) -> None:
        if self.dpadded and self.dx is not None:
            self.dx[...] = self.dpadded.inside


class MaxPool(_Pool):
    """y = max over the window, the border counting as -∞; the first of equal values gets dy.

    x: (C, H, W, N), y: (C, OH, OW, N).
    """

    border = -np.inf
    reads_output = True

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        self.here: Array = t.memory("here", self.y.shape, np.bool_)
        self.free: Array = t.memory("free", self.y.shape, np.bool_)
        self.part: Array | None = t.memory("part", self.y.shape, None) if self.overlap else None

    def forward(self, run: Run) -> None:
        self._fill_border()
        y = self.y
        y[...] = self.windows[0]
        for window in self.windows[1:]:
            np.maximum(y, window, out=y)

    def backward(self) -> None:
        self._begin_dx()
        self.free.fill(True)  # windows whose maximum has not been met yet
        for window, dwindow in zip(self.windows, self.dwindows, strict=True):
            np.equal(window, self.y, out=self.here)
            np.logical_and(self.here, self.free, out=self.here)
            if self.part is None:
                np.multiply(self.dy, self.here, out=dwindow)
            else:
                np.multiply(self.dy, self.here, out=self.part)
                np.add(dwindow, self.part, out=dwindow)
            np.logical_xor(self.free, self.here, out=self.free)
        self._finish_dx()


class AvgPool(_Pool):
    """y = mean over the window of KH·KW values, the border counting as zeros; dx = Σ dy / (KH·KW).

    x: (C, H, W, N), y: (C, OH, OW, N).
    """

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        self.part: Array = t.memory("part", self.y.shape, None)

    def forward(self, run: Run) -> None:
        self._fill_border()
        y = self.y
        y[...] = self.windows[0]
        for window in self.windows[1:]:
            np.add(y, window, out=y)
        np.multiply(y, 1 / self.size, out=y)

    def backward(self) -> None:
        self._begin_dx()
        np.multiply(self.dy, 1 / self.size, out=self.part)
        for dwindow in self.dwindows:
            if self.overlap:
                np.add(dwindow, self.part, out=dwindow)
            else:
                dwindow[...] = self.part
        self._finish_dx()


class GlobalAvgPool(Function):
    """y[c] = mean over height and width; dx[c,h,w] = dy[c] / (H·W).

    x: (C, H, W, N) or (C, L, N), y: (C, N).
    """

    def forward(self, run: Run) -> None:
        x = self.t.x[0]
        np.mean(x.reshape(len(x), -1, x.shape[-1]), axis=1, out=self.t.y)

    def backward(self) -> None:
        dx = self.t.dx[0]
        if dx is not None:
            flat = dx.reshape(len(dx), -1, dx.shape[-1])
            np.multiply(self.t.dy[:, None, :], 1 / flat.shape[1], out=flat)
