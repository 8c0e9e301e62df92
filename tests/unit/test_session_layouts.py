"""Rounds on several devices at once, and those that go from one layout to another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import backends
from client.backends import on_backend
from client.backends.recipe import Hyper
from client.errors import ConfigError, DeviceError, MismatchError
from client.model import initialise
from client.placement import probe
from client.placement.layout import Layout
from client.placement.planner import Prediction
from client.placement.profile import Copy, Gemm, Link, ProcessorProfile
from client.record import Decision, NodeRecord, PlacedLayout, PlacedPart, Placement
from client.timing import RoundClock
from client.trainer import Outcome, Task
from client.worker.knowledge import Knowledge
from client.worker.session import Session
from tests import fakes
from tests.fakes import Fake

START = initialise(fakes.model(), seed=1)
TASK = Task(
    round=1, seed=3, partition="node-0", local_epochs=2, batch=8, hyper=Hyper(lr=0.1, momentum=0.9)
)
BLOCKS = fakes.model().whole.stop


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))


def session(folder: Path, rounds: int = 100, **over: object) -> Session:
    return Session(fakes.experiment(folder, federation={"rounds": rounds}, **over), folder)


def a_round(
    s: Session,
    number: int = 1,
    recorded: Placement | None = None,
    clock: RoundClock | None = None,
) -> tuple[Outcome, NodeRecord]:
    task = replace(TASK, round=number)
    return s.train(task, None, START, recorded, clock or RoundClock())


@pytest.fixture
def by_numpy(tmp_path: Path) -> Outcome:
    return a_round(session(tmp_path, devices={"backend": "numpy"}))[0]


def part(fake: Fake, first: int = 0, stop: int = BLOCKS, share: float = 1.0) -> PlacedPart:
    info = fake.devices()[0]
    return PlacedPart(fake.name, info.key, info.compute_units, first, stop, share)


def cut(*fakes_: Fake) -> PlacedLayout:
    stops = [2, *range(3, 2 + len(fakes_) - 1), BLOCKS]
    firsts = [0, *stops[:-1]]
    parts = zip(fakes_, firsts, stops, strict=True)
    return PlacedLayout(tuple(part(f, first, stop) for f, first, stop in parts))


def split(*shares: tuple[Fake, float]) -> PlacedLayout:
    return PlacedLayout(tuple(part(fake, share=share) for fake, share in shares))


def whole(fake: Fake) -> PlacedLayout:
    return PlacedLayout((part(fake),))


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch, by_numpy: Outcome) -> tuple[Fake, Fake]:
    """The only devices from now on."""
    both = Fake("alpha", step_s=1.0), Fake("beta", step_s=2.0)
    fakes.register(monkeypatch, *both, numpy=False)
    return both


# -- recorded placements of several parts ----------------------------------------------------


@pytest.mark.parametrize("kind", ["cut", "split", "trials"])
def test_a_recorded_placement_of_several_parts_is_repeated_bit_by_bit(
    tmp_path: Path, two: tuple[Fake, Fake], by_numpy: Outcome, kind: str
) -> None:
    alpha, beta = two
    recorded = {
        "cut": Placement((cut(alpha, beta),)),
        "split": Placement((split((alpha, 0.7), (beta, 0.3)),)),
        "trials": Placement(
            (whole(beta), cut(alpha, beta), split((beta, 0.5), (alpha, 0.5))),
            ((1, 3), (0, 1), (2, 2)),
        ),
    }[kind]
    first, record = a_round(session(tmp_path), recorded=recorded)
    again, repeated = a_round(session(tmp_path), recorded=record.placement)
    np.testing.assert_array_equal(again.params, first.params)
    assert again.metrics == first.metrics
    assert record.placement == repeated.placement == recorded
    np.testing.assert_allclose(first.params, by_numpy.params, rtol=1e-4, atol=1e-6)
    assert first.metrics.count == by_numpy.metrics.count
    assert record.reason == "recorded choice"
    assert record.decision is not None
    assert record.decision.kind == "recorded"


def test_the_record_says_what_lies_where(tmp_path: Path, two: tuple[Fake, Fake]) -> None:
    alpha, beta = two
    _, record = a_round(session(tmp_path), recorded=Placement((cut(alpha, beta),)))
    names = fakes.model().block_names
    first, second = "..".join(names[:2]), "..".join(names[2:])
    assert record.layout == f"alpha [{first}] | beta [{second}]"
    assert record.device["name"] == "alpha device + beta device"
    _, record = a_round(session(tmp_path), recorded=Placement((split((alpha, 0.7), (beta, 0.3)),)))
    assert record.layout == "alpha 0.7 + beta 0.3"


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"threads": 7}, MismatchError, "cannot be repeated here"),
        ({"device": "gone|||x|1"}, DeviceError, r"the recorded device is not here: gone"),
        ({"first": 1}, ConfigError, r"recorded placement: a layout's first part must begin"),
    ],
)
def test_a_part_that_cannot_be_repeated_is_named(
    tmp_path: Path,
    two: tuple[Fake, Fake],
    change: dict[str, Any],
    error: type[Exception],
    said: str,
) -> None:
    front, back = cut(*two).parts
    recorded = Placement((PlacedLayout((replace(front, **change), back)),))
    with pytest.raises(error, match=said):
        a_round(session(tmp_path), recorded=recorded)


def test_a_node_goes_on_with_the_layout_that_it_was_told(
    tmp_path: Path, two: tuple[Fake, Fake]
) -> None:
    s = session(tmp_path, data={"node_holdout": 0.2})
    recorded = Placement((cut(*two),))
    a_round(s, recorded=recorded)
    _, record = a_round(s, number=2)
    assert record.placement == recorded
    # and evaluates on the first of its devices that can
    metrics, evaluated = s.evaluate("node-0", None, START, RoundClock())
    assert metrics.count == 6
    assert evaluated.device["name"] == "alpha device"


def test_backends_of_a_layout_are_named_together(tmp_path: Path, two: tuple[Fake, Fake]) -> None:
    asked: list[str] = []
    token = on_backend.set(asked.append)
    try:
        a_round(session(tmp_path), recorded=Placement((cut(*two),)))
    finally:
        on_backend.reset(token)
    assert asked[-1] == "alpha+beta"
    token = on_backend.set(asked.append)
    try:
        backends.at_work("numpy", "alpha")
        backends.at_work("numpy")
    finally:
        on_backend.reset(token)
    assert asked[-2:] == ["alpha", "numpy"]


# -- what fails ------------------------------------------------------------------------------


def fail(*args: object) -> None:
    raise DeviceError("alpha device: lost: restart it")


def propose(s: Session, layout: Layout) -> None:
    """Let the node find its device, and try a layout in the round after that."""
    for number in range(1, 4):
        a_round(s, number)
    pilot = s._nodes["node-0"].pilot
    assert pilot.idle
    pilot.propose({layout: 0.1}, Decision("try", "a test proposes it"))


def cut_layout(*fakes_: Fake) -> Layout:
    return Layout.cut([f.devices()[0].key for f in fakes_], [2, BLOCKS])


@pytest.mark.parametrize("lost", [True, False], ids=["a device is lost", "nobody knows which"])
def test_a_layout_that_fails_in_its_trial_costs_nothing_but_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    two: tuple[Fake, Fake],
    by_numpy: Outcome,
    lost: bool,
) -> None:
    """A device that answers no more is refused; else the layout alone is left aside."""
    alpha, beta = two
    s = session(tmp_path)
    layout = cut_layout(alpha, beta)
    propose(s, layout)
    device, program = s.devices.ready_part(
        alpha.devices()[0], layout.parts[0].segment(s.model), 8
    ) or pytest.fail("it has no room")
    monkeypatch.setattr(program, "backward", fail)
    if lost:
        monkeypatch.setattr(device, "finish", fail)
    outcome, record = a_round(s)
    np.testing.assert_allclose(outcome.params, by_numpy.params, rtol=1e-5, atol=1e-7)
    said = [event.kind for event in record.events if event.kind != "parity"]
    assert said == ["device refused" if lost else "layout left aside"]
    assert record.layout == ("beta" if lost else "alpha")
    assert record.placement is not None
    assert all(len(layout.parts) == 1 for layout in record.placement.layouts)
    assert a_round(s, number=2)[1].events == []


def test_a_part_without_room_for_a_batch_is_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two: tuple[Fake, Fake]
) -> None:
    s = session(tmp_path)
    propose(s, cut_layout(*two))
    device = s.devices.open(two[1].devices()[0])
    monkeypatch.setattr(device, "largest_batch", lambda segment, at_most, recipe: 3)
    _, record = a_round(s)
    *_, event = record.events
    assert event.kind == "layout left aside"
    assert "beta device: has no room for batches of 8" in event.message
    assert {i.name for i in s.devices.usable()} == {"alpha device", "beta device"}


# -- decisions over rounds -------------------------------------------------------------------


def test_a_layout_that_is_better_in_its_trial_is_kept(
    tmp_path: Path, two: tuple[Fake, Fake], by_numpy: Outcome
) -> None:
    """The fakes' parts take no time by this clock, whole networks do."""
    s = session(tmp_path)
    propose(s, cut_layout(*two))
    records = [a_round(s, number)[1] for number in range(4, 8)]
    moved = [r for r in records if any(e.kind == "placement changed" for e in r.events)]
    assert len(moved) == 1
    assert records[-1].layout.startswith("alpha [")
    tried = moved[0]
    assert tried.decision is not None
    assert tried.decision.kind == "try"
    assert tried.decision.reason.startswith("a test proposes it; measured a round: alpha ")
    assert set(tried.decision.numbers) >= {"planning_s", "training_s", "excess_s", "budget_s"}
    assert set(tried.measured) == {"alpha", tried.layout}


