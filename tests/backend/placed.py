"""What the tests of placed networks share: a layout is trained, and held against one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.backends.base import Device
from client.backends.figures import Metrics
from client.backends.numpy.device import NumpyDevice
from client.backends.recipe import Hyper, OptimizerName, Recipe
from client.backends.state import State
from client.model import Model, initialise
from client.model.losses import Labels
from client.placed import Placed, Site, place
from client.placement.layout import Layout
from tests.backend.harness import KEY, examples, numpy_device
from tests.tolerance import assert_close

BATCH, EXAMPLES = 7, 18  # the last batch has 4
HYPERS: dict[OptimizerName, Hyper] = {
    "sgd": Hyper(lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": Hyper(lr=0.01, eps=0.05),
    "adamw": Hyper(lr=0.01, eps=0.05, weight_decay=0.1),
}


def second_numpy(number: int = 2) -> NumpyDevice:
    """A device of its own, which a layout can tell from numpy's."""
    first = numpy_device(np.float32).info
    return NumpyDevice(replace(first, name=f"{first.name} #{number}", index=number - 1))


@dataclass
class Trained:
    """What a network has come to after its steps."""

    values: NDArray[Any]
    state: State
    training: Metrics
    evaluation: Metrics


@dataclass
class Bench:
    """A model with its recipe and data, to be trained on one layout after another."""

    model: Model
    recipe: Recipe
    hyper: Hyper
    x: NDArray[Any]
    y: Labels

    @classmethod
    def of(cls, model: Model, recipe: Recipe, hyper: Hyper) -> Bench:
        """With random examples, and a recipe that allows what ``hyper`` asks for."""
        recipe = replace(recipe, proximal=hyper.proximal_mu != 0)
        x, _ = examples(model, EXAMPLES)
        g = np.random.default_rng(1)
        y = recipe.loss.random_labels(model.output_shape, EXAMPLES, g)
        return cls(model, recipe, hyper, x, y)

    def place(self, layout: Layout, devices: Sequence[Device]) -> Placed:
        """The layout's parts compiled and loaded; ``devices``: those of the layout."""
        by_key = {device.info.key: device for device in devices}
        data = {key: by_key[key].load(self.x, self.y) for key in layout.devices}
        sites = []
        for part in layout.parts:
            device = by_key[part.device]
            program = device.compile(part.segment(self.model), BATCH, self.recipe)
            sites.append(Site(device, program, data[part.device]))
        return place(layout, sites)

    def train(self, layout: Layout, devices: Sequence[Device]) -> Trained:
        """Two epochs in shuffled orders, each with a smaller last batch; then an evaluation."""
        placed = self.place(layout, devices)
        placed.upload(initialise(self.model, seed=0))
        placed.read_metrics()
        g = np.random.default_rng(2)
        for program in placed.programs:
            program.poison()
        for epoch in range(2):
            placed.begin_epoch(g.permutation(EXAMPLES).astype(np.int32), BATCH, KEY + epoch)
            self.steps(placed)
        training = placed.read_metrics()
        for start in range(0, EXAMPLES, BATCH):
            placed.evaluate(start, min(BATCH, EXAMPLES - start))
        result = Trained(placed.download(), placed.read_state(), training, placed.read_metrics())
        release(placed)
        return result

    def steps(self, placed: Placed) -> None:
        """An epoch's steps; no waiting but the layout's own."""
        for start in range(0, EXAMPLES, BATCH):
            placed.step(start, min(BATCH, EXAMPLES - start), self.hyper)
            placed.throttle(0.25)

    def agrees(self, layout: Layout, devices: Sequence[Device]) -> None:
        """The layout's training is that of one device, as the tolerance for float32 allows."""
        found = self.train(layout, devices)
        blocks = len(self.model.block_names)
        wanted, peer = (
            self.train(Layout.whole(d.info.key, blocks), [d])
            for d in (numpy_device(np.float64), numpy_device(np.float32))
        )
        walk = sqrt(len(self.model.ops))
        assert found.state.updates == wanted.state.updates
        for a, b in ((found.training, wanted.training), (found.evaluation, wanted.evaluation)):
            assert a.count == b.count
            np.testing.assert_allclose(a.weight, b.weight, rtol=1e-6)
            np.testing.assert_allclose(a.loss_sum, b.loss_sum, rtol=1e-4)
        np.testing.assert_array_equal(found.values, found.state.values)
        for p in self.model.values:
            values = [t.values[p.slice] for t in (found, wanted, peer)]
            assert_close(p.name, *values, walk * float(np.abs(values[1]).max()))
        for i, slot in enumerate(wanted.state.slots):
            slots = [t.state.slots[i] for t in (found, wanted, peer)]
            assert_close(f"optimizer state {i}", *slots, walk * float(np.abs(slot).max(initial=0)))


def release(placed: Placed) -> None:
    """Programs and data of a layout."""
    for program in placed.programs:
        program.release()
    for data in dict.fromkeys(site.data for site in placed.sites):
        data.release()
