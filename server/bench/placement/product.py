"""What pocketfed itself chooses in a cell: a node's session trains rounds, and decides as it does.

Nothing is decided here. The run is one of ROUNDS rounds, of which the first are trained, until the
session has nothing left to try.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from client import backends
from client.backends.device_info import DeviceInfo
from client.config import Experiment
from client.errors import DeviceError
from client.fields import find_config, parse, read_yaml
from client.model import Model, initialise, load_model
from client.placement import planner, probe
from client.placement.cost import Costs
from client.placement.estimate import estimate
from client.placement.planner import Limits
from client.placement.profile import ProcessorProfile
from client.timing import RoundClock
from client.trainer import Task
from client.worker.recorded import layout_of
from client.worker.session import Session
from server.bench.placement.cell import TOP, Chosen
from server.bench.placement.grid import Cell
from server.bench.placement.scoring import Choice
from server.bench.workloads import HYPER, SEED, random_examples

ROUND_STEPS = 40
ROUNDS = 250
"""A run of 10,000 training steps, which planning is held against."""

QUIET_ROUNDS = 2
MOST_ROUNDS = 8
"""After so many rounds in a row without trials, or so many in all, the choice stands."""

NODE = "node-0"


def choose(infos: Sequence[DeviceInfo], folder: Path, cell: Cell) -> Chosen:
    """Train as a node with these devices and no others; its data goes into ``folder``."""
    model = load_model(Path(cell.model))
    mine = {info.backend for info in infos}
    excluded = {name: "not of this pair" for name in backends.names() if name not in mine}
    session = Session(experiment(cell, model, folder), folder, excluded)
    try:
        params = initialise(model, SEED)
        planning_s, quiet = 0.0, 0
        for number in range(1, MOST_ROUNDS + 1):
            task = Task(number, SEED, NODE, 1, cell.batch, HYPER)
            outcome, record = session.train(task, None, params, None, RoundClock())
            params = outcome.params
            assert record.decision is not None
            assert record.placement is not None
            layout = layout_of(record.placement.kept)
            planning_s = record.decision.numbers.get("planning_s", planning_s)
            quiet = quiet + 1 if record.decision.kind in ("keep", "only") else 0
            if quiet == QUIET_ROUNDS:
                break
    finally:
        session.close()
    costs = _costs(infos, model, cell.batch)
    ranking = planner.rank(costs, Limits(), ROUND_STEPS)
    return Chosen(
        Choice(layout, planner.predict(costs, layout).step_s, planning_s, ROUNDS * ROUND_STEPS),
        tuple(p.layout for p in ranking.predictions[:TOP]),
    )


def experiment(cell: Cell, model: Model, folder: Path) -> Experiment:
    """One node with random examples, ROUND_STEPS batches of them, in a file in ``folder``."""
    examples = random_examples(model, cell.batch, ROUND_STEPS * cell.batch)
    source = folder / "examples.npz"
    np.savez(source, x=examples.x.reshape(len(examples.x), -1), y=examples.y)
    value = {
        "name": "placement",
        "model": read_yaml(find_config(cell.model, "models", Path(), "--model")),
        "data": {"source": str(source), "partition": {"kind": "iid", "nodes": 1}},
        "train": {"lr": HYPER.lr, "momentum": HYPER.momentum, "batch": cell.batch},
        "federation": {"rounds": ROUNDS},
    }
    return parse(Experiment, value, "placement")


def _costs(infos: Sequence[DeviceInfo], model: Model, batch: int) -> Costs:
    """What the session's planner begins with: the profiles that are kept."""
    profiles: list[ProcessorProfile] = []
    for info in infos:
        kept = probe.saved(info)
        if kept is None:
            raise DeviceError(f"{info.name}: its profile could not be kept: see the warnings above")
        profiles.append(kept)
    return estimate(probe.dated(profiles), model, batch)