def test_a_hot_device_is_left_and_taken_again(tmp_path: Path, two: tuple[Fake, Fake]) -> None:
    alpha, _ = two
    s = session(tmp_path)
    layouts = []
    for number in range(1, 41):
        alpha.step_s = 3.0 if 10 <= number < 25 else 1.0
        task = replace(TASK, round=number, local_epochs=10)
        _, record = s.train(task, None, START, None, RoundClock())
        layouts.append(record.layout)
    assert set(layouts[:9]) == {"alpha"}
    assert set(layouts[11:24]) == {"beta"}
    assert set(layouts[32:]) == {"alpha"}


def test_single_keeps_the_network_on_one_device(tmp_path: Path, two: tuple[Fake, Fake]) -> None:
    s = session(tmp_path, rounds=10**6, devices={"placement": "single"})
    for number in range(1, 6):
        _, record = a_round(s, number)
        assert record.placement is not None
        assert all(len(layout.parts) == 1 for layout in record.placement.layouts)


@pytest.mark.parametrize(("gain", "is_tried"), [(0.5, True), (0.95, False)])
def test_auto_tries_what_is_predicted_to_be_clearly_better(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    two: tuple[Fake, Fake],
    gain: float,
    is_tried: bool,
) -> None:
    """The fakes' parts take no time by this clock: the cut is kept once it is tried."""
    real = Knowledge.predict

    def cuts_are_better(*given: Any) -> list[Prediction]:
        found = real(*given)
        return [p if p.layout.kind == "whole" else replace(p, step_s=gain) for p in found]

    monkeypatch.setattr(Knowledge, "predict", cuts_are_better)
    s = session(tmp_path, rounds=10**4, devices={"placement": "auto"})
    records = [a_round(s, number)[1] for number in range(1, 8)]
    tried = [r for r in records if r.decision is not None and r.decision.kind == "try"]
    assert bool(tried) == is_tried
    if not tried:
        return
    assert tried[0].decision is not None
    assert tried[0].decision.reason.startswith("predicted a step: ")
    assert any(name.endswith(" predicted_step_s") for name in tried[0].decision.numbers)
    assert len(records[-1].placement.kept.parts) > 1  # type: ignore[union-attr]


