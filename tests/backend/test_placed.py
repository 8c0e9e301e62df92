"""Networks on one device, cut, and split: trained as one, equal to the training on one device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from client.backends.base import Device
from client.backends.recipe import Hyper, Recipe
from client.placement.layout import Layout
from tests.backend.harness import numpy_device
from tests.backend.placed import HYPERS, Bench, second_numpy
from tests.backend.test_program import small_net

BLOCKS = len(small_net().block_names)
CLIPPED = replace(HYPERS["sgd"], clip_norm=0.05, proximal_mu=0.3)


def small(recipe: Recipe | None = None, hyper: Hyper = CLIPPED) -> Bench:
    return Bench.of(small_net(), recipe or Recipe(), hyper)


def layouts(device: Device, other: Device) -> dict[str, Layout]:
    one, two = device.info.key, other.info.key
    return {
        "whole": Layout.whole(one, BLOCKS),
        "cut in two": Layout.cut([one, two], [4, BLOCKS]),
        "cut, the other way round": Layout.cut([two, one], [4, BLOCKS]),
        "cut there and back": Layout.cut([one, two, one], [1, 6, BLOCKS]),
        "cut at every block": Layout.cut([one] * BLOCKS, range(1, BLOCKS + 1)),
        "split": Layout.split([one, two], [0.6, 0.4], BLOCKS),
        "split, the other way round": Layout.split([two, one], [0.6, 0.4], BLOCKS),
        "split, the owner at times idle": Layout.split([one, two], [0.1, 0.9], BLOCKS),
        "split, the other at times idle": Layout.split([one, two], [0.9, 0.1], BLOCKS),
    }


NAMES = list(layouts(second_numpy(), numpy_device(np.float32)))


@pytest.mark.parametrize("hyper", [HYPERS["sgd"], CLIPPED], ids=["sgd", "clipped, proximal"])
@pytest.mark.parametrize("name", NAMES)
def test_every_layout_trains_as_one_device(device: Device, name: str, hyper: Hyper) -> None:
    other = second_numpy()
    bench = small(hyper=hyper)
    bench.agrees(layouts(device, other)[name], [device, other])
