"""Checkpoints: safetensors, with everything that is no array as JSON beside it.

A checkpoint holds what a run needs to go on after a round as if it had never stopped: the global
model, the strategy's own state (server-side momentum and the like), the nodes' state where the
engine keeps it, and the seed and round: all randomness of a run is keyed by these two, so there
is no generator whose state would have to be kept. Nothing is pickled.

A file is written whole or not at all, and believed only if its checksum is the recorded one. The
last two recorded checkpoints are kept: if the last is damaged, the one before serves.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from client.errors import StoreError
from server.files import read_bytes, remove, sha256, write_durably
from server.model_file import Arrays, from_safetensors, to_safetensors
from server.store import RoundInfo

FORMAT = 1
KEPT = 2
"""How many checkpoints of whole rounds stay on disk."""


@dataclass(frozen=True)
class State:
    """A run after ``round``. ``strategy``: see ``strategy_state``; ``nodes``: by partition name."""

    round: int
    seed: int
    arrays: Arrays
    strategy: dict[str, Any]
    nodes: dict[str, RecordDict]


# -- the strategy's state -------------------------------------------------------------------


def strategy_state(strategy: Strategy) -> dict[str, Any]:
    """The attributes of a strategy, without its functions: those come from its class."""
    return {name: v for name, v in vars(strategy).items() if not callable(v)}


def restore_strategy(strategy: Strategy, state: Mapping[str, Any]) -> None:
    """Set a fresh strategy of the same class to a recorded state; StoreError if it is another's."""
    known = set(strategy_state(strategy))
    if known != set(state):
        raise StoreError(
            f"the checkpoint's strategy state does not fit {type(strategy).__name__}: "
            f"recorded {sorted(state)}, this version has {sorted(known)}"
        )
    for name, value in state.items():
        setattr(strategy, name, value)


# -- plain values and arrays <-> JSON and tensors --------------------------------------------


class _Encoder:
    """Turns nested values into JSON; arrays go to ``tensors`` and leave their number behind."""

    def __init__(self) -> None:
        self.tensors: dict[str, NDArray[Any]] = {}

    def array(self, value: NDArray[Any]) -> str:
        key = f"{len(self.tensors):06d}"
        self.tensors[key] = np.ascontiguousarray(value).reshape(value.shape)
        return key

    def value(self, value: Any, where: str) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            if value.dtype.kind in "biuf":
                # a scalar's numpy type decides the type of what is computed with it
                kind = "array" if isinstance(value, np.ndarray) else "scalar"
                return {kind: self.array(np.asarray(value))}
        elif value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [self.value(v, f"{where}[{i}]") for i, v in enumerate(value)]}
        if isinstance(value, Array):
            return {"Array": self.array(value.numpy())}
        for kind, cls in _MAPPINGS.items():
            if type(value) is cls and all(isinstance(k, str) for k in value):
                return {kind: [[k, self.value(v, f"{where}.{k}")] for k, v in value.items()]}
        raise StoreError(
            f"{where}: a {type(value).__name__} cannot be kept in a checkpoint; "
            "allowed: numbers, text, arrays, Flower's records, lists and mappings of these"
        )


_MAPPINGS: dict[str, Callable[..., Any]] = {
    "dict": dict,
    "ArrayRecord": ArrayRecord,
    "MetricRecord": MetricRecord,
    "ConfigRecord": ConfigRecord,
    "RecordDict": RecordDict,
}


def _decode(value: Any, tensors: Arrays) -> Any:
    """The reverse of ``_Encoder.value``."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return base64.b64decode(content)
    if kind == "array":
        return tensors[content].copy()
    if kind == "scalar":
        return tensors[content][()]
    if kind == "Array":
        return Array(tensors[content])
    if kind in ("list", "tuple"):
        items = [_decode(v, tensors) for v in content]
        return items if kind == "list" else tuple(items)
    return _MAPPINGS[kind]({k: _decode(v, tensors) for k, v in content})


# -- checkpoints ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """A checkpoint on disk."""

    name: str
    sha256: str


class Checkpoints:
    """The folder of a run's checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, state: State) -> Saved:
        """Write the checkpoint of ``state.round``; durable when this returns."""
        encoder = _Encoder()
        content = {
            "format": FORMAT,
            "round": state.round,
            "seed": state.seed,
            "arrays": encoder.value(state.arrays, "model"),
            "strategy": encoder.value(state.strategy, "strategy"),
            "nodes": encoder.value(state.nodes, "node state"),
        }
        data = to_safetensors(encoder.tensors, {"pocketfed-checkpoint": json.dumps(content)})
        name = f"round-{state.round:05d}.safetensors"
        write_durably(self.folder / name, data, resumable=True)
        return Saved(name, sha256(data))

    def load(self, name: str, checksum: str) -> State:
        """The state in a file; StoreError if it is missing or not what was recorded."""
        path = self.folder / name
        data = read_bytes(path)
        if sha256(data) != checksum:
            raise StoreError(f"{path}: is damaged: its checksum is not the recorded one")
        tensors, metadata = from_safetensors(data, path)
        content = json.loads(metadata.get("pocketfed-checkpoint", "{}"))
        if content.get("format") != FORMAT:
            raise StoreError(f"{path}: is no checkpoint that this version can read")
        return State(
            content["round"],
            content["seed"],
            _decode(content["arrays"], tensors),
            _decode(content["strategy"], tensors),
            _decode(content["nodes"], tensors),
        )

    def load_last(self, rounds: Iterable[RoundInfo]) -> tuple[State | None, list[str]]:
        """The latest state that can be read among whole rounds, and a complaint for each passed
        over. None if the run has no whole round; StoreError if none of its checkpoints is good."""
        complaints: list[str] = []
        newest = sorted(rounds, key=lambda r: r.round, reverse=True)[:KEPT]
        for info in newest:
            try:
                return self.load(info.checkpoint, info.checkpoint_sha256), complaints
            except StoreError as e:
                complaints.append(str(e))
        if complaints:
            raise StoreError(
                f"no checkpoint of the run can be used: {'; '.join(complaints)}: repeat its "
                f"recorded rounds in a new folder by --replay {self.folder.parent}"
            )
        return None, complaints

    def prune(self, rounds: Iterable[RoundInfo]) -> None:
        """Remove all checkpoints but those of the last whole rounds, and what a crash left."""
        newest = sorted(rounds, key=lambda r: r.round, reverse=True)[:KEPT]
        keep = {info.checkpoint for info in newest}
        for path in (*self.folder.glob("round-*.safetensors"), *self.folder.glob(".*.tmp")):
            if path.name not in keep:
                remove(path)
