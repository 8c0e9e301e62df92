"""`pocketfed bench train`: time of a training step on each backend, beside PyTorch's.

The definitions stand in docs/performance.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.backends.base import DeviceInfo, Traffic
from client.config import DevicesConfig
from client.errors import ConfigError, DeviceError
from client.model import Model, load_model
from client.worker.devices import Devices
from server import console
from server.bench import measure
from server.bench.load import Load
from server.bench.workloads import Examples, OurSteps, TorchSteps, import_torch, random_examples

if TYPE_CHECKING:
    from rich.table import Table

log = logging.getLogger(__name__)

GROUPS = 15
SAMPLED_STEPS = 20

BUSY_SHARE = 0.05
"""From this share of processor time taken by others on, a figure is called doubtful."""

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "POCL_MAX_PTHREAD_COUNT")


@dataclass(frozen=True)
class Row:
    """One model, batch and device; the fields of the JSON row. Times are of one training step.

    Shares are of device-busy time, which sampled steps give; they are None where a device cannot
    time its commands. What PyTorch has no part in is None without it.
    """

    model: str
    batch: int
    backend: str
    device: str
    step_ms: float  # median over groups
    step_ms_quartiles: tuple[float, float]
    examples_per_s: float
    gflops: float  # training_flops a second, in 1e9
    torch_ms: float | None
    torch_threads: int | None
    ratio_to_torch: float | None  # median of the ratios of neighbouring groups
    ratio_quartiles: tuple[float, float] | None
    transfer_share: float | None  # between host and device
    movement_share: float | None  # the same, and commands on the device without arithmetic
    transfer_ms: float | None
    movement_ms: float | None
    upload_bytes: float
    launches: int
    peak_bytes: int  # planned on the device: parameters, activations, data
    others_cpu_share: float | None  # processor time others had meanwhile; None where unknown

    def to_json(self) -> dict[str, Any]:
        """The JSON row."""
        return asdict(self)


def bench_train(
    models: Sequence[str],
    batches: Sequence[int],
    backends: Sequence[str] | None = None,
    groups: int = GROUPS,
    peer: bool = True,
    progress: Callable[[str], None] = log.info,
) -> list[Row]:
    """Measure each model (a file, or a shipped one's name) at each batch size on each device.

    ``backends``: None for all that work here, where one that does not is logged and left out;
    of those named, one that does not is a DeviceError. MissingExtraError without PyTorch, unless
    ``peer`` is False.
    """
    for batch in batches:
        if batch < 1:
            raise ConfigError(f"batch: found {batch}, must be at least 1")
    if groups < 1:
        raise ConfigError(f"groups: found {groups}, must be at least 1")
    if peer:
        import_torch()
    for note in notes():
        log.warning("%s", note)
    rows: list[Row] = []
    for name in models:
        model = load_model(Path(name))
        for batch in batches:
            rows += _bench_one(model, batch, backends, groups, peer, progress)
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


def _bench_one(
    model: Model,
    batch: int,
    backends: Sequence[str] | None,
    groups: int,
    peer: bool,
    progress: Callable[[str], None],
) -> list[Row]:
    examples = random_examples(model, batch)
    pools = [Devices(DevicesConfig(name), model) for name in backends or ("auto",)]
    try:
        rivals = [
            rival
            for pool in pools
            for rival in _rivals(pool, model, examples, batch, strict=bool(backends))
        ]
        runs: list[measure.Run] = [steps.run for _, steps in rivals]
        if peer:
            runs.append(TorchSteps(model, examples, batch).run)
        names = ", ".join(info.backend for info, _ in rivals) + (", PyTorch" if peer else "")
        progress(f"{model.name}, batch {batch}: {groups} groups each of {names}")
        load = Load()
        times = measure.interleaved(runs, groups)
        others = load.others_share()
        if others is not None and others >= BUSY_SHARE:
            log.warning(
                "%s, batch %d: other processes took %.0f%% of the processors meanwhile: "
                "the figures are doubtful; measure again on a quiet machine",
                model.name,
                batch,
                100 * others,
            )
        torch_s = times.pop() if peer else None
        return [
            make_row(model, batch, info, steps, ours_s, torch_s, others)
            for (info, steps), ours_s in zip(rivals, times, strict=True)
        ]
    finally:
        for pool in pools:
            pool.close()


def _rivals(
    pool: Devices,
    model: Model,
    examples: Examples,
    batch: int,
    strict: bool,
) -> list[tuple[DeviceInfo, OurSteps]]:
    rivals = []
    for info in pool.usable():
        try:
            device, program = pool.ready(info, batch)
            rivals.append((info, OurSteps(device, program, model, examples, batch)))
        except DeviceError as e:
            if strict:
                raise
            pool.refuse(info, e)  # says so in the log
    return rivals


def make_row(
    model: Model,
    batch: int,
    info: DeviceInfo,
    steps: OurSteps,
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
    traffic = steps.sample(SAMPLED_STEPS)
    busy = busy_time(traffic)
    return Row(
        model=model.name,
        batch=batch,
        backend=info.backend,
        device=info.name,
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
        others_cpu_share=others_cpu_share,
    )


@dataclass(frozen=True)
class Busy:
    """What a device was busy with in one step: milliseconds, and shares of the busy time."""

    transfer_ms: float
    movement_ms: float
    transfer_share: float
    movement_share: float


def busy_time(traffic: Traffic) -> Busy | None:
    """Means over the sampled steps; None if no command was timed."""
    total_s = traffic.compute_s + traffic.transfer_s + traffic.copy_s
    if traffic.sampled_steps == 0 or total_s == 0:
        return None
    movement_s = traffic.transfer_s + traffic.copy_s
    return Busy(
        transfer_ms=traffic.transfer_s / traffic.sampled_steps * 1e3,
        movement_ms=movement_s / traffic.sampled_steps * 1e3,
        transfer_share=traffic.transfer_s / total_s,
        movement_share=movement_s / total_s,
    )


def training_flops(model: Model) -> int:
    """Operations of one example's training step in layers with parameters; a multiply-add is two.

    Forward, gradient of the weights and gradient of the input cost the same each; the gradient of
    the network's own input is not computed, so that a layer which reads it has two of the three.
    """
    with_grad: set[int] = set()  # tensors whose gradient is computed
    total = 0
    for op in model.ops:
        passes_on = op.inputs[0] in with_grad
        if op.params:
            total += op.layer.flops(model.tensors[op.inputs[0]]) * (3 if passes_on else 2)
        if op.params or any(i in with_grad for i in op.inputs):
            with_grad.add(op.output)
    return total


def render(rows: Sequence[Row]) -> Table:
    """The rows as a table; its title names the devices, and PyTorch's threads."""
    devices = dict.fromkeys((r.backend, r.device) for r in rows)
    backends = [backend for backend, _ in devices]
    columns = ["model", "batch", "device", "ms a step", "quartiles", "PyTorch ms", "ratio"]
    columns += ["transfer", "transfer ms", "movement", "movement ms"]
    columns += ["launches", "GFLOPS", "peak"]
    cells = [
        [
            r.model,
            str(r.batch),
            r.backend if backends.count(r.backend) == 1 else f"{r.backend}: {r.device}",
            f"{r.step_ms:.2f}",
            f"{r.step_ms_quartiles[0]:.2f}-{r.step_ms_quartiles[1]:.2f}",
            _text(r.torch_ms, ".2f"),
            _text(r.ratio_to_torch, ".2f"),
            _text(r.transfer_share, ".1%"),
            _text(r.transfer_ms, ".3f"),
            _text(r.movement_share, ".1%"),
            _text(r.movement_ms, ".3f"),
            str(r.launches),
            f"{r.gflops:.1f}",
            console.nbytes(r.peak_bytes),
        ]
        for r in rows
    ]
    named = [f"{backend}: {device}" for backend, device in devices]
    named += [f"PyTorch: {n} threads" for n in {r.torch_threads for r in rows} if n is not None]
    return console.table(f"Time of a training step ({'; '.join(named)})", columns, cells)


def _text(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
