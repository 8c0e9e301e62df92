"""Activations other than ReLU: each element by itself, its slope computed beside its value."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import pi, sqrt

import numpy as np

from client.backends.numpy.ops.function import Array, Function, Run, Tensors
from client.model import layers
from client.model.graph import Op


class _Activation(Function):
    """y = f(x); dx = dy · f'(x), f' kept from the forward pass, which has its terms at hand."""

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        self.slope: Array = t.memory("slope", t.y.shape, None)

    @abstractmethod
    def compute(self, x: Array, y: Array, slope: Array) -> None:
        """Write y = f(x) and slope = f'(x); "not a number" gives "not a number"."""

    def forward(self, run: Run) -> None:
        self.compute(self.t.x[0], self.t.y, self.slope)

    def backward(self) -> None:
        dx = self.t.dx[0]
        if dx is not None:
            np.multiply(self.t.dy, self.slope, out=dx)


class ReLU6(_Activation):
    """y = min(max(x, 0), 6); y' = 0 where x ≤ 0 or x ≥ 6, else 1."""

    def compute(self, x: Array, y: Array, slope: Array) -> None:
        np.clip(x, 0, 6, out=y)
        slope.fill(1)
        slope[(x <= 0) | (x >= 6)] = 0


class LeakyReLU(_Activation):
    """y = x where x > 0, else a·x with a = negative_slope; y' = 1 where x > 0, else a."""

    def compute(self, x: Array, y: Array, slope: Array) -> None:
        layer = self.op.layer
        assert isinstance(layer, layers.LeakyReLU)
        slope.fill(layer.negative_slope)
        slope[x > 0] = 1
        np.multiply(x, slope, out=y)


class GELU(_Activation):
    """y = x·Φ(x); y' = Φ(x) + x·φ(x), with Φ(x) = (1 + erf(x/√2))/2, φ(x) = exp(-x²/2)/√(2π)."""

    def compute(self, x: Array, y: Array, slope: Array) -> None:
        phi = (1 + erf(x * sqrt(0.5))) * 0.5
        np.multiply(x, phi, out=y)
        np.multiply(np.exp(-0.5 * x * x), x, out=slope)
        np.multiply(slope, 1 / sqrt(2 * pi), out=slope)
        np.add(slope, phi, out=slope)


class SiLU(_Activation):
    """y = x·s with the sigmoid s; y' = s + y·(1 - s)."""

    def compute(self, x: Array, y: Array, slope: Array) -> None:
        s, falling = _sigmoid(x)
        np.multiply(x, s, out=y)
        np.multiply(y, falling, out=slope)
        np.add(slope, s, out=slope)


class Hardswish(_Activation):
    """y = x·min(max(x + 3, 0), 6)/6; y' = 0 where x ≤ -3, 1 where x ≥ 3, else x/3 + 1/2."""

    def compute(self, x: Array, y: Array, slope: Array) -> None:
        np.multiply(x, np.clip(x + 3, 0, 6), out=y)
        np.divide(y, 6, out=y)
        np.divide(x, 3, out=slope)
        np.add(slope, 0.5, out=slope)
        slope[x <= -3] = 0
        slope[x >= 3] = 1


class Sigmoid(_Activation):
    """y = 1/(1 + exp(-x)); y' = y·(1 - y)."""

    def compute(self, x: Array, y: Array, slope: Array) -> None:
        y[...], falling = _sigmoid(x)
        np.multiply(y, falling, out=slope)


class Tanh(_Activation):
    """y = tanh(x); y' = 1 - y²."""

    def compute(self, x: Array, y: Array, slope: Array) -> None:
        np.tanh(x, out=y)
        np.multiply(y, y, out=slope)
        np.subtract(1, slope, out=slope)


def _sigmoid(x: Array) -> tuple[Array, Array]:
    """(1/(1 + exp(-x)), 1/(1 + exp(x))): nothing overflows, and both are small where they should.

    The second is one minus the first, without the digits that the subtraction would lose.
    """
    e = np.exp(-np.abs(x))
    large = 1 / (1 + e)
    small = e * large
    positive = x > 0
    return np.where(positive, large, small), np.where(positive, small, large)


def erf(x: Array) -> Array:
    """2/√π · ∫₀ˣ exp(-t²) dt, to a few roundings in float32 and float64 alike.

    Rational approximations of the Cephes library (Moshier, ndtr.c): erf(x) = x·T(x²)/U(x²) for
    |x| ≤ 1, else 1 - erf(|x|) = exp(-x²)·P(|x|)/Q(|x|). From 6 on it is 1 in float64.
    """
    size = np.minimum(np.abs(x), 6)
    square = size * size
    near = size * _polynomial(_T, square) / _polynomial(_U, square)
    far = 1 - np.exp(-square) * _polynomial(_P, size) / _polynomial(_Q, size)
    return np.copysign(np.where(size > 1, far, near), x)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """Horner's scheme; the highest power's coefficient comes first."""
    y = x * coefficients[0]
    for c in coefficients[1:-1]:
        np.add(y, c, out=y)
        np.multiply(y, x, out=y)
    return np.add(y, coefficients[-1], out=y)


_T = (
    9.60497373987051638749e0,
    9.00260197203842689217e1,
    2.23200534594684319226e3,
    7.00332514112805075473e3,
    5.55923013010394962768e4,
)
_U = (
    1.0,
    3.35617141647503099647e1,
    5.21357949780152679795e2,
    4.59432382970980127987e3,
    2.26290000613890934246e4,
    4.92673942608635921086e4,
)
_P = (
    2.46196981473530512524e-10,
    5.64189564831068821977e-1,
    7.46321056442269912687e0,
    4.86371970985681366614e1,
    1.96520832956077098242e2,
    5.26445194995477358631e2,
    9.34528527171957607540e2,
    1.02755188689515710272e3,
    5.57535335369399327526e2,
)
_Q = (
    1.0,
    1.32281951154744992508e1,
    8.67072140885989742329e1,
    3.54937778887819891062e2,
    9.75708501743205489753e2,
    1.82390916687909736289e3,
    2.24633760818710981792e3,
    1.65666309194161350182e3,
    5.57535340817727675546e2,
)
