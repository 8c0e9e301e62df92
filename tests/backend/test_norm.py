"""Normalisation on every device: what PyTorch's frozen results do not reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client.backends.base import Device
from client.backends.recipe import Hyper
from client.model import Model, Segment
from tests.backend.harness import (
    KEY,
    Subject,
    assert_tensors_close,
    examples,
    network,
    numpy_device,
)
from tests.tolerance import assert_close

MOMENTUM = Hyper(lr=0.05, momentum=0.9)
BATCH = 6
END = ("global_avgpool2d", {"type": "linear", "out_features": 3})


def conv(channels: int) -> dict[str, Any]:
    return {"type": "conv2d", "out_channels": channels, "kernel_size": 3, "padding": 1}


def resnet() -> Model:
    """Every way in which batch norm meets its neighbours: ReLU, sum, fork, shortcut, group norm."""
    plain = {
        "type": "residual",
        "body": [conv(5), "batchnorm2d", "relu", conv(5), {"type": "batchnorm2d", "momentum": 0.5}],
    }
    projected = {
        "type": "residual",
        "body": [conv(17), "batchnorm2d", "relu", conv(17), "batchnorm2d"],
        "shortcut": [conv(17), "batchnorm2d"],
    }
    last = {"type": "residual", "body": ["relu", "batchnorm2d"], "shortcut": ["batchnorm2d"]}
    return network(
        [2, 7, 9],
        conv(5),
        "batchnorm2d",
        "relu",
        plain,
        "relu",
        projected,
        "relu",
        last,
        {"type": "groupnorm", "num_groups": 17},
        "global_avgpool2d",
        "batchnorm1d",
        "relu",
        {"type": "layernorm", "normalized_shape": 17},
        {"type": "linear", "out_features": 3},
    )


def values(model: Model) -> np.ndarray:
    """Values of which no two are alike; variances positive."""
    flat = np.random.default_rng(7).normal(size=model.num_values).astype(np.float32)
    views = model.views(flat)
    for buffer in model.buffers:
        if buffer.name.endswith("running_var"):
            views[buffer.name][...] = np.abs(views[buffer.name]) + np.float32(0.1)
    return flat


def subjects(device: Device, model: Model, count: int = 2 * BATCH + 3) -> list[Subject]:
    """On the device, in float64 (the reference) and in numpy's float32 (the yardstick)."""
    x, y = examples(model, count)
    found = (device, numpy_device(np.float64), numpy_device(np.float32))
    return [Subject(d, model, BATCH, x, y, values(model)) for d in found]


def release(made: list[Subject]) -> None:
    for subject in made:
        subject.release()


def test_steps_and_evaluation_agree_with_the_reference(device: Device) -> None:
    """Running statistics move in training alone, and evaluation uses them."""
    made = subjects(device, resnet())
    model = made[0].model
    logits, after, evaluated = [], [], []
    for subject in made:
        subject.gradients(BATCH)
        logits.append(subject.program.take_output(BATCH))
        subject.program.update(Hyper(lr=0.01))
        subject.gradients(3, 2 * BATCH)
        after.append(subject.program.download())
        subject.program.gather(BATCH, BATCH)
        subject.program.forward(BATCH, training=False)
        evaluated.append(subject.program.take_output(BATCH))
        np.testing.assert_array_equal(subject.program.download(), after[-1])
    assert_close("logits", *logits)
    assert_tensors_close(model, "values", *after)
    assert_close("logits in evaluation", *evaluated)
    for buffer in model.buffers:
        assert np.abs(after[0] - values(model))[buffer.slice].min() > 0
    release(made)


def test_poison_changes_nothing(device: Device) -> None:
    model = resnet()
    subject = Subject(device, model, BATCH, *examples(model, 2 * BATCH + 3), values(model))
    results = []
    for poisoned in (False, True):
        subject.reset()
        for start, count in ((0, BATCH), (BATCH, 2), (2 * BATCH, 3)):
            if poisoned:
                subject.program.poison()
            subject.program.step(start, count, MOMENTUM)
        if poisoned:
            subject.program.poison()
        subject.program.gather(0, 5)
        subject.program.forward(5, training=False)
        results.append((subject.program.take_output(5), subject.program.download()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])
    assert np.isfinite(results[0][1]).all()
    subject.release()


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 6, 7, 8, 10, 11])
def test_two_segments_equal_the_whole(device: Device, cut: int) -> None:
    """Each segment has its own parameters and buffers, and gives them back."""
    model = resnet()
    whole = Subject(device, model, BATCH, *examples(model, BATCH), values(model))
    whole_grads = whole.gradients(BATCH)
    logits = whole.program.take_output(BATCH)
    whole.program.update(MOMENTUM)

    segments = [Segment(model, 0, cut), Segment(model, cut, len(model.block_names))]
    first, last = (device.compile(s, BATCH) for s in segments)
    for program in (first, last):
        program.upload(program.segment.values_of(whole.params))
        program.begin_epoch(whole.data, whole.order, BATCH, KEY)
        program.poison()
        program.gather(0, BATCH)
    first.forward(BATCH)
    last.put_input(first.take_output(BATCH))
    last.forward(BATCH)
    last.loss(BATCH)
    last.backward(BATCH)
    first.put_output_grad(last.take_input_grad(BATCH))
    first.backward(BATCH)
    grads = np.concatenate([first.read_grads(), last.read_grads()])
    for program in (first, last):
        program.update(MOMENTUM)
    wanted = whole.program.download()
    np.testing.assert_allclose(last.take_output(BATCH), logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grads, whole_grads, rtol=1e-4, atol=1e-5)
    for program in (first, last):
        own = program.segment.values_of(wanted)
        np.testing.assert_allclose(program.download(), own, rtol=1e-4, atol=1e-5)
        program.release()
    whole.release()


