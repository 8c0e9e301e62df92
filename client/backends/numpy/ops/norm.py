"""Normalisation: over the batch, over groups of channels, over the last axes.

Of each the mean is taken away first and the variance is that of what is left, so that a mean that
is large beside the deviation costs no digits. What is left is kept for the backward pass.
"""

from __future__ import annotations

import numpy as np

from client.backends.numpy.ops.function import Array, Function, Run, Tensors
from client.model import layers
from client.model.graph import Op


class BatchNorm(Function):
    """y = s·(x - μ) + b for each channel, with s = w·r, r = 1/√(σ² + ε).

    x: (C, ..., N), seen as (C, M); w, b, μ, σ²: (C,). In training, μ and σ² are those of the M
    values, and running += momentum·(batch's - running), with the variance of M - 1. Then
    dw = r·Σ dy·(x - μ);  db = Σ dy;  dx = s·(dy - db/M - (x - μ)·r·dw/M).
    With running statistics (evaluation, a single value): dx = s·dy.
    """

    in_place = True

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        assert isinstance(op.layer, layers.BatchNorm)
        self.layer = op.layer
        self.channels = t.x[0].shape[0]
        self.centred: Array = _rows(t.memory("centred", t.x[0].shape, None), self.channels)
        self.reciprocal: Array = np.empty(0)
        self.of_batch = False

    def forward(self, run: Run) -> None:
        t = self.t
        x, y, centred = _rows(t.x[0], self.channels), _rows(t.y, self.channels), self.centred
        size = x.shape[1]
        self.of_batch = run.training and size > 1 and not self.op.frozen
        if self.of_batch:
            mean = x.mean(axis=1)
            np.subtract(x, mean[:, None], out=centred)
            squares = _dots(centred, centred)
            variance = squares / size
            self._move("running_mean", mean)
            self._move("running_var", squares / (size - 1))
        else:
            mean, variance = t.buffers["running_mean"], t.buffers["running_var"]
            np.subtract(x, mean[:, None], out=centred)
        self.reciprocal = 1 / np.sqrt(variance + self.layer.eps)
        np.multiply(centred, self._scale()[:, None], out=y)
        if "bias" in t.params:
            np.add(y, t.params["bias"][:, None], out=y)

    def _move(self, name: str, of_batch: Array) -> None:
        running = self.t.buffers[name]
        running += self.layer.momentum * (of_batch - running)

    def _scale(self) -> Array:
        weight = self.t.params.get("weight")
        return self.reciprocal if weight is None else weight * self.reciprocal

    def backward(self) -> None:
        t = self.t
        dy, size = _rows(t.dy, self.channels), self.centred.shape[1]
        sums, products = dy.sum(axis=1), _dots(dy, self.centred)
        if "weight" in t.grads:
            t.grads["weight"][...] = products * self.reciprocal
            t.grads["bias"][...] = sums
        if t.dx[0] is None:
            return
        dx, scale = _rows(t.dx[0], self.channels), self._scale()
        np.multiply(dy, scale[:, None], out=dx)
        if self.of_batch:
            slope = scale * products * self.reciprocal**2 / size
            np.multiply(self.centred, slope[:, None], out=self.centred)
            np.subtract(dx, self.centred, out=dx)
            np.subtract(dx, (scale * sums / size)[:, None], out=dx)


class _NormOfExample(Function):
    """y = w·x̂ + b with x̂ = (x - μ)·r, r = 1/√(σ² + ε), μ and σ² over K = B·S values of an example.

    x is seen as (A, B, S, N): A sets of K values that are normalised by themselves; weight and
    bias have the shape ``affine``, which stretches over it. With g = w·dy:
    dw = Σ dy·x̂ and db = Σ dy over the axes along which they stretch;
    dx = r·(g - Σg/K - x̂·Σ(g·x̂)/K), Σ over B and S.
    """

    in_place = True

    def __init__(self, op: Op, t: Tensors, sets: int, of_set: int, affine: tuple[int, ...]) -> None:
        super().__init__(op, t)
        self.shape = (sets, of_set, -1, t.x[0].shape[-1])
        self.affine = affine
        self.stretched = tuple(i for i, size in enumerate(affine) if size == 1)
        self.x, self.y = t.x[0].reshape(self.shape), t.y.reshape(self.shape)
        self.normal: Array = t.memory("normal", self.x.shape, None)
        self.work: Array = t.memory("work", self.x.shape, None)
        self.reciprocal: Array = np.empty(0)

    def forward(self, run: Run) -> None:
        params = self.t.params
        np.subtract(self.x, _mean(self.x), out=self.normal)
        np.multiply(self.normal, self.normal, out=self.work)
        variance = _mean(self.work)
        assert isinstance(self.op.layer, layers.GroupNorm | layers.LayerNorm)
        self.reciprocal = 1 / np.sqrt(variance + self.op.layer.eps)
        np.multiply(self.normal, self.reciprocal, out=self.normal)
        if "weight" not in params:
            self.y[...] = self.normal
            return
        np.multiply(self.normal, params["weight"].reshape(self.affine), out=self.y)
        if "bias" in params:
            np.add(self.y, params["bias"].reshape(self.affine), out=self.y)

    def backward(self) -> None:
        t, dy = self.t, self.t.dy.reshape(self.shape)
        np.multiply(dy, self.normal, out=self.work)
        if "weight" in t.grads:
            self._sum(self.work, t.grads["weight"])
        if "bias" in t.grads:
            self._sum(dy, t.grads["bias"])
        if t.dx[0] is None:
            return
        dx = t.dx[0].reshape(self.shape)
        weight = t.params["weight"].reshape(self.affine) if "weight" in t.params else 1
        np.multiply(self.work, weight, out=self.work)
        np.multiply(self.normal, _mean(self.work), out=self.normal)
        np.multiply(dy, weight, out=dx)
        np.subtract(dx, _mean(dx), out=dx)
        np.subtract(dx, self.normal, out=dx)
        np.multiply(dx, self.reciprocal, out=dx)

    def _sum(self, terms: Array, gradient: Array) -> None:
        total = gradient.reshape(self.affine)
        np.sum(terms, axis=self.stretched, keepdims=True, out=total)


class GroupNorm(_NormOfExample):
    """Sets are groups of neighbouring channels: A·B channels of S positions."""

    def __init__(self, op: Op, t: Tensors) -> None:
        assert isinstance(op.layer, layers.GroupNorm)
        groups = op.layer.num_groups
        of_group = t.x[0].shape[0] // groups
        super().__init__(op, t, groups, of_group, (groups, of_group, 1, 1))


class LayerNorm(_NormOfExample):
    """Sets are the places of the axes before the last ones: B places in the last ones, S = 1."""

    def __init__(self, op: Op, t: Tensors) -> None:
        assert isinstance(op.layer, layers.LayerNorm)
        size = int(np.prod(op.layer.sizes))
        sets = t.x[0].size // (size * t.x[0].shape[-1])
        super().__init__(op, t, sets, size, (1, size, 1, 1))


def _mean(x: Array) -> Array:
    """Over the two middle axes, one after the other: shorter sums round less."""
    mean: Array = x.mean(axis=2, keepdims=True).mean(axis=1, keepdims=True)
    return mean


def _rows(x: Array, channels: int) -> Array:
    return x.reshape(channels, -1)


def _dots(a: Array, b: Array) -> Array:
    """Σ_m a[c,m]·b[c,m] for each c, by BLAS, which adds up in many partial sums."""
    products: Array = np.matmul(a[:, None, :], b[:, :, None])
    return products[:, 0, 0]