def test_planning_is_timed(tmp_path: Path, two: tuple[Fake, Fake]) -> None:
    clock = RoundClock()
    _, record = a_round(session(tmp_path), clock=clock)
    assert clock.phases["plan"] > 0
    assert record.decision is not None
    assert record.decision.kind == "plan"
    assert record.decision.numbers["excess_s"] == two[1].calls["step"] * (2.0 - 1.0) > 0


def test_what_other_nodes_saw_spares_a_node_hopeless_turns(
    tmp_path: Path, two: tuple[Fake, Fake]
) -> None:
    _, beta = two
    beta.step_s = 20.0
    s = session(tmp_path)
    a_round(s)  # beta has a warm-up
    before = beta.calls["step"]
    _, record = s.train(replace(TASK, partition="node-1"), None, START, None, RoundClock())
    assert beta.calls["step"] == before
    assert record.placement is not None
    assert len(record.placement.layouts) == 1
    assert record.reason == (
        "measured a round: alpha 8.000 s (1000.00 ms a step), beta (expected 10000.00 ms a step)"
    )
    assert record.measured["beta"] == {"expected_step_s": 10.0}


def test_complete_profiles_spare_hopeless_turns_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two: tuple[Fake, Fake]
) -> None:
    """A profile that says next to nothing is not taken for more: see the uncertainties."""
    alpha, beta = two

    def profile(fake: Fake, flops_per_s: float) -> ProcessorProfile:
        info = fake.devices()[0]
        link = Link(1e-6, 1e9, 1e-6, 1e9)
        return ProcessorProfile(
            key=info.key,
            backend=info.backend,
            name=info.name,
            kind=info.kind,
            driver=info.driver,
            threads=info.compute_units,
            memory_nbytes=0,
            shared_memory=False,
            gemms=(Gemm(32, 32, 32, flops_per_s),),
            copies=(Copy(2**16, flops_per_s),),
            launch_s=1e3 / flops_per_s,
            links={"pageable": link},
            link_used="pageable",
        )

    for slower, tried in ((2.0, True), (1000.0, False)):
        probe.keep(probe.dated([profile(alpha, 1e9), profile(beta, 1e9 / slower)]))
        before = beta.calls["step"]
        a_round(session(tmp_path))
        assert (beta.calls["step"] > before) == tried
