"""Pooling: the largest or the mean of each window."""

from __future__ import annotations

import numpy as np

from client.backends.numpy.ops.function import Array, Function, Run, Tensors
from client.backends.numpy.ops.windows import Padded, below_kernel
from client.model import layers
from client.model.graph import Op
from client.model.layers import pair


class _Pool2d(Function):
    """Windows of both kinds of pooling: ``windows[k]`` is what place k of each window holds."""

    border = 0.0

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        layer = op.layer
        assert isinstance(layer, layers.MaxPool2d | layers.AvgPool2d)
        kernel, stride = pair(layer.kernel_size), layer.strides
        (ph, pw), (channels, height, width, batch) = pair(layer.padding), t.x[0].shape
        output = (t.y.shape[1], t.y.shape[2])
        self.size = kernel[0] * kernel[1]
        self.padded: Padded | None = None
        self.dpadded: Padded | None = None
        self.dimage = t.dx[0]
        image = t.x[0]
        if ph or pw:
            shape = (channels, height + 2 * ph, width + 2 * pw, batch)
            image = t.memory("padded", shape, None)
            self.padded = Padded(image, (ph, ph, pw, pw), self.border)
            self.dimage = t.memory("dpadded", shape, None)
            self.dpadded = Padded(self.dimage, (ph, ph, pw, pw), 0.0)
        window = (kernel, stride, (1, 1), output)
        self.windows = below_kernel(image, *window)
        self.dwindows = below_kernel(self.dimage, *window) if self.dimage is not None else []
        # Where windows do not overlap, gradients are written; elsewhere they are added up.
        self.overlap = stride[0] < kernel[0] or stride[1] < kernel[1]
        size = (kernel[0] * output[0], kernel[1] * output[1])
        self.covered = stride == kernel and image.shape[1:3] == size

    def _fill_border(self) -> None:
        if self.padded:
            self.padded.fill(self.t.x[0])

    def _begin_dx(self) -> None:
        if self.dimage is not None and not self.covered:
            self.dimage.fill(0)

    def _finish_dx(self) -> None:
        dx = self.t.dx[0]
        if self.dpadded and dx is not None:
            dx[...] = self.dpadded.inside


class MaxPool2d(_Pool2d):
    """y = max over the window, the border counting as -∞; the first of equal values gets dy.

    x: (C, H, W, N), y: (C, OH, OW, N).
    """

    border = -np.inf
    reads_output = True

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        self.here: Array = t.memory("here", t.y.shape, np.bool_)
        self.free: Array = t.memory("free", t.y.shape, np.bool_)
        self.part: Array | None = t.memory("part", t.y.shape, None) if self.overlap else None

    def forward(self, run: Run) -> None:
        self._fill_border()
        y = self.t.y
        y[...] = self.windows[0]
        for window in self.windows[1:]:
            np.maximum(y, window, out=y)

    def backward(self) -> None:
        t = self.t
        self._begin_dx()
        self.free.fill(True)  # windows whose maximum has not been met yet
        for window, dwindow in zip(self.windows, self.dwindows, strict=True):
            np.equal(window, t.y, out=self.here)
            np.logical_and(self.here, self.free, out=self.here)
            if self.part is None:
                np.multiply(t.dy, self.here, out=dwindow)
            else:
                np.multiply(t.dy, self.here, out=self.part)
                np.add(dwindow, self.part, out=dwindow)
            np.logical_xor(self.free, self.here, out=self.free)
        self._finish_dx()


class AvgPool2d(_Pool2d):
    """y = mean over the window of KH·KW values, the border counting as zeros; dx = Σ dy / (KH·KW).

    x: (C, H, W, N), y: (C, OH, OW, N).
    """

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        self.part: Array = t.memory("part", t.y.shape, None)

    def forward(self, run: Run) -> None:
        self._fill_border()
        y = self.t.y
        y[...] = self.windows[0]
        for window in self.windows[1:]:
            np.add(y, window, out=y)
        np.multiply(y, 1 / self.size, out=y)

    def backward(self) -> None:
        self._begin_dx()
        np.multiply(self.t.dy, 1 / self.size, out=self.part)
        for dwindow in self.dwindows:
            if self.overlap:
                np.add(dwindow, self.part, out=dwindow)
            else:
                dwindow[...] = self.part
        self._finish_dx()


class GlobalAvgPool2d(Function):
    """y[c] = mean over height and width; dx[c,h,w] = dy[c] / (H·W).

    x: (C, H, W, N), y: (C, N).
    """

    def forward(self, run: Run) -> None:
        np.mean(self.t.x[0], axis=(1, 2), out=self.t.y)

    def backward(self) -> None:
        dx = self.t.dx[0]
        if dx is not None:
            _, height, width, _ = dx.shape
            np.multiply(self.t.dy[:, None, None, :], 1 / (height * width), out=dx)