def test_a_single_value_is_normalised_by_the_running_statistics(device: Device) -> None:
    """A batch of one example without positions: they stay, and gradients pass through."""
    layers = [{"type": "linear", "out_features": 33}, "batchnorm1d", "relu"]
    model = network([5], "batchnorm1d", *layers, {"type": "linear", "out_features": 3})
    made = subjects(device, model)
    results = []
    for subject in made:
        subject.program.gather(0, 1)
        subject.program.forward(1, training=False)
        wanted = subject.program.take_output(1)
        grads = subject.gradients(1)
        np.testing.assert_array_equal(subject.program.take_output(1), wanted)
        np.testing.assert_array_equal(subject.program.download(), values(model).astype(grads.dtype))
        results.append(grads)
    assert_tensors_close(model, "gradient", *results)
    assert np.abs(results[0]).max() > 0.01
    release(made)


@pytest.mark.parametrize("shape", [[3], [3, 40], [20, 5, 7]])
def test_a_mean_beyond_the_deviation_costs_no_digits(device: Device, shape: list[int]) -> None:
    """Values around 3,000 with a deviation of 1: squares alone would leave one digit."""
    layer = "batchnorm1d" if len(shape) < 3 else "batchnorm2d"
    end = ["flatten", {"type": "linear", "out_features": 3}]
    model = network(shape, layer, *end, mean=[-3000.0])
    x, y = examples(model, 64)
    factor_shift = x.astype(np.float64) + 3000
    subject = Subject(device, model, 64, x, y)
    subject.gradients(64)
    views = model.views(subject.program.download())
    axes = (0, *range(2, x.ndim))
    # the input itself is rounded to some 2e-4
    variance = (factor_shift.astype(np.float32).astype(np.float64)).var(axis=axes, ddof=1)
    np.testing.assert_allclose(views["0.running_var"], 0.9 + 0.1 * variance, rtol=1e-5)
    mean = factor_shift.mean(axis=axes)
    np.testing.assert_allclose(views["0.running_mean"], 0.1 * mean, rtol=1e-6)
    subject.release()


@pytest.mark.parametrize("kind", ["batchnorm", "groupnorm", "layernorm"])
@pytest.mark.parametrize("channels", [1, 3, 40, 129])
@pytest.mark.parametrize("spatial", [[], [1, 1], [2, 9], [15, 1], [8, 16]])
def test_odd_sizes(device: Device, kind: str, channels: int, spatial: list[int]) -> None:
    """Few and many channels, planes of one value, below, at and beyond a vector."""
    norm: dict[str, Any] = {"type": f"batchnorm{2 if spatial else 1}d"}
    if kind == "groupnorm":
        norm = {"type": kind, "num_groups": 3 if channels in (3, 129) else 1, "eps": 0.1}
    elif kind == "layernorm":
        norm = {"type": kind, "normalized_shape": spatial[1:] or channels, "eps": 0.1}
    end = ["flatten", {"type": "linear", "out_features": 2}]
    model = network([channels, *spatial], "tanh", norm, "relu", *end)
    made = subjects(device, model, 2 * BATCH)
    results = [(s.gradients(5), s.program.take_output(5), s.program.download()) for s in made]
    grads, logits, after = zip(*results, strict=True)
    assert_close("logits", *logits)
    largest = float(np.abs(grads[1]).max())  # a tensor of one element is by luck exact
    for param in model.params:
        assert_close(f"gradient of {param.name}", *(g[param.slice] for g in grads), largest)
    assert_tensors_close(model, "values", *after)
    release(made)


def test_frozen_batch_norm_is_that_of_evaluation(device: Device) -> None:
    """Its values stay, gradients pass through it; in a fork, before a sum and a ReLU as well."""
    rows = {"type": "groupnorm", "num_groups": 5}
    block = {"type": "residual", "body": [conv(5), "batchnorm2d"], "shortcut": [rows]}
    last = {**conv(5), "bias": False}
    layers = [conv(5), "batchnorm2d", "relu", block, "relu", last, "batchnorm2d", *END]
    model = network([2, 7, 9], *layers)
    frozen = ("1", "3.body.1", "3.shortcut.0")
    model = replace(model, ops=tuple(replace(o, frozen=o.name in frozen) for o in model.ops))
    made = subjects(device, model)
    results = []
    for subject in made:
        grads = subject.gradients(BATCH)
        logits = subject.program.take_output(BATCH)
        subject.program.update(Hyper(lr=0.05))
        results.append((logits, grads, subject.program.download()))
    logits, grads, after = zip(*results, strict=True)
    assert_close("logits", *logits)
    assert_tensors_close(model, "gradient", *grads)
    assert_tensors_close(model, "values", *after)
    for op in model.ops:
        for value in (*op.params, *op.buffers):
            changed = after[0][value.slice] != values(model)[value.slice]
            assert changed.any() != op.frozen, value.name
    release(made)
