"""`pocketfed bench train`: time of a training step on each backend, beside PyTorch's.

The definitions stand in docs/performance.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from client import backends as all_backends
from client.backends.device_info import DeviceInfo
from client.config import DevicesConfig
from client.errors import ConfigError, DeviceError
from client.model import Model, load_model
from client.worker.devices import Devices
from server.bench import measure
from server.bench.figures import Row, busy_time, training_flops
from server.bench.load import Load
from server.bench.peak import torch_peak, traced_peak
from server.bench.start import Start, measure_start
from server.bench.workloads import OurSteps, TorchSteps, import_torch, random_examples

log = logging.getLogger(__name__)

GROUPS = 15
SAMPLED_STEPS = 20
PEAK_STEPS = 2

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "POCL_MAX_PTHREAD_COUNT")


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    ``backends``: None for all that work here, where one that does not is logged and left out; of
    those named, one that does not is a DeviceError. ``peer``: PyTorch beside ours.
    """

    backends: tuple[str, ...] | None = None
    groups: int = GROUPS
    peer: bool = True


def bench_train(
    models: Sequence[str],
    batches: Sequence[int],
    settings: Settings | None = None,
    progress: Callable[[str], None] = log.info,
) -> list[Row]:
    """Measure each model (a file, or a shipped one's name) at each batch size on each device.

    MissingExtraError without PyTorch, unless ``settings.peer`` is False.
    """
    settings = settings or Settings()
    for batch in batches:
        if batch < 1:
            raise ConfigError(f"batch: found {batch}, must be at least 1")
    if settings.groups < 1:
        raise ConfigError(f"groups: found {settings.groups}, must be at least 1")
    if settings.peer:
        import_torch()
    for note in notes():
        log.warning("%s", note)
    loaded = [(name, load_model(Path(name))) for name in models]
    rows: list[Row] = []
    for name, model in loaded:
        for batch in batches:
            rows += _bench_one(name, model, batch, settings, progress)
    return rows


def notes() -> list[str]:
    """What in the environment makes the figures other than they would be without it."""
    found = []
    core = os.environ.get("OPENBLAS_CORETYPE")
    if core:
        found.append(f"OPENBLAS_CORETYPE={core}: numpy's kernels are not those OpenBLAS would take")
    for name in THREAD_VARIABLES:
        if name in os.environ:
            found.append(f"{name}={os.environ[name]}: threads may differ between the two sides")
    return found


@dataclass(frozen=True)
class Rival:
    """One device with the steps that it does."""

    info: DeviceInfo
    steps: OurSteps
    start: Start


@dataclass(frozen=True)
class Peer:
    """PyTorch's steps and what they took."""

    steps: TorchSteps
    peak_nbytes: int


def _bench_one(
    name: str, model: Model, batch: int, settings: Settings, progress: Callable[[str], None]
) -> list[Row]:
    examples = random_examples(model, batch)
    pools = [Devices(DevicesConfig(b), model) for b in settings.backends or ("auto",)]
    strict = settings.backends is not None
    try:
        rivals = []
        for pool in pools:
            for info in pool.usable():
                progress(f"{model.name}, batch {batch}: the first step on {info.backend}")
                try:
                    start = measure_start(name, batch, info)
                    device, program = pool.ready(info, batch)
                    steps = OurSteps(device, program, model, examples, batch)
                except DeviceError as e:
                    if strict:
                        raise
                    pool.refuse(info, e)
                    log.warning("%s, batch %d: %s is left out: %s", name, batch, info.backend, e)
                    continue
                rivals.append(Rival(info, steps, start))
        peer = None
        if settings.peer:
            torch_steps = TorchSteps(model, examples, batch)
            peer = Peer(torch_steps, torch_peak(torch_steps))
        names = [rival.info.backend for rival in rivals] + (["PyTorch"] if peer else [])
        progress(
            f"{model.name}, batch {batch}: {settings.groups} groups each of {', '.join(names)}"
        )
        return _compare(model, batch, rivals, peer, settings.groups)
    finally:
        for pool in pools:
            pool.close()


def _compare(
    model: Model, batch: int, rivals: Sequence[Rival], peer: Peer | None, groups: int
) -> list[Row]:
    runs: list[measure.Run] = [rival.steps.run for rival in rivals]
    if peer is not None:
        runs.append(peer.steps.run)
    load = Load()
    times = measure.interleaved(runs, groups)
    others = load.warn(f"{model.name}, batch {batch}")
    torch_s = times.pop() if peer is not None else None
    return [
        make_row(model, batch, rival, peer, ours_s, torch_s, others)
        for rival, ours_s in zip(rivals, times, strict=True)
    ]


def make_row(
    model: Model,
    batch: int,
    rival: Rival,
    peer: Peer | None,
    ours_s: Sequence[float],
    torch_s: Sequence[float] | None,
    others_cpu_share: float | None,
) -> Row:
    """The figures of one device from seconds a step, group by group, ours and PyTorch's."""
    low, step_s, high = measure.quartiles(ours_s)
    torch_ms = threads = ratio = spread = None
    if torch_s is not None:
        torch_ms = measure.quartiles(torch_s)[1] * 1e3
        threads = int(import_torch().get_num_threads())
        ratio_low, ratio, ratio_high = measure.quartiles(measure.ratios(ours_s, torch_s))
        spread = (ratio_low, ratio_high)
    steps = rival.steps
    traffic = steps.sample(SAMPLED_STEPS)
    busy = busy_time(traffic)
    counted = steps.device.peak_nbytes
    return Row(
        model=model.name,
        batch=batch,
        backend=rival.info.backend,
        device=rival.info.name,
        step_ms=step_s * 1e3,
        step_ms_quartiles=(low * 1e3, high * 1e3),
        examples_per_s=batch / step_s,
        gflops=training_flops(model) * batch / step_s / 1e9,
        torch_ms=torch_ms,
        torch_threads=threads,
        ratio_to_torch=ratio,
        ratio_quartiles=spread,
        transfer_share=busy.transfer_share if busy else None,
        movement_share=busy.movement_share if busy else None,
        transfer_ms=busy.transfer_ms if busy else None,
        movement_ms=busy.movement_ms if busy else None,
        upload_bytes=traffic.upload_nbytes / SAMPLED_STEPS,
        launches=steps.program.usage.launches,
        peak_bytes=steps.program.nbytes + steps.data.nbytes,
        real_peak_bytes=_traced(rival, batch) if counted is None else counted,
        real_peak_by="tracemalloc" if counted is None else "allocator",
        torch_peak_bytes=peer.peak_nbytes if peer else None,
        cold_start_s=rival.start.cold_s,
        warm_start_s=rival.start.warm_s,
        others_cpu_share=others_cpu_share,
    )


def _traced(rival: Rival, batch: int) -> int:
    """Peak of the steps of another program, in Python's memory, and the data set beside it."""
    model, examples = rival.steps.program.segment.model, rival.steps.examples
    device = all_backends.get(rival.info.backend).open(rival.info)

    def build() -> Callable[[], object]:
        program = device.compile(model.whole, batch)
        steps = OurSteps(device, program, model, examples, batch)
        return lambda: steps.run(PEAK_STEPS)

    try:
        return traced_peak(build) + rival.steps.data.nbytes
    finally:
        device.close()
