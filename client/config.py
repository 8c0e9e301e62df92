"""What an experiment file says, as frozen dataclasses that check themselves.

An experiment is composed: where a part (``model``, ``data``, ``train``, ``federation``,
``devices``) is a string, it names another YAML file, beside the experiment or among the shipped
configs; where it is a mapping with the key ``base``, the named file is read first and the other
keys are laid over it. ``--set train.lr=0.05`` is laid over the result.
"""

from __future__ import annotations

import dataclasses
import typing
from math import cos, pi
from pathlib import Path
from typing import Any

from client.backends import names
from client.backends.recipe import OptimizerName, Recipe
from client.errors import ConfigError, did_you_mean
from client.fields import describe, find_config, join, overlay, parse, parse_yaml, read_yaml
from client.model import Model, build_model
from client.model.losses import parse_loss


def _at_least(limit: float, **values: float | None) -> None:
    for key, value in values.items():
        if value is not None and value < limit:
            raise ConfigError(f"{key}: found {value}, must be at least {limit:g}")


@dataclasses.dataclass(frozen=True)
class PartitionConfig:
    """How the training examples are shared out to nodes."""

    kind: typing.Literal["iid", "contiguous", "dirichlet", "shards", "column"] = "iid"
    nodes: int | None = None  # with kind column: as many as the column has values
    alpha: float = 0.5  # dirichlet: small is uneven
    shards_per_node: int = 2  # shards
    column: str | None = None  # column
    min_examples: int = 1

    def __post_init__(self) -> None:
        _at_least(1, nodes=self.nodes, shards_per_node=self.shards_per_node)
        _at_least(1, min_examples=self.min_examples)
        if self.alpha <= 0:
            raise ConfigError(f"alpha: found {self.alpha}, must be positive")
        if self.kind == "column" and self.column is None:
            raise ConfigError("column: is missing; kind 'column' needs the name of a column")
        if self.kind != "column" and self.nodes is None:
            raise ConfigError(f"nodes: is missing; kind '{self.kind}' needs the number of nodes")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where examples come from and how they are shared out."""

    source: str  # a packaged set (mnist, …), or a path: see client/data/sources.py
    partition: PartitionConfig
    holdout: int = 0  # examples kept centrally to evaluate the global model
    node_holdout: float = 0.0  # share of a node's examples kept by it to evaluate
    stride: int = 1  # of a text: characters from one example to the next

    def __post_init__(self) -> None:
        _at_least(1, stride=self.stride)
        _at_least(0, holdout=self.holdout, node_holdout=self.node_holdout)
        if self.node_holdout >= 1:
            raise ConfigError(f"node_holdout: found {self.node_holdout}, must be below 1")


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate of a round follows from ``train.lr`` and the round's number.

    Within a round it stays the same, as is usual in federated learning: nodes differ in their
    numbers of steps, and may sit rounds out.
    """

    kind: typing.Literal["constant", "step", "cosine"] = "constant"
    warmup_rounds: int = 0  # lr grows evenly up to train.lr in the last of them
    step_rounds: int | None = None  # step: after so many rounds each ...
    factor: float = 0.1  # ... lr is multiplied by this
    min_lr: float = 0.0  # cosine: where it would arrive after the last round

    def __post_init__(self) -> None:
        _at_least(0, warmup_rounds=self.warmup_rounds, factor=self.factor, min_lr=self.min_lr)
        _at_least(1, step_rounds=self.step_rounds)
        if self.kind == "step" and self.step_rounds is None:
            raise ConfigError("step_rounds: is missing; kind 'step' needs the number of rounds")
        given = {
            "step": self.step_rounds is not None or self.factor != 0.1,
            "cosine": self.min_lr != 0,
        }
        for kind, keys in (
            ("step", "step_rounds, factor belong to"),
            ("cosine", "min_lr belongs to"),
        ):
            if given[kind] and self.kind != kind:
                raise ConfigError(f"kind: found '{self.kind}', but {keys} '{kind}'")

    def lr(self, base: float, number: int, rounds: int) -> float:
        """The learning rate of round ``number`` (from 1) of ``rounds``.

        After the warm-up as ``torch.optim.lr_scheduler.StepLR`` and ``CosineAnnealingLR`` (with
        T_max = rounds after the warm-up), stepped once a round.
        """
        if number <= self.warmup_rounds:
            return base * number / self.warmup_rounds
        done, left = number - 1 - self.warmup_rounds, rounds - self.warmup_rounds
        if self.kind == "step":
            assert self.step_rounds is not None
            return float(base * self.factor ** (done // self.step_rounds))
        if self.kind == "cosine":
            return self.min_lr + (base - self.min_lr) * (1 + cos(pi * done / left)) / 2
        return base


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """What a node does in a round."""

    lr: float
    batch: int = 32
    micro_batch: int | typing.Literal["auto"] | None = None  # most examples at once; auto: that fit
    local_epochs: int = 1
    optimizer: OptimizerName = "sgd"
    momentum: float = 0.0  # sgd
    nesterov: bool = False  # sgd
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)  # adam, adamw
    eps: float = 1e-8  # adam, adamw
    clip_norm: float = 0.0  # most that the norm of a step's gradient may be; 0: no limit
    loss: str | dict[str, Any] = "cross_entropy"  # a name, or a mapping with name and settings
    schedule: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    frozen: tuple[str, ...] = ()  # names of layers or blocks that stay as they are

    def __post_init__(self) -> None:
        _at_least(1, batch=self.batch, local_epochs=self.local_epochs)
        if isinstance(self.micro_batch, int):
            _at_least(1, micro_batch=self.micro_batch)
        _at_least(0, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        _at_least(0, clip_norm=self.clip_norm)
        if self.nesterov and self.momentum == 0:
            raise ConfigError("nesterov: needs a momentum above 0")
        for key in ("momentum",) if self.optimizer != "sgd" else ("betas", "eps"):
            if getattr(self, key) != getattr(type(self), key):
                others = "sgd" if self.optimizer != "sgd" else "adam and adamw"
                raise ConfigError(f"{key}: belongs to {others}, optimizer is '{self.optimizer}'")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas: found {list(self.betas)}, must be at least 0 and below 1")
        if self.eps <= 0:
            raise ConfigError(f"eps: found {self.eps}, must be positive")
        if self.schedule.min_lr > self.lr:
            raise ConfigError(f"schedule.min_lr: found {self.schedule.min_lr}, lr is {self.lr}")
        _ = self.recipe  # whether there is such a loss

    @property
    def recipe(self) -> Recipe:
        """What programs are compiled for."""
        prefix = "train: "  # a place below which keys are joined by dots
        try:
            return Recipe(parse_loss(self.loss, f"{prefix}loss"), self.optimizer)
        except ConfigError as e:
            raise ConfigError(str(e).removeprefix(prefix)) from None


@dataclasses.dataclass(frozen=True)
class FederationConfig:
    """Rounds and how their results are put together."""

    rounds: int
    strategy: dict[str, Any] = dataclasses.field(default_factory=lambda: {"name": "fedavg"})
    nodes_per_round: int | None = None  # all, if not given
    quorum: int = 1  # fewer usable replies than this end the run
    round_deadline_s: float | None = None  # later replies are left out
    allow_foreign: bool = False  # nodes that run another Flower ClientApp than ours
    evaluate_nodes: bool = False  # nodes evaluate on their own held-out part (data.node_holdout)
    batch_norm: typing.Literal["averaged", "local"] = "averaged"  # local: each node keeps its own

    def __post_init__(self) -> None:
        _at_least(1, rounds=self.rounds, nodes_per_round=self.nodes_per_round, quorum=self.quorum)
        if self.round_deadline_s is not None and self.round_deadline_s <= 0:
            raise ConfigError(f"round_deadline_s: found {self.round_deadline_s}, must be positive")
        if "name" not in self.strategy:
            raise ConfigError("strategy: the key 'name' is missing, for example: name: fedavg")


@dataclasses.dataclass(frozen=True)
class DevicesConfig:
    """Which processors may train."""

    backend: str = "auto"  # auto: measured; else the name of a backend
    device: str | None = None  # part of a device's name, where a backend has several
    placement: typing.Literal["auto", "single"] = "auto"  # single: the whole network on one device

    def __post_init__(self) -> None:
        allowed = ("auto", *names())
        if self.backend not in allowed:
            raise ConfigError(
                f"backend: found '{self.backend}', allowed: {', '.join(allowed)}"
                f"{did_you_mean(self.backend, allowed)}"
            )


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One federated experiment. ``model`` is the mapping that client.model.build_model takes."""

    name: str
    model: dict[str, Any]
    data: DataConfig
    train: TrainConfig
    federation: FederationConfig
    devices: DevicesConfig = dataclasses.field(default_factory=DevicesConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least(0, seed=self.seed)
        if self.seed >= 2**63:
            raise ConfigError(f"seed: found {self.seed}, must be below 2^63")
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name):
            raise ConfigError(
                f"name: found {describe(self.name)}, allowed: letters, digits, '-', '_', '.'"
            )
        warmup = self.train.schedule.warmup_rounds
        if warmup >= self.federation.rounds:
            raise ConfigError(
                f"train.schedule.warmup_rounds: found {warmup}, "
                f"but federation.rounds is {self.federation.rounds}"
            )
        nodes = self.data.partition.nodes
        per_round = self.federation.nodes_per_round
        if nodes is not None and per_round is not None and per_round > nodes:
            raise ConfigError(
                f"federation.nodes_per_round: found {per_round}, "
                f"but data.partition.nodes is {nodes}"
            )
        if nodes is not None and self.federation.quorum > (per_round or nodes):
            raise ConfigError(
                f"federation.quorum: found {self.federation.quorum}, "
                f"but only {per_round or nodes} nodes take part in a round"
            )
        if self.federation.evaluate_nodes and self.data.node_holdout == 0:
            raise ConfigError(
                "federation.evaluate_nodes: needs data.node_holdout above 0, "
                "the share of its examples that a node keeps to evaluate"
            )

    def build(self, where: str | None = None) -> Model:
        """The model, fit for ``train.loss``, with ``train.frozen``; ModelError or ConfigError."""
        where = where or f"{self.name}: model"
        train = self.train
        model = build_model(self.model, where, train.recipe.loss, train.frozen)
        asked = train.micro_batch
        if isinstance(asked, int) and asked < train.batch and model.batch_layers:
            raise ConfigError(
                f"train.micro_batch: found {asked}, train.batch is {train.batch}, but the layer "
                f"{model.batch_layers[0]} needs the statistics of a whole batch: leave it out"
            )
        if self.federation.batch_norm == "local" and not model.batch_norm:
            raise ConfigError(
                f"{self.name}: federation.batch_norm: found 'local', "
                f"but model '{model.name}' has no batch norm that is trained"
            )
        return model

    def to_dict(self) -> dict[str, Any]:
        """Plain mapping that ``parse(Experiment, …)`` reads back: the resolved experiment."""
        return _plain(dataclasses.asdict(self))  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


PARTS = {
    "model": "models",
    "data": "data",
    "train": "train",
    "federation": "federations",
    "devices": "devices",
}
"""Parts of an experiment that may stand in files of their own, and the folder of shipped ones."""


def load_experiment(path: Path, settings: tuple[str, ...] = ()) -> Experiment:
    """Read, compose, override and check an experiment file."""
    value = read_yaml(path)
    where = str(path)
    _compose_parts(value, path.parent, where)
    for setting in settings:
        apply_setting(value, setting)
        _compose_parts(value, path.parent, where)  # as in --set model=mlp
    _expand_auto_batch(value)
    return parse(Experiment, value, where)


def _expand_auto_batch(value: dict[str, Any]) -> None:
    """``batch: auto`` is short for the default batch in micro-batches as large as fit.

    A device's memory decides how a batch is computed, never how large it is: that would change
    what is learned from device to device.
    """
    train = value.get("train")
    if isinstance(train, dict) and train.get("batch") == "auto":
        train["batch"] = TrainConfig.batch
        train.setdefault("micro_batch", "auto")


def _compose_parts(value: dict[str, Any], beside: Path, where: str) -> None:
    for part, folder in PARTS.items():
        if part in value:
            value[part] = _compose(value[part], folder, beside, join(where, part))


def _compose(value: Any, folder: str, beside: Path, where: str) -> Any:
    if isinstance(value, str):
        return read_yaml(find_config(value, folder, beside, where))
    if isinstance(value, dict) and "base" in value:
        base = value["base"]
        if not isinstance(base, str):
            raise ConfigError(f"{where}.base: found {describe(base)}, needs the name of a file")
        over = {k: v for k, v in value.items() if k != "base"}
        return overlay(read_yaml(find_config(base, folder, beside, where)), over)
    return value


def apply_setting(value: dict[str, Any], setting: str) -> None:
    """Lay one ``key.path=value`` (the value in YAML) over an experiment's mapping."""
    path, sep, text = setting.partition("=")
    keys = path.strip().split(".")
    if not sep or not all(keys):
        raise ConfigError(f"--set {setting}: needs the form key.path=value, as in train.lr=0.05")
    new = parse_yaml(text, f"--set {setting}")
    target: Any = value
    for i, key in enumerate(keys[:-1]):
        target = target.setdefault(key, {})
        if not isinstance(target, dict):
            raise ConfigError(f"--set {setting}: '{'.'.join(keys[: i + 1])}' has no keys below it")
    target[keys[-1]] = new
