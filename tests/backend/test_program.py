"""What every backend promises about a program, beyond PyTorch's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from client import parity
from client.backends.base import Device
from client.backends.figures import Command, Metrics
from client.backends.recipe import Hyper, Recipe
from client.errors import DataError
from client.model import Model, Segment
from server.bench.figures import training_flops
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
TWO = ({"type": "linear", "out_features": 2},)


def small_net() -> Model:
    """A bit of everything, dropout included."""
    body = [{"type": "conv2d", "out_channels": 5, "kernel_size": 3, "padding": 1}, "relu"]
    return network(
        [2, 9, 8],
        {"type": "conv2d", "out_channels": 5, "kernel_size": 3},
        "relu",
        {"type": "maxpool2d", "kernel_size": 2},
        {"type": "residual", "body": body},
        {"type": "dropout", "p": 0.25},
        "flatten",
        {"type": "linear", "out_features": 33},
        "relu",
        {"type": "dropout", "p": 0.5},
        {"type": "linear", "out_features": 7},
    )


@pytest.fixture(scope="module")
def subject(device: Device) -> Iterator[Subject]:
    model = small_net()
    subject = Subject(device, model, BATCH, *examples(model, 2 * BATCH + 3))
    yield subject
    subject.release()


def test_reruns_are_equal_bit_by_bit(subject: Subject) -> None:
    runs = []
    for _ in range(2):
        subject.reset()
        losses = subject.epoch(MOMENTUM) + subject.epoch(MOMENTUM)
        runs.append((losses, subject.program.download()))
    assert runs[0][0] == runs[1][0]
    np.testing.assert_array_equal(runs[0][1], runs[1][1])


@pytest.mark.parametrize("count", [1, BATCH])
def test_what_is_read_out_stays_as_it_was(subject: Subject, count: int) -> None:
    subject.reset()
    grads = subject.gradients(count)
    logits = subject.program.take_output(count)
    kept = logits.copy(), grads.copy()
    subject.program.update(MOMENTUM)
    subject.gradients(count, BATCH)
    np.testing.assert_array_equal(logits, kept[0])
    np.testing.assert_array_equal(grads, kept[1])
    assert not np.array_equal(subject.program.take_output(count), logits)


def test_nothing_is_read_that_was_not_written(subject: Subject) -> None:
    """Memory full of NaN before each step changes nothing, also for smaller batches."""
    subject.reset()
    expected = [subject.gradients(count) for count in (BATCH, 2, 5, 1)]
    for count, grads in zip((BATCH, 2, 5, 1), expected, strict=True):
        subject.program.poison()
        np.testing.assert_array_equal(subject.gradients(count), grads)
    subject.reset()
    losses = subject.epoch(MOMENTUM)
    params = subject.program.download()
    subject.reset()
    again = []
    for start in range(0, len(subject.order), BATCH):
        count = min(BATCH, len(subject.order) - start)
        subject.program.poison()
        subject.program.step(start, count, MOMENTUM)
        again.append(subject.program.read_metrics().loss_sum / count)
    assert again == losses
    np.testing.assert_array_equal(subject.program.download(), params)


def test_download_gives_what_upload_set(subject: Subject) -> None:
    subject.reset()
    np.testing.assert_array_equal(subject.program.download(), subject.params)
    copy = subject.program.download()
    copy[:] = 0
    np.testing.assert_array_equal(subject.program.download(), subject.params)


def test_upload_resets_the_optimizer(subject: Subject) -> None:
    """Momentum lasts over the epochs of a round and starts anew with the next."""
    subject.reset()
    first = subject.epoch(MOMENTUM)
    second = subject.epoch(MOMENTUM)
    subject.reset()
    assert subject.epoch(MOMENTUM) == first
    middle = subject.program.download()
    subject.program.upload(middle)
    assert subject.epoch(MOMENTUM) != second


def test_proximal_term_pulls_to_the_last_upload(device: Device) -> None:
    """With lr·mu = 1, one update lands at the uploaded parameters minus lr·gradient."""
    model = network([3], {"type": "linear", "out_features": 2})
    subject = Subject(device, model, 4, *examples(model, 4), recipe=Recipe(proximal=True))
    subject.epoch(Hyper(lr=0.5))
    moved = subject.program.download()
    grads = subject.gradients(4)
    subject.program.update(Hyper(lr=0.5, proximal_mu=2.0))
    found = subject.program.download()
    np.testing.assert_allclose(found, subject.params - 0.5 * grads, rtol=0, atol=1e-6)
    assert np.abs(moved - subject.params).max() > 1e-3
    subject.release()


def test_what_a_proximal_term_needs_is_kept_only_for_it(subject: Subject) -> None:
    """The parameters at the round's start: as many bytes as the gradients."""
    with pytest.raises(ValueError, match="not compiled for a proximal term"):
        subject.program.update(Hyper(lr=0.5, proximal_mu=2.0))
    plain = subject.program.usage.params_nbytes
    recipe = Recipe(proximal=True)
    program = subject.device.compile(subject.model.whole, subject.capacity, recipe)
    grads_nbytes = 4 * sum(p.size for p in subject.model.trained)
    assert program.usage.params_nbytes - plain == pytest.approx(grads_nbytes, abs=256)
    program.release()


