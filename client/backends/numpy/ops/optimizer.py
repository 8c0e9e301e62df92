"""Stochastic gradient descent on the flat parameter buffer."""

from __future__ import annotations

from math import sqrt

import numpy as np

from client.backends.base import Hyper
from client.backends.numpy.ops.function import Array

BLOCK = 65536
"""Elements updated at a time: the few arrays of one block stay in a core's cache."""


class Sgd:
    """g = clip(grad + proximal_mu·(w - start)) + weight_decay·w; v = momentum·v + g;
    w -= lr · (g + momentum·v if nesterov else v), as ``torch.optim.SGD``.

    clip(g) = g · min(1, clip_norm / (‖g‖ + 1e-6)), as ``torch.nn.utils.clip_grad_norm_``.

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
        clipped = self._clip_factor(hyper) if hyper.clip_norm else 1.0
        for w, grad, v, start in self.blocks:
            part = self.part[: len(w)]
            g = self._gradient(w, grad, start, hyper)
            if clipped != 1:
                g = np.multiply(g, clipped, out=self.g[: len(w)])
            if hyper.weight_decay:
                np.multiply(w, hyper.weight_decay, out=part)
                g = np.add(g, part, out=self.g[: len(w)])
            step = g
            if hyper.momentum:
                np.multiply(v, hyper.momentum, out=v)
                np.add(v, g, out=v)
                step = v
                if hyper.nesterov:
                    np.multiply(v, hyper.momentum, out=part)
                    step = np.add(part, g, out=part)
            np.subtract(w, np.multiply(step, hyper.lr, out=part), out=w)

    def _gradient(self, w: Array, grad: Array, start: Array, hyper: Hyper) -> Array:
        """A block's gradient with the proximal term, perhaps in ``self.g``."""
        if not hyper.proximal_mu:
            return grad
        g = np.subtract(w, start, out=self.g[: len(w)])
        np.multiply(g, hyper.proximal_mu, out=g)
        return np.add(g, grad, out=g)

    def _clip_factor(self, hyper: Hyper) -> float:
        """At most 1; "not a number" where the gradient is."""
        square = 0.0
        for w, grad, _, start in self.blocks:
            g = self._gradient(w, grad, start, hyper)
            square += float(np.dot(g, g))
        return float(np.minimum(1, hyper.clip_norm / (sqrt(square) + 1e-6)))
