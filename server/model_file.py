"""Model files: a model's parameters in safetensors, with its YAML mapping beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.errors import MissingExtraError, StoreError
from client.model.losses import CrossEntropy, Loss, parse_loss
from server.files import read_bytes, write_durably

Arrays = dict[str, NDArray[Any]]


def save_model(
    path: Path,
    model: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, Any],
    resumable: bool = False,
) -> None:
    """Write a model file: parameters under their names, the model's YAML mapping beside them.

    Any safetensors reader reads the parameters; ``load_model_file`` also gives the mapping, and
    ``load_loss`` what the metadata has under "loss". ``resumable``: it is the end of a run that
    can go on where it cannot be written.
    """
    own = {**metadata, "model": dict(model), "order": list(arrays)}
    tensors = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    write_durably(path, to_safetensors(tensors, {"pocketfed": json.dumps(own)}), resumable)


def load_model_file(path: Path) -> tuple[dict[str, Any], Arrays]:
    """The model's mapping (for ``client.model.build_model``) and its named parameters.

    StoreError if the file cannot be read, is damaged, or was not written by ``save_model``.
    """
    arrays, metadata = from_safetensors(read_bytes(path), path)
    try:
        own = json.loads(metadata["pocketfed"])
        order = [name for name in own["order"] if name in arrays]
        return own["model"], {name: arrays[name] for name in dict.fromkeys([*order, *arrays])}
    except (KeyError, ValueError, TypeError):
        raise StoreError(
            f"{path}: does not say which model it holds: needs a file that pocketfed wrote"
        ) from None


def load_loss(path: Path) -> Loss:
    """What a model of a file was trained by: its own loss, or cross-entropy where it names none."""
    _, metadata = from_safetensors(read_bytes(path), path)
    own = json.loads(metadata.get("pocketfed", "{}"))
    return parse_loss(own.get("loss", CrossEntropy.name), f"{path}: loss")


def load_arrays(path: Path) -> Arrays:
    """The named arrays of any safetensors file; StoreError if it cannot be read."""
    return from_safetensors(read_bytes(path), path)[0]


def to_safetensors(tensors: Arrays, metadata: dict[str, str]) -> bytes:
    """A file's content. One key of metadata, no more: their order in the file would vary."""
    try:
        from safetensors.numpy import save
    except ModuleNotFoundError:
        raise MissingExtraError("safetensors", "server", "writing a model") from None
    return save(tensors, metadata)


def from_safetensors(data: bytes, path: Path) -> tuple[Arrays, dict[str, str]]:
    """Tensors and metadata of a file's content; StoreError names ``path`` if it is damaged."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load
    except ModuleNotFoundError:
        raise MissingExtraError("safetensors", "server", "reading a model") from None
    try:
        arrays = load(data)
        # load() checks the file but leaves out its metadata, which lies in the JSON header
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError, KeyError) as e:
        raise StoreError(f"{path}: is damaged or no safetensors file: {e}") from None
    return arrays, header.get("__metadata__", {})
