"""Convolution: a matrix product over unfolded windows (im2col), or, depthwise, place by place."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from client.backends.numpy.ops.function import Array, Function, Run, Tensors
from client.backends.numpy.ops.windows import (
    Columns,
    Padded,
    as_image,
    below_kernel,
    padded_shape,
)
from client.model import layers
from client.model.graph import Op

BLOCK = 1 << 16
"""Numbers of an image that a depthwise convolution goes over before it turns to the next ones."""

FEW_TAPS = 16
"""Kernels with so many places sum dx place by place; larger ones unfold dy instead."""


class Conv(Function):
    """y[o,u,v] = b[o] + Σ_{c,i,j} W[o,c,i,j] · x̂[c, u·s+i·d, v·s+j·d], x̂ = x with zero border.

    x: (C, H, W, N), y: (O, OH, OW, N), W: (O, C/G, KH, KW), b: (O,); of the G groups each has its
    own C/G input and O/G output channels. Sequences have no H.
    """

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        layer = op.layer
        assert isinstance(layer, layers.Conv)
        image = as_image(t.x[0], layer.dims)
        self.x, self.y = image, as_image(t.y, layer.dims)
        self.dy = as_image(t.dy, layer.dims) if t.dy.size else self.y[:0]
        self.dx = None if t.dx[0] is None else as_image(t.dx[0], layer.dims)
        window = layer.window(t.x[0].shape[:-1])
        self.padded: Padded | None = None
        if any(window.pads):
            image = t.memory("padded", padded_shape(image.shape, window.pads), None)
            self.padded = Padded(image, window.pads, 0.0)
        # The border's memory is free again once dW is known.
        dimage = image if self.padded and self.dx is not None else self.dx
        depthwise = layer.groups == len(image) == len(self.y)
        kind: type[_Arithmetic] = _Depthwise if depthwise else _Products
        self.arithmetic = kind(layer, window, t, image, self.y, self.dy, dimage)

    def forward(self, run: Run) -> None:
        if self.padded:
            self.padded.fill(self.x)
        self.arithmetic.forward()

    def backward(self) -> None:
        t = self.t
        if "weight" in t.grads:
            self.arithmetic.weight_grad()
        if "bias" in t.grads:
            np.sum(self.dy.reshape(len(self.dy), -1), axis=1, out=t.grads["bias"])
        if self.dx is not None:
            self.arithmetic.input_grad()
            if self.padded:
                self.dx[...] = self.padded.inside


class _Arithmetic(ABC):
    """How the sums are formed, over an image that has its border."""

    def __init__(
        self,
        layer: layers.Conv,
        window: layers.Window,
        t: Tensors,
        image: Array,
        y: Array,
        dy: Array,
        dimage: Array | None,
    ) -> None:
        self.layer, self.window, self.t = layer, window, t
        self.image, self.y, self.dy, self.dimage = image, y, dy, dimage
        self.output = (y.shape[1], y.shape[2])
        self.bias = t.params.get("bias")

    @abstractmethod
    def forward(self) -> None:
        """y."""

    @abstractmethod
    def weight_grad(self) -> None:
        """dW."""

    @abstractmethod
    def input_grad(self) -> None:
        """dx̂, perhaps over the image itself."""


class _Products(_Arithmetic):
    """In a group, with columns X (C/G·KH·KW, OH·OW·N) that hold what each weight meets, and y, dy,
    W as matrices of O/G rows: y = W X + b;  dW = dy Xᵀ;  dX = Wᵀ dy.

    dx̂ sums dX where it came from; where a kernel has many places, dx̂ is the convolution of dy with
    the kernel turned round.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        t, groups = self.t, self.layer.groups
        self.columns = Columns(self.image, self.window, self.output, groups, t.memory)
        rows, terms = len(self.y) // groups, self.columns.pieces[0].columns.shape[1]
        self.weight = t.params["weight"].reshape(groups, rows, terms)
        if "weight" in t.grads:
            self.dweight = t.grads["weight"].reshape(groups, rows, terms)
            self.part = t.memory("dweight_t", (groups, terms, rows), None)
            self.dweight_t = t.memory("dweight_sum", (groups, terms, rows), None)
        if self.dimage is None:
            return
        self.dwindows: list[Array] = []
        self.turned: _Turned | None = None
        if self.window.taps > FEW_TAPS and self.window.stride == (1, 1):
            self.turned = _Turned(self.layer, self.window, t, self.dy, self.dimage)
        elif self.columns.copied:
            self.dwindows = below_kernel(self.dimage, self.window, self.output)

    def forward(self) -> None:
        for piece in self.columns.filled():
            y = piece.of(self.y, self.layer.groups)
            np.matmul(self.weight, piece.columns, out=y)
            if self.bias is not None:
                np.add(y, self.bias.reshape(*y.shape[:2], 1), out=y)

    def weight_grad(self) -> None:
        # X dyᵀ and a transposition of the small result: BLAS is up to twice as fast as on dy Xᵀ.
        target = self.dweight_t
        for piece in self.columns.filled():
            dy = piece.of(self.dy, self.layer.groups)
            np.matmul(piece.columns, dy.swapaxes(1, 2), out=target)
            if target is self.part:
                np.add(self.dweight_t, target, out=self.dweight_t)
            target = self.part
        self.dweight[...] = self.dweight_t.swapaxes(1, 2)

    def input_grad(self) -> None:
        assert self.dimage is not None
        if self.turned:
            self.turned.input_grad()
            return
        weight_t, groups = self.weight.swapaxes(1, 2), self.layer.groups
        if not self.columns.copied:
            dimage = self.dimage.reshape(groups, weight_t.shape[1], -1)
            np.matmul(weight_t, self.dy.reshape(groups, weight_t.shape[2], -1), out=dimage)
            return
        self.dimage.fill(0)
        for piece in self.columns.pieces:
            np.matmul(weight_t, piece.of(self.dy, groups), out=piece.columns)
            places = piece.copy.reshape(len(piece.copy), -1, *piece.copy.shape[3:])
            for k, window in enumerate(self.dwindows):
                at = window[:, piece.rows, piece.places]
                np.add(at, places[:, k], out=at)


