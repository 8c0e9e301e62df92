"""One cell: what the product chooses, what every other layout takes, and the row of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from client.backends.base import Device
from client.model import load_model
from client.placement.layout import Layout
from server.bench.placed_steps import Loaded, PlacedSteps
from server.bench.placement import candidates
from server.bench.placement.grid import Cell
from server.bench.placement.scan import Scan
from server.bench.placement.scoring import Choice, Row, score
from server.bench.workloads import random_examples

TOP = 5
"""Layouts of the planner's ranking that are timed whatever they are."""

FINALISTS = 2
"""Best layouts that are timed again beside the chosen one and the processors alone: what was the
shortest of many by chance is not so twice."""


@dataclass(frozen=True)
class Chosen:
    """The product's choice, and the best of its planner's ranking."""

    choice: Choice
    top: tuple[Layout, ...]


Choose = Callable[[Cell], Chosen]


def measure(cell: Cell, cpu: Device, other: Device, choose: Choose) -> tuple[Row, dict[str, float]]:
    """A cell's row, and seconds a step of every layout that was timed, by its description."""
    model = load_model(Path(cell.model))
    blocks = len(model.block_names)
    chosen = choose(cell)
    devices = {device.info.key: device for device in (cpu, other)}
    loaded = Loaded.on(devices, model, random_examples(model, cell.batch), cell.batch)
    try:
        scan = Scan(partial(PlacedSteps, loaded=loaded))
        alone = candidates.singles(list(devices), blocks)
        scan.time(alone)
        owner, second = sorted(devices, key=lambda key: scan.step_s[Layout.whole(key, blocks)])
        scan.time(candidates.cuts(list(devices), blocks))
        if not model.batch_layers:
            scan.time(candidates.splits(owner, second, blocks))
        scan.time(chosen.top)
        scan.time([chosen.choice.layout])
        best = scan.best(FINALISTS)
        fresh_s = scan.fresh(candidates.distinct([chosen.choice.layout, *best, *alone]))
    finally:
        loaded.release()
    names = {layout: layout.describe(model.block_names) for layout in scan.step_s}
    row = score(cell, names, chosen.choice, fresh_s, *alone)
    return row, {names[layout]: step_s for layout, step_s in scan.step_s.items()}
