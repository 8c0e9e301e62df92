"""A tiny federation: a linear model, nodes whose update depends on seed, round, name and state.

Shared by the tests in this folder. A node may be told to misbehave, by its name.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from client.config import Experiment
from client.errors import TrainingError
from client.fields import overlay, parse
from client.random import generator
from client.record import NodeRecord
from server.engine.inline import InlineGrid
from server.engine.nodes import Nodes
from server.observer import Observer, Result
from server.run import Run, new_run, resumed_run
from tests.fakes import placement

NAMES = [f"node-{i}" for i in range(5)]
EXAMPLES = {name: 10 * (i + 1) for i, name in enumerate(NAMES)}

MODEL = {
    "name": "tiny",
    "input": {"shape": [3]},
    "layers": [{"type": "linear", "name": "fc", "out_features": 2}],
}


def experiment(**over: Any) -> Experiment:
    """The tiny experiment; ``over`` is laid over its mapping."""
    value = {
        "name": "tiny",
        "model": MODEL,
        "data": {"source": "none", "partition": {"nodes": len(NAMES)}},
        "train": {"lr": 0.1},
        "federation": {"rounds": 3},
        "seed": 5,
    }
    return parse(Experiment, overlay(value, over), "tiny.yaml")


def update(seed: int, number: int, name: str, visits: int) -> dict[str, np.ndarray]:
    """What a node adds to the global parameters, in whole 64ths: sums of them are exact."""
    g = generator("tiny", seed, number, name, visits)
    steps = {"fc.weight": g.integers(-64, 65, (2, 3)), "fc.bias": g.integers(-64, 65, 2)}
    return {k: (v / 64).astype(np.float32) for k, v in steps.items()}


class Clock:
    """Stands in for the module ``time`` where something is waited for: nobody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclasses.dataclass
class TinyApp:
    """A ClientApp. ``tricks``: partition name -> what is done to its reply, or raised instead."""

    tricks: dict[str, Callable[[RecordDict], None]] = dataclasses.field(default_factory=dict)
    seen: list[tuple[str, str, dict[str, Any]]] = dataclasses.field(default_factory=list)

    def __call__(self, message: Message, context: Context) -> Message:
        name = str(context.node_config["name"])
        config = dict(message.content["config"])
        self.seen.append((message.metadata.message_type, name, config))
        content = reply(message, context, name)
        if name in self.tricks:
            self.tricks[name](content)
        return Message(content, reply_to=message)


def reply(message: Message, context: Context, name: str) -> RecordDict:
    """An honest node's reply; the node's state counts its visits, and decides its update."""
    config, arrays = message.content["config"], message.content["arrays"]
    count = EXAMPLES[name]
    record = NodeRecord(
        name,
        device={"backend": "none", "name": "tiny device"},
        placement=placement("none", "tiny|device", 1, (("fc", f"variant-{config['round']}"),)),
        reason="there is no other",
        num_examples=count,
        loss=1.0,
        accuracy=0.5,
        wall_s=0.0,
        phases={"train": 0.0},
        traffic={"upload_nbytes": 1},
    )
    if message.metadata.message_type == "evaluate":
        metrics = MetricRecord({"num-examples": count, "eval-loss": 0.25, "eval-accuracy": 0.75})
        return RecordDict({"metrics": metrics, "record": ConfigRecord({"json": record.to_json()})})
    before = context.state.get("visits", MetricRecord({"n": 0}))
    visits = int(before["n"])
    context.state["visits"] = MetricRecord({"n": visits + 1})
    step = update(int(config["seed"]), int(config["round"]), name, visits)
    new = {k: Array(a.numpy() + step[k]) for k, a in arrays.items()}
    metrics = MetricRecord({"num-examples": count, "train-loss": 1.0, "train-accuracy": 0.5})
    return RecordDict(
        {
            "arrays": ArrayRecord(new),
            "metrics": metrics,
            "record": ConfigRecord({"json": record.to_json()}),
        }
    )


def fails(content: RecordDict) -> None:
    """A trick: the node's training fails."""
    raise TrainingError("the loss became nan")


def stops(content: RecordDict) -> None:
    """A trick: the user presses Ctrl-C while the node works."""
    raise KeyboardInterrupt


def edit_record(**over: Any) -> Callable[[RecordDict], None]:
    """A trick: keys of the node's record are others."""

    def trick(content: RecordDict) -> None:
        record = json.loads(str(content["record"]["json"])) | over
        content["record"] = ConfigRecord({"json": json.dumps(record)})

    return trick


def carry_out(
    run: Run, app: Any, observer: Observer | None = None, grid: InlineGrid | None = None
) -> Result:
    """All rounds that are left of a run, on tiny nodes."""
    grid = grid or InlineGrid(app, NAMES, {})
    nodes = Nodes(grid, grid.names, len(NAMES), grid.contexts)
    return run.carry_out(nodes, None, observer or Observer())


def run_tiny(out: Path, app: Any, **over: Any) -> Result:
    """A new run of the tiny experiment in the folder ``out``."""
    with new_run(experiment(**over), out.parent, out) as run:
        return carry_out(run, app)


def resume_tiny(out: Path, app: Any) -> Result:
    """Go on with a tiny run."""
    with resumed_run(out) as run:
        return carry_out(run, app)


@contextmanager
def tiny_run(out: Path, **over: Any) -> Any:
    """A new run, before its nodes are there."""
    with new_run(experiment(**over), out.parent, out) as run:
        yield run
