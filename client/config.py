"""YAML -> frozen dataclasses. A complaint names file, key path, what was found, what is allowed.

An experiment is composed: where a part (``model``, ``data``, ``train``, ``federation``,
``devices``) is a string, it names another YAML file, beside the experiment or among the shipped
configs; where it is a mapping with the key ``base``, the named file is read first and the other
keys are laid over it. ``--set train.lr=0.05`` is laid over the result.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Union

import yaml

from client.errors import ConfigError, did_you_mean


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ConfigError if it cannot be read or is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder, needs a YAML file") from None
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: cannot be read: {_one_line(e)}") from None
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as e:
        raise ConfigError(f"{path}: not YAML: {_one_line(e)}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not YAML that can be read: nested too deeply") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: needs a mapping (key: value), found {describe(value)}")
    return value


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice and reads 1e-3 as a number (YAML 1.2)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool | None):
                raise yaml.constructor.ConstructorError(
                    None, None, f"a key must be plain text, found {key!r}", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def describe(value: object) -> str:
    """A found value, short, for a message."""
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _type_name(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_name(a) for a in args)
    if origin is typing.Literal:
        return ", ".join(str(a) for a in args)
    if origin is tuple:
        if args[-1] is Ellipsis:
            return f"a list, each {_type_name(args[0])}"
        return f"a list of {len(args)}, each {_type_name(args[0])}"
    if kind is type(None):
        return "null"
    return _TYPE_NAMES.get(kind, "a mapping")


def convert(value: Any, kind: Any, where: str) -> Any:
    """``value`` from YAML as type ``kind``; ConfigError naming ``where`` if it does not fit."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        for arm in args:
            try:
                return convert(value, arm, where)
            except ConfigError:
                continue
    elif origin is typing.Literal:
        if value in args:
            return value
        raise ConfigError(
            f"{where}: found {describe(value)}, allowed: {_type_name(kind)}"
            f"{did_you_mean(str(value), map(str, args))}"
        )
    elif origin is tuple and isinstance(value, list):
        if args[-1] is Ellipsis:
            return tuple(convert(v, args[0], f"{where}[{i}]") for i, v in enumerate(value))
        if len(value) == len(args):
            return tuple(convert(v, args[i], f"{where}[{i}]") for i, v in enumerate(value))
    elif origin is dict and isinstance(value, dict):
        return value
    elif dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return parse(kind, value, where)
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if value != value or value in (float("inf"), float("-inf")):
            raise ConfigError(f"{where}: found {value}, needs a finite number")
        return float(value)
    elif (kind is int and isinstance(value, int) and not isinstance(value, bool)) or (
        kind in (str, bool, type(None)) and isinstance(value, kind)
    ):
        return value
    raise ConfigError(f"{where}: found {describe(value)}, needs {_type_name(kind)}")


T = typing.TypeVar("T")


