"""Measuring and choosing: the probe throws its steps away, the planner only compares."""

from __future__ import annotations

import numpy as np
import pytest

from client import backends, trainer
from client.backends.recipe import Hyper
from client.errors import DeviceError
from client.model import initialise
from client.placement import planner, probe
from client.placement.probe import Candidate, Measured
from client.timing import RoundClock
from client.trainer import Task
from tests import fakes
from tests.fakes import Fake

TASK = Task(
    round=1, seed=2, partition="node-0", local_epochs=3, batch=8, hyper=Hyper(lr=0.1, momentum=0.9)
)
START = initialise(fakes.model(), seed=1)


def candidate(fake: Fake, n: int = 20) -> Candidate:
    device = fake.open(fake.devices()[0])
    return Candidate(
        device, device.compile(fakes.model().whole, 8), device.load(*fakes.examples(n))
    )


def measured(round_s: float) -> Measured:
    return Measured(step_s=round_s / 10, upload_s=0.0, download_s=0.0, round_s=round_s)


# -- planner ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds_s", "index"),
    [((1.0, 2.0), 0), ((2.0, 1.0), 1), ((1.0, 1.0), 0), ((3.0, 1.0, 1.0), 1), ((0.5,), 0)],
)
def test_the_shortest_round_is_chosen_the_earlier_of_equals(
    rounds_s: tuple[float, ...], index: int
) -> None:
    names = [f"device-{i}" for i in range(len(rounds_s))]
    assert planner.choose(names, [measured(s) for s in rounds_s]).index == index


def test_the_reason_holds_each_devices_figures() -> None:
    decision = planner.choose(["numpy", "opencl"], [measured(1.5), measured(0.25)])
    assert decision.reason == (
        "measured a round: numpy 1.500 s (150.00 ms a step), opencl 0.250 s (25.00 ms a step)"
    )


def test_a_short_step_does_not_win_where_transfer_costs_more() -> None:
    quick_step = Measured(step_s=0.1, upload_s=5.0, download_s=5.0, round_s=11.0)
    slow_step = Measured(step_s=0.5, upload_s=0.0, download_s=0.0, round_s=5.0)
    assert planner.choose(["a", "b"], [quick_step, slow_step]).index == 1


def test_the_planner_is_pure() -> None:
    names, figures = ["a", "b"], [measured(2.0), measured(1.0)]
    first = planner.choose(names, figures)
    assert planner.choose(names, figures) == first
    assert (names, figures) == (["a", "b"], [measured(2.0), measured(1.0)])


# -- probe -----------------------------------------------------------------------------------


def test_a_round_is_made_of_steps_and_both_ways_of_transfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Fake("fake", step_s=2.0, upload_s=7.0, download_s=5.0)
    fakes.register(monkeypatch, fake)
    [found] = probe.measure([candidate(fake, n=20)], START, TASK)
    # 3 epochs of 3 batches
    assert found == Measured(step_s=2.0, upload_s=7.0, download_s=5.0, round_s=7 + 9 * 2 + 5)


def test_the_first_group_is_warm_up_and_a_single_slow_group_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Fake("fake")
    clock = fakes.register(monkeypatch, fake)
    c = candidate(fake)
    durations = iter([1000.0, 1.0, 50.0, 1.0])  # one a group
    real = c.program.begin_epoch

    def slow(*args: object) -> None:
        clock.now_s += next(durations)
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(c.program, "begin_epoch", slow)
    [found] = probe.measure([c], START, TASK)
    assert isinstance(found, Measured)
    assert found.step_s == pytest.approx((4 * 1.0 + 1.0) / 4)


def test_devices_are_measured_in_turn_not_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Fake("first"), Fake("second")
    fakes.register(monkeypatch, first, second)
    turns: list[str] = []
    both = [candidate(first), candidate(second)]
    for c in both:
        name = c.device.info.name
        monkeypatch.setattr(c.device, "finish", lambda name=name: turns.append(name))
    probe.measure(both, START, TASK)
    assert turns[::2] == turns[1::2]  # each group finishes twice: after upload, after the steps
    assert turns[::2] == ["first device", "second device"] * (probe.GROUPS + 1)


def test_a_device_that_fails_meanwhile_has_its_error_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good, bad = Fake("good", step_s=1.0), Fake("bad", fail_at_step=6)
    fakes.register(monkeypatch, good, bad)
    error, figures = probe.measure([candidate(bad), candidate(good)], START, TASK)
    assert isinstance(error, DeviceError)
    assert "lost" in str(error)
    assert isinstance(figures, Measured)
    assert figures.step_s == 1.0
    assert bad.calls["step"] == 6  # left alone afterwards


def test_fewer_batches_than_steps_are_gone_round_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake("fake", step_s=1.0)
    fakes.register(monkeypatch, fake)
    [found] = probe.measure([candidate(fake, n=5)], START, TASK)
    assert found == Measured(step_s=1.0, upload_s=0.0, download_s=0.0, round_s=3.0)


def test_what_was_measured_is_thrown_away() -> None:
    """Weights and metrics of a round are the same with and without probing before it."""
    numpy = backends.get("numpy")

    def a_round(probed: bool) -> trainer.Outcome:
        device = numpy.open(numpy.devices()[0])
        c = Candidate(
            device, device.compile(fakes.model().whole, 8), device.load(*fakes.examples(20))
        )
        if probed:
            probe.measure([c], START, TASK)
        return trainer.train(c.device, c.program, c.data, START, TASK, RoundClock())

    plain, probed = a_round(False), a_round(True)
    np.testing.assert_array_equal(probed.params, plain.params)
    assert probed.metrics == plain.metrics
