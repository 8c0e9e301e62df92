"""Stochastic gradient descent on the flat parameter buffer."""

from __future__ import annotations

import numpy as np

from client.backends.base import Hyper
from client.backends.numpy.ops.function import Array

BLOCK = 65536
"""Elements updated at a time: the few arrays of one block stay in a core's cache."""


class Sgd:
    """g = grad + weight_decay·w + proximal_mu·(w - start); v = momentum·v + g;
    w -= lr · (g + momentum·v if nesterov else v), as ``torch.optim.SGD``.

    All arrays are flat, of one length. ``velocity`` starts at zero, which equals PyTorch's first
    step v = g.
    """

    def __init__(self, params: Array, grads: Array, velocity: Array, start: Array) -> None:
        self.blocks = [
            tuple(a[i : i + BLOCK] for a in (params, grads, velocity, start))
            for i in range(0, len(params), BLOCK)
        ]
        size = min(len(params), BLOCK)
        self.g, self.part = np.empty(size, params.dtype), np.empty(size, params.dtype)

    def update(self, hyper: Hyper) -> None:
        """One step; ``grads`` is left as it is."""
        for w, grad, v, start in self.blocks:
            part = self.part[: len(w)]
            g = grad
            if hyper.weight_decay or hyper.proximal_mu:
                g = self.g[: len(w)]
                g[...] = grad
            if hyper.weight_decay:
                np.add(g, np.multiply(w, hyper.weight_decay, out=part), out=g)
            if hyper.proximal_mu:
                np.subtract(w, start, out=part)
                np.add(g, np.multiply(part, hyper.proximal_mu, out=part), out=g)
            step = g
            if hyper.momentum:
                np.multiply(v, hyper.momentum, out=v)
                np.add(v, g, out=v)
                step = v
                if hyper.nesterov:
                    np.multiply(v, hyper.momentum, out=part)
                    step = np.add(part, g, out=part)
            np.subtract(w, np.multiply(step, hyper.lr, out=part), out=w)
