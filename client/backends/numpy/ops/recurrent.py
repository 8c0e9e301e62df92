"""Recurrent layers: a step at a time, but the products with the inputs of all steps at once."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from client.backends.numpy.ops.function import Array, Function, Run, Tensors
from client.model import layers
from client.model.graph import Op


class _Recurrent(Function):
    """The layers on top of each other; ``y`` of one is ``x`` of the next.

    x: (T, F, N), y: (T, H, N).
    """

    reads_output = True
    level: ClassVar[type[_Level]]

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        layer = op.layer
        assert isinstance(layer, layers.LSTM | layers.GRU)
        self.levels: list[_Level] = []
        x, dx = t.x[0], t.dx[0]
        for i in range(layer.num_layers):
            last = i == layer.num_layers - 1
            y = t.y if last else t.memory(f"y{i}", t.y.shape, None)
            dy = t.dy if last else t.memory(f"dy{i}", t.y.shape, None)
            self.levels.append(self.level(t, i, (x, y), (dx, dy)))
            x, dx = y, dy

    def forward(self, run: Run) -> None:
        for level in self.levels:
            level.forward()

    def backward(self) -> None:
        for level in reversed(self.levels):
            level.backward()


Values = tuple[Array, Array]
Gradients = tuple[Array | None, Array]


class _Level:
    """One layer: ``gates`` are four blocks of H rows for each step, kept for the backward pass.

    That writes the gates' gradients in their place.
    """

    def __init__(
        self,
        t: Tensors,
        number: int,
        values: tuple[Array, Array],
        grads: tuple[Array | None, Array],
    ) -> None:
        (self.x, self.y), (self.dx, self.dy) = values, grads
        suffix = f"_l{number}"
        own = {k: v for k, v in t.params.items() if k.endswith(suffix)}
        self.w, self.u = own[f"weight_ih{suffix}"], own[f"weight_hh{suffix}"]
        self.b, self.d = own.get(f"bias_ih{suffix}"), own.get(f"bias_hh{suffix}")
        self.grads = {k.removesuffix(suffix): v for k, v in t.grads.items() if k.endswith(suffix)}
        self.steps, self.hidden, batch = self.y.shape
        self.gates: Array = t.memory(f"gates{number}", (self.steps, 4 * self.hidden, batch), None)
        self.part: Array = t.memory("part", (len(self.u), batch), None)
        self.dh: Array = t.memory("dh", self.y.shape[1:], None)
        self.carry: Array = t.memory("carry", self.y.shape[1:], None)

    def blocks(self, t: int) -> list[Array]:
        """The four blocks of a step's gates, H rows each."""
        return [self.gates[t, k * self.hidden : (k + 1) * self.hidden] for k in range(4)]

    @abstractmethod
    def forward(self) -> None:
        """y and gates from x."""

    @abstractmethod
    def backward(self) -> None:
        """dx and the gradients of the parameters from dy and gates."""


class _LSTMLevel(_Level):
    """z = W x + b + U h' + d; i, f, o = σ(z_i), σ(z_f), σ(z_o); g = tanh(z_g);
    c = f·c' + i·g; h = o·tanh(c), with c' and h' of the step before, zero at first.

    dh = dy + Uᵀ dz of the step after; dc = f·dc of the step after + dh·o·(1 - tanh²(c));
    dz_i = dc·g·i·(1 - i); dz_f = dc·c'·f·(1 - f); dz_g = dc·i·(1 - g²);
    dz_o = dh·tanh(c)·o·(1 - o).
    """

    def __init__(
        self,
        t: Tensors,
        number: int,
        values: tuple[Array, Array],
        grads: tuple[Array | None, Array],
    ) -> None:
        super().__init__(t, number, values, grads)
        self.c: Array = t.memory(f"c{number}", self.y.shape, None)
        self.tanh_c: Array = t.memory(f"tanh_c{number}", self.y.shape, None)

    def forward(self) -> None:
        z, h = self.gates, self.hidden
        np.matmul(self.w, self.x, out=z)
        if self.b is not None and self.d is not None:
            np.add(z, (self.b + self.d)[:, None], out=z)
        for t in range(self.steps):
            i, f, g, o = self.blocks(t)
            c, y = self.c[t], self.y[t]
            if t > 0:
                np.matmul(self.u, self.y[t - 1], out=self.part)
                np.add(z[t], self.part, out=z[t])
            _sigmoid(z[t, : 2 * h])
            np.tanh(g, out=g)
            _sigmoid(o)
            np.multiply(i, g, out=c)
            if t > 0:
                np.multiply(f, self.c[t - 1], out=y)
                np.add(c, y, out=c)
            np.tanh(c, out=self.tanh_c[t])
            np.multiply(o, self.tanh_c[t], out=y)

    def backward(self) -> None:
        z, dh, dc = self.gates, self.dh, self.carry
        dc.fill(0)
        for t in reversed(range(self.steps)):
            i, f, g, o = self.blocks(t)
            tanh_c = self.tanh_c[t]
            dh[...] = self.dy[t]
            if t < self.steps - 1:
                np.add(dh, self.u.T @ z[t + 1], out=dh)
            np.add(dc, dh * o * (1 - tanh_c * tanh_c), out=dc)
            di = dc * g * i * (1 - i)
            dg = dc * i * (1 - g * g)
            np.multiply(o, dh * tanh_c * (1 - o), out=o)
            i[...], g[...] = di, dg
            df = dc * self.c[t - 1] * f * (1 - f) if t > 0 else 0.0
            np.multiply(dc, f, out=dc)
            f[...] = df
        if self.grads:
            self.grads["weight_ih"][...] = _over_steps(z, self.x)
            self.grads["weight_hh"][...] = _over_steps(z[1:], self.y[:-1])
            if self.b is not None:
                np.sum(z, axis=(0, 2), out=self.grads["bias_ih"])
                self.grads["bias_hh"][...] = self.grads["bias_ih"]
        if self.dx is not None:
            np.matmul(self.w.T, z, out=self.dx)


