"""Rounds simulated by a schedule that only the test knows: heat, noise, recovery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from client.placement.layout import Layout
from client.placement.monitor import Monitor
from client.placement.pilot import Pilot, Steps
from client.record import Decision

GPU, CPU = Layout.whole("gpu||maker|gpu|1", 3), Layout.whole("numpy|||cpu|1", 3)
BLOCKS = ("a", "b", "c")
STEPS = 40  # of a round

Speed = Callable[[int], float]
"""Seconds of the n-th step of the run."""


@dataclass
class Simulated:
    """A node that trains by a pilot; ``at`` counts its steps, ``now_s`` its seconds."""

    speeds: Mapping[Layout, Speed]
    kept: Layout
    steps: int = STEPS
    noise: Callable[[], float] = lambda: 1.0
    at: int = 0
    now_s: float = 0.0
    oracle_s: float = 0.0
    rested: list[Layout] = field(default_factory=list)  # where each round's rest trained
    kinds: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pilot = Pilot(lambda layout: layout.describe(BLOCKS))
        self.pilot.settle(self.kept, Decision("recorded", "chosen"))
        self.pilot.release({layout: speed(0) for layout, speed in self.speeds.items()})

    def train(self, layout: Layout, steps: int) -> float:
        """Steps, which take what they take by the schedule, all alike by the noise."""
        noise, began_s = self.noise(), self.now_s
        for _ in range(steps):
            self.now_s += noise * self.speeds[layout](self.at)
            self.oracle_s += min(speed(self.at) for speed in self.speeds.values())
            self.at += 1
        return self.now_s - began_s

    def run(self, rounds: int) -> None:
        pilot = self.pilot
        for _ in range(rounds):
            left = self.steps
            pilot.begin_round(Steps(self.steps, self.steps, 100 * self.steps, self.steps))
            while left and (turn := pilot.next()) is not None:
                pilot.took(turn, self.train(turn.layout, turn.steps))
                left -= turn.steps
            assert pilot.kept is not None
            self.rested.append(pilot.kept)
            self.kinds.append(pilot.end_round(left, self.train(pilot.kept, left)).decision.kind)


def heat(step_s: float, factor: float, onset: int, end: int) -> Speed:
    """``factor`` times slower from the ``onset``-th step to the ``end``-th."""
    return lambda at: step_s * (factor if onset <= at < end else 1.0)


def steady(step_s: float) -> Speed:
    return lambda at: step_s


@pytest.mark.parametrize("into_the_round", [0, STEPS // 4, STEPS // 2, STEPS - 1])
@pytest.mark.parametrize("cpu_s", [0.002, 0.0015, 0.0025])
@pytest.mark.parametrize("rounds_of_heat", [10, 20])
def test_a_device_three_times_slower_is_left_within_two_rounds_and_taken_again(
    into_the_round: int, cpu_s: float, rounds_of_heat: int
) -> None:
    onset = 10 * STEPS + into_the_round
    cool = onset + rounds_of_heat * STEPS
    node = Simulated({GPU: heat(0.001, 3.0, onset, cool), CPU: steady(cpu_s)}, GPU)
    node.run(50)
    left, back = 10 + 2, cool // STEPS + 6
    assert set(node.rested[:10]) == {GPU}
    assert set(node.rested[left : cool // STEPS]) == {CPU}
    assert set(node.rested[back:]) == {GPU}
    assert node.now_s < 1.1 * node.oracle_s


def test_heat_that_stays_costs_little_more_than_knowing_it() -> None:
    node = Simulated({GPU: heat(0.001, 3.0, 10 * STEPS, 10**9), CPU: steady(0.002)}, GPU)
    node.run(100)
    assert set(node.rested[12:]) == {CPU}
    assert node.now_s < 1.05 * node.oracle_s


def test_a_device_that_becomes_slow_little_by_little_is_left() -> None:
    """By 1% a round, as a phone that warms up: no round differs from the one before."""
    node = Simulated({GPU: lambda at: 0.001 * 1.01 ** (at // STEPS), CPU: steady(0.0015)}, GPU)
    node.run(120)
    assert set(node.rested[:40]) == {GPU}
    assert set(node.rested[100:]) == {CPU}  # 1.01 ** 100 = 2.7
    assert node.now_s < 1.15 * node.oracle_s


def test_without_room_nothing_is_tried_nor_made_ready() -> None:
    node = Simulated({GPU: heat(0.001, 3.0, 2 * STEPS, 10**9), CPU: steady(0.001)}, GPU)
    node.pilot.spend(1e6)
    for _ in range(10):
        node.run(1)
        assert node.pilot.idle
    assert set(node.rested) == {GPU}
    assert set(node.kinds) == {"keep"}


def test_a_slow_device_that_is_still_the_best_is_kept_and_not_doubted_again() -> None:
    node = Simulated({GPU: heat(0.001, 3.0, 10 * STEPS, 10**9), CPU: steady(0.010)}, GPU)
    node.run(40)
    assert set(node.rested) == {GPU}
    assert set(node.kinds) == {"keep"}


@pytest.mark.parametrize("cpu_s", [0.00102, 0.0012, 0.002])
@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_flap(cpu_s: float, seed: int) -> None:
    g = np.random.default_rng(seed)
    node = Simulated(
        {GPU: steady(0.001), CPU: steady(cpu_s)},
        GPU,
        noise=lambda: float(np.exp(g.normal(0, 0.2))),
    )
    node.run(100)
    moves = sum(a != b for a, b in zip(node.rested, node.rested[1:], strict=False))
    assert moves <= 4 if cpu_s < 0.0011 else moves <= 2
    assert node.rested.count(GPU) > 90 or cpu_s < 0.0011


def test_few_steps_a_round_are_not_spent_on_trials() -> None:
    """Of rounds of four steps, retries take a small share of all."""
    node = Simulated({GPU: heat(0.001, 3.0, 40, 10**9), CPU: steady(0.002)}, GPU, steps=4)
    node.run(200)
    assert node.now_s < 1.1 * node.oracle_s
    assert node.rested.count(CPU) > 180


def monitor() -> Monitor:
    """The GPU took 1 ms a step, and now 3; the CPU would take 2."""
    made = Monitor(GPU, lambda layout: layout.describe(BLOCKS))
    made.learn({CPU: 0.002})
    made.observe(0.001)
    made.observe(0.003)
    return made


def test_the_reason_has_the_numbers() -> None:
    advice = monitor().advise(0.12)
    assert advice.beside == (CPU,)
    assert advice.decision.reason == (
        "gpu takes 3.00 ms a step, 3.0 times what it did: held against numpy"
    )
    assert advice.decision.numbers == {
        "step_s": 0.003,
        "expected_step_s": 0.001,
        "numpy step_s": 0.002,
    }


def test_a_layout_that_cannot_train_any_more_is_not_tried() -> None:
    made = monitor()
    made.forget(lambda layout: layout == CPU)
    assert made.advise(0.12).beside == ()
