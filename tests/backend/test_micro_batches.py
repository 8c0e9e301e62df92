"""A batch in slices (micro-batches) trains as the whole batch does, on every device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from client import parity
from client.backends.base import Device
from client.backends.recipe import Hyper, Recipe
from client.model import Model, Segment
from client.model.losses import CrossEntropy
from tests.backend.harness import Subject, assert_tensors_close, examples, network, numpy_device
from tests.backend.opencl_devices import open_device
from tests.backend.test_program import small_net

BATCH, EXAMPLES = 13, 30  # the last batch has 4
WEIGHTED = CrossEntropy(label_smoothing=0.1, class_weights=(0.5, 1, 2, 1, 3, 1, 0.1))
RECIPES = {
    "sgd": (Recipe(), Hyper(lr=0.05, momentum=0.9)),
    "clipped": (
        Recipe(proximal=True),
        Hyper(lr=0.05, momentum=0.9, clip_norm=0.05, proximal_mu=0.3),
    ),
    "weighted": (Recipe(WEIGHTED, "adamw"), Hyper(lr=0.01, weight_decay=0.1, eps=1e-2)),
}


def train(device: Device, model: Model, capacity: int, recipe: Recipe, hyper: Hyper) -> np.ndarray:
    """Parameters after two epochs, and their losses, the order of the examples shuffled."""
    recipe = replace(recipe, accumulates=capacity < BATCH)
    x, y = examples(model, EXAMPLES)
    subject = Subject(device, model, capacity, x, y, recipe=recipe, batch=BATCH)
    subject.program.poison()
    g = np.random.default_rng(0)
    for _ in range(2):
        subject.begin(g.permutation(EXAMPLES).astype(np.int32), BATCH)
        subject.epoch(hyper)
    params = subject.program.download()
    subject.release()
    return params


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("capacity", [1, 5, 12])
def test_slices_train_as_the_whole_batch(device: Device, capacity: int, name: str) -> None:
    """Dropout, momentum, clipping, class weights: what is divided by the batch, and what is not."""
    model = small_net()
    found = train(device, model, capacity, *RECIPES[name])
    whole = [train(numpy_device(t), model, BATCH, *RECIPES[name]) for t in (np.float64, np.float32)]
    assert_tensors_close(model, "parameters", found, *whole)


def test_where_nothing_is_trained_nothing_is_added(device: Device) -> None:
    model = network([5], "relu", {"type": "linear", "out_features": 3})
    program = device.compile(Segment(model, 0, 1), 4, Recipe(accumulates=True))
    program.upload(np.empty(0, np.float32))
    program.accumulate(first=True, last=False)
    program.accumulate(first=False, last=True)
    assert program.read_grads().size == 0
    program.release()


def test_a_sampled_step_is_all_slices(device: Device) -> None:
    model = small_net()
    recipe = Recipe(accumulates=True)
    subject = Subject(device, model, 5, *examples(model, BATCH), recipe=recipe, batch=BATCH)
    device.finish()
    before = replace(device.traffic)
    commands: list[object] = []
    subject.program.sample_next_step(commands)  # type: ignore[arg-type]
    subject.program.step(0, BATCH, Hyper(lr=0.1))
    subject.program.step(0, BATCH, Hyper(lr=0.1))
    device.finish()
    subject.program.read_metrics()
    assert device.traffic.since(before).sampled_steps == 1
    assert sum(command.part == "gather" for command in commands) == 3  # type: ignore[attr-defined]
    subject.release()


def test_a_batch_over_the_capacity_needs_the_recipe(device: Device) -> None:
    model = small_net()
    program = device.compile(model.whole, 5)
    data = device.load(*examples(model, BATCH))
    with pytest.raises(ValueError, match="holds 5"):
        program.begin_epoch(data, np.arange(BATCH, dtype=np.int32), BATCH, 0)
    with pytest.raises(ValueError, match="not compiled"):
        program.accumulate(first=True, last=False)
    program.release()
    data.release()


def test_the_parity_gate_checks_slices(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_net()
    program = device.compile(model.whole, 5, Recipe(accumulates=True))
    parity.compare(program, device, model)
    accumulate = type(program).accumulate
    monkeypatch.setattr(
        type(program),
        "accumulate",
        lambda self, first, last: None if self is program else accumulate(self, first, last),
    )
    with pytest.raises(parity.ParityError, match="slices"):
        parity.compare(program, device, model)
    program.release()


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    model = small_net()
    device = open_device(global_mem_nbytes=3 << 20)
    recipe = Recipe(accumulates=True)
    fits = device.largest_batch(model.whole, 100_000, recipe)
    assert 1 < fits < 100_000
    assert device.largest_batch(model.whole, fits - 1, recipe) == fits - 1
    program = device.compile(model.whole, fits, recipe)
    assert program.nbytes <= 9 << 18  # three quarters
    program.release()
    more = device.compile(model.whole, fits + 1, recipe)
    assert more.nbytes > 9 << 18
    device.close()


def test_streamed_slices_train_as_resident_ones() -> None:
    """Chunks are whole batches, of which slices are gathered."""
    model = small_net()
    recipe, hyper = RECIPES["sgd"]
    device = open_device()
    resident = train(device, model, 5, recipe, hyper)
    x, _ = examples(model, EXAMPLES)
    limits = type(device.allocator.limits)
    most = max(x.nbytes // 2 + 64, 4 * (model.num_params + 64))
    device.allocator.limits = limits(most, device.info.global_mem_nbytes, 4096)
    np.testing.assert_array_equal(train(device, model, 5, recipe, hyper), resident)
    device.close()
