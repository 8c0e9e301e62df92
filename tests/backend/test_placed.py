"""Networks on one device, cut, and split: trained as one, equal to the training on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.backends.base import Device
from client.backends.figures import Command
from client.backends.numpy.device import NumpyDevice
from client.backends.recipe import Hyper, OptimizerName, Recipe
from client.errors import DeviceError
from client.model import Model, initialise
from client.model.losses import MSE, BCEWithLogits, CrossEntropy
from client.placed import Placed, Site, place
from client.placement.layout import Layout
from tests.backend.harness import KEY, network, numpy_device
from tests.backend.placed import BATCH, EXAMPLES, HYPERS, Bench, release, second_numpy
from tests.backend.test_program import small_net
from tests.backend.test_random_stacks import SETTINGS, models, readers

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


@pytest.mark.parametrize("name", ["cut there and back", "split"])
def test_reruns_of_a_layout_are_equal_bit_by_bit(device: Device, name: str) -> None:
    other, bench = second_numpy(), small()
    first, again = (bench.train(layouts(device, other)[name], [device, other]) for _ in range(2))
    np.testing.assert_array_equal(first.values, again.values)
    np.testing.assert_array_equal(first.state.slots, again.state.slots)
    assert (first.training, first.evaluation) == (again.training, again.evaluation)


WEIGHTED = CrossEntropy(label_smoothing=0.1, class_weights=(0.5, 1, 2, 1, 3, 1, 0.1))


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("name", ["cut in two", "split", "split, the owner at times idle"])
def test_weights_of_classes_and_optimizers(
    device: Device, name: str, optimizer: OptimizerName
) -> None:
    """A slice weighs what its labels do; each optimizer counts its steps in every part."""
    other = second_numpy()
    bench = small(Recipe(WEIGHTED, optimizer), HYPERS[optimizer])
    bench.agrees(layouts(device, other)[name], [device, other])


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_round_may_move_from_layout_to_layout(device: Device, optimizer: OptimizerName) -> None:
    """After each epoch's steps the state goes elsewhere: the end is that of staying."""
    other = second_numpy()
    hyper = replace(HYPERS[optimizer], proximal_mu=0.3, clip_norm=0.5)
    bench = small(Recipe(optimizer=optimizer), hyper)
    start = initialise(bench.model, seed=0)
    there = layouts(device, other)
    names = ["cut there and back", "split", "whole", "split, the other way round", "cut in two"]
    ends = []
    for course in (names, ["whole"] * len(names)):
        state = None
        for name in course:
            placed = bench.place(there[name], [device, other])
            placed.upload(start)  # where the round began, for the proximal term
            if state is not None:
                placed.write_state(state)
                np.testing.assert_array_equal(placed.download(), state.values)
            placed.begin_epoch(np.arange(EXAMPLES, dtype=np.int32), BATCH, KEY)
            bench.steps(placed)
            state = placed.read_state()
            release(placed)
        assert state is not None
        assert state.updates == 3 * len(names)
        ends.append(state)
    found, wanted = ends
    np.testing.assert_allclose(found.values, wanted.values, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.slots, wanted.slots, rtol=1e-2, atol=1e-3)
    assert np.abs(wanted.values - start).max() > 1e-2


@pytest.fixture(scope="module", params=["whole", "cut there and back", "split"])
def placed(request: pytest.FixtureRequest, device: Device) -> Iterator[Placed]:
    """A layout of the device and numpy, in the midst of a round."""
    other, bench = second_numpy(), small()
    placed = bench.place(layouts(device, other)[request.param], [device, other])
    placed.upload(initialise(bench.model, seed=0))
    placed.begin_epoch(np.arange(EXAMPLES, dtype=np.int32), BATCH, KEY)
    yield placed
    release(placed)