class _Turned:
    """dx̂[c,h,w] = Σ_{o,i,j} W[o,c,i,j] · dy[o, h-i·d, w-j·d], at stride 1."""

    def __init__(
        self, layer: layers.Conv, window: layers.Window, t: Tensors, dy: Array, dimage: Array
    ) -> None:
        self.dy, self.dimage, self.groups = dy, dimage, layer.groups
        height, width = window.reach
        border = (height, height, width, width)
        padded = t.memory("dy_padded", padded_shape(dy.shape, border), None)
        self.padded = Padded(padded, border, 0.0)
        output = (dimage.shape[1], dimage.shape[2])
        self.columns = Columns(
            padded, window, output, layer.groups, lambda _, *rest: t.memory("dy_columns", *rest)
        )
        g, taps = layer.groups, window.taps
        outputs, inputs = len(dy) // g, len(dimage) // g
        self.weight = t.params["weight"].reshape(g, outputs, inputs, taps)
        # (G, C/G, O/G, taps), places in reverse
        self.turned = t.memory("turned", (g, inputs, outputs, taps), None)

    def input_grad(self) -> None:
        self.turned[...] = self.weight[..., ::-1].swapaxes(1, 2)
        weight = self.turned.reshape(*self.turned.shape[:2], -1)
        self.padded.fill(self.dy)
        for piece in self.columns.filled():
            np.matmul(weight, piece.columns, out=piece.of(self.dimage, self.groups))


class _Depthwise(_Arithmetic):
    """One channel in, one out: y = b + Σ_k W_k · (what place k meets), some channels at a time.

    A product of matrices would have a single row.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        t, channels = self.t, len(self.y)
        self.weight = t.params["weight"].reshape(channels, -1)
        if "weight" in t.grads:
            self.dweight = t.grads["weight"].reshape(channels, -1)
        of_one = self.y[0].size
        step = max(1, min(channels, BLOCK // of_one))
        self.blocks = [slice(c, min(c + step, channels)) for c in range(0, channels, step)]
        term = t.memory("term", (min(self.y.size, max(BLOCK, of_one)),), None)
        self.term = term[: step * of_one].reshape(step, *self.y.shape[1:])
        self.windows = below_kernel(self.image, self.window, self.output)
        self.dwindows: list[Array] = []
        if self.dimage is not None:
            self.dwindows = below_kernel(self.dimage, self.window, self.output)

    def forward(self) -> None:
        for block in self.blocks:
            y, weight = self.y[block], self.weight[block, :, None, None, None]
            term = self.term[: len(y)]
            np.multiply(self.windows[0][block], weight[:, 0], out=y)
            for k in range(1, len(self.windows)):
                np.multiply(self.windows[k][block], weight[:, k], out=term)
                np.add(y, term, out=y)
            if self.bias is not None:
                np.add(y, self.bias[block, None, None, None], out=y)

    def weight_grad(self) -> None:
        for block in self.blocks:
            dy = self.dy[block]
            term = self.term[: len(dy)]
            for k, window in enumerate(self.windows):
                np.multiply(window[block], dy, out=term)
                np.sum(term.reshape(len(dy), -1), axis=1, out=self.dweight[block, k])

    def input_grad(self) -> None:
        assert self.dimage is not None
        for block in self.blocks:
            dy, weight = self.dy[block], self.weight[block, :, None, None, None]
            term = self.term[: len(dy)]
            self.dimage[block].fill(0)
            for k, window in enumerate(self.dwindows):
                np.multiply(dy, weight[:, k], out=term)
                np.add(window[block], term, out=window[block])