@pytest.mark.parametrize("limit", [0.5, 2.0])
@pytest.mark.parametrize("out_features", [1, 333])
def test_a_clipped_step_is_no_longer_than_its_limit(
    device: Device, limit: float, out_features: int
) -> None:
    """Half or twice the gradient's norm, over 302 and 100,566 parameters."""
    model = network([301], {"type": "linear", "out_features": out_features}, *TWO)
    subject = Subject(device, model, 4, *examples(model, 4))
    grads = subject.gradients(4).astype(np.float64)
    clip_norm = float(limit * np.linalg.norm(grads))
    subject.program.update(Hyper(lr=1.0, clip_norm=clip_norm))
    step = subject.params.astype(np.float64) - subject.program.download()
    np.testing.assert_allclose(step, min(limit, 1) * grads, rtol=1e-5, atol=1e-7)
    subject.program.update(Hyper(lr=1.0))
    again = subject.params.astype(np.float64) - subject.program.download()
    np.testing.assert_allclose(again - step, grads, rtol=1e-5, atol=1e-6)
    subject.release()


def test_a_gradient_that_is_no_number_is_seen_through_clipping(device: Device) -> None:
    model = network([3], {"type": "linear", "out_features": 2})
    subject = Subject(device, model, 4, *examples(model, 4))
    subject.program.poison()
    subject.program.update(Hyper(lr=0.1, clip_norm=1.0))
    assert np.isnan(subject.program.download()).all()
    subject.release()


def test_metrics_add_up_until_they_are_read(subject: Subject) -> None:
    subject.reset()
    assert subject.program.read_metrics() == Metrics(0.0, 0, 0, 0.0)
    one_by_one = []
    for start, count in ((0, BATCH), (BATCH, BATCH), (2 * BATCH, 3)):
        subject.gradients(count, start)
        one_by_one.append(subject.program.read_metrics())
    for start, count in ((0, BATCH), (BATCH, BATCH), (2 * BATCH, 3)):
        subject.gradients(count, start)
    total = subject.program.read_metrics()
    assert total.count == 2 * BATCH + 3
    assert total.correct == sum(m.correct for m in one_by_one)
    assert total.loss_sum == pytest.approx(sum(m.loss_sum for m in one_by_one), rel=1e-6)
    assert subject.program.read_metrics() == Metrics(0.0, 0, 0, 0.0)


