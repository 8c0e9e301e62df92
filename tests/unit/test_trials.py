"""Turns of trials: who is next, who is out, what it costs; and that a round can be moved about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from client import trainer
from client.backends.numpy.device import NumpyDevice
from client.backends.recipe import Hyper, Recipe
from client.model import initialise
from client.placed import Placed, Site, place
from client.placement.course import Fixed, Piloted
from client.placement.layout import Layout
from client.placement.pilot import FIRST_SHARE, PLANNING_SHARE, Pilot, Steps
from client.placement.trials import GROUPS, Candidate, Trials
from client.timing import RoundClock
from client.trainer import Task
from tests import fakes

A, B, C = (Layout.whole(f"{name}|||{name}|1", 4) for name in "abc")
LONG = 10_000.0
TASK = Task(
    round=4, seed=9, partition="node-1", local_epochs=2, batch=8, hyper=Hyper(lr=0.1, momentum=0.9)
)
PROXIMAL = Recipe(proximal=True)
START = initialise(fakes.model(), seed=1)


def run(trials: Trials, step_s: Mapping[Layout, float]) -> list[tuple[Layout, int]]:
    """All turns of a round, each step as long as said."""
    turns = []
    while (turn := trials.next()) is not None:
        turns.append((turn.layout, turn.steps))
        trials.took(turn, turn.steps * step_s[turn.layout])
    return turns


# -- turns -----------------------------------------------------------------------------------


def test_candidates_take_turns_and_the_best_is_found() -> None:
    trials = Trials([Candidate(A), Candidate(B)], round_steps=100, budget_steps=LONG)
    turns = run(trials, {A: 1.2, B: 1.0})
    assert trials.done
    assert trials.best == B
    assert trials.measured == {A: 1.2, B: 1.0}
    # two warm-ups and three groups each, the other's in between
    assert [layout for layout, _ in turns] == [A, B, B, A, A, B, B, A, A, B]
    assert sum(steps for _, steps in turns) == 2 * (1 + 1 + 3 * 4)


def test_groups_of_short_steps_last_a_while_where_the_round_has_the_steps() -> None:
    """After warm-ups of 2 ms a step of 1 ms is expected: 20 of them; then 40 of half a ms."""

    def first_groups(round_steps: int) -> list[int]:
        trials = Trials([Candidate(A), Candidate(B)], round_steps, budget_steps=LONG)
        groups = []
        while (turn := trials.next()) is not None:
            trials.took(turn, turn.steps * (2e-3 if turn.warm_up else 0.5e-3))
            groups += [] if turn.warm_up or turn.layout == B else [turn.steps]
        return groups

    assert first_groups(10_000) == [20, 40, 40]
    assert first_groups(100)[0] == 50 // 6  # a round's share
    assert first_groups(40)[0] == 20 // 6


def test_a_single_slow_group_does_not_decide() -> None:
    trials = Trials([Candidate(A), Candidate(B)], round_steps=100, budget_steps=LONG)
    slow = iter([9.0, 9.0, 2.5, 1.0, 1.0])  # warm-ups, a first group
    while (turn := trials.next()) is not None:
        trials.took(turn, turn.steps * (next(slow) if turn.layout == A else 1.1))
    assert trials.best == A


@pytest.mark.parametrize("times", [11.0, 3.5, 1.5])
def test_who_is_far_behind_has_few_turns(times: float) -> None:
    trials = Trials([Candidate(A), Candidate(B)], round_steps=100, budget_steps=LONG)
    turns = run(trials, {A: 1.0, B: times})
    lost = sum(steps for layout, steps in turns if layout == B)
    assert lost == {11.0: 1, 3.5: 10, 1.5: 10}[times]
    assert trials.best == A
    assert "times the best one's time" in trials.ended_early[B]
    assert trials.excess_s == pytest.approx(lost * (times - 1.0))


def test_the_budget_ends_trials_before_it_is_spent() -> None:
    trials = Trials([Candidate(A), Candidate(B)], round_steps=100, budget_steps=2.0, spent_s=0.5)
    run(trials, {A: 1.0, B: 1.25})
    assert trials.done
    assert trials.budget_s == 2.0
    assert 0.5 < trials.spent_s <= 2.0
    assert trials.ended_early == {B: "the budget for trials is spent"}
    assert trials.best == A


def test_what_moves_take_is_spent_too() -> None:
    trials = Trials([Candidate(A), Candidate(B)], round_steps=100, budget_steps=2.0)
    trials.spend(2.5)
    turns = run(trials, {A: 1.0, B: 0.9})
    assert len(turns) < 2 * (2 + GROUPS)


def test_a_node_with_few_steps_a_round_goes_on_in_the_next_one() -> None:
    trials = Trials([Candidate(A), Candidate(B)], round_steps=4, budget_steps=LONG)
    rounds = 0
    while not trials.done:
        assert sum(steps for _, steps in run(trials, {A: 1.0, B: 1.1})) <= 2
        trials.begin_round()
        rounds += 1
    assert rounds == 5  # of ten turns of one step
    assert trials.best == A


def test_what_a_round_takes_decides_not_a_step() -> None:
    quick = Candidate(A, transfer_s=10.0)
    trials = Trials([quick, Candidate(B, transfer_s=0.0)], round_steps=20, budget_steps=LONG)
    run(trials, {A: 1.0, B: 1.25})
    assert trials.best == B
    assert (trials.round_s(A), trials.round_s(B)) == (30.0, 25.0)


def test_transfers_that_nobody_predicted_are_those_that_were_seen() -> None:
    trials = Trials([Candidate(A), Candidate(B)], round_steps=20, budget_steps=LONG)
    for upload_s in (7.0, 6.0):
        trials.transferred(A, upload_s, None)
    trials.transferred(A, None, 4.0)
    run(trials, {A: 1.0, B: 1.25})
    assert trials.best == B
    assert trials.round_s(A) == 6.0 + 4.0 + 20.0


@pytest.mark.parametrize(("other_s", "best"), [(0.95, A), (0.85, B), (1.2, A)])
def test_the_kept_one_is_left_for_a_clear_gain_alone(other_s: float, best: Layout) -> None:
    kept = Candidate(A, 1.0, recent=True)
    trials = Trials([kept, Candidate(B)], round_steps=100, budget_steps=LONG, kept=A)
    run(trials, {A: 1.0, B: other_s})
    assert trials.done
    assert trials.best == best


def test_a_kept_one_that_was_seen_lately_needs_no_turn_where_the_other_is_worse() -> None:
    kept, other = Candidate(A, 1.0, recent=True), Candidate(B, again=True)
    trials = Trials([kept, other], round_steps=100, budget_steps=LONG, kept=A)
    assert run(trials, {B: 3.0}) == [(B, 1), (B, 1)]
    assert trials.best == A


def test_a_candidate_that_is_lost_is_left_out() -> None:
    trials = Trials([Candidate(A), Candidate(B), Candidate(C)], 100, LONG)
    trials.drop([B])
    assert {layout for layout, _ in run(trials, {A: 1.0, C: 0.5})} == {A, C}
    assert trials.best == C


def test_planning_keeps_to_its_share_of_the_run() -> None:
    """Whatever the second device's time, and though nothing is known of it: but for its first
    step, which is where it becomes known."""
    for times in (1.1, 1.5, 2.0, 4.0):
        pilot = Pilot(lambda layout: layout.describe("abcd"))
        steps = Steps(10, 20, 20 * 30, 20 * 30)
        pilot.plan([Candidate(A), Candidate(B)], steps)
        total_s = 0.0
        for _ in range(30):
            pilot.begin_round(steps)
            left = steps.round
            while (turn := pilot.next()) is not None:
                took_s = turn.steps * (1.0 if turn.layout == A else times)
                pilot.took(turn, took_s)
                left, total_s = left - turn.steps, total_s + took_s
            pilot.end_round(left, left * 1.0)
            total_s += left
        assert pilot.kept == A
        assert pilot.spent_s == pytest.approx(total_s - 600.0)
        assert pilot.spent_s <= PLANNING_SHARE * total_s
        assert FIRST_SHARE < PLANNING_SHARE


# -- courses ---------------------------------------------------------------------------------


@pytest.fixture
def device() -> NumpyDevice:
    return fakes.numpy_device()


def whole(device: NumpyDevice, n: int = 20) -> Placed:
    program = device.compile(fakes.model().whole, 8, PROXIMAL)
    layout = Layout.whole(device.info.key, program.segment.stop)
    return place(layout, [Site(device, program, device.load(*fakes.examples(n)))])


def cut(device: NumpyDevice, n: int = 20) -> Placed:
    key, blocks = device.info.key, fakes.model().whole.stop
    layout = Layout.cut([key, key], [2, blocks])
    data = device.load(*fakes.examples(n))
    model = fakes.model()
    sites = [
        Site(device, device.compile(p.segment(model), 8, PROXIMAL), data) for p in layout.parts
    ]
    return place(layout, sites)


@pytest.mark.parametrize("stages", [[1], [3], [2, 1], [1, 1, 1, 1], [4, 1]])
@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
def test_a_round_that_moves_about_trains_as_one_that_stays(
    device: NumpyDevice, stages: list[int], clip_norm: float
) -> None:
    """Also in mid-epoch (of three batches): values, optimizer state, round's start, metrics."""
    hyper = Hyper(lr=0.1, momentum=0.9, proximal_mu=0.3, clip_norm=clip_norm)
    task = replace(TASK, hyper=hyper)
    stays = trainer.train(Fixed(whole(device), 3), START, task, RoundClock())
    networks = [whole(device), cut(device)]
    before = [(networks[i % 2], steps) for i, steps in enumerate(stages)]
    course = Fixed(networks[len(stages) % 2], 3, before)
    clock = RoundClock()
    moves = trainer.train(course, START, task, clock)
    np.testing.assert_allclose(moves.params, stays.params, rtol=1e-5, atol=1e-7)
    assert moves.metrics.count == stays.metrics.count == 20
    assert moves.metrics.correct == stays.metrics.correct
    assert moves.metrics.loss_sum == pytest.approx(stays.metrics.loss_sum, rel=1e-5)
    assert list(clock.phases) == ["plan", "upload", "train", "download"]
    assert [ran.steps for ran in course.trials] == stages
    assert course.rest is not None
    assert course.rest.steps == 6 - sum(stages)


