"""From ``data.source`` to a Dataset, and whether a Dataset fits a model."""

from __future__ import annotations

import os
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.data.cifar import is_cifar10, load_cifar10
from client.data.dataset import Dataset
from client.data.idx import IMAGES, load_folder, load_idx
from client.data.leaf import leaf_files, load_leaf
from client.data.npz import load_npz, load_npz_inputs
from client.data.packaged import PACKAGED, load_packaged
from client.data.reading import readable
from client.data.text import LEAF_CUT, TextCut, load_text
from client.errors import DataError, did_you_mean
from client.model.graph import Model
from client.model.losses import CrossEntropy, LabelsInfo, Loss


def load(source: str, base: Path | None = None, cut: TextCut = LEAF_CUT) -> Dataset:
    """The data set that ``source`` names; ``cut`` says how a text becomes examples.

    The names in ``PACKAGED`` come from packages (extras ``data``, ``timeseries``); everything else
    is a path: an .npz file, a text (.txt), LEAF's JSON (.json), an IDX images file with its labels
    beside it, or a folder with an IDX training pair, with the binary version of CIFAR-10 or with
    LEAF's .json files. A relative path is looked for below ``base`` (the experiment's folder), then
    below the working directory. A folder that is called as a packaged data set is written
    ``./mnist``.

    Raises DataError for a source that is unknown, missing or damaged, MissingExtraError where a
    package is not installed.
    """
    if source in PACKAGED:
        return load_packaged(source)
    path = _find(source, base)
    if path.is_dir():
        return _load_folder(path)
    if path.suffix == ".npz":
        return load_npz(path)
    if path.suffix == ".json":
        return load_leaf([path], str(path))
    if path.suffix == ".txt":
        return load_text(path, cut)
    if IMAGES.fullmatch(path.name):
        return load_idx(path)
    raise DataError(
        f"{path}: not a known kind of data file; allowed: .npz, .txt, .json (LEAF's), "
        "*-images-idx3-ubyte[.gz], a folder with an IDX training pair, with CIFAR-10's "
        "data_batch_*.bin or with LEAF's .json files"
    )


def _load_folder(path: Path) -> Dataset:
    if is_cifar10(path):
        return load_cifar10(path)
    files = leaf_files(path)
    return load_leaf(files, str(path)) if files else load_folder(path)


def load_inputs(source: str, base: Path | None = None, cut: TextCut = LEAF_CUT) -> NDArray[Any]:
    """The examples alone, (n, *shape), of what ``load`` reads; an .npz file needs no labels."""
    if source not in PACKAGED:
        path = _find(source, base)
        if path.suffix == ".npz" and not path.is_dir():
            return load_npz_inputs(path)
    return load(source, base, cut).x


def _find(source: str, base: Path | None) -> Path:
    path = Path(os.path.expanduser(source))
    candidates = [path] if base is None or path.is_absolute() else [base / path, path]
    for candidate in candidates:
        with readable(candidate):
            if candidate.exists():
                return candidate
    if path.name == source and not path.suffix:
        raise DataError(
            f"data.source: found '{source}', allowed: {', '.join(PACKAGED)}, or the path of an "
            f".npz file, an IDX images file or a folder{did_you_mean(source, PACKAGED)}"
        )
    found_at = (str(c if c.is_absolute() else Path.cwd() / c) for c in candidates)
    places = " or ".join(dict.fromkeys(found_at))
    raise DataError(f"data.source: no such file: {places}")


def cut_for(model: Model, loss: Loss, stride: int = 1) -> TextCut:
    """How a text becomes examples of a model; each step has a label where the loss says so."""
    steps = model.input.shape[0]
    return TextCut(steps, stride, loss.labels_shape(model.output_shape) == (steps,))


def fit_to(dataset: Dataset, model: Model, loss: Loss) -> Dataset:
    """The data set as model and loss take it; DataError where it does not fit them.

    Examples become those of ``fit_inputs``; whole-numbered labels become float32 where the loss
    needs targets, and (n,) becomes (n, 1) where the model has one output.
    """
    x = fit_inputs(dataset.x, dataset.source, model)
    y, output = dataset.y, model.output_shape
    if loss.label_dtype is np.float32:
        needed = loss.labels_shape(output)
        if y.ndim == 1 and needed == (1,):
            y = y[:, None]
        if y.shape[1:] == needed:  # else it is refused below, as it is in the file
            y = y.astype(np.float32, copy=False)
    if isinstance(loss, CrossEntropy) and y.dtype == np.int32:
        over = np.flatnonzero(y >= output[0])
        if len(over):
            first = [int(i) for i in np.unravel_index(over[0], y.shape)]
            raise DataError(
                f"{dataset.source}: y: class {y.flat[over[0]]} at index "
                f"{first[0] if y.ndim == 1 else first}, "
                f"model '{model.name}' has {output[0]} classes (0 to {output[0] - 1})"
            )
    try:
        loss.check_labels(output, LabelsInfo.of(y))
    except DataError as e:
        raise DataError(f"{dataset.source}: {e}; model '{model.name}'") from None
    return replace(dataset, x=x, y=y)


def fit_inputs(x: NDArray[Any], source: str, model: Model) -> NDArray[Any]:
    """Examples as a model takes them; DataError where they have another shape or are no tokens.

    Rows of numbers are seen in the shape of the model's input; tokens become uint8 where that holds
    them.
    """
    found, needed = x.shape[1:], model.input.shape
    if found == (prod(needed),):
        x, found = x.reshape(-1, *needed), needed
    if found != needed:
        hint = ""
        if len(found) == 3 and (found[2], found[0], found[1]) == needed:
            hint = "; channels come first: use x.transpose(0, 3, 1, 2)"
        raise DataError(
            f"{source}: x: examples have shape {found}, model '{model.name}' needs {needed}{hint}"
        )
    vocabulary = model.input.vocabulary
    if vocabulary is None:
        return x
    bad = np.argwhere((x < 0) | (x >= vocabulary) | (x != np.floor(x)))
    if len(bad):
        row, step = (int(i) for i in bad[0])
        raise DataError(
            f"{source}: x: found {x[row, step]:g} in row {row} at step {step}, model "
            f"'{model.name}' takes tokens: whole numbers from 0 to {vocabulary - 1} "
            f"(input.vocabulary {vocabulary}); {len(bad)} of {x.size} values are none"
        )
    return x.astype(np.uint8, copy=False) if vocabulary <= 256 else x