def test_correct_counts_the_largest_score(device: Device) -> None:
    """Exact counts with a network that only passes its input on."""
    model = network([5], {"type": "linear", "out_features": 5})
    params = np.concatenate([np.eye(5).ravel(), np.zeros(5)]).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(70, 5)).astype(np.float32)
    y = x.argmax(axis=1).astype(np.int32)
    y[::3] = (y[::3] + 1) % 5
    subject = Subject(device, model, 64, x, y, params)
    for start, count in ((0, 64), (64, 6)):
        subject.program.gather(start, count)
        subject.program.forward(count, training=False)
        subject.program.loss(count)
    metrics = subject.program.read_metrics()
    assert (metrics.correct, metrics.count) == (70 - len(y[::3]), 70)
    shifted = np.exp(x.astype(np.float64))
    losses = np.log(shifted.sum(axis=1)) - x[np.arange(70), y]
    assert metrics.loss_sum == pytest.approx(losses.sum(), rel=1e-5)
    subject.release()


def test_large_scores_do_not_overflow(device: Device) -> None:
    model = network([3], {"type": "linear", "out_features": 3, "bias": False})
    params = (np.eye(3) * 1000).astype(np.float32).ravel()
    x = np.array([[1, -1, 0.5], [-1, 1, 1]], np.float32)
    subject = Subject(device, model, 2, x, np.array([0, 0], np.int32), params)
    grads = subject.gradients(2)
    metrics = subject.program.read_metrics()
    assert metrics.loss_sum == pytest.approx(2000 + np.log(2), rel=1e-6)
    # dlogits: none for the first example, (-1, 1/2, 1/2) / 2 for the second
    expected = np.outer([-0.5, 0.25, 0.25], x[1])
    np.testing.assert_allclose(grads.reshape(3, 3), expected, atol=1e-6)
    subject.release()


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_gather_follows_the_order(device: Device, dtype: str) -> None:
    """Input and labels come from order[start:], with one mean and deviation per channel."""
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.25, 2.0]
    layers = ["flatten", {"type": "linear", "out_features": 12, "bias": False}]
    model = network([3, 2, 2], *layers, mean=mean, std=std)
    x, y = examples(model, 11, dtype)
    subject = Subject(device, model, 4, x, y, np.eye(12, dtype=np.float32).ravel())
    order = np.random.default_rng(3).permutation(11).astype(np.int32)
    subject.begin(order)
    scaled = x.astype(np.float64) / (255 if dtype == "uint8" else 1)
    wanted = (scaled - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    for start, count in ((8, 3), (0, 4), (4, 2)):
        rows = order[start : start + count]
        subject.program.gather(start, count)
        subject.program.forward(count)
        subject.program.loss(count)
        found = subject.program.take_output(count)
        np.testing.assert_allclose(found, wanted[rows].reshape(count, 12), rtol=1e-5, atol=1e-5)
        exact = wanted[rows].reshape(count, 12)
        losses = np.log(np.exp(exact).sum(axis=1)) - exact[np.arange(count), y[rows]]
        loss_sum = subject.program.read_metrics().loss_sum
        assert loss_sum == pytest.approx(losses.sum(), rel=1e-4)
    subject.release()


def test_bytes_and_floats_give_the_same(device: Device) -> None:
    layers = ["flatten", {"type": "linear", "out_features": 5}]
    model = network([2, 5, 5], *layers, mean=[0.4], std=[0.3])
    x, y = examples(model, 5, "uint8")
    as_bytes = Subject(device, model, 5, x, y)
    as_floats = Subject(device, model, 5, (x / np.float32(255)), y)
    np.testing.assert_allclose(as_bytes.gradients(5), as_floats.gradients(5), atol=1e-6)
    as_bytes.release()
    as_floats.release()


def test_order_may_repeat_and_leave_out_examples(subject: Subject) -> None:
    """Equal rows at the start of two orders give equal gradients, whatever follows."""
    subject.reset(np.array([3, 3, 0, 9, 9, 9, 1], np.int32))
    grads = subject.gradients(3)
    subject.reset(np.array([3, 3, 0], np.int32))
    np.testing.assert_array_equal(subject.gradients(3), grads)
    subject.reset(np.array([3, 3, 1], np.int32))
    assert np.abs(subject.gradients(3) - grads).max() > 1e-3


def test_evaluation_drops_nothing(device: Device) -> None:
    layers = [{"type": "dropout", "p": 0.75}, {"type": "linear", "out_features": 5}]
    with_dropout, without = network([33], *layers), network([33], layers[1])
    x, y = examples(with_dropout, 9)
    params = np.random.default_rng(0).normal(size=without.num_params).astype(np.float32)
    outputs = []
    for model in (with_dropout, without):
        subject = Subject(device, model, 9, x, y, params)
        subject.program.gather(0, 9)
        subject.program.forward(9, training=False)
        outputs.append(subject.program.take_output(9))
        if model is with_dropout:
            subject.program.forward(9)
            assert np.abs(subject.program.take_output(9) - outputs[0]).max() > 0.1
        subject.release()
    np.testing.assert_array_equal(*outputs)


def test_slices_of_a_batch_add_up(subject: Subject) -> None:
    """loss(total=…): the gradients of two slices add up to those of the whole batch."""
    subject.reset()
    whole = subject.gradients(BATCH)
    parts = []
    for rows in (subject.order[:4], subject.order[4:BATCH]):
        subject.begin(rows.copy())
        subject.program.gather(0, len(rows))
        subject.program.forward(len(rows))
        subject.program.loss(len(rows), total=BATCH)
        subject.program.backward(len(rows))
        parts.append(subject.program.read_grads())
    np.testing.assert_allclose(parts[0] + parts[1], whole, atol=1e-6)


@pytest.mark.parametrize("cut", range(1, 10))
def test_two_segments_equal_the_whole(device: Device, subject: Subject, cut: int) -> None:
    """Cut anywhere: same logits, gradients, updates and dropout as in one piece."""
    model = subject.model
    subject.reset()
    whole_grads = subject.gradients(BATCH)
    logits = subject.program.take_output(BATCH)
    subject.program.update(MOMENTUM)
    whole_params = subject.program.download()

    segments = [Segment(model, 0, cut), Segment(model, cut, len(model.block_names))]
    first, last = (device.compile(s, BATCH) for s in segments)
    for program in (first, last):
        program.upload(program.segment.values_of(subject.params))
        program.begin_epoch(subject.data, subject.order, BATCH, KEY)
        program.poison()
        program.gather(0, BATCH)
    first.forward(BATCH)
    boundary = first.take_output(BATCH)
    assert boundary.shape == (BATCH, *model.tensors[segments[0].output])
    last.put_input(boundary)
    last.forward(BATCH)
    last.loss(BATCH)
    last.backward(BATCH)
    first.put_output_grad(last.take_input_grad(BATCH))
    first.backward(BATCH)
    grads = np.concatenate([first.read_grads(), last.read_grads()])
    for program in (first, last):
        program.update(MOMENTUM)
    params = np.concatenate([first.download(), last.download()])
    np.testing.assert_allclose(last.take_output(BATCH), logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grads, whole_grads, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(params, whole_params, rtol=1e-5, atol=1e-6)
    assert last.read_metrics().count == BATCH
    first.release()
    last.release()


def test_middle_segment(device: Device, subject: Subject) -> None:
    """A segment with neither data nor labels of its own, on rows that are put in."""
    model = subject.model
    segment = Segment(model, 3, 6)
    program = device.compile(segment, BATCH)
    reference = numpy_device(np.float64).compile(segment, BATCH)
    peer = numpy_device(np.float32).compile(segment, BATCH)
    g = np.random.default_rng(5)
    x = g.normal(size=(4, *model.tensors[segment.input])).astype(np.float32)
    dy = g.normal(size=(4, *model.tensors[segment.output])).astype(np.float32)
    found = []
    for p in (program, reference, peer):
        data = subject.data if p is program else numpy_device(np.float32).load(*examples(model, 15))
        p.upload(segment.values_of(subject.params))
        p.begin_epoch(data, subject.order, BATCH, KEY)
        p.gather(0, 4)
        p.put_input(x)
        p.forward(4)
        p.put_output_grad(dy)
        p.backward(4)
        found.append((p.take_output(4), p.take_input_grad(4), p.read_grads()))
    for name, *arrays in zip(("output", "input gradient", "gradients"), *found, strict=True):
        assert_close(name, *arrays)
    program.release()


def test_gradients_agree_with_the_reference(device: Device, subject: Subject) -> None:
    """Dropout included, which PyTorch's frozen results cannot have."""
    subject.reset()
    found = subject.gradients(BATCH, BATCH)
    results = []
    for dtype in (np.float64, np.float32):
        reference = Subject(numpy_device(dtype), subject.model, BATCH, *examples(subject.model, 15))
        results.append(reference.gradients(BATCH, BATCH))
    assert_tensors_close(subject.model, "gradient", found, results[0], results[1])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 4), np.float32), [0, 2, 5], "label 5"),
        (np.zeros((3, 4), np.float32), [0, -1, 2], "label -1"),
        (np.zeros((3, 5), np.float32), [0, 1, 2], r"\(5,\)"),
        (np.zeros((3, 4), np.float64), [0, 1, 2], "float64"),
        (np.zeros((3, 4), np.float32), [0, 1], "each"),
    ],
)
def test_unfit_data_is_refused(device: Device, x: np.ndarray, y: list[int], message: str) -> None:
    """When it is loaded or when its first epoch begins, in one line that says what was found."""
    model = network([4], {"type": "linear", "out_features": 5})
    program = device.compile(model.whole, 2)
    program.upload(np.zeros(model.num_params, np.float32))
    with pytest.raises(DataError, match=message) as caught:
        program.begin_epoch(
            device.load(x, np.array(y, np.int32)), np.arange(3, dtype=np.int32), 2, KEY
        )
    assert "\n" not in str(caught.value)
    program.release()


