"""The throttle: how much work is in flight, on a device simulated by a clock."""

from __future__ import annotations

import pytest

from client.backends.throttle import Throttle


class Simulation:
    """A device that works steps off one after the other; enqueueing takes 1 ms each."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.free_s = 0.0  # when the device will have done all that was enqueued
        self.waits = 0

    def clock(self) -> float:
        return self.now_s

    def enqueue(self, step_s: float) -> Step:
        self.now_s += 1e-3
        self.free_s = max(self.free_s, self.now_s) + step_s
        return Step(self, self.free_s)

    @property
    def in_flight_s(self) -> float:
        return max(0.0, self.free_s - self.now_s)


class Step:
    def __init__(self, simulation: Simulation, end_s: float) -> None:
        self.simulation, self.end_s = simulation, end_s

    def done(self) -> bool:
        return self.simulation.now_s >= self.end_s

    def wait(self) -> None:
        self.simulation.waits += 1
        self.simulation.now_s = max(self.simulation.now_s, self.end_s)


@pytest.mark.parametrize("step_s", [0.0015, 0.01, 0.1, 0.4])
def test_work_in_flight_is_bounded_and_the_device_is_busy(step_s: float) -> None:
    sim = Simulation()
    throttle = Throttle(sim.clock)
    most_s = 0.0
    for _ in range(400):
        throttle.add(sim.enqueue(step_s), limit_s=0.25)
        most_s = max(most_s, sim.in_flight_s)
    assert most_s <= 0.25 + 1e-9
    assert sim.free_s == pytest.approx(400 * step_s, rel=0.02, abs=2 * step_s + 0.41)


def test_steps_that_become_slower_are_noticed() -> None:
    sim = Simulation()
    throttle = Throttle(sim.clock)
    for _ in range(300):
        throttle.add(sim.enqueue(0.002), limit_s=0.1)
    for _ in range(300):
        throttle.add(sim.enqueue(0.02), limit_s=0.1)
    assert sim.in_flight_s <= 0.1 + 0.02


def test_a_device_faster_than_the_host_is_hardly_waited_for() -> None:
    sim = Simulation()
    throttle = Throttle(sim.clock)
    for _ in range(100):
        throttle.add(sim.enqueue(1e-4), limit_s=0.25)
    assert sim.waits <= 1


def test_after_a_finish_nothing_old_is_waited_for() -> None:
    sim = Simulation()
    throttle = Throttle(sim.clock)
    for _ in range(20):
        throttle.add(sim.enqueue(0.01), limit_s=0.1)
    sim.now_s = sim.free_s + 5
    throttle.idle()
    before = sim.waits
    for _ in range(5):
        throttle.add(sim.enqueue(0.01), limit_s=0.1)
    assert sim.waits == before
