"""Flower's records <-> our types: the keys of messages, and what two sides must agree on.

A task carries the parameters under ``arrays`` and everything else under ``config``; a reply
carries ``arrays`` and ``metrics`` (the same keys on all nodes, as Flower's strategies ask), and
under ``record`` one JSON text with the node's own record (see client/record.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

import kernels
from client import __version__
from client.backends.figures import Metrics
from client.backends.recipe import Hyper
from client.config import Experiment, TrainConfig
from client.errors import MismatchError, PocketfedError
from client.model.graph import Float32Array, Model
from client.record import NodeRecord, Placement, placement_from_json
from client.trainer import Outcome, Task

ARRAYS, CONFIG, METRICS, RECORD = "arrays", "config", "metrics", "record"

WHO = "query.who"
"""Type of the message by which a server asks a node who it is."""

SAME_SOFTWARE = "install the same pocketfed on both sides"
"""What mends a difference in version or kernels."""


def arrays_to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Named arrays as Flower sends them, in the mapping's order."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in arrays.items()})


def record_to_arrays(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """The named arrays of a record."""
    return {name: array.numpy() for name, array in record.items()}


# -- the server's side ----------------------------------------------------------------------


def task_config(
    experiment: Experiment, model: Model, round_number: int, lr: float, choice: str
) -> dict[str, str | int | float]:
    """What the server adds to a strategy's config: the round, and what must be equal on a node.

    ``lr`` is the round's, by the experiment's schedule.

    ``choice`` is the JSON of a recorded placement to repeat, or empty.
    """
    return {
        "round": round_number,
        "seed": experiment.seed,
        "lr": lr,
        "version": __version__,
        "kernels": kernels.digest(),
        "model": model.digest,
        "choice": choice,
    }


def question(refused: str = "") -> RecordDict:
    """The content of ``WHO``; ``refused`` tells the node why the server does without it."""
    return RecordDict({CONFIG: ConfigRecord({"refused": refused} if refused else {})})


def error_text(reply: Message) -> str:
    """What an error reply says, without what Flower's runtimes wrap around a node's exception."""
    reason = reply.error.reason or f"Flower's error code {reply.error.code}"
    wrapped = re.fullmatch(r"<class '(?:.*\.)?(.+)'>:<'(.*)'>", reason, re.DOTALL)
    if wrapped is None:
        return reason
    name, text = wrapped[1], wrapped[2]
    _, simulated, said = text.rpartition("ClientAppException occurred. Message: ")
    ours = simulated or name in (c.__name__ for c in _subclasses(PocketfedError))
    return said if ours else f"{name}: {text}"


def _subclasses(cls: type[PocketfedError]) -> list[type[PocketfedError]]:
    return [c for sub in cls.__subclasses__() for c in (sub, *_subclasses(sub))]


def check_answer(answer: Answer) -> None:
    """MismatchError if the node runs other code than this server."""
    compare("version", __version__, answer.version, SAME_SOFTWARE)
    compare("kernels", kernels.digest(), answer.kernels, SAME_SOFTWARE)


# -- the node's side ------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """Who a node is: the name of its share of the data, and its own data file if it has one."""

    partition: str
    path: Path | None


def identity(context: Context, names: Callable[[], Sequence[str]]) -> Identity:
    """From the node's config: ``name`` and ``data``, or Flower's ``partition-id`` in ``names``."""
    config = context.node_config
    path = Path(str(config["data"])) if "data" in config else None
    if "name" in config:
        return Identity(str(config["name"]), path)
    if path is not None:
        return Identity(path.stem, path)
    return Identity(names()[int(_number(config["partition-id"]))], None)


@dataclass(frozen=True)
class Answer:
    """What a node says of itself. ``identity`` stays over its restarts; empty if it has none."""

    partition: str
    identity: str
    version: str
    kernels: str


def pack_answer(context: Context, partition: str) -> RecordDict:
    """The answer to ``WHO``."""
    values = {
        "partition": partition,
        "identity": str(context.node_config.get("identity", "")),
        "version": __version__,
        "kernels": kernels.digest(),
    }
    return RecordDict({RECORD: ConfigRecord(dict(values))})


def unpack_answer(content: RecordDict) -> Answer:
    """What a node says of itself; MismatchError if it is none of ours."""
    record = content.get(RECORD)
    values = {k: v for k, v in record.items() if isinstance(v, str)} if record else {}
    try:
        return Answer(values["partition"], *(values[k] for k in ("identity", "version", "kernels")))
    except KeyError as e:
        raise MismatchError(f"its answer has no {e}: install the same pocketfed there") from None


def refusal(message: Message) -> str:
    """Why the server does without this node; empty if it does not."""
    return str(_config(message).get("refused", ""))


def round_of(message: Message) -> int | None:
    """The number of the round that a message belongs to, None if it belongs to none."""
    number = _config(message).get("round")
    return number if isinstance(number, int) else None


def _config(message: Message) -> ConfigRecord:
    config = message.content.get(CONFIG)
    return config if isinstance(config, ConfigRecord) else ConfigRecord()


def check_software(message: Message) -> None:
    """MismatchError if the server runs other code; to be asked before anything else is read."""
    config = message.content[CONFIG]
    for key, ours in (("version", __version__), ("kernels", kernels.digest())):
        compare(key, str(config.get(key, "unknown")), ours, SAME_SOFTWARE)


def compare(key: str, server: str, node: str, remedy: str) -> None:
    """MismatchError naming both values if they differ."""
    if server != node:
        raise MismatchError(
            f"server and node differ in {key}: server {server}, node {node}: {remedy}"
        )


def unpack_task(
    message: Message, model: Model, experiment: Experiment, partition: str
) -> tuple[Task, Float32Array]:
    """The task and the flat parameters; MismatchError if the server's side is another one."""
    check_software(message)
    config = message.content[CONFIG]
    assert isinstance(config, ConfigRecord)
    remedy = "give both sides the same experiment"
    compare("model", str(config.get("model", "unknown")), model.digest, remedy)
    train = replace(experiment.train, lr=float(_number(config["lr"])))
    return _task(config, train, partition, config["round"], config["seed"]), _params(message, model)