def test_examples_that_are_not_there_are_refused(device: Device, subject: Subject) -> None:
    """An order that numbers others, and a gather beyond a batch or the order's end."""
    program, data = subject.program, subject.data
    fresh = device.compile(subject.model.whole, BATCH)
    with pytest.raises(RuntimeError, match="gather before begin_epoch"):
        fresh.gather(0, 1)
    fresh.release()
    for order in ([], [0, 15], [-1, 0]):
        with pytest.raises(ValueError, match="an order must number examples of the 15 loaded"):
            program.begin_epoch(data, np.array(order, np.int32), BATCH, KEY)
    subject.begin(np.arange(BATCH + 3, dtype=np.int32))
    said = rf"an order of {BATCH + 3} is visited by batches of {BATCH}"
    for start, count in ((0, 0), (1, BATCH), (BATCH, 4), (BATCH + 3, 1), (-BATCH, BATCH)):
        with pytest.raises(ValueError, match=rf"gather of {count} from {start}: {said}"):
            program.gather(start, count)
    program.gather(BATCH, 3)


@pytest.mark.parametrize("bad", [5.0, -1.0, 1.5, np.nan, np.inf])
def test_what_is_no_token_is_refused(device: Device, bad: float) -> None:
    """Kernels read the weights' rows by token: none may lie outside."""
    layers = [{"type": "embedding", "embedding_dim": 2}, "last_step"]
    model = network([4], *layers, vocabulary=5)
    program = device.compile(model.whole, 2)
    program.upload(np.zeros(model.num_params, np.float32))
    x = np.zeros((3, 4), np.float32)
    x[2, 3] = bad
    order = np.arange(3, dtype=np.int32)
    with pytest.raises(DataError, match="token"):
        program.begin_epoch(device.load(x, np.zeros(3, np.int32)), order, 2, KEY)
    program.release()