@pytest.mark.parametrize("hyper", [HYPERS["sgd"], CLIPPED], ids=["sgd", "clipped"])
def test_a_sampled_step_is_counted_once(placed: Placed, hyper: Hyper) -> None:
    """Commands of each part by themselves, the time of all devices together."""
    before = placed.traffic
    commands: list[list[Command]] = [[] for _ in placed.programs]
    placed.sample_next_step(commands)
    for start in (0, BATCH):
        placed.step(start, BATCH, hyper)
    placed.finish()
    placed.read_metrics()
    spent = placed.traffic.since(before)
    assert spent.sampled_steps == 1
    for part, program in zip(commands, placed.programs, strict=True):
        ops = {op.name for op in program.segment.ops}
        assert {c.op for c in part if c.part in ("forward", "backward")} <= ops | {"accumulate"}
        assert len(part) == len(set(map(id, part))) > 3
    described = sum(c.seconds for part in commands for c in part)
    assert 0 < described <= (spent.compute_s + spent.copy_s) * (1 + 1e-9)  # sums in other orders


def test_a_layout_says_what_it_consists_of(placed: Placed) -> None:
    assert placed.num_examples == EXAMPLES
    assert [d.info.key for d in placed.devices] == list(placed.layout.devices)
    data = {id(site.data): site.data for site in placed.sites}.values()
    assert placed.nbytes == sum(p.nbytes for p in placed.programs) + sum(d.nbytes for d in data)
    assert placed.launches == sum(p.usage.launches for p in placed.programs)


class QueuedNumpy(NumpyDevice):
    """Says that it has a queue: what is asked of it, and when, is looked at."""

    has_queue: ClassVar[bool] = True


CALLS = ("forward", "backward", "take_input_grad", "put_output_grad", "update", "take_grads")


def calls_of_a_step(
    layout: Layout, devices: list[Device], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, int]]:
    """(method, part) of a training step, in the order of the calls."""
    bench, calls = small(hyper=HYPERS["sgd"]), []
    placed = bench.place(layout, devices)
    placed.upload(initialise(bench.model, seed=0))
    placed.begin_epoch(np.arange(EXAMPLES, dtype=np.int32), BATCH, KEY)

    def noted(method: Callable[..., object], name: str, part: int) -> Callable[..., object]:
        def call(*args: object, **settings: object) -> object:
            calls.append((name, part))
            return method(*args, **settings)

        return call

    for part, program in enumerate(placed.programs):
        for name in CALLS:
            monkeypatch.setattr(program, name, noted(getattr(program, name), name, part))
    placed.step(0, BATCH, bench.hyper)
    release(placed)
    return calls


def test_updates_run_beside_the_segments_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device with a queue at once; in the caller's thread after the one before is at work."""
    caller, queued = second_numpy(), QueuedNumpy(numpy_device(np.float32).info)
    one, two = queued.info.key, caller.info.key
    forward = [("forward", 0), ("forward", 1), ("backward", 1), ("take_input_grad", 1)]
    calls = calls_of_a_step(Layout.cut([two, one], [4, BLOCKS]), [caller, queued], monkeypatch)
    at_once = [("update", 1), ("put_output_grad", 0), ("backward", 0), ("update", 0)]
    assert calls == forward + at_once
    calls = calls_of_a_step(Layout.cut([one, two], [4, BLOCKS]), [caller, queued], monkeypatch)
    later = [("put_output_grad", 0), ("backward", 0), ("update", 1), ("update", 0)]
    assert calls == forward + later


def test_queues_are_given_their_slices_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is waited for before each device has its work."""
    caller, queued = second_numpy(), QueuedNumpy(numpy_device(np.float32).info)
    keys = [caller.info.key, queued.info.key]
    calls = calls_of_a_step(Layout.split(keys, [0.5, 0.5], BLOCKS), [caller, queued], monkeypatch)
    work = [("forward", 1), ("backward", 1), ("forward", 0), ("backward", 0)]
    assert calls == [*work, ("take_grads", 1), ("update", 0)]


@dataclass(frozen=True)
class Moved:
    """Bytes from and to a device in one step."""

    upload_nbytes: int
    download_nbytes: int


@pytest.mark.parametrize("name", NAMES[:5])
def test_boundaries_are_moved_once(device: Device, name: str) -> None:
    """Each boundary of a device's segments forward and its gradient back, and nothing else."""
    if not device.has_queue:
        pytest.skip("where host and device are one, nothing is moved")
    other, bench = second_numpy(), small(hyper=HYPERS["sgd"])
    layout = layouts(device, other)[name]
    placed = bench.place(layout, [device, other])
    placed.upload(initialise(bench.model, seed=0))
    placed.begin_epoch(np.arange(EXAMPLES, dtype=np.int32), BATCH, KEY)
    placed.finish()
    before = placed.traffic
    placed.step(0, 5, bench.hyper)
    placed.finish()
    spent = placed.traffic.since(before)
    enter = leave = 0
    for site in placed.sites:
        segment = site.program.segment
        if site.device is device:
            tensors = bench.model.tensors
            enter += 0 if segment.is_first else 4 * 5 * prod(tensors[segment.input])
            leave += 0 if segment.is_last else 4 * 5 * prod(tensors[segment.output])
    # into a segment its input and its output's gradient, out of it the other two
    assert Moved(spent.upload_nbytes, spent.download_nbytes) == Moved(enter + leave, enter + leave)
    release(placed)


