"""`pocketfed bench movement`: what moving every tensor around every block costs.

The same network is trained twice on one device: cut at every unit-block, each boundary through the
host and each block's parameters down and up in every step, as in the frameworks whose training
on phones' GPUs was found to be 91% data movement (Das et al., arXiv 2202.10100); and as pocketfed
does it, all of it resident on the device.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client import backends
from client.backends.device_info import DeviceInfo
from client.errors import DeviceError
from client.model import Model, load_model
from client.placement.layout import Layout
from server import console
from server.bench import measure
from server.bench.load import Load
from server.bench.placed_steps import Loaded, PlacedSteps
from server.bench.workloads import random_examples

if TYPE_CHECKING:
    from rich.table import Table

MODELS = ("mlp", "lenet5", "femnist_cnn")
EMULATED = "phone_link"
"""The shipped emulated device that is measured where POCKETFED_EMULATE names no other."""

SAMPLED_STEPS = 10

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Side:
    """A training step, done in one of the two ways.

    ``movement_ms``: between host and device, and copies on the device; ``movement_share``: of this
    and arithmetic together, as the device's clock has them.
    """

    step_ms: float
    movement_ms: float
    compute_ms: float
    movement_share: float
    upload_bytes: float
    download_bytes: float
    programs: int


@dataclass(frozen=True)
class Row:
    """One model, batch and device; the fields of the JSON row."""

    model: str
    batch: int
    backend: str
    device: str
    every_block: Side
    pocketfed: Side
    ratio: float  # every_block's time as a multiple of pocketfed's: median of neighbouring groups

    def to_json(self) -> dict[str, Any]:
        """The JSON row."""
        return asdict(self)


class EveryBlock(PlacedSteps):
    """A program for each unit-block, all on one device; before each step, parameters move, too."""

    def __init__(self, device: str, loaded: Loaded) -> None:
        blocks = len(loaded.model.block_names)
        super().__init__(Layout.cut([device] * blocks, range(1, blocks + 1)), loaded)

    def one(self) -> None:
        self.move_parameters()
        super().one()

    def move_parameters(self) -> None:
        """Down to the host and up again, block by block."""
        for program in self.placed.programs:
            if program.segment.num_values:
                program.put_values(program.download())

    def step_without_parameters(self) -> None:
        """What can be sampled command by command."""
        super().one()


def bench_movement(
    models: Sequence[str], batches: Sequence[int], groups: int, progress: Callable[[str], None]
) -> list[Row]:
    """Each model and batch on each device that has a memory or a queue of its own.

    Not numpy, where host and device are one. A device that fails is logged and left out.
    DeviceError where there is no device.
    """
    os.environ.setdefault(backends.EMULATED_VARIABLE, EMULATED)
    infos = list(_devices())
    if not infos:
        raise DeviceError("no device but numpy's is here: install an OpenCL driver")
    rows: list[Row] = []
    for model in [load_model(Path(name)) for name in models]:
        for batch in batches:
            for info in infos:
                progress(f"{model.name}, batch {batch}: {info.backend} {info.name}")
                try:
                    rows.append(measure_row(model, batch, info, groups))
                except DeviceError as e:
                    log.warning("%s, batch %d: left out: %s", model.name, batch, e)
    if not rows:
        raise DeviceError("nothing could be measured: the warnings above say why")
    return rows


def _devices() -> Sequence[DeviceInfo]:
    found: list[DeviceInfo] = []
    for name in backends.at_hand():
        if name != backends.REFERENCE:
            try:
                found += backends.get(name).devices()
            except DeviceError as e:
                log.warning("%s is left out: %s", name, e)
    return found


def measure_row(model: Model, batch: int, info: DeviceInfo, groups: int) -> Row:
    """Both ways on one device, group by group in turn."""
    device = backends.get(info.backend).open(info)
    try:
        loaded = Loaded.on({info.key: device}, model, random_examples(model, batch), batch)
        every = EveryBlock(info.key, loaded)
        whole = PlacedSteps(Layout.whole(info.key, len(model.block_names)), loaded)
        load = Load()
        every_s, whole_s = measure.interleaved([every.run, whole.run], groups)
        load.warn(f"{model.name}, batch {batch}, {info.name}")
        return Row(
            model=model.name,
            batch=batch,
            backend=info.backend,
            device=info.name,
            every_block=_side(every, every.step_without_parameters, every_s, _moving(every)),
            pocketfed=_side(whole, whole.one, whole_s),
            ratio=measure.quartiles(measure.ratios(every_s, whole_s))[1],
        )
    finally:
        device.close()


@dataclass(frozen=True)
class _Moving:
    """Parameters of a step, down and up: by the host's clock, with nothing else enqueued."""

    seconds: float = 0.0
    upload_bytes: float = 0.0
    download_bytes: float = 0.0


def _moving(every: EveryBlock) -> _Moving:
    before = every.placed.traffic
    taken = []
    for _ in range(SAMPLED_STEPS):
        every.placed.finish()
        began = time.perf_counter()
        every.move_parameters()
        every.placed.finish()
        taken.append(time.perf_counter() - began)
    moved = every.placed.traffic.since(before)
    return _Moving(
        statistics.median(taken),
        moved.upload_nbytes / SAMPLED_STEPS,
        moved.download_nbytes / SAMPLED_STEPS,
    )


def _side(
    steps: PlacedSteps,
    one: Callable[[], None],
    step_s: Sequence[float],
    moving: _Moving = _Moving(),
) -> Side:
    steps.run(1)
    before = steps.placed.traffic
    for _ in range(SAMPLED_STEPS):
        steps.placed.sample_next_step()
        one()
        steps.placed.finish()
    sampled = steps.placed.traffic.since(before)
    movement_s = (sampled.transfer_s + sampled.copy_s) / SAMPLED_STEPS + moving.seconds
    compute_s = sampled.compute_s / SAMPLED_STEPS
    return Side(
        step_ms=statistics.median(step_s) * 1e3,
        movement_ms=movement_s * 1e3,
        compute_ms=compute_s * 1e3,
        movement_share=movement_s / (movement_s + compute_s),
        upload_bytes=sampled.upload_nbytes / SAMPLED_STEPS + moving.upload_bytes,
        download_bytes=sampled.download_nbytes / SAMPLED_STEPS + moving.download_bytes,
        programs=len(steps.placed.programs),
    )


def render(rows: Sequence[Row]) -> Table:
    """Both ways below each other."""
    columns = ["model", "batch", "device", "way", "ms a step", "movement", "share"]
    columns += ["arithmetic", "up", "down", "ratio"]
    cells = []
    for row in rows:
        for way, side in (("every block", row.every_block), ("pocketfed", row.pocketfed)):
            cells.append(
                [
                    row.model,
                    str(row.batch),
                    f"{row.backend}: {console.short(row.device)}",
                    way,
                    f"{side.step_ms:.2f}",
                    f"{side.movement_ms:.2f} ms",
                    f"{side.movement_share:.1%}",
                    f"{side.compute_ms:.2f} ms",
                    console.nbytes(side.upload_bytes),
                    console.nbytes(side.download_bytes),
                    f"{row.ratio:.2f}" if side is row.every_block else "1",
                ]
            )
    return console.table("pocketfed bench movement", columns, cells, fold=("device",), keys=4)
