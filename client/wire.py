"""Flower's records <-> our types: the keys of messages, and what two sides must agree on.

A task carries the parameters under ``arrays`` and everything else under ``config``; a reply
carries ``arrays`` and ``metrics`` (the same keys on all nodes, as Flower's strategies ask), and
under ``record`` one JSON text with the node's own record (see client/record.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

import kernels
from client import __version__
from client.backends.base import Hyper, Metrics
from client.config import Experiment, TrainConfig
from client.data.shares import Shares
from client.errors import MismatchError
from client.model.graph import Float32Array, Model
from client.record import NodeRecord, Placement, placement_from_json
from client.trainer import Outcome, Task

ARRAYS, CONFIG, METRICS, RECORD = "arrays", "config", "metrics", "record"

WHO = "query.who"
"""Type of the message by which a server asks a node for the name of its share of the data."""


def arrays_to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Named arrays as Flower sends them, in the mapping's order."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in arrays.items()})


def record_to_arrays(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """The named arrays of a record."""
    return {name: array.numpy() for name, array in record.items()}


# -- the server's side ----------------------------------------------------------------------


def task_config(
    experiment: Experiment, model: Model, round_number: int, choice: str
) -> dict[str, str | int]:
    """What the server adds to a strategy's config: the round, and what must be equal on a node.

    ``choice`` is the JSON of a recorded placement to repeat, or empty.
    """
    return {
        "round": round_number,
        "seed": experiment.seed,
        "version": __version__,
        "kernels": kernels.digest(),
        "model": model.digest,
        "choice": choice,
    }


# -- the node's side ------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """Who a node is: the name of its share of the data, and its own data file if it has one."""

    partition: str
    path: Path | None


def identity(context: Context, shares: Shares) -> Identity:
    """From the node's config: ``name`` and ``data``, or Flower's ``partition-id`` of ``shares``."""
    config = context.node_config
    path = Path(str(config["data"])) if "data" in config else None
    if "name" in config:
        return Identity(str(config["name"]), path)
    if path is not None:
        return Identity(path.stem, path)
    return Identity(shares.names[int(_number(config["partition-id"]))], None)


def pack_name(name: str) -> RecordDict:
    """The answer to ``WHO``: the name of the node's share of the data."""
    return RecordDict({RECORD: ConfigRecord({"partition": name})})


def unpack_name(content: RecordDict) -> str:
    """The name in an answer to ``WHO``."""
    return str(content[RECORD]["partition"])


def unpack_task(message: Message, model: Model, train: TrainConfig) -> tuple[Task, Float32Array]:
    """The task and the flat parameters; MismatchError if the server's side is another one."""
    config = message.content[CONFIG]
    assert isinstance(config, ConfigRecord)
    for key, ours, remedy in (
        ("version", __version__, "install the same pocketfed on both sides"),
        ("kernels", kernels.digest(), "install the same pocketfed on both sides"),
        ("model", model.digest, "give both sides the same experiment"),
    ):
        theirs = str(config.get(key, "unknown"))
        if theirs != ours:
            raise MismatchError(
                f"server and node differ in {key}: server {theirs}, node {ours}: {remedy}"
            )
    arrays = message.content[ARRAYS]
    assert isinstance(arrays, ArrayRecord)
    hyper = Hyper(
        train.lr,
        train.momentum,
        train.nesterov,
        train.weight_decay,
        float(_number(config.get("proximal-mu", 0.0))),
    )
    task = Task(
        round=int(_number(config["round"])),
        seed=int(_number(config["seed"])),
        partition="",
        local_epochs=train.local_epochs,
        batch=train.batch,
        hyper=hyper,
    )
    return task, model.flatten(record_to_arrays(arrays), "the server's parameters")


def recorded_placement(message: Message) -> Placement | None:
    """The placement that the server asks to repeat."""
    choice = str(message.content[CONFIG]["choice"])
    return placement_from_json(choice) if choice else None


def _number(value: object) -> int | float:
    assert isinstance(value, int | float)
    return value


def pack_trained(model: Model, outcome: Outcome) -> RecordDict:
    """Weights and metrics of a trained round; the record is added last (``add_record``)."""
    views = model.views(outcome.params)
    metrics: dict[str, int | float | list[int] | list[float]] = {
        "num-examples": outcome.num_examples,
        "train-loss": outcome.metrics.loss_sum / outcome.metrics.count,
        "train-accuracy": outcome.metrics.correct / outcome.metrics.count,
    }
    return RecordDict({ARRAYS: arrays_to_record(views), METRICS: MetricRecord(metrics)})


def pack_evaluated(metrics: Metrics) -> RecordDict:
    """Metrics of an evaluation on the node's own examples."""
    values: dict[str, int | float | list[int] | list[float]] = {
        "num-examples": metrics.count,
        "eval-loss": metrics.loss_sum / metrics.count,
        "eval-accuracy": metrics.correct / metrics.count,
    }
    return RecordDict({METRICS: MetricRecord(values)})


def add_record(content: RecordDict, record: NodeRecord) -> None:
    """The node's own record, as the last thing that goes into a reply."""
    content[RECORD] = ConfigRecord({"json": record.to_json()})
