"""`pocketfed bench kernels`: each kernel of a training step against what its device can do.

The definitions stand in docs/performance.md.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.backends import REFERENCE
from client.backends.device_info import DeviceInfo
from client.backends.figures import Command, Part, Peaks
from client.config import DevicesConfig
from client.errors import DeviceError
from client.model import Model, load_model
from client.model.layers import Shape
from client.worker.devices import Devices
from server import console
from server.bench.figures import number
from server.bench.load import Load
from server.bench.measure import PAUSE_S
from server.bench.torch_parts import torch_parts
from server.bench.workloads import OurSteps, import_torch, random_examples

if TYPE_CHECKING:
    from rich.table import Table

log = logging.getLogger(__name__)

STEPS = 20
WARM_UP_STEPS = 3

Times = Mapping[tuple[str, Part], float]
"""Seconds by operation and part of the step."""


@dataclass(frozen=True)
class Peak:
    """What a device can do at the most, measured in the same run."""

    backend: str
    device: str
    gflops: float
    gbytes_per_s: float  # of a copy beyond all caches
    cached_gbytes_per_s: float  # of the fastest copy
    how: str


@dataclass(frozen=True)
class KernelRow:
    """One kernel of a training step; the fields of the JSON row.

    Launches of one kernel for one operation, as for the steps of a sequence, are put together.

    ``op_ms``, ``numpy_ms`` and ``torch_ms`` are of the whole part of the operation, which may be
    several commands: of this device, of numpy, of PyTorch on the CPU.
    """

    model: str
    batch: int
    backend: str
    device: str
    op: str
    layer: str
    part: str
    kernel: str
    variant: str
    shape: str  # input and output of the operation, for one example
    launches: int
    ms: float  # of all of them: sum of the medians over sampled steps
    gflops: float | None  # None where no arithmetic is counted
    gbytes_per_s: float
    bound: str  # "arithmetic" or "memory": which of the two must take longer
    roofline_share: float  # least time by the peaks, as a share of the time that it took
    op_ms: float
    numpy_ms: float | None
    torch_ms: float | None


@dataclass(frozen=True)
class KernelReport:
    """Rows in the order of the step, and the peaks that shares are of."""

    rows: list[KernelRow]
    peaks: list[Peak]

    def to_json(self) -> dict[str, Any]:
        """The JSON object."""
        return asdict(self)


def bench_kernels(
    models: Sequence[str],
    batches: Sequence[int],
    backends: Sequence[str] | None = None,
    peer: bool = True,
    progress: Callable[[str], None] = log.info,
) -> KernelReport:
    """Time each command of each model's step at each batch size on each device.

    ``backends``: None for all that work here; numpy is timed beside them in any case.
    MissingExtraError without PyTorch, unless ``peer`` is False.
    """
    if peer:
        import_torch()
    report = KernelReport([], [])
    known: dict[str, Peaks] = {}
    for model in [load_model(Path(name)) for name in models]:
        for batch in batches:
            progress(f"{model.name}, batch {batch}")
            report.rows.extend(_bench_one(model, batch, backends, peer, known, report.peaks))
    return report


def _bench_one(
    model: Model,
    batch: int,
    backends: Sequence[str] | None,
    peer: bool,
    known: dict[str, Peaks],
    peaks: list[Peak],
) -> list[KernelRow]:
    examples = random_examples(model, batch)
    names = list(backends or ("auto",))
    if backends is not None and REFERENCE not in backends:
        names.append(REFERENCE)
    pools = [Devices(DevicesConfig(name), model) for name in names]
    found: list[tuple[DeviceInfo, list[Command]]] = []
    load = Load()
    try:
        for pool in pools:
            for info in pool.usable():
                try:
                    device, program = pool.ready(info, batch)
                    steps = OurSteps(device, program, model, examples, batch)
                except DeviceError as e:
                    if backends is not None:
                        raise
                    pool.refuse(info, e)
                    log.warning("%s, batch %d: %s: %s", model.name, batch, info.backend, e)
                    continue
                time.sleep(PAUSE_S)
                if info.key not in known:
                    known[info.key] = peak = device.measure_peaks()
                    peaks.append(named(info, peak))
                steps.run(WARM_UP_STEPS)
                found.append((info, medians(steps.commands(STEPS), STEPS)))
    finally:
        for pool in pools:
            pool.close()
    torch_s: Times = {}
    if peer:
        time.sleep(PAUSE_S)
        torch_s = torch_parts(model, examples, batch)
    load.warn(f"{model.name}, batch {batch}")
    numpy_s = next(part_s(commands) for info, commands in found if info.backend == REFERENCE)
    return [
        row
        for info, commands in found
        if backends is None or info.backend in backends
        for row in make_rows(model, batch, info, known[info.key], commands, numpy_s, torch_s)
    ]


def named(info: DeviceInfo, peak: Peaks) -> Peak:
    """A device's peaks as they are reported."""
    speeds = [speed / 1e9 for _, speed in peak.copies]
    return Peak(info.backend, info.name, peak.flops_per_s / 1e9, speeds[-1], max(speeds), peak.how)