class LSTM(_Recurrent):
    """See ``_LSTMLevel``."""

    level = _LSTMLevel


class _GRULevel(_Level):
    """a = W x + b; e = U h' + d; r, s = σ(a + e); n = tanh(a_n + r·e_n); h = n + s·(h' - n), with
    h' of the step before, zero at first, and s what PyTorch calls z.

    dh = dy + s·dh of the step after + Uᵀ de of the step after;
    da_s = dh·(h' - n)·s·(1 - s); da_n = dh·(1 - s)·(1 - n²); da_r = da_n·e_n·r·(1 - r);
    de = da but for de_n = r·da_n. The four blocks: r, s, n, e_n; then da_r, da_s, da_n, de_n.
    """

    def forward(self) -> None:
        z, h = self.gates, self.hidden
        np.matmul(self.w, self.x, out=z[:, : 3 * h])
        if self.b is not None:
            np.add(z[:, : 3 * h], self.b[:, None], out=z[:, : 3 * h])
        for t in range(self.steps):
            r, s, n, e = self.blocks(t)
            self.part.fill(0)
            if t > 0:
                np.matmul(self.u, self.y[t - 1], out=self.part)
            if self.d is not None:
                np.add(self.part, self.d[:, None], out=self.part)
            np.add(z[t, : 2 * h], self.part[: 2 * h], out=z[t, : 2 * h])
            _sigmoid(z[t, : 2 * h])
            e[...] = self.part[2 * h :]
            np.add(n, r * e, out=n)
            np.tanh(n, out=n)
            before = self.y[t - 1] if t > 0 else 0.0
            np.add(n, s * (before - n), out=self.y[t])

    def backward(self) -> None:
        z, h, dh = self.gates, self.hidden, self.dh
        u_rs, u_n = self.u[: 2 * h], self.u[2 * h :]
        self.carry.fill(0)
        for t in reversed(range(self.steps)):
            r, s, n, e = self.blocks(t)
            np.add(self.dy[t], self.carry, out=dh)
            if t < self.steps - 1:
                np.add(dh, u_rs.T @ z[t + 1, : 2 * h], out=dh)
                np.add(dh, u_n.T @ z[t + 1, 3 * h :], out=dh)
            np.multiply(dh, s, out=self.carry)
            before = self.y[t - 1] if t > 0 else 0.0
            da_s = dh * (before - n) * s * (1 - s)
            da_n = dh * (1 - s) * (1 - n * n)
            s[...], n[...] = da_s, da_n
            de_n = da_n * r
            r[...] = da_n * e * r * (1 - r)
            e[...] = de_n
        if self.grads:
            own, before = z[1:], self.y[:-1]
            self.grads["weight_ih"][...] = _over_steps(z[:, : 3 * h], self.x)
            self.grads["weight_hh"][: 2 * h] = _over_steps(own[:, : 2 * h], before)
            self.grads["weight_hh"][2 * h :] = _over_steps(own[:, 3 * h :], before)
            if self.b is not None:
                sums = z.sum(axis=(0, 2))
                self.grads["bias_ih"][...] = sums[: 3 * h]
                self.grads["bias_hh"][: 2 * h] = sums[: 2 * h]
                self.grads["bias_hh"][2 * h :] = sums[3 * h :]
        if self.dx is not None:
            np.matmul(self.w.T, z[:, : 3 * h], out=self.dx)


class GRU(_Recurrent):
    """See ``_GRULevel``."""

    level = _GRULevel


def _over_steps(a: Array, b: Array) -> Array:
    """Σ over steps and examples of a[t, i, n]·b[t, j, n]: (I, J)."""
    product: Array = np.tensordot(a, b, ((0, 2), (0, 2)))
    return product


def _sigmoid(x: Array) -> None:
    """x = 1/(1 + exp(-x)), in place; below -80 it is 0 in float32, and exp must not overflow."""
    np.maximum(x, -80, out=x)
    np.negative(x, out=x)
    np.exp(x, out=x)
    np.add(x, 1, out=x)
    np.reciprocal(x, out=x)
