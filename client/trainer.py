"""Runs placed networks over batches: the inner loop of everything."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from client import random
from client.backends.base import DeviceData, Program
from client.backends.figures import Command, Metrics
from client.backends.recipe import Hyper
from client.errors import TrainingError
from client.model.graph import Float32Array
from client.placed.base import Placed
from client.timing import RoundClock

IN_FLIGHT_S = 0.25
"""Most work enqueued ahead of the device: how late a stop or a deadline can take effect."""

CLOCK_S = 1e-9
"""Nothing takes less time: what a coarse clock does not see still divides."""

SAMPLED_STEPS = 2
"""Training steps of a round whose commands are timed one by one, on the device."""


@dataclass(frozen=True)
class Task:
    """What a node is asked to do in a round."""

    round: int
    seed: int
    partition: str
    local_epochs: int
    batch: int
    hyper: Hyper


@dataclass(frozen=True)
class Outcome:
    """Values after a round, and the metrics of its last epoch (measured while training)."""

    params: Float32Array
    metrics: Metrics
    num_examples: int


def batches(n: int, batch: int) -> list[tuple[int, int]]:
    """(start, count) of each batch of ``n`` examples; the last one may be smaller."""
    return [(start, min(batch, n - start)) for start in range(0, n, batch)]


def quiet() -> np.errstate:
    """No warnings of numpy's own where numbers overflow: whoever reads the result checks it."""
    return np.errstate(over="ignore", invalid="ignore")


@dataclass(frozen=True)
class Stage:
    """So many training steps on a placed network; ``sampled``: which, counted from 0, are timed
    command by command."""

    placed: Placed
    steps: int
    sampled: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sample:
    """Commands of one training step on ``count`` examples, a list for each part of the layout."""

    count: int
    commands: list[list[Command]]


@dataclass(frozen=True)
class Took:
    """How long a stage's steps took, ended by a finish; and of its sampled steps the commands."""

    seconds: float
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class Moved:
    """What bringing the round's state to a stage's network took.

    ``read_s``: the network before gave its state, 0 at the round's start; ``upload_s``: the round's
    start was sent, None where the network had it; ``write_s``: the state was sent.
    ``values_share``: of the state, the values are so large a part.
    """

    read_s: float
    upload_s: float | None
    write_s: float
    values_share: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.read_s + (self.upload_s or 0.0) + self.write_s


class Course(Protocol):
    """Which placed network trains the next steps of a round, all on the same examples."""

    @property
    def num_examples(self) -> int:
        """Of the data set."""

    def next(self, left: int) -> Stage:
        """The next stage: some, or all, of the ``left`` steps of the round."""

    def moved(self, stage: Stage, moved: Moved) -> None:
        """The stage's network has the state now. Not told where it had it before."""

    def took(self, stage: Stage, took: Took) -> None:
        """The stage's steps are done."""


def sampled_steps(steps: int) -> tuple[int, ...]:
    """Which of an epoch's last ``steps`` are sampled, counted from 0: some between its ends."""
    between = np.linspace(0, steps - 1, SAMPLED_STEPS + 2, dtype=int)[1:-1]
    return tuple(dict.fromkeys(int(i) for i in between))


