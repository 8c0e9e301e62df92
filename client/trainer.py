"""Runs a program over batches: the inner loop of everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from client import random
from client.backends.base import Device, DeviceData, Program
from client.backends.figures import Metrics
from client.backends.recipe import Hyper
from client.errors import TrainingError
from client.model.graph import Float32Array
from client.timing import RoundClock

IN_FLIGHT_S = 0.25
"""Most work enqueued ahead of the device: how late a stop or a deadline can take effect."""

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


def train(
    device: Device,
    program: Program,
    data: DeviceData,
    params: Float32Array,
    task: Task,
    clock: RoundClock,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """One node's round: upload once, train, download once.

    ``stop`` is asked at each batch boundary; TrainingError if it says so, or if the loss is no
    longer a finite number.
    """
    n = data.num_examples
    with clock.phase("upload"):
        program.upload(params)
        program.read_metrics()  # forget what a round that was stopped left
        device.finish()
    with clock.phase("train"), quiet():
        all_batches = batches(n, task.batch)
        sampled = set(np.linspace(0, len(all_batches) - 1, SAMPLED_STEPS + 2, dtype=int)[1:-1])
        for epoch in range(task.local_epochs):
            key = (task.seed, task.round, task.partition, epoch)
            program.begin_epoch(data, random.order(*key, n), task.batch, random.dropout_key(*key))
            for i, (start, count) in enumerate(all_batches):
                if epoch == 0 and i in sampled:
                    program.sample_next_step()
                program.step(start, count, task.hyper)
                device.throttle(IN_FLIGHT_S)
                if stop():
                    raise TrainingError(f"{task.partition}: stopped in round {task.round}")
            metrics = program.read_metrics()
            if not np.isfinite(metrics.loss_sum):
                raise TrainingError(
                    f"{task.partition}: the loss became {metrics.loss_sum} in round {task.round}, "
                    f"epoch {epoch + 1}: lower train.lr (now {task.hyper.lr:g})"
                )
    with clock.phase("download"):
        result = program.download()
        if not np.isfinite(result).all():
            raise TrainingError(
                f"{task.partition}: parameters are no longer finite after round {task.round}: "
                f"lower train.lr (now {task.hyper.lr:g})"
            )
        return Outcome(result, metrics, n)


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