def test_gradients_go_to_the_owner_and_values_from_it(device: Device) -> None:
    if not device.has_queue:
        pytest.skip("where host and device are one, nothing is moved")
    other, bench = second_numpy(), small(hyper=HYPERS["sgd"])
    nbytes = 4 * bench.model.num_params
    for name, moved in (
        ("split", Moved(nbytes, nbytes)),  # the other's gradients; the values
        ("split, the other way round", Moved(nbytes, nbytes)),  # the values; its gradients
    ):
        placed = bench.place(layouts(device, other)[name], [device, other])
        placed.upload(initialise(bench.model, seed=0))
        placed.begin_epoch(np.arange(EXAMPLES, dtype=np.int32), BATCH, KEY)
        before = placed.traffic
        placed.step(0, BATCH, bench.hyper)
        spent = placed.traffic.since(before)
        assert Moved(spent.upload_nbytes, spent.download_nbytes) == moved
        release(placed)


def with_batch_norm(frozen: bool = False) -> Model:
    conv = {"type": "conv2d", "out_channels": 3, "kernel_size": 3}
    end = ["relu", "flatten", {"type": "linear", "out_features": 4}]
    model = network([2, 6, 5], conv, {"type": "batchnorm2d", "eps": 0.1}, *end)
    ops = (replace(op, frozen=frozen and bool(op.buffers)) for op in model.ops)
    return replace(model, ops=tuple(ops))


def test_a_batch_is_not_split_where_its_statistics_are_needed(device: Device) -> None:
    """The reason names the layer. Cut it may be; and split where the layer is frozen."""
    other = second_numpy()
    one, two = device.info.key, other.info.key
    bench = Bench.of(with_batch_norm(), Recipe(), HYPERS["sgd"])
    blocks = len(bench.model.block_names)
    (layer,) = bench.model.batch_layers
    split = Layout.split([one, two], [0.5, 0.5], blocks)
    with pytest.raises(DeviceError, match=f"{layer} needs the statistics of the whole batch"):
        bench.place(split, [device, other])
    bench.agrees(Layout.cut([one, two], [2, blocks]), [device, other])
    frozen = Bench.of(with_batch_norm(frozen=True), Recipe(), HYPERS["sgd"])
    frozen.agrees(split, [device, other])


@pytest.mark.parametrize("frozen", [1, 4, 8])
def test_below_frozen_layers_no_gradient_passes(device: Device, frozen: int) -> None:
    """Cut above, at and below where training begins."""
    other, model = second_numpy(), small_net()
    ops = (replace(op, frozen=i < frozen) for i, op in enumerate(model.ops))
    bench = Bench.of(replace(model, ops=tuple(ops)), Recipe(), CLIPPED)
    bench.agrees(layouts(device, other)["cut there and back"], [device, other])


def test_sites_that_are_not_the_layouts_are_refused(device: Device) -> None:
    other, bench = second_numpy(), small()
    there = layouts(device, other)
    placed = bench.place(there["cut in two"], [device, other])
    for layout, sites in (
        (there["cut in two"], placed.sites[::-1]),
        (there["cut there and back"], placed.sites),
        (there["whole"], placed.sites),
    ):
        with pytest.raises(ValueError, match=r"for a .* layout of parts"):
            place(layout, sites)
    release(placed)