def parse(cls: type[T], value: Any, where: str) -> T:
    """A frozen dataclass from a mapping; its ``__post_init__`` may raise ConfigError as well."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: found {describe(value)}, needs a mapping")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    check_keys(value, fields, where)
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in value:
            raise ConfigError(f"{where}: the key '{name}' is missing")
    kwargs = {k: convert(v, hints[k], join(where, k)) for k, v in value.items()}
    try:
        return cls(**kwargs)
    except ConfigError as e:
        raise type(e)(f"{where}: {e}" if not str(e).startswith(where) else str(e)) from None


def check_keys(value: Mapping[Any, Any], allowed: typing.Iterable[str], where: str) -> None:
    """ConfigError for the first key that is not allowed."""
    names = list(allowed)
    for key in value:
        if key not in names:
            raise ConfigError(
                f"{join(where, str(key))}: unknown key; allowed: {', '.join(names)}"
                f"{did_you_mean(str(key), names)}"
            )


def join(where: str, key: str) -> str:
    """``file.yaml: a`` + ``b`` -> ``file.yaml: a.b``."""
    return f"{where}.{key}" if ": " in where else f"{where}: {key}"


# -- what an experiment says ----------------------------------------------------------------


def _at_least(limit: float, **values: float | None) -> None:
    for key, value in values.items():
        if value is not None and value < limit:
            raise ConfigError(f"{key}: found {value}, must be at least {limit:g}")


@dataclasses.dataclass(frozen=True)
class PartitionConfig:
    """How the training examples are shared out to nodes."""

    kind: typing.Literal["iid", "dirichlet", "shards", "column"] = "iid"
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

    source: str  # mnist, digits, or a path: .npz, a folder with IDX files, *-images-idx3-ubyte[.gz]
    partition: PartitionConfig
    holdout: int = 0  # examples kept centrally to evaluate the global model
    node_holdout: float = 0.0  # share of a node's examples kept by it to evaluate

    def __post_init__(self) -> None:
        _at_least(0, holdout=self.holdout, node_holdout=self.node_holdout)
        if self.node_holdout >= 1:
            raise ConfigError(f"node_holdout: found {self.node_holdout}, must be below 1")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """What a node does in a round."""

    lr: float
    batch: int = 32
    local_epochs: int = 1
    optimizer: typing.Literal["sgd"] = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    loss: typing.Literal["cross_entropy"] = "cross_entropy"

    def __post_init__(self) -> None:
        _at_least(1, batch=self.batch, local_epochs=self.local_epochs)
        _at_least(0, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.nesterov and self.momentum == 0:
            raise ConfigError("nesterov: needs a momentum above 0")


@dataclasses.dataclass(frozen=True)
class FederationConfig:
    """Rounds and how their results are put together."""

    rounds: int
    strategy: dict[str, Any] = dataclasses.field(default_factory=lambda: {"name": "fedavg"})
    nodes_per_round: int | None = None  # all, if not given
    quorum: int = 1  # fewer usable replies than this end the run
    round_deadline_s: float | None = None  # later replies are left out
    evaluate_nodes: bool = False  # nodes evaluate on their own held-out part (data.node_holdout)

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

    def __post_init__(self) -> None:
        from client.backends import names

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
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name):
            raise ConfigError(
                f"name: found {describe(self.name)}, allowed: letters, digits, '-', '_', '.'"
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

    def to_dict(self) -> dict[str, Any]:
        """Plain mapping that ``parse(Experiment, …)`` reads back: the resolved experiment."""
        return _plain(dataclasses.asdict(self))  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


PARTS = {"model": "models", "data": "data", "train": "train", "federation": "federations"}
PARTS["devices"] = "devices"


def load_experiment(path: Path, settings: tuple[str, ...] = ()) -> Experiment:
    """Read, compose, override and check an experiment file."""
    value = read_yaml(path)
    where = str(path)
    for part, folder in PARTS.items():
        if part in value:
            value[part] = _compose(value[part], folder, path.parent, join(where, part))
    for setting in settings:
        apply_setting(value, setting)
    return parse(Experiment, value, where)


def find_config(name: str, folder: str, beside: Path, where: str) -> Path:
    """The file that ``name`` stands for: beside the experiment, or among the shipped configs."""
    shipped = Path(str(files("configs")))
    file = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    for root in (beside, shipped):
        for candidate in (root / file, root / folder / file):
            if candidate.is_file():
                return candidate
    known = sorted(p.stem for p in (shipped / folder).glob("*.yaml"))
    raise ConfigError(
        f"{where}: no file '{file}' beside the experiment or among the shipped configs"
        f" ({folder}/: {', '.join(known) or 'none'}){did_you_mean(name, known)}"
    )


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


def overlay(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` laid over ``below``: mappings key by key, everything else replaced."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        result[key] = overlay(old, value) if both else value  # type: ignore[arg-type]
    return result


def apply_setting(value: dict[str, Any], setting: str) -> None:
    """Lay one ``key.path=value`` (the value in YAML) over an experiment's mapping."""
    path, sep, text = setting.partition("=")
    keys = path.strip().split(".")
    if not sep or not all(keys):
        raise ConfigError(f"--set {setting}: needs the form key.path=value, as in train.lr=0.05")
    try:
        new = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as e:
        raise ConfigError(f"--set {setting}: the value is not YAML: {_one_line(e)}") from None
    target: Any = value
    for i, key in enumerate(keys[:-1]):
        target = target.setdefault(key, {})
        if not isinstance(target, dict):
            raise ConfigError(f"--set {setting}: '{'.'.join(keys[: i + 1])}' has no keys below it")
    target[keys[-1]] = new