@pytest.mark.parametrize(
    "pool",
    [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}],
    ids=["2x2", "3x3 overlapping"],
)
def test_first_of_equal_values_gets_the_gradient(device: Device, pool: dict[str, Any]) -> None:
    """A convolution that gives the same everywhere: its dW tells where pooling sent gradients."""
    conv = {"type": "conv2d", "out_channels": 2, "kernel_size": 3, "padding": 1}
    layers = [conv, {"type": "maxpool2d", **pool}, "flatten", {"type": "linear", "out_features": 5}]
    model = network([1, 7, 8], *layers)
    params = np.random.default_rng(2).normal(size=model.num_params).astype(np.float32)
    params[:18] = 0
    results = []
    for d in (device, numpy_device(np.float64), numpy_device(np.float32)):
        subject = Subject(d, model, 5, *examples(model, 5), params)
        results.append(subject.gradients(5))
        subject.release()
    assert_tensors_close(model, "gradient", *results)


def test_sampled_steps_are_timed(device: Device, subject: Subject) -> None:
    subject.reset()
    device.finish()
    before = type(device.traffic)(**vars(device.traffic))
    for sampled in (True, False, True):
        if sampled:
            subject.program.sample_next_step()
        subject.program.step(0, BATCH, MOMENTUM)
    device.finish()
    subject.program.read_metrics()
    spent = device.traffic.since(before)
    assert spent.sampled_steps == 2
    assert spent.compute_s > 0
    assert spent.copy_s > 0  # the gather
    assert spent.transfer_s == spent.upload_nbytes == 0  # the data is resident