def test_a_whole_layout_takes_batches_in_slices(device: Device) -> None:
    """Micro-batches: training and evaluation of a batch over the program's capacity."""
    bench = small(Recipe(accumulates=True))
    program = device.compile(bench.model.whole, 3, bench.recipe)
    data = device.load(bench.x, bench.y)
    layout = Layout.whole(device.info.key, BLOCKS)
    sliced = place(layout, [Site(device, program, data)])
    at_once = small().place(layout, [device])
    results = []
    for placed in (sliced, at_once):
        placed.upload(initialise(bench.model, seed=0))
        placed.read_metrics()
        placed.begin_epoch(np.arange(EXAMPLES, dtype=np.int32), BATCH, KEY)
        bench.steps(placed)
        placed.read_metrics()
        placed.evaluate(0, BATCH)
        results.append((placed.read_metrics(), placed.download()))
        release(placed)
    (found, values), (wanted, wanted_values) = results
    assert (found.count, found.correct) == (wanted.count, wanted.correct)
    assert found.loss_sum == pytest.approx(wanted.loss_sum, rel=1e-4)
    np.testing.assert_allclose(values, wanted_values, rtol=1e-4, atol=1e-5)


# -- random chains, cuts, shares ---------------------------------------------------------------


@st.composite
def benches(draw: st.DrawFn) -> Bench:
    """A random network, its first operations perhaps frozen, with a loss and an optimizer."""
    model = draw(st.one_of(models(), models(), readers()))
    frozen = min(draw(st.sampled_from([0, 0, 1, 3])), len(model.ops) - 1)
    ops = tuple(replace(op, frozen=i < frozen) for i, op in enumerate(model.ops))
    loss = draw(st.sampled_from([CrossEntropy(), CrossEntropy(0.2), BCEWithLogits(), MSE()]))
    optimizer: OptimizerName = draw(st.sampled_from(list(HYPERS)))
    hyper = replace(
        HYPERS[optimizer],
        clip_norm=draw(st.sampled_from([0.0, 0.1])),
        proximal_mu=draw(st.sampled_from([0.0, 0.3])),
    )
    return Bench.of(replace(model, ops=ops), Recipe(loss, optimizer), hyper)


def cut_agrees(device: Device, bench: Bench, data: st.DataObject) -> None:
    """The network cut at random places over the device and numpy."""
    blocks, other = len(bench.model.block_names), second_numpy()
    places = st.integers(1, blocks - 1)
    stops = sorted(data.draw(st.sets(places, min_size=1, max_size=3), label="cuts"))
    keys = st.sampled_from([device.info.key, other.info.key])
    n = len(stops) + 1
    where = data.draw(st.lists(keys, min_size=n, max_size=n), label="devices")
    bench.agrees(Layout.cut(where, [*stops, blocks]), [device, other])


def split_agrees(device: Device, bench: Bench, data: st.DataObject) -> None:
    """Batches split at random over the device and one or two of numpy, if no layer forbids it."""
    blocks = len(bench.model.block_names)
    devices: list[Device] = [device, second_numpy(), second_numpy(3)]
    devices = devices[: data.draw(st.sampled_from([2, 2, 3]), label="how many")]
    devices = data.draw(st.permutations(devices), label="in the order")
    parts = st.lists(st.integers(1, 20), min_size=len(devices), max_size=len(devices))
    weights = data.draw(parts, label="weights")
    shares = [weight / sum(weights) for weight in weights]
    layout = Layout.split([d.info.key for d in devices], shares, blocks)
    if bench.model.batch_layers:
        with pytest.raises(DeviceError, match=bench.model.batch_layers[0]):
            bench.place(layout, devices)
    else:
        bench.agrees(layout, devices)


@settings(SETTINGS, max_examples=3)
@given(bench=benches(), data=st.data())
def test_random_cuts(device: Device, bench: Bench, data: st.DataObject) -> None:
    cut_agrees(device, bench, data)


@settings(SETTINGS, max_examples=2)
@given(bench=benches(), data=st.data())
def test_random_shares(device: Device, bench: Bench, data: st.DataObject) -> None:
    split_agrees(device, bench, data)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(SETTINGS, max_examples=30)
@given(bench=benches(), data=st.data())
def test_many_random_cuts(device: Device, bench: Bench, data: st.DataObject) -> None:
    cut_agrees(device, bench, data)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(SETTINGS, max_examples=30)
@given(bench=benches(), data=st.data())
def test_many_random_shares(device: Device, bench: Bench, data: st.DataObject) -> None:
    split_agrees(device, bench, data)
