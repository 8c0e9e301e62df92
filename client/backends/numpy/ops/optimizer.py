"""Optimizers on the trained runs of the flat parameter buffer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import sqrt
from typing import ClassVar

import numpy as np

from client.backends.numpy.ops.function import Array
from client.backends.recipe import Hyper, OptimizerName

BLOCK = 65536
"""Elements updated at a time: the few arrays of one block stay in a core's cache."""


class Optimizer(ABC):
    """g = clip(grad + proximal_mu·(w - start)), then ``step``, block by block.

    clip(g) = g · min(1, clip_norm / (‖g‖ + 1e-6)), as ``torch.nn.utils.clip_grad_norm_``.

    ``params`` is the segment's flat buffer, of which ``runs`` are trained; ``grads`` and ``start``
    hold these runs one after the other. ``start`` is empty where no update has a proximal term.
    ``state``: ``states`` arrays like ``grads``.
    """

    states: ClassVar[int]

    def __init__(self, params: Array, runs: tuple[slice, ...], grads: Array, start: Array) -> None:
        self.grads, self.start = grads, start
        self.state = [np.zeros_like(grads) for _ in range(self.states)]
        self.steps = 0
        self.runs: list[tuple[Array, Array]] = []  # parameters and their start
        self.blocks: list[tuple[Array, Array, Array, tuple[Array, ...]]] = []
        at = 0
        for run in runs:
            w = params[run]
            self.runs.append((w, start[at : at + len(w)]))
            for i in range(0, len(w), BLOCK):
                part = slice(at + i, at + min(i + BLOCK, len(w)))
                state = tuple(s[part] for s in self.state)
                self.blocks.append((w[i : i + BLOCK], grads[part], start[part], state))
            at += len(w)
        size = max((len(w) for w, *_ in self.blocks), default=0)
        self.g, self.part = np.empty(size, params.dtype), np.empty(size, params.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of gradients, of the round's start, and of the state."""
        return sum(a.nbytes for a in (self.grads, self.start, *self.state))

    @abstractmethod
    def step(self, w: Array, g: Array, state: tuple[Array, ...], hyper: Hyper) -> None:
        """Change a block's ``w`` and state; ``self.part`` is free, ``g`` only to be read."""

    def begin(self) -> None:
        """A round begins: the parameters are those to be near to, and the state is new."""
        if self.start.size:
            for w, start in self.runs:
                start[...] = w
        self.grads.fill(0)
        for array in self.state:
            array.fill(0)
        self.steps = 0

    def update(self, hyper: Hyper, norm: float | None = None) -> None:
        """One step; ``grads`` is left as it is. ``norm``: what is clipped by, else its own."""
        self.steps += 1
        clipped = 1.0
        if hyper.clip_norm:
            clipped = hyper.clip_factor(sqrt(self.squares(hyper)) if norm is None else norm)
        for w, grad, start, state in self.blocks:
            g = self._gradient(w, grad, start, hyper)
            if clipped != 1:
                g = np.multiply(g, clipped, out=self.g[: len(w)])
            self.step(w, g, state, hyper)

    def _gradient(self, w: Array, grad: Array, start: Array, hyper: Hyper) -> Array:
        """A block's gradient with the proximal term, perhaps in ``self.g``."""
        if not hyper.proximal_mu:
            return grad
        g = np.subtract(w, start, out=self.g[: len(w)])
        np.multiply(g, hyper.proximal_mu, out=g)
        return np.add(g, grad, out=g)

    def _decayed(self, w: Array, g: Array, hyper: Hyper) -> Array:
        """g + weight_decay·w, perhaps in ``self.g``."""
        if not hyper.weight_decay:
            return g
        part = np.multiply(w, hyper.weight_decay, out=self.part[: len(w)])
        return np.add(g, part, out=self.g[: len(w)])

    def squares(self, hyper: Hyper) -> float:
        """‖g‖² of the gradient with the proximal term."""
        square = 0.0
        for w, grad, start, _ in self.blocks:
            g = self._gradient(w, grad, start, hyper)
            square += float(np.dot(g, g))
        return square


class Sgd(Optimizer):
    """g += weight_decay·w; v = momentum·v + g; w -= lr · (g + momentum·v if nesterov else v).

    ``torch.optim.SGD``. State: v. From zero, the first step gives PyTorch's v = g.
    """

    states = 1

    def step(self, w: Array, g: Array, state: tuple[Array, ...], hyper: Hyper) -> None:
        (v,), part = state, self.part[: len(w)]
        g = self._decayed(w, g, hyper)
        change = g
        if hyper.momentum:
            np.multiply(v, hyper.momentum, out=v)
            np.add(v, g, out=v)
            change = v
            if hyper.nesterov:
                np.multiply(v, hyper.momentum, out=part)
                change = np.add(part, g, out=part)
        np.subtract(w, np.multiply(change, hyper.lr, out=part), out=w)


class Adam(Optimizer):
    """g += weight_decay·w; m = a·m + (1-a)·g; s = b·s + (1-b)·g²;
    w -= lr · m/(1-aᵗ) / (√(s/(1-bᵗ)) + eps) in step t: ``torch.optim.Adam``. State: m, s.
    """

    states = 2

    def step(self, w: Array, g: Array, state: tuple[Array, ...], hyper: Hyper) -> None:
        self._move(w, self._decayed(w, g, hyper), state, hyper)

    def _move(self, w: Array, g: Array, state: tuple[Array, ...], hyper: Hyper) -> None:
        (m, s), (a, b), part = state, hyper.betas, self.part[: len(w)]
        m_scale, s_scale = hyper.adam_scales(self.steps)
        np.multiply(m, a, out=m)
        np.add(m, np.multiply(g, 1 - a, out=part), out=m)
        np.multiply(np.multiply(g, g, out=part), 1 - b, out=part)
        np.multiply(s, b, out=s)
        np.add(s, part, out=s)
        np.multiply(np.sqrt(s, out=part), s_scale, out=part)
        np.divide(m, np.add(part, hyper.eps, out=part), out=part)
        np.subtract(w, np.multiply(part, m_scale, out=part), out=w)


class AdamW(Adam):
    """Adam with w -= lr·weight_decay·w in place of its first step: ``torch.optim.AdamW``."""

    def step(self, w: Array, g: Array, state: tuple[Array, ...], hyper: Hyper) -> None:
        if hyper.weight_decay:
            np.multiply(w, 1 - hyper.lr * hyper.weight_decay, out=w)
        self._move(w, g, state, hyper)


OPTIMIZERS: dict[OptimizerName, type[Optimizer]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}
