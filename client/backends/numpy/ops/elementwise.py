"""Layers that work on each element by itself, and those that only rename axes."""

from __future__ import annotations

import numpy as np

from client.backends.numpy.ops.function import Array, Function, Run, Tensors
from client.model import layers
from client.model.graph import Op
from client.random import philox4x32


class ReLU(Function):
    """y = max(x, 0); dx = dy where y > 0, else 0."""

    in_place = True
    reads_output = True

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        self.positive: Array = t.memory("positive", t.y.shape, np.bool_)

    def forward(self, run: Run) -> None:
        np.maximum(self.t.x[0], 0, out=self.t.y)

    def backward(self) -> None:
        dx = self.t.dx[0]
        if dx is not None:
            np.greater(self.t.y, 0, out=self.positive)
            np.multiply(self.t.dy, self.positive, out=dx)


class Flatten(Function):
    """y = x with one axis for all features; nothing moves where both share their memory."""

    in_place = True

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        self.shared = np.shares_memory(t.x[0], t.y)

    def forward(self, run: Run) -> None:
        if not self.shared:
            self.t.y[...] = self.t.x[0].reshape(self.t.y.shape)

    def backward(self) -> None:
        dx = self.t.dx[0]
        if dx is not None and not self.shared:
            dx[...] = self.t.dy.reshape(dx.shape)


class Dropout(Function):
    """In training y = x · m / (1-p) with m = 0 with probability p, else 1; dx = dy · m / (1-p).

    Element e of example r (its index in the data set) is kept where word e mod 4 of
    philox4x32(key of the epoch, counter (e div 4, r, index of the operation, 0)) is at least
    ⌊p·2³²⌋: equal on every backend, in every batch and for every cut of the network.
    """

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        assert isinstance(op.layer, layers.Dropout)
        self.p = op.layer.p
        self.scale = 1.0
        self.keep: Array = t.memory("keep", t.y.shape, np.bool_)

    def forward(self, run: Run) -> None:
        t = self.t
        if not run.training or self.p == 0:
            self.scale = 1.0
            self.keep.fill(True)
            t.y[...] = t.x[0]
            return
        self.scale = 1 / (1 - self.p)
        self._draw(run)
        np.multiply(t.x[0], self.keep, out=t.y)
        np.multiply(t.y, self.scale, out=t.y)

    def _draw(self, run: Run) -> None:
        batch = self.keep.shape[-1]
        size = self.keep.size // batch
        groups = -(-size // 4)
        counter = np.zeros((batch, groups, 4), np.uint32)
        counter[:, :, 0] = np.arange(groups)
        counter[:, :, 1] = run.rows[:batch, None]
        counter[:, :, 2] = self.op.index
        words = philox4x32(run.dropout_key, counter.reshape(-1, 4)).reshape(batch, groups * 4)
        keep = words[:, :size] >= np.uint32(self.p * 2**32)
        self.keep[...] = keep.T.reshape(self.keep.shape)

    def backward(self) -> None:
        dx = self.t.dx[0]
        if dx is not None:
            np.multiply(self.t.dy, self.keep, out=dx)
            np.multiply(dx, self.scale, out=dx)


class Add(Function):
    """y = x0 + x1; dx0 = dx1 = dy."""

    def forward(self, run: Run) -> None:
        np.add(self.t.x[0], self.t.x[1], out=self.t.y)

    def backward(self) -> None:
        for dx in self.t.dx:
            if dx is not None:
                dx[...] = self.t.dy


class Concat(Function):
    """y = the inputs one after the other along the channels; each dx is its part of dy."""

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        ends = np.cumsum([len(x) for x in t.x])
        self.parts = [slice(end - len(x), end) for x, end in zip(t.x, ends, strict=True)]

    def forward(self, run: Run) -> None:
        for x, part in zip(self.t.x, self.parts, strict=True):
            self.t.y[part] = x

    def backward(self) -> None:
        for dx, part in zip(self.t.dx, self.parts, strict=True):
            if dx is not None:
                dx[...] = self.t.dy[part]
