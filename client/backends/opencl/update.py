"""The update's launches, and the numbers that are set from step to step."""

from __future__ import annotations

import numpy as np

from client.backends.opencl.calls import errors_as_ours
from client.backends.opencl.prepare import Prepared
from client.backends.recipe import Hyper, Recipe

ADAM_SCALES = 8
"""Place of the two arguments of the kernel adam that change with every update, after the others."""


class Update:
    """Prepared launches of a program: clipping, the optimizer, adding up gradients of slices."""

    def __init__(
        self,
        device: str,
        recipe: Recipe,
        clip: list[Prepared],
        update: list[Prepared],
        accumulate: list[Prepared],
    ) -> None:
        self._device, self._recipe = device, recipe
        self._clip, self._update, self._accumulate = clip, update, accumulate
        self._hyper: Hyper | None = None
        self.updates = 0  # since the last upload

    def accumulate(self, first: bool, last: bool) -> list[Prepared]:
        """The launch that adds gradients up after a slice; none where nothing is trained."""
        launches = self._accumulate[int(last) :][:1]
        for launch in launches:
            with errors_as_ours(self._device, "adding up gradients"):
                launch.kernel.set_arg(launch.num_args, np.int32(not first))
        return launches

    def squares(self, hyper: Hyper) -> list[Prepared]:
        """The launches that sum the gradient's squares in parts."""
        if hyper != self._hyper:
            self._set_hyper(hyper)
        return self._clip[:-1]

    def step(self, hyper: Hyper, own_norm: bool) -> list[Prepared]:
        """The launches of one update; with ``own_norm``, of what gradients are clipped by, too."""
        if hyper != self._hyper:
            self._set_hyper(hyper)
        self.updates += 1
        if self._recipe.optimizer != "sgd":
            self._set_adam_scales(hyper)
        return [*self._clip, *self._update] if hyper.clip_norm and own_norm else self._update

    def _set_hyper(self, hyper: Hyper) -> None:
        """Set the arguments that follow the prepared ones, of each kernel by its name."""
        a, b = hyper.betas
        clipped = np.int32(hyper.clip_norm > 0)
        decay, decoupled = hyper.weight_decay, self._recipe.optimizer == "adamw"
        mu = (np.float32(hyper.proximal_mu),) if self._recipe.proximal else ()
        values = {
            "clip_squares": mu,
            "clip_factor": (np.float32(hyper.clip_norm),),
            "sgd": (
                np.float32(hyper.lr),
                np.float32(hyper.momentum),
                np.int32(hyper.nesterov),
                np.float32(decay),
                clipped,
                *mu,
            ),
            "adam": (
                *(np.float32(v) for v in (a, 1 - a, b, 1 - b, hyper.eps)),
                np.float32(0 if decoupled else decay),
                np.float32(1 - hyper.lr * decay if decoupled else 1),
                clipped,
                *(np.float32(v) for v in hyper.adam_scales(1)),
                *mu,
            ),
        }
        with errors_as_ours(self._device, "preparing the update"):
            for prepared in (*self._clip, *self._update):
                for i, value in enumerate(values[prepared.launch.kernel], prepared.num_args):
                    prepared.kernel.set_arg(i, value)
        self._hyper = hyper

    def _set_adam_scales(self, hyper: Hyper) -> None:
        """Set the arguments that change with every update."""
        scales = hyper.adam_scales(self.updates)
        with errors_as_ours(self._device, "preparing the update"):
            for prepared in self._update:
                for i, value in enumerate(scales, prepared.num_args + ADAM_SCALES):
                    prepared.kernel.set_arg(i, np.float32(value))
