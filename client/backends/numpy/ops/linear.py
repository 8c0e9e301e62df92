"""Fully connected layer."""

from __future__ import annotations

import numpy as np

from client.backends.numpy.ops.function import Function, Run


class Linear(Function):
    """y = W x + b, for a sequence at each of its T steps.

    x: (I, N) or (T, I, N), y: (O, N) or (T, O, N), W: (O, I), b: (O,).
    dx = Wᵀ dy;  dW = dy xᵀ;  db = Σ dy, the last two over examples and steps.
    """

    def forward(self, run: Run) -> None:
        t = self.t
        np.matmul(t.params["weight"], t.x[0], out=t.y)
        if "bias" in t.params:
            np.add(t.y, t.params["bias"][:, None], out=t.y)

    def backward(self) -> None:
        t = self.t
        if "weight" in t.grads:
            if t.dy.ndim == 2:
                np.matmul(t.dy, t.x[0].T, out=t.grads["weight"])
            else:
                t.grads["weight"][...] = np.tensordot(t.dy, t.x[0], ((0, 2), (0, 2)))
        if "bias" in t.grads:
            np.sum(t.dy, axis=(*range(t.dy.ndim - 2), -1), out=t.grads["bias"])
        if t.dx[0] is not None:
            np.matmul(t.params["weight"].T, t.dy, out=t.dx[0])
