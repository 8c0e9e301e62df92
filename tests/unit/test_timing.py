"""A round's phases: disjoint, on one clock, and honest about what they leave out."""

from __future__ import annotations

import pytest

from client import timing
from client.timing import RoundClock, Timing


class Ticks:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s

    def round_clock(self) -> RoundClock:
        return RoundClock(start_s=self.now_s)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    ticks = Ticks()
    monkeypatch.setattr(timing, "time", ticks)
    return ticks


def test_phases_add_up_and_the_rest_is_unattributed(ticks: Ticks) -> None:
    clock = ticks.round_clock()
    for name, seconds in (("decode", 1.0), ("train", 4.0), ("train", 2.0)):
        with clock.phase(name):
            ticks.now_s += seconds
        ticks.now_s += 0.5
    result = clock.stop()
    assert result.wall_s == 8.5
    assert result.phases == {"decode": 1.0, "train": 6.0}
    assert result.unattributed_s == 1.5


def test_a_failing_phase_is_counted_and_closed(ticks: Ticks) -> None:
    clock = ticks.round_clock()

    def lose() -> None:
        with clock.phase("upload"):
            ticks.now_s += 3
            raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        lose()
    with clock.phase("train"):
        ticks.now_s += 1
    assert clock.stop().phases == {"upload": 3.0, "train": 1.0}


def test_phases_do_not_nest(ticks: Ticks) -> None:
    clock = ticks.round_clock()
    with clock.phase("train"):
        with (
            pytest.raises(RuntimeError, match="'upload' inside phase 'train'"),
            clock.phase("upload"),
        ):
            pass
        ticks.now_s += 2
    assert clock.stop().phases == {"train": 2.0}


def test_unknown_phases_are_refused() -> None:
    with pytest.raises(ValueError, match="training"), RoundClock().phase("training"):
        pass


def test_a_round_may_begin_before_its_clock(ticks: Ticks) -> None:
    """A message's arrival counts, though its phases are measured later."""
    clock = RoundClock(start_s=90.0)
    ticks.now_s += 5
    assert clock.stop() == Timing(15.0, {})


def test_a_timing_does_not_change_afterwards(ticks: Ticks) -> None:
    clock = ticks.round_clock()
    first = clock.stop()
    with clock.phase("train"):
        ticks.now_s += 1
    assert first.phases == {}


def test_a_call_to_another_process_is_its_phases_and_the_handover(ticks: Ticks) -> None:
    clock = ticks.round_clock()
    with clock.phase("decode"):
        ticks.now_s += 1.0
    ticks.now_s += 10.0
    clock.absorb(10.0, Timing(8.0, {"decode": 0.5, "train": 7.0}))
    result = clock.stop()
    assert result.phases == {"decode": 1.5, "train": 7.0, "handover": 2.0}
    assert result.wall_s == 11.0
    assert result.unattributed_s == 0.5  # what the other process could not attribute


def test_a_call_is_not_inside_a_phase_and_its_phases_are_known() -> None:
    clock = RoundClock()
    with clock.phase("train"), pytest.raises(RuntimeError, match="inside phase 'train'"):
        clock.absorb(1.0, Timing(1.0, {}))
    with pytest.raises(ValueError, match="'sleep'"):
        clock.absorb(1.0, Timing(1.0, {"sleep": 1.0}))
