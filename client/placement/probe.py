"""Measures: how long real batches take on a device, transfer included."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from client import backends, random
from client.backends.base import Device, DeviceData, Program
from client.errors import DeviceError
from client.model.graph import Float32Array
from client.trainer import Task, batches, quiet

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


def measure(
    candidates: list[Candidate], params: Float32Array, task: Task
) -> list[Measured | DeviceError]:
    """Time real batches on each candidate, in turn; parameters are thrown away afterwards.

    A candidate that fails is left alone from then on and has its error in its place.
    """
    times: list[list[tuple[float, float, float]]] = [[] for _ in candidates]
    failed: dict[int, DeviceError] = {}
    for group in range(GROUPS + 1):
        for i, candidate in enumerate(candidates):
            if i in failed:
                continue
            backends.at_work(candidate.device.info.backend)
            try:
                figures = _group(candidate, params, task)
            except DeviceError as e:
                failed[i] = e
                continue
            if group > 0:  # the first one warms up: caches, pages, clocks
                times[i].append(figures)
    return [
        failed[i] if i in failed else _measured(candidate, times[i], task)
        for i, candidate in enumerate(candidates)
    ]


def _measured(c: Candidate, taken: list[tuple[float, float, float]], task: Task) -> Measured:
    step_s, upload_s, download_s = (statistics.median(t) for t in zip(*taken, strict=True))
    steps = task.local_epochs * len(batches(c.data.num_examples, task.batch))
    return Measured(step_s, upload_s, download_s, upload_s + steps * step_s + download_s)


def _group(c: Candidate, params: Float32Array, task: Task) -> tuple[float, float, float]:
    n = c.data.num_examples
    key = (task.seed, task.round, task.partition, 0)
    begin = time.perf_counter()
    c.program.upload(params)
    c.device.finish()
    uploaded = time.perf_counter()
    c.program.begin_epoch(c.data, random.order(*key, n), task.batch, random.dropout_key(*key))
    all_batches = batches(n, task.batch)
    with quiet():  # a loss that explodes shows in the round itself
        for i in range(STEPS_PER_GROUP):
            c.program.step(*all_batches[i % len(all_batches)], task.hyper)
        c.device.finish()
    trained = time.perf_counter()
    c.program.download()
    end = time.perf_counter()
    return (trained - uploaded) / STEPS_PER_GROUP, uploaded - begin, end - trained
