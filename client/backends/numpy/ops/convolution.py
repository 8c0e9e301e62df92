"""Convolution as a matrix product over unfolded windows (im2col), one for each group."""

from __future__ import annotations

import numpy as np

from client.backends.numpy.ops.function import Function, Run, Tensors
from client.backends.numpy.ops.windows import Padded, below_kernel
from client.model import layers
from client.model.graph import Op
from client.model.layers import pair


class Conv2d(Function):
    """y[o,u,v] = b[o] + Σ_{c,i,j} W[o,c,i,j] · x̂[c, u·s+i·d, v·s+j·d], x̂ = x with zero border.

    x: (C, H, W, N), y: (O, OH, OW, N), W: (O, C/G, KH, KW), b: (O,); of the G groups each has its
    own C/G input and O/G output channels. In a group, with the columns X (C/G·KH·KW, OH·OW·N) that
    hold what each weight meets, and y, dy, W seen as matrices of O/G rows:
    y = W X + b;  dW = dy Xᵀ;  db = Σ_{u,v,n} dy;  dX = Wᵀ dy, and dx sums dX where it came from.
    """

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        layer = op.layer
        assert isinstance(layer, layers.Conv2d)
        kernel, stride = pair(layer.kernel_size), pair(layer.stride)
        channels, height, width, batch = t.x[0].shape
        out_channels, *output, _ = t.y.shape
        top, bottom, left, right = layer.pads
        self.padded: Padded | None = None
        image = t.x[0]
        if any(layer.pads):
            shape = (channels, top + height + bottom, left + width + right, batch)
            image = t.memory("padded", shape, None)
            self.padded = Padded(image, layer.pads, 0.0)
        window = (kernel, stride, pair(layer.dilation), (output[0], output[1]))
        self.windows = below_kernel(image, *window)
        columns = t.memory("columns", (channels, kernel[0] * kernel[1], *output, batch), None)
        self.column_of = [columns[:, k] for k in range(kernel[0] * kernel[1])]
        # Of all matrices, the first axis numbers the groups.
        rows = (layer.groups, out_channels // layer.groups)
        terms = channels // layer.groups * kernel[0] * kernel[1]
        positions = output[0] * output[1] * batch
        self.columns = columns.reshape(layer.groups, terms, positions)
        self.weight = t.params["weight"].reshape(*rows, terms)
        self.y = t.y.reshape(*rows, positions)
        self.dy = t.dy.reshape(*rows, positions)
        self.dweight = t.grads["weight"].reshape(*rows, terms)
        self.dweight_t = t.memory("dweight_t", (layer.groups, terms, rows[1]), None)
        # The border's memory and the columns' are free again once dW is known.
        dx = t.dx[0]
        self.dimage = image if self.padded else dx
        self.dwindows = below_kernel(self.dimage, *window) if self.dimage is not None else []

    def forward(self, run: Run) -> None:
        t = self.t
        if self.padded:
            self.padded.fill(t.x[0])
        for column, window in zip(self.column_of, self.windows, strict=True):
            column[...] = window
        np.matmul(self.weight, self.columns, out=self.y)
        if "bias" in t.params:
            np.add(t.y, t.params["bias"][:, None, None, None], out=t.y)

    def backward(self) -> None:
        t = self.t
        # X dyᵀ and a transposition of the small result: BLAS is up to twice as fast as on dy Xᵀ.
        np.matmul(self.columns, self.dy.swapaxes(1, 2), out=self.dweight_t)
        self.dweight[...] = self.dweight_t.swapaxes(1, 2)
        if "bias" in t.grads:
            np.sum(self.dy, axis=2, out=t.grads["bias"].reshape(self.dy.shape[:2]))
        dx = t.dx[0]
        if dx is None or self.dimage is None:
            return
        np.matmul(self.weight.swapaxes(1, 2), self.dy, out=self.columns)
        self.dimage.fill(0)
        for column, window in zip(self.column_of, self.dwindows, strict=True):
            np.add(window, column, out=window)
        if self.padded:
            dx[...] = self.padded.inside