def test_commands_of_sampled_steps_are_told_one_by_one(device: Device, subject: Subject) -> None:
    """As many as planned, in the order of the step, with the arithmetic that the model counts."""
    subject.reset()
    device.finish()
    before = type(device.traffic)(**vars(device.traffic))
    found: list[Command] = []
    for wanted in (found, None, found):
        subject.program.sample_next_step(wanted)
        subject.program.step(0, BATCH, MOMENTUM)
    device.finish()
    subject.program.read_metrics()
    spent = device.traffic.since(before)
    assert spent.sampled_steps == 3
    assert len(found) == 2 * subject.program.usage.launches
    first, second = found[: len(found) // 2], found[len(found) // 2 :]
    assert [replace(c, seconds=0) for c in first] == [replace(c, seconds=0) for c in second]
    parts = list(dict.fromkeys(c.part for c in first))
    assert parts == ["gather", "forward", "loss", "backward", "update"]
    trained = {op.name for op in subject.model.ops if op.params}
    products = sum(c.flops for c in first if c.op in trained)
    counted = training_flops(subject.model) * BATCH
    assert counted <= products < 1.02 * counted  # the gradient of a ReLU may be joined to a layer
    assert all(c.seconds > 0 for c in found)
    assert sum(c.seconds for c in found) <= spent.compute_s + spent.copy_s
    gather, update = first[0], first[-1]
    inputs_nbytes = 4 * BATCH * prod(subject.model.input.shape)
    assert 2 * inputs_nbytes <= gather.nbytes < 2.1 * inputs_nbytes
    assert update.nbytes == 5 * 4 * subject.model.num_params


def test_peaks_are_above_what_a_step_does(device: Device, subject: Subject) -> None:
    peaks = device.measure_peaks()
    assert peaks.how
    sizes = [size for size, _ in peaks.copies]
    assert sizes == sorted(sizes)
    assert peaks.nbytes_per_s(1) == peaks.copies[0][1]
    assert peaks.nbytes_per_s(2**40) == peaks.copies[-1][1]
    found: list[Command] = []
    subject.reset()
    for _ in range(5):
        subject.program.sample_next_step(found)
        subject.program.step(0, BATCH, MOMENTUM)
    device.finish()
    subject.program.read_metrics()
    flops = sum(c.flops for c in found) / sum(c.seconds for c in found)
    assert 0 < flops < 2 * peaks.flops_per_s  # twice: the clock of a shared machine moves


def test_usage_is_told(subject: Subject) -> None:
    usage = subject.program.usage
    assert usage.params_nbytes >= 3 * 4 * subject.model.num_params
    assert usage.arena_nbytes > 0
    assert usage.launches >= len(subject.model.params)


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_the_parity_gate_lets_small_batches_pass(device: Device, capacity: int) -> None:
    model = small_net()
    program = device.compile(model.whole, capacity)
    parity.compare(program, device, model)
    program.release()
