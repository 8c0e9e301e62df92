"""An emulated device's clock: when commands begin and end, and who waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from client.backends.emulated.clock import HostClock
from client.backends.emulated.reference import References, thread_time, wall_time
from client.backends.emulated.schedule import Schedule
from client.backends.emulated.spec import Heat
from client.backends.emulated.timeline import Order, Timeline
from client.errors import DeviceError
from tests.emulation import Clock, meter

# -- schedule ------------------------------------------------------------------------------------


def test_a_command_begins_when_it_is_there_and_the_one_before_is_over() -> None:
    schedule = Schedule(compute_factor=4.0, heat=None)
    first = schedule.add(arrived_s=10.0, reference_s=0.5, transfer_s=0.25)
    assert (first.start_s, first.end_s) == (10.0, 12.25)
    assert (first.compute_s, first.transfer_s) == (2.0, 0.25)
    assert schedule.add(11.0, 0.5, 0.0).start_s == 12.25
    late = schedule.add(20.0, 0.0, 1.0, prepare_s=0.5)
    assert (late.start_s, late.end_s) == (20.0, 21.5), "what is built is built as fast as anywhere"
    assert schedule.busy_s == 2.25 + 2.0 + 1.5


def factors(schedule: Schedule, moments_s: list[float]) -> list[float]:
    """By how much commands of one second are slowed that arrive then."""
    return [schedule.add(moment_s, 1.0, 0.0).compute_s for moment_s in moments_s]


def test_heat_sets_in_after_busy_seconds_and_idle_ones_take_it_away() -> None:
    schedule = Schedule(1.0, Heat(after_busy_s=2.0, factor=3.0, cools_idle_s=4.0))
    assert factors(schedule, [0.0] * 4) == [1.0, 1.0, 3.0, 3.0]  # it is busy until 8
    assert schedule.factor == 3.0
    assert factors(schedule, [10.0]) == [3.0], "two idle seconds are half of what it takes"
    assert factors(schedule, [17.0]) == [1.0], "four in a row, after it was busy until 13"
    assert schedule.factor == 1.0
    assert factors(schedule, [18.0] * 2) == [1.0, 3.0]


def test_short_pauses_add_up() -> None:
    schedule = Schedule(1.0, Heat(after_busy_s=2.0, factor=3.0, cools_idle_s=2.0))
    moments_s = [2.0 * i for i in range(10)]  # as long idle as busy: it never becomes hot
    assert factors(schedule, moments_s) == [1.0] * 10


def test_heat_of_a_given_length_ends_whether_busy_or_idle() -> None:
    schedule = Schedule(2.0, Heat(after_busy_s=2.0, factor=3.0, cools_s=9.0))
    assert factors(schedule, [0.0] * 4) == [2.0, 6.0, 6.0, 2.0]  # hot from 2 to 11, until 14
    assert factors(schedule, [20.0]) == [6.0], "the next heat began after two busy seconds"


# -- reference -----------------------------------------------------------------------------------


def test_the_reference_is_the_calm_minimum() -> None:
    references = References(prepares=False)
    assert [references.of("a", s) for s in (3.0, 5.0, 2.0, 9.0)] == [3.0, 3.0, 2.0, 2.0]
    assert references.of("b", 7.0) == 7.0


def test_times_in_which_something_was_built_tell_nothing() -> None:
    references = References(prepares=True)
    assert references.of("forward", 50.0, ["forward"]) is None
    assert references.of("forward", 3.0, ["forward"]) == 3.0
    assert references.of("step", 9.0, ["forward", "backward"]) is None
    assert references.of("step", 5.0, ["forward", "backward"]) == 5.0


def test_time_that_a_thread_waits_does_not_count_as_its_own() -> None:
    waited = threading.Event()
    _, own_s = thread_time(lambda: waited.wait(0.2))
    _, wall_s = wall_time(lambda: waited.wait(0.2))
    assert own_s < 0.1 < wall_s


def test_the_hosts_clock_waits_no_shorter() -> None:
    clock = HostClock()
    for wait_s in (0.0, 50e-6, 2e-3):
        moment_s = clock.now_s() + wait_s
        clock.wait_until(moment_s)
        assert clock.now_s() >= moment_s


# -- timeline ------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timeline(clock: Clock) -> Iterator[Timeline]:
    timeline = Timeline("test", Schedule(1.0, None), clock, meter, stall_after=None)
    yield timeline
    timeline.close()


def test_enqueueing_does_not_wait(timeline: Timeline, clock: Clock) -> None:
    go_on, done = threading.Event(), []
    timeline.enqueue(Order(lambda: done.append(go_on.wait(60))))
    mark = timeline.mark()
    assert not mark.done()  # nor could it be: it waits for us
    go_on.set()
    mark.wait()
    assert done == [True]


def test_whoever_waits_waits_for_the_devices_clock(timeline: Timeline, clock: Clock) -> None:
    order = Order(lambda: "result", transfer_s=2.0)
    timeline.enqueue(order)
    mark = timeline.mark()
    assert timeline.call(order) == "result"
    assert clock.time_s == 104.0
    assert mark.done()
    assert timeline.late_s == 0.0


def test_a_command_that_was_carried_out_is_not_over_before_its_time(
    timeline: Timeline, clock: Clock
) -> None:
    timeline.enqueue(Order(lambda: None, transfer_s=2.0))
    mark = timeline.mark()
    timeline.aside(lambda: None)  # all before it is carried out
    assert clock.time_s == 100.0
    assert not mark.done()
    clock.time_s = 103.0  # the host has done something else
    assert mark.done()
    mark.wait()
    assert timeline.late_s == 1.0


def test_an_error_of_what_was_enqueued_meets_whoever_waits_next(timeline: Timeline) -> None:
    def fail() -> None:
        raise DeviceError("lost")

    timeline.enqueue(Order(fail))
    with pytest.raises(DeviceError, match="lost"):
        timeline.mark().wait()
    timeline.mark().wait()
    with pytest.raises(DeviceError, match="lost"):
        timeline.call(Order(fail))
    assert timeline.call(Order(lambda: 5)) == 5


def test_a_command_that_stalls_never_ends_and_none_after_it_begins(clock: Clock) -> None:
    timeline = Timeline("stalling", Schedule(1.0, None), clock, meter, stall_after=2)
    ran: list[int] = []
    for i in range(4):
        timeline.enqueue(Order(lambda i=i: ran.append(i)))
    mark = timeline.mark()
    assert timeline.stalled.wait(60)
    waiting = threading.Thread(target=mark.wait, daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    assert not mark.done()
    assert ran == [0, 1]
