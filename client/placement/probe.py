"""Measures: how long real batches take on a device, transfer included."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from client import random
from client.backends.base import Device, DeviceData, Program
from client.model.graph import Float32Array
from client.trainer import Task, batches

GROUPS = 3
STEPS_PER_GROUP = 4
"""Few, since they are thrown away: medians of three groups, each after the other devices' group,
so that a machine that slows down meanwhile slows all of them."""


@dataclass(frozen=True)
class Candidate:
    """A device with a compiled program and the node's data on it."""

    device: Device
    program: Program
    data: DeviceData


@dataclass(frozen=True)
class Measured:
    """Seconds on one device: a training step, parameters up and down, and a round made of them."""

    step_s: float
    upload_s: float
    download_s: float
    round_s: float


def measure(candidates: list[Candidate], params: Float32Array, task: Task) -> list[Measured]:
    """Time real batches on each candidate, in turn; parameters are thrown away afterwards."""
    times: list[list[tuple[float, float, float]]] = [[] for _ in candidates]
    for group in range(GROUPS + 1):
        for candidate, taken in zip(candidates, times, strict=True):
            figures = _group(candidate, params, task)
            if group > 0:  # the first one warms up: caches, pages, clocks
                taken.append(figures)
    steps = task.local_epochs * len(batches(candidates[0].data.num_examples, task.batch))
    result = []
    for taken in times:
        step_s, upload_s, download_s = (statistics.median(t) for t in zip(*taken, strict=True))
        round_s = upload_s + steps * step_s + download_s
        result.append(Measured(step_s, upload_s, download_s, round_s))
    return result


def _group(c: Candidate, params: Float32Array, task: Task) -> tuple[float, float, float]:
    n = c.data.num_examples
    key = (task.seed, task.round, task.partition, 0)
    begin = time.perf_counter()
    c.program.upload(params)
    c.device.finish()
    uploaded = time.perf_counter()
    c.program.begin_epoch(c.data, random.order(*key, n), task.batch, random.dropout_key(*key))
    all_batches = batches(n, task.batch)
    for i in range(STEPS_PER_GROUP):
        c.program.step(*all_batches[i % len(all_batches)], task.hyper)
    c.device.finish()
    trained = time.perf_counter()
    c.program.download()
    end = time.perf_counter()
    c.program.read_metrics()  # forget the sums
    return (trained - uploaded) / STEPS_PER_GROUP, uploaded - begin, end - trained