def test_a_piloted_round_notes_what_ran_and_can_be_repeated_bit_by_bit(
    device: NumpyDevice,
) -> None:
    networks = {placed.layout: placed for placed in (whole(device), cut(device))}
    pilot = Pilot(lambda layout: layout.kind)
    steps = Steps(3, 6, 600, 600)
    pilot.plan([Candidate(layout) for layout in networks], steps)
    pilot.begin_round(steps)
    course = Piloted(pilot, networks, 3)
    first = trainer.train(course, START, TASK, RoundClock())
    ran = [(trial.placed, trial.steps) for trial in course.trials]
    assert {placed.layout for placed, _ in ran} == set(networks)
    assert sum(n for _, n in ran) + (course.rest.steps if course.rest else 0) == 6
    again = trainer.train(Fixed(course.kept, 3, ran), START, TASK, RoundClock())
    np.testing.assert_array_equal(again.params, first.params)
    assert again.metrics == first.metrics


def test_the_rest_of_a_round_is_sampled_in_what_is_left_of_its_epoch(device: NumpyDevice) -> None:
    one, other = whole(device, n=96), whole(device, n=96)
    course = Fixed(one, 12, [(other, 7)])
    trainer.train(course, START, TASK, RoundClock())
    assert course.rest is not None
    assert [sample.count for sample in course.rest.samples] == [8, 8]
    assert all(commands for sample in course.rest.samples for commands in sample.commands)
    assert course.trials[0].samples == ()