def _task(
    config: ConfigRecord, train: TrainConfig, partition: str, number: object, seed: object
) -> Task:
    mu = float(_number(config.get("proximal-mu", 0.0)))
    hyper = Hyper(
        lr=train.lr,
        momentum=train.momentum,
        nesterov=train.nesterov,
        weight_decay=train.weight_decay,
        proximal_mu=mu,
        clip_norm=train.clip_norm,
        betas=train.betas,
        eps=train.eps,
    )
    return Task(
        round=int(_number(number)),
        seed=int(_number(seed)),
        partition=partition,
        local_epochs=train.local_epochs,
        batch=train.batch,
        hyper=hyper,
    )


def _params(message: Message, model: Model) -> Float32Array:
    arrays = message.content[ARRAYS]
    assert isinstance(arrays, ArrayRecord)
    return model.flatten(record_to_arrays(arrays), "the server's parameters")


# -- a node of ours with a server that is not ------------------------------------------------


def own_experiment(context: Context) -> dict[str, str]:
    """``experiment`` (JSON text) of a node that was joined with a model of its own, or empty."""
    own = context.node_config.get("experiment")
    return {} if own is None else {"experiment": str(own)}


def unpack_stock_task(
    message: Message, model: Model, experiment: Experiment, partition: str
) -> tuple[Task, Float32Array]:
    """The task of a stock Flower server, which sends no more than parameters and its round.

    Its ``lr``, where it sends one, goes before the node's own (Flower's examples send it).
    """
    config = _config(message)
    train = experiment.train
    if "lr" in config:
        train = replace(train, lr=float(_number(config["lr"])))
    number = config.get("server-round", 1)
    return _task(config, train, partition, number, experiment.seed), _params(message, model)


def for_stock_server(content: RecordDict) -> RecordDict:
    """A reply's metrics under the names of Flower's own examples."""
    names = {"train-loss": "train_loss", "eval-loss": "eval_loss", "eval-accuracy": "eval_acc"}
    before = content.metric_records[METRICS]
    metrics = {names[key]: value for key, value in before.items() if key in names}
    content[METRICS] = MetricRecord({"num-examples": before["num-examples"], **metrics})
    return content


BATCH_NORM = "batch_norm"
"""What a node keeps of its own between rounds, in Flower's Context."""


def with_own(
    context: Context, model: Model, experiment: Experiment, params: Float32Array
) -> Float32Array:
    """The server's values, but of batch norm those that this node keeps, once it has any.

    With ``federation.batch_norm: local`` that is FedBN (Li et al., arXiv 2102.07623): scale,
    shift and running statistics all are a node's own.
    """
    own = context.state.get(BATCH_NORM)
    if experiment.federation.batch_norm == "averaged" or not isinstance(own, ArrayRecord):
        return params
    found, views = params.copy(), record_to_arrays(own)
    for p in model.batch_norm:
        found[p.slice] = views[p.name].reshape(-1)
    return found


def keep_own(context: Context, model: Model, experiment: Experiment, params: Float32Array) -> None:
    """Keep a trained round's batch norm for the next one, if it is to be this node's own."""
    if experiment.federation.batch_norm == "local":
        own = {p.name: params[p.slice].reshape(p.shape) for p in model.batch_norm}
        context.state[BATCH_NORM] = arrays_to_record(own)


def recorded_placement(message: Message) -> Placement | None:
    """The placement that the server asks to repeat."""
    choice = str(message.content[CONFIG]["choice"])
    return placement_from_json(choice) if choice else None


def _number(value: object) -> int | float:
    assert isinstance(value, int | float)
    return value


def pack_trained(model: Model, outcome: Outcome, all_values: bool = False) -> RecordDict:
    """Weights and metrics of a trained round; the record is added last (``add_record``).

    What is frozen is left out: the server has it. ``all_values``: a stock server has not.
    """
    views = model.views(outcome.params)
    if not all_values:
        views = {p.name: views[p.name] for p in model.sent}
    metrics: dict[str, int | float | list[int] | list[float]] = {
        "num-examples": outcome.num_examples,
        "train-loss": outcome.metrics.loss,
    }
    if outcome.metrics.accuracy is not None:
        metrics["train-accuracy"] = outcome.metrics.accuracy
    return RecordDict({ARRAYS: arrays_to_record(views), METRICS: MetricRecord(metrics)})


def pack_evaluated(metrics: Metrics, num_examples: int) -> RecordDict:
    """Metrics of an evaluation on the node's own examples."""
    values: dict[str, int | float | list[int] | list[float]] = {
        "num-examples": num_examples,
        "eval-loss": metrics.loss,
    }
    if metrics.accuracy is not None:
        values["eval-accuracy"] = metrics.accuracy
    return RecordDict({METRICS: MetricRecord(values)})


def add_record(content: RecordDict, record: NodeRecord) -> None:
    """The node's own record, as the last thing that goes into a reply."""
    content[RECORD] = ConfigRecord({"json": record.to_json()})
