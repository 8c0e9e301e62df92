"""Costs: the roofline by a profile, and its correction by what was seen in training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from client.backends.figures import Command, Part
from client.backends.recipe import Recipe
from client.model import Model, build_model, load_model
from client.placement import planner, steps
from client.placement.calibrate import calibrate, fit
from client.placement.cost import Affine, Costs, SampledStep, TimedSteps
from client.placement.estimate import affine, bandwidth, estimate, seconds, speed
from client.placement.layout import Layout
from client.placement.workload import Product, Work, Workload
from tests.fakes import MODEL
from tests.profiles import processor, profile

NUMPY, GPU = "numpy|p|v|cpu|d", "opencl|p|v|gpu|d"
BATCH = 32


BOTH = profile(processor(NUMPY), processor(GPU, "gpu", launch_s=1e-5))


def small() -> Model:
    return build_model(MODEL, "small")


def line_sum(costs: Costs, key: str, rows: int) -> float:
    p = costs.processor(key)
    return sum(b.forward.at(rows) + b.backward.at(rows) + b.update_s for b in p.blocks)


# -- work -------------------------------------------------------------------------------------


def test_a_products_size_is_the_cubes_of_the_same_intensity() -> None:
    assert Product(64, 64, 64).size == pytest.approx(64)
    m, n, k = 32, 800, 3136
    intensity = 2 * m * n * k / (4 * (m * k + k * n + m * n))
    edge = Product(m, n, k).size
    assert 2 * edge**3 / (4 * 3 * edge**2) == pytest.approx(intensity)


def test_work_of_a_small_network() -> None:
    """flatten, 16-8, relu, 8-3: what is read, written and multiplied, for 4 examples."""
    model, n = small(), 4
    work = Workload(model, Recipe())
    flatten, fc1, relu, fc2 = model.ops
    assert work.forward(flatten, n) == Work(0, 0, 0.0, 0)
    assert work.forward(fc1, n).flops == 2 * 16 * 8 * n
    assert work.forward(fc1, n).nbytes == 4 * (n * (16 + 8) + 16 * 8 + 8)
    # the gradient of the network's own input is not computed: one product, not two
    assert (work.backward(fc1, n).flops, work.backward(fc2, n).flops) == (
        2 * 16 * 8 * n,
        2 * 2 * 8 * 3 * n,
    )
    assert work.backward(relu, n).nbytes == 4 * n * 3 * 8
    assert [work.num_trained(b) for b in range(4)] == [0, 136, 0, 27]
    assert work.update_nbytes(1) == 4 * 5 * 136  # values and momentum both ways, gradients
    assert Workload(model, Recipe(optimizer="adam")).update_nbytes(1) == 4 * 7 * 136
    assert work.params_nbytes(1) == 4 * 3 * 136


def test_frozen_layers_cost_no_backward_and_no_update() -> None:
    model = build_model(MODEL, "small", frozen=("fc1",))
    work = Workload(model, Recipe())
    assert work.backward(model.ops[1], 4) == work.backward(model.ops[2], 4) == Work(0, 0, 0.0, 0)
    assert work.update_nbytes(1) == 0
    boundaries = estimate(BOTH, model, BATCH).boundaries
    assert [b.gradient for b in boundaries] == [True, False, False]


@pytest.mark.parametrize("name", ["resnet8", "char_lstm", "squeezenet_cifar", "mobilenet_v2_cifar"])
def test_every_block_of_a_shipped_model_has_finite_costs_and_the_best_cut_is_found(
    name: str,
) -> None:
    costs = estimate(BOTH, load_model(Path(name)), BATCH)
    for p in costs.processors:
        assert all(b.forward.fixed_s >= 0 and b.backward.row_s >= 0 for b in p.blocks)
        assert 0 < line_sum(costs, p.key, BATCH) < 10
    assert planner.rank(costs).exact


# -- the roofline -----------------------------------------------------------------------------


def test_speed_by_size_goes_through_what_was_measured() -> None:
    p = processor(NUMPY, launch_s=0.0)
    assert [speed(p, s) for s in (64, 256, 1024)] == pytest.approx([1e10, 4e10, 1e11])
    assert speed(p, 128) == pytest.approx(2e10)  # the mean on logarithmic scales
    assert speed(p, 16) == pytest.approx(1e10)
    assert speed(p, 4096) == pytest.approx(1e11)


def test_what_was_timed_with_a_launch_counts_without_it() -> None:
    p = processor(NUMPY, launch_s=1e-5)
    product_s = 2 * 64**3 / 1e10
    assert speed(p, 64) == pytest.approx(2 * 64**3 / (product_s - 1e-5))
    assert bandwidth(p, 2**26) == pytest.approx(2**26 / (2**26 / 1e10 - 1e-5))
    # a small copy that took less than a launch was not for nothing
    assert bandwidth(p, 1) == pytest.approx(5 * 4e10)


def test_a_part_takes_its_launches_and_the_longer_of_arithmetic_and_memory() -> None:
    free = processor(NUMPY, launch_s=0.0)
    assert seconds(free, Work(10**9, 2**20, 64.0, 1)) == pytest.approx(0.1)
    assert seconds(free, Work(10**3, 2**30, 64.0, 3)) == pytest.approx(2**30 / 1e10)
    launched = processor(NUMPY, launch_s=1e-6)
    assert seconds(launched, Work(0, 0, 0.0, 3)) == pytest.approx(3e-6)
    assert seconds(launched, Work(0, 0, 0.0, 0)) == 0


def test_a_line_through_two_batch_sizes() -> None:
    assert affine(lambda n: 3.0 + 2.0 * n, 32) == Affine(3.0, 2.0)
    assert affine(lambda n: 5.0, 1) == Affine(5.0, 0.0)
    assert Affine(3.0, 2.0).at(0) == 0


def test_without_measured_arithmetic_a_prediction_says_that_it_is_unsure() -> None:
    quick = processor(GPU, "gpu", gemms=(), copies=())
    unsure, sure = (
        estimate(profile(p), small(), BATCH).processors[0].blocks[1].uncertainty
        for p in (quick, processor(GPU, "gpu"))
    )
    assert unsure > 2 * sure > 0


def test_only_processors_on_the_same_cores_contend() -> None:
    pocl = processor("opencl|p|v|pocl|d")
    costs = estimate(profile(*BOTH.processors, pocl), small(), BATCH)
    assert costs.contention == {frozenset((NUMPY, pocl.key)): 1.0}
    # one thread each: on a host of two cores they have a core each
    two = replace(profile(*BOTH.processors, pocl), cores=2)
    assert set(estimate(two, small(), BATCH).contention.values()) == {0.0}
    assert [p.queued for p in costs.processors] == [False, True, True]


# -- corrections ------------------------------------------------------------------------------


def command(op: str, part: Part, took_s: float) -> Command:
    return Command(op, part, "", "", "compute", 0, 0, took_s)


def sampled(rows: int, key: str = GPU) -> SampledStep:
    """fc1: 1 ms and 0.1 ms an example forward, twice that backward; update 3 ms."""
    fc1 = 1e-3 + 1e-4 * rows
    commands = (
        command("gather", "gather", 5e-4),
        command("fc1", "forward", fc1 / 2),
        command("fc1", "forward", fc1 / 2),  # two launches of one layer
        command("loss", "loss", 2e-4),
        command("fc1", "backward", 2 * fc1),
        command("update", "update", 3e-3),
    )
    return SampledStep(key, rows, commands)


def test_two_batch_sizes_of_commands_give_a_blocks_lines() -> None:
    costs = estimate(BOTH, small(), BATCH)
    found = calibrate(costs, small(), [sampled(8), sampled(32)])
    fc1 = found.processor(GPU).blocks[1]
    assert (fc1.forward.fixed_s, fc1.forward.row_s) == pytest.approx((1e-3, 1e-4))
    assert (fc1.backward.fixed_s, fc1.backward.row_s) == pytest.approx((2e-3, 2e-4))
    assert sum(b.update_s for b in found.processor(GPU).blocks) == pytest.approx(3e-3)
    assert found.processor(GPU).gather.at(BATCH) == pytest.approx(5e-4)
    assert fc1.observed
    assert fc1.uncertainty < costs.processor(GPU).blocks[1].uncertainty
    assert found.processor(NUMPY) == costs.processor(NUMPY)
    assert not found.processor(GPU).blocks[3].observed  # of which there were no commands


def test_one_batch_size_scales_what_was_predicted() -> None:
    assert fit(Affine(1.0, 2.0), [(3, 14.0), (3, 7.0), (3, 99.0)]) == Affine(2.0, 4.0)
    assert fit(Affine(1.0, 2.0), []) == Affine(1.0, 2.0)
    assert fit(Affine(0.0, 0.0), [(3, 6.0)]) == Affine(6.0, 0.0)
    # a smaller batch that took longer says nothing of what an example takes
    assert fit(Affine(1.0, 2.0), [(2, 9.0), (4, 8.0)]) == Affine(8.0, 0.0)


def test_whole_steps_scale_a_processor_so_that_they_are_predicted() -> None:
    model = small()
    costs = estimate(BOTH, model, BATCH)
    layout = Layout.whole(GPU, 4)
    timed = [TimedSteps(layout, 16, 5e-3), TimedSteps(layout, 32, 8e-3)]
    found = calibrate(costs, model, timed=timed)
    assert steps.predict(found, layout).step_s == pytest.approx(8e-3)
    half = steps.predict(replace(found, batch=16), layout).step_s
    assert half == pytest.approx(5e-3, rel=0.15)  # calls and updates are as in a whole batch
    assert found.observed == {layout: 8e-3}
    other = Layout.whole(NUMPY, 4)
    assert steps.predict(found, other) == steps.predict(costs, other)


def test_a_cuts_step_corrects_what_passes_between_its_processors() -> None:
    costs = estimate(BOTH, small(), BATCH)
    seen, unseen = Layout.cut((NUMPY, GPU), (2, 4)), Layout.cut((GPU, NUMPY), (3, 4))
    before = steps.predict(costs, seen)
    timed = TimedSteps(seen, BATCH, before.step_s + 4e-5)
    found = calibrate(costs, small(), timed=[timed])
    assert steps.predict(found, seen).step_s == pytest.approx(timed.step_s)
    pair = frozenset((NUMPY, GPU))
    assert costs.edges[pair] == pytest.approx(3e-5)  # the latencies once more
    assert found.edges[pair] == pytest.approx(3e-5 + 2e-5)  # forward and back
    times = [steps.predict(c, unseen).step_s for c in (costs, found)]
    assert times[1] - times[0] == pytest.approx(4e-5)
    # what is longer than all of the step had other causes
    late = calibrate(costs, small(), timed=[replace(timed, step_s=1.0)])
    assert late.edges[pair] == pytest.approx(before.step_s / 2)
    # and no passage takes less than its bytes
    early = calibrate(costs, small(), timed=[replace(timed, step_s=1e-9)])
    assert all(e.forward_s > 0 and e.back_s > 0 for e in steps.predict(early, seen).edges)


def test_a_splits_step_says_how_much_its_processors_contend() -> None:
    costs = estimate(BOTH, small(), BATCH)
    layout = Layout.split((GPU, NUMPY), (0.5, 0.5), 4)
    before = steps.predict(costs, layout)
    shorter_s = min(p.forward_s + p.backward_s for p in before.parts)
    seen = TimedSteps(layout, BATCH, before.step_s + 0.5 * shorter_s)
    found = calibrate(costs, small(), timed=[seen])
    assert found.contends(GPU, NUMPY) == pytest.approx(0.5)
    assert steps.predict(found, layout).step_s == pytest.approx(seen.step_s)


def test_what_was_seen_of_unknown_processors_is_left_out() -> None:
    costs = estimate(BOTH, small(), BATCH)
    elsewhere = TimedSteps(Layout.whole("other|p|v|x|d", 4), BATCH, 1.0)
    assert calibrate(costs, small(), [sampled(8, "other|p|v|x|d")], [elsewhere]) == costs


# -- the order of work ------------------------------------------------------------------------


def long_updates(costs: Costs, key: str, update_s: float) -> Costs:
    processors = (
        replace(p, blocks=tuple(replace(b, update_s=update_s) for b in p.blocks))
        if p.key == key
        else p
        for p in costs.processors
    )
    return replace(costs, processors=tuple(processors))


def test_an_update_behind_a_queue_passes_while_the_parts_before_work() -> None:
    costs = estimate(BOTH, small(), BATCH)
    layout = Layout.cut((NUMPY, GPU), (2, 4))
    before_s = steps.predict(costs, layout).step_s
    others_s = before_s / 4
    slow = steps.predict(long_updates(costs, GPU, others_s / 8), layout)
    assert slow.parts[1].hidden_s == pytest.approx(slow.parts[1].update_s)
    assert slow.step_s == pytest.approx(before_s, rel=1e-3)
    # what is longer than all else shows
    very = steps.predict(long_updates(costs, GPU, 1.0), layout)
    assert very.step_s == pytest.approx(2.0, rel=0.01)
    # clipping needs all gradients first
    clipped = steps.predict(replace(long_updates(costs, GPU, 1.0), clips=True), layout)
    assert (clipped.parts[1].hidden_s, clipped.step_s > very.step_s) == (0.0, True)


def test_an_update_in_the_callers_thread_passes_while_the_part_before_goes_backward() -> None:
    costs = estimate(BOTH, small(), BATCH)
    layout = Layout.cut((GPU, NUMPY), (2, 4))
    slow = steps.predict(long_updates(costs, NUMPY, 1.0), layout)
    assert slow.parts[1].hidden_s == pytest.approx(slow.parts[0].backward_s)
    same = replace(costs, contention={frozenset((GPU, NUMPY)): 1.0})
    assert steps.predict(long_updates(same, NUMPY, 1.0), layout).parts[1].hidden_s == 0


def test_a_split_waits_for_the_longer_slice_then_passes_gradients_and_values() -> None:
    costs = estimate(BOTH, small(), BATCH)
    layout = Layout.split((NUMPY, GPU), (0.75, 0.25), 4)
    step = steps.predict(costs, layout)
    slices_s = [p.forward_s + p.backward_s for p in step.parts]
    assert [p.rows for p in step.parts] == [24, 8]
    assert step.edges[0].back_nbytes == 4 * small().num_params
    expected = max(slices_s) + step.parts[0].update_s + step.edges[0].seconds
    assert step.step_s == pytest.approx(expected)
    turns = replace(costs, contention={frozenset((GPU, NUMPY)): 1.0})
    assert steps.predict(turns, layout).step_s == pytest.approx(expected + min(slices_s))
