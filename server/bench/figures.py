"""What `pocketfed bench train` reports: rows, their arithmetic, the summary, the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from client.backends.figures import Traffic
from client.model import Model
from server import console

if TYPE_CHECKING:
    from rich.table import Table


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
    real_peak_bytes: int  # allocated, most at one time
    real_peak_by: str  # who counted it: "allocator" or "tracemalloc"
    torch_peak_bytes: int | None
    cold_start_s: float  # to the first step, with an empty kernel cache
    warm_start_s: float  # with the cache of the process before
    others_cpu_share: float | None  # processor time others had meanwhile; None where unknown

    def to_json(self) -> dict[str, Any]:
        """The JSON row."""
        return asdict(self)


@dataclass(frozen=True)
class Summary:
    """One device at one batch size over all models. None without PyTorch."""

    backend: str
    device: str
    batch: int
    models: int
    ratio_to_torch: float | None  # geometric mean
    worst_model: str | None
    worst_ratio: float | None

    def to_json(self) -> dict[str, Any]:
        """The JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        if self.ratio_to_torch is None:
            return f"{self.backend} at batch {self.batch}: {self.models} models, without PyTorch"
        return (
            f"{self.backend} ÷ PyTorch at batch {self.batch}: {self.ratio_to_torch:.2f} in the "
            f"geometric mean of {self.models} models, worst {self.worst_model} "
            f"{self.worst_ratio:.2f}"
        )


def summarise(rows: Iterable[Row]) -> list[Summary]:
    """A summary for each device and batch size, in the order of the rows."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.backend, row.device, row.batch), []).append(row)
    summaries = []
    for (backend, device, batch), group in groups.items():
        ratios = {r.model: r.ratio_to_torch for r in group if r.ratio_to_torch is not None}
        worst = max(ratios, key=lambda name: ratios[name]) if ratios else None
        summaries.append(
            Summary(
                backend,
                device,
                batch,
                models=len(group),
                ratio_to_torch=geometric_mean(ratios.values()) if ratios else None,
                worst_model=worst,
                worst_ratio=ratios[worst] if worst is not None else None,
            )
        )
    return summaries


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
    the network's own input is not computed, so that a layer which reads it has two of the three,
    nor are gradients of frozen weights, nor of what lies below the first trained layer.
    """
    with_grad: set[int] = set()  # tensors whose gradient is computed
    total = 0
    for op in model.ops:
        passes_on = op.inputs[0] in with_grad
        if op.params:
            passes = 1 + op.trained + passes_on
            total += op.layer.flops(model.tensors[op.inputs[0]]) * passes
        if op.trained or any(i in with_grad for i in op.inputs):
            with_grad.add(op.output)
    return total


def render(rows: Sequence[Row]) -> Table:
    """The rows as a table; its title names the devices, and PyTorch's threads."""
    devices = dict.fromkeys((r.backend, r.device) for r in rows)
    backends = [backend for backend, _ in devices]
    columns = ["model", "batch", "device", "ms a step", "quartiles", "PyTorch ms", "ratio"]
    columns += ["transfer", "transfer ms", "movement", "movement ms"]
    columns += ["launches", "GFLOPS", "planned", "real", "PyTorch's peak", "cold s", "warm s"]
    cells = [
        [
            r.model,
            str(r.batch),
            r.backend if backends.count(r.backend) == 1 else f"{r.backend}: {r.device}",
            f"{r.step_ms:.2f}",
            f"{r.step_ms_quartiles[0]:.2f}-{r.step_ms_quartiles[1]:.2f}",
            number(r.torch_ms, ".2f"),
            number(r.ratio_to_torch, ".2f"),
            number(r.transfer_share, ".1%"),
            number(r.transfer_ms, ".3f"),
            number(r.movement_share, ".1%"),
            number(r.movement_ms, ".3f"),
            str(r.launches),
            f"{r.gflops:.1f}",
            console.nbytes(r.peak_bytes),
            console.nbytes(r.real_peak_bytes),
            "–" if r.torch_peak_bytes is None else console.nbytes(r.torch_peak_bytes),
            f"{r.cold_start_s:.2f}",
            f"{r.warm_start_s:.2f}",
        ]
        for r in rows
    ]
    named = [f"{backend}: {device}" for backend, device in devices]
    named += [f"PyTorch: {n} threads" for n in {r.torch_threads for r in rows} if n is not None]
    return console.table(f"Time of a training step ({'; '.join(named)})", columns, cells, keys=3)


def number(value: float | None, form: str) -> str:
    """A cell; a dash for what is not known."""
    return "–" if value is None else format(value, form)
