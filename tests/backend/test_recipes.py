"""What every backend promises of losses, optimizers and frozen layers, beyond PyTorch's numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from client import parity
from client.backends.base import Device
from client.backends.recipe import Hyper, Recipe
from client.errors import DataError
from client.model import Model, Segment, build_model
from client.model.losses import MSE, BCEWithLogits, CrossEntropy, Loss
from tests.backend.cases import CASES, HYPERS, RECIPES, Case, conv, linear
from tests.backend.harness import KEY, Subject, assert_tensors_close, numpy_device

WEIGHTED = CrossEntropy(0.1, (0.5, 2.0, 1.0, 0.25, 3.0))


def net(*frozen: str, loss: Loss | None = None) -> Model:
    """Three layers with parameters, of which some may be frozen."""
    layers = [
        conv(5, 3, name="conv1"),
        "relu",
        conv(6, 3, name="conv2"),
        "relu",
        "flatten",
        linear(5, name="fc"),
    ]
    mapping = {"name": "net", "input": {"shape": [2, 9, 8]}, "layers": layers}
    return build_model(mapping, "net", loss, frozen)


def subject_of(
    device: Device, model: Model, recipe: Recipe, n: int = 11, batch: int = 4
) -> Subject:
    g = np.random.default_rng(0)
    x = g.normal(size=(n, *model.input.shape)).astype(np.float32)
    y = recipe.loss.random_labels(model.output_shape, n, g)
    return Subject(device, model, batch, x, y, recipe=recipe)


PACKED = tuple(case for case in CASES if case.name in ("conv_batch", "conv_channels"))
"""Cases whose operands are packed with lanes to spare."""


@pytest.mark.parametrize("case", [*RECIPES, *PACKED], ids=lambda case: case.name)
def test_nothing_is_read_that_was_not_written(device: Device, case: Case) -> None:
    """Memory full of NaN before each step changes nothing, also for a smaller batch."""
    x, y, orders = case.data()
    hyper = HYPERS[case.hypers[-1]]
    subject = Subject(device, case.model, case.batch, x, y, recipe=case.recipe(hyper))
    results = []
    for poisoned in (False, True):
        subject.reset(orders[0])
        for start in range(0, len(x), case.batch):
            if poisoned:
                subject.program.poison()
            count = min(case.batch, len(x) - start)
            subject.program.step(start, count, hyper)
        results.append((subject.program.read_metrics(), subject.program.download()))
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])
    subject.release()


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_starts_anew_with_each_upload(device: Device, optimizer: str) -> None:
    """Its first step is lr in every coordinate, in each round."""
    recipe = Recipe(optimizer=optimizer)  # type: ignore[arg-type]
    subject = subject_of(device, net(), recipe)
    hyper = Hyper(lr=0.01, eps=1e-12, clip_norm=100.0)
    first = []
    for _ in range(2):
        subject.reset()
        grads = subject.gradients(4)
        subject.program.update(hyper)
        first.append(subject.program.download())
        np.testing.assert_allclose(
            first[-1] - subject.params, -0.01 * np.sign(grads), rtol=0, atol=1e-6
        )
        subject.program.read_metrics()
        subject.epoch(hyper)
    np.testing.assert_array_equal(*first)
    plain = subject_of(device, net(), Recipe())
    ratio = subject.program.usage.params_nbytes / plain.program.usage.params_nbytes
    assert ratio == pytest.approx(4 / 3, abs=0.05)  # one more number for each parameter
    subject.release()
    plain.release()


@pytest.mark.parametrize("loss", [WEIGHTED, BCEWithLogits(), MSE()], ids=lambda x: x.name)
def test_gradients_of_slices_add_up(device: Device, loss: Loss) -> None:
    """Where ``total`` is what the whole batch weighs."""
    subject = subject_of(device, net(), Recipe(loss), batch=6)
    whole = subject.gradients(6)
    total = subject.program.weight(0, 6)
    subject.program.read_metrics()
    sums = np.zeros_like(whole)
    subject.reset(batch=2)
    for start in (0, 2, 4):
        subject.program.gather(start, 2)
        subject.program.forward(2)
        subject.program.loss(2, total)
        subject.program.backward(2)
        sums += subject.program.read_grads()
    np.testing.assert_allclose(sums, whole, rtol=1e-4, atol=1e-6)
    metrics = subject.program.read_metrics()
    assert metrics.weight == pytest.approx(total, rel=1e-6)
    assert (metrics.accuracy is None) == (not loss.has_accuracy)
    subject.release()


def test_frozen_layers_cost_neither_launches_nor_memory(device: Device) -> None:
    """Below the first trained layer there is no backward; in between, no gradient of weights."""
    subjects = [
        subject_of(device, net(*frozen), Recipe(optimizer="adam", proximal=True))
        for frozen in ((), ("conv2",), ("conv1",), ("conv1", "conv2"))
    ]
    every, between, first, most = (s.program.usage for s in subjects)
    assert most.launches < first.launches < every.launches
    assert most.params_nbytes < first.params_nbytes < every.params_nbytes
    assert between.params_nbytes < every.params_nbytes
    assert most.arena_nbytes < every.arena_nbytes
    for subject in subjects:
        subject.epoch(Hyper(lr=0.01, weight_decay=0.1, proximal_mu=0.5, clip_norm=1.0))
        after, grads = subject.program.download(), subject.program.read_grads()
        trained = {p.name for p in subject.model.trained}
        for p in subject.model.params:
            moved = not np.array_equal(after[p.slice], subject.params[p.slice])
            assert moved == (p.name in trained)
            assert grads[p.slice].any() == (p.name in trained)
        subject.release()


def test_no_gradient_leaves_a_segment_above_frozen_ones(device: Device) -> None:
    model = net("conv1")
    later = device.compile(Segment(model, 2, len(model.block_names)), 4)
    with pytest.raises(ValueError, match="frozen"):
        later.take_input_grad(4)
    later.release()
    whole = net()
    program = device.compile(Segment(whole, 2, len(whole.block_names)), 4)
    assert program.take_input_grad(4).shape == (4, 5, 7, 6)
    program.release()


@pytest.mark.parametrize("case", [RECIPES[0], RECIPES[2], RECIPES[5]], ids=lambda c: c.name)
def test_the_parity_gate_compares_by_the_recipe(device: Device, case: Case) -> None:
    program = device.compile(case.model.whole, 8, case.recipe())
    parity.compare(program, device, case.model)
    program.release()


@pytest.mark.parametrize(
    ("loss", "y", "message"),
    [
        (CrossEntropy(), np.zeros(3, np.float32), "whole class numbers"),
        (CrossEntropy(), np.zeros((3, 5), np.int32), "y.argmax"),
        (CrossEntropy(), np.zeros((3, 1), np.int32), "y.reshape"),
        (CrossEntropy(), np.zeros((3, 2, 2), np.int32), r"needs int32 of shape \(n,\)"),
        (BCEWithLogits(), np.zeros(3, np.int32), r"float32 of shape \(n, 5\)"),
        (BCEWithLogits(), np.full((3, 5), 1.5, np.float32), "found label 1.5"),
        (MSE(), np.zeros((3, 4), np.float32), r"found float32 of shape \(n, 4\)"),
    ],
)
def test_labels_that_do_not_fit_the_loss_are_refused(
    device: Device, loss: Loss, y: np.ndarray, message: str
) -> None:
    model = net()
    program = device.compile(model.whole, 2, Recipe(loss))
    x = np.zeros((3, *model.input.shape), np.float32)
    with pytest.raises(DataError, match=message) as caught:
        program.begin_epoch(device.load(x, y), np.arange(3, dtype=np.int32), 2, KEY)
    assert "\n" not in str(caught.value)
    program.release()


EVERY_KIND = ("batchnorm_image", "groupnorm_image", "layernorm", "conv1d_groups", "lstm", "gru")


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("name", EVERY_KIND)
def test_every_kind_of_layer_can_be_frozen(device: Device, name: str, odd: int) -> None:
    """Of the layers with parameters every second one: gradients are the reference's, and what is
    frozen is as it was after two steps, buffers included."""
    (case,) = (case for case in CASES if case.name == name)
    whole = case.model
    with_params = [op.name for op in whole.ops if op.params]
    frozen = set(with_params[odd::2])
    ops = tuple(replace(op, frozen=op.name in frozen) for op in whole.ops)
    model = replace(whole, ops=ops)
    x, y, orders = case.data()
    results = []
    for d in (device, numpy_device(np.float64), numpy_device(np.float32)):
        subject = Subject(d, model, case.batch, x, y)
        subject.reset(orders[0])
        results.append(subject.gradients(case.batch))
        subject.program.read_metrics()
        if d is device:
            subject.epoch(HYPERS["momentum"])
            after = subject.program.download()
            sent = {value.name for value in model.sent}
            for value in model.values:
                moved = not np.array_equal(after[value.slice], subject.params[value.slice])
                assert moved == (value.name in sent), value.name
        subject.release()
    assert_tensors_close(model, "gradient", *results)


def test_the_parity_gate_lets_adam_pass_where_gradients_are_noise(device: Device) -> None:
    """A bias before batch norm has no gradient but rounding, which AdamW would make steps of lr."""
    layers = [conv(31, 3), "batchnorm2d", "relu", "flatten", linear(5)]
    model = build_model({"name": "net", "input": {"shape": [2, 9, 8]}, "layers": layers}, "net")
    program = device.compile(model.whole, 16, Recipe(optimizer="adamw"))
    parity.compare(program, device, model)
    program.release()