def train(
    course: Course,
    params: Float32Array,
    task: Task,
    clock: RoundClock,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """One node's round: upload once, train, download once.

    Where the course goes on with another placed network, the state moves there. ``stop`` is asked
    at each batch boundary; TrainingError if it says so, or if the loss is no longer a finite
    number.
    """
    with clock.phase("plan"):
        run = _Run(course, params, task, stop)
    with clock.phase("upload"):
        run.begin()
    while True:
        with clock.phase("train"), quiet():
            run.advance()
        if run.left == 0:
            break
        with clock.phase("plan"):
            run.change()
    with clock.phase("download"):
        return run.end()


class _Run:
    """A round on its way: its stage, and how far it is."""

    def __init__(
        self, course: Course, params: Float32Array, task: Task, stop: Callable[[], bool]
    ) -> None:
        self._course, self._params, self._task, self._stop = course, params, task, stop
        self._batches = batches(course.num_examples, task.batch)
        self.left = task.local_epochs * len(self._batches)
        self._stage = course.next(self.left)
        self._started: set[int] = set()  # networks (by id) that had the round's start
        self._epoch, self._at = 0, 0  # next: batch ``at`` of this epoch
        self._metrics: Metrics | None = None  # of this epoch, on networks before
        self._last: Metrics | None = None  # of the last whole epoch

    def begin(self) -> None:
        """The first stage's network is given the round's start."""
        upload_s = self._start(self._stage.placed)
        self._course.moved(self._stage, Moved(0.0, upload_s, 0.0, 1.0))

    def advance(self) -> None:
        """The stage's steps, to their finish."""
        stage, samples = self._stage, []
        placed, began_s = stage.placed, time.perf_counter()
        for i in range(stage.steps):
            if self._at == 0:
                self._begin_epoch(placed)
            start, count = self._batches[self._at]
            if i in stage.sampled:
                samples.append(Sample(count, [[] for _ in placed.programs]))
                placed.sample_next_step(samples[-1].commands)
            placed.step(start, count, self._task.hyper)
            placed.throttle(IN_FLIGHT_S)
            if self._stop():
                raise TrainingError(f"{self._task.partition}: stopped in round {self._task.round}")
            self._at += 1
            if self._at == len(self._batches):
                self._end_epoch(placed)
        placed.finish()
        self.left -= stage.steps
        took_s = max(time.perf_counter() - began_s, CLOCK_S)
        self._course.took(stage, Took(took_s, tuple(samples)))

    def change(self) -> None:
        """The next stage; the state moves to its network."""
        before, self._stage = self._stage.placed, self._course.next(self.left)
        placed = self._stage.placed
        if placed is before:
            return
        began_s = time.perf_counter()
        state = before.read_state()
        if self._at > 0:
            self._add(before.read_metrics())
        read_s = time.perf_counter() - began_s
        upload_s = None if id(placed) in self._started else self._start(placed)
        began_s = time.perf_counter()
        placed.write_state(state)
        if self._at > 0:
            self._begin_epoch(placed)
        placed.finish()
        write_s = time.perf_counter() - began_s
        share = state.values.nbytes / max(state.nbytes, 1)
        self._course.moved(self._stage, Moved(read_s, upload_s, write_s, share))

    def end(self) -> Outcome:
        """What came of the round."""
        task = self._task
        result = self._stage.placed.download()
        if not np.isfinite(result).all():
            raise TrainingError(
                f"{task.partition}: parameters are no longer finite after round {task.round}: "
                f"lower train.lr (now {task.hyper.lr:g})"
            )
        assert self._last is not None
        return Outcome(result, self._last, self._course.num_examples)

    def _start(self, placed: Placed) -> float:
        """Seconds of sending the round's start."""
        began_s = time.perf_counter()
        placed.upload(self._params)
        placed.read_metrics()  # forget what a round that was stopped left
        placed.finish()
        self._started.add(id(placed))
        return time.perf_counter() - began_s

    def _begin_epoch(self, placed: Placed) -> None:
        task, n = self._task, self._course.num_examples
        key = (task.seed, task.round, task.partition, self._epoch)
        placed.begin_epoch(random.order(*key, n), task.batch, random.dropout_key(*key))

    def _end_epoch(self, placed: Placed) -> None:
        self._add(placed.read_metrics())
        task, metrics = self._task, self._metrics
        assert metrics is not None
        if not np.isfinite(metrics.loss_sum):
            raise TrainingError(
                f"{task.partition}: the loss became {metrics.loss_sum} in round {task.round}, "
                f"epoch {self._epoch + 1}: lower train.lr (now {task.hyper.lr:g})"
            )
        self._last, self._metrics = metrics, None
        self._epoch, self._at = self._epoch + 1, 0

    def _add(self, metrics: Metrics) -> None:
        self._metrics = metrics if self._metrics is None else self._metrics + metrics


def evaluate(program: Program, data: DeviceData, batch: int) -> Metrics:
    """Loss and correct answers of the uploaded parameters over all of ``data``, in its order."""
    batch = min(batch, program.capacity)
    program.read_metrics()
    program.begin_epoch(data, np.arange(data.num_examples, dtype=np.int32), batch, 0)
    with quiet():
        for start, count in batches(data.num_examples, batch):
            program.gather(start, count)
            program.forward(count, training=False)
            program.loss(count)
        return program.read_metrics()
