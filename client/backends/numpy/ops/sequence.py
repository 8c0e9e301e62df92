"""Layers for sequences that have no state: embedding, last step, transposition."""

from __future__ import annotations

import numpy as np

from client.backends.numpy.ops.function import Array, Function, Run, Tensors
from client.model.graph import Op


class Embedding(Function):
    """y[t] = W[token[t]]; dW[v] = Σ dy[t] over all places with token v.

    x: (T, N) whole numbers, y: (T, D, N), W: (V, D).
    """

    def __init__(self, op: Op, t: Tensors) -> None:
        super().__init__(op, t)
        self.tokens: Array = t.memory("tokens", t.x[0].shape, np.intp)

    def forward(self, run: Run) -> None:
        t = self.t
        self.tokens[...] = t.x[0]
        t.y[...] = t.params["weight"][self.tokens].transpose(0, 2, 1)

    def backward(self) -> None:
        """Rows of dy are sorted by token, so that each token's are a run that is summed up."""
        t = self.t
        tokens = self.tokens.reshape(-1)
        rows = t.dy.transpose(0, 2, 1).reshape(len(tokens), -1)
        order = np.argsort(tokens, kind="stable")
        found, starts = np.unique(tokens[order], return_index=True)
        t.grads["weight"].fill(0)
        t.grads["weight"][found] = np.add.reduceat(rows[order], starts, axis=0)


class LastStep(Function):
    """y = x[T-1]; dx[T-1] = dy, and zero for all other steps.

    x: (T, F, N), y: (F, N).
    """

    def forward(self, run: Run) -> None:
        self.t.y[...] = self.t.x[0][-1]

    def backward(self) -> None:
        dx = self.t.dx[0]
        if dx is not None:
            dx[:-1] = 0
            dx[-1] = self.t.dy


class Transpose(Function):
    """y[b, a] = x[a, b].

    x: (A, B, N), y: (B, A, N).
    """

    def forward(self, run: Run) -> None:
        self.t.y[...] = self.t.x[0].transpose(1, 0, 2)

    def backward(self) -> None:
        dx = self.t.dx[0]
        if dx is not None:
            dx[...] = self.t.dy.transpose(1, 0, 2)