def medians(commands: Sequence[Command], steps: int) -> list[Command]:
    """One step's commands, each with the median of its times; steps must be alike."""
    each, rest = divmod(len(commands), steps)
    if rest:
        raise ValueError(f"{len(commands)} commands are not {steps} equal steps")
    return [
        Command(
            **{
                **asdict(first),
                "seconds": statistics.median(c.seconds for c in commands[i::each]),
            }
        )
        for i, first in enumerate(commands[:each])
    ]


@dataclass(frozen=True)
class Kernel:
    """Commands of one kernel put together: sums over so many launches."""

    command: Command
    launches: int


def put_together(commands: Iterable[Command]) -> list[Kernel]:
    """By operation, part, kernel and variant; one without a variant belongs to any."""
    found: list[Kernel] = []
    for c in commands:
        for i, (first, launches) in enumerate((k.command, k.launches) for k in found):
            same = (c.op, c.part, c.kernel) == (first.op, first.part, first.kernel)
            if same and (c.variant == first.variant or not (c.variant and first.variant)):
                both = replace(
                    first,
                    variant=first.variant or c.variant,
                    flops=first.flops + c.flops,
                    nbytes=first.nbytes + c.nbytes,
                    seconds=first.seconds + c.seconds,
                )
                found[i] = Kernel(both, launches + 1)
                break
        else:
            found.append(Kernel(c, 1))
    return found


def part_s(commands: Iterable[Command]) -> dict[tuple[str, Part], float]:
    """Seconds of each operation's forward and backward, and of the other parts."""
    total: dict[tuple[str, Part], float] = {}
    for c in commands:
        key = _key(c)
        total[key] = total.get(key, 0.0) + c.seconds
    return total


def _key(command: Command) -> tuple[str, Part]:
    """The parts other than forward and backward are called alike on all sides."""
    whole = command.part in ("gather", "loss", "update")
    return (command.part if whole else command.op), command.part


def make_rows(
    model: Model,
    batch: int,
    info: DeviceInfo,
    peaks: Peaks,
    commands: Sequence[Command],
    numpy_s: Times,
    torch_s: Times,
) -> list[KernelRow]:
    """The figures of one device's step."""
    ops = {op.name: op for op in model.ops}
    own_s = part_s(commands)
    rows = []
    for kernel in put_together(commands):
        c, launches = kernel.command, kernel.launches
        op = ops.get(c.op) if c.part in ("forward", "backward") else None
        arithmetic_s, memory_s = (
            c.flops / peaks.flops_per_s,
            c.nbytes / peaks.nbytes_per_s(c.nbytes // launches),
        )
        rows.append(
            KernelRow(
                model=model.name,
                batch=batch,
                backend=info.backend,
                device=info.name,
                op=c.op,
                layer=op.layer.kind if op else "",
                part=c.part,
                kernel=c.kernel,
                variant=c.variant,
                shape=f"{text(model.tensors[op.inputs[0]])} to {text(model.tensors[op.output])}"
                if op
                else "",
                launches=launches,
                ms=c.seconds * 1e3,
                gflops=c.flops / c.seconds / 1e9 if c.flops else None,
                gbytes_per_s=c.nbytes / c.seconds / 1e9,
                bound="arithmetic" if arithmetic_s > memory_s else "memory",
                roofline_share=max(arithmetic_s, memory_s) / c.seconds,
                op_ms=own_s[_key(c)] * 1e3,
                numpy_ms=_ms(numpy_s.get(_key(c))),
                torch_ms=_ms(torch_s.get(_key(c))),
            )
        )
    return rows


def text(shape: Shape) -> str:
    """``1x28x28``."""
    return "x".join(map(str, shape))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def render(report: KernelReport) -> Table:
    """The rows as a table; its title has the peaks."""
    columns = ["model", "batch", "device", "operation", "part", "kernel", "variant", "shape"]
    columns += [
        "launches",
        "ms",
        "GFLOPS",
        "GB/s",
        "roofline",
        "bound",
        "part ms",
        "numpy ms",
        "PyTorch ms",
    ]
    cells = [
        [
            r.model,
            str(r.batch),
            r.backend,
            f"{r.op} ({r.layer})" if r.layer else r.op,
            r.part,
            r.kernel,
            r.variant,
            r.shape,
            str(r.launches),
            f"{r.ms:.3f}",
            number(r.gflops, ".1f"),
            f"{r.gbytes_per_s:.1f}",
            f"{r.roofline_share:.0%}",
            r.bound,
            f"{r.op_ms:.3f}",
            number(r.numpy_ms, ".3f"),
            number(r.torch_ms, ".3f"),
        ]
        for r in report.rows
    ]
    peaks = "; ".join(
        f"{p.backend}: {p.gflops:.0f} GFLOPS, {p.gbytes_per_s:.1f} GB/s, "
        f"cached {p.cached_gbytes_per_s:.1f}"
        for p in report.peaks
    )
    return console.table(f"Kernels of a training step (peaks: {peaks})", columns, cells, keys=5)
