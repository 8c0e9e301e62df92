"""`pocketfed evaluate` and `predict`: a trained model on data."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client import trainer
from client.backends.base import Device, Program
from client.config import DevicesConfig
from client.data import Dataset, check_against, check_inputs, load_inputs
from client.errors import StoreError
from client.model import Model, build_model
from client.model.graph import Float32Array
from client.worker.devices import Devices
from server.model_file import load_model_file

BATCH = 256


@dataclass(frozen=True)
class Trained:
    """A model and its flat values."""

    model: Model
    params: Float32Array


def load_trained(path: Path) -> Trained:
    """From a model file of ours, which carries its own description."""
    mapping, arrays = load_model_file(path)
    model = build_model(mapping, f"{path}: model")
    return Trained(model, model.flatten(arrays, str(path)))


@contextmanager
def opened(trained: Trained, backend: str) -> Iterator[tuple[Device, Program]]:
    """A device with the model's program and parameters; closed with the context."""
    devices = Devices(DevicesConfig(backend), trained.model)
    try:
        device, program = devices.ready(devices.usable()[0], BATCH)  # checked against numpy
        program.upload(trained.params)
        yield device, program
    finally:
        devices.close()


def scores(device: Device, program: Program, x: NDArray[Any]) -> Float32Array:
    """Logits (n, classes) of examples (n, *shape)."""
    n = len(x)
    data = device.load(x, np.zeros(n, np.int32))
    program.begin_epoch(data, np.arange(n, dtype=np.int32), BATCH, 0)
    rows = []
    for start, count in trainer.batches(n, BATCH):
        program.gather(start, count)
        program.forward(count, training=False)
        rows.append(program.take_output(count))
    data.release()
    return np.concatenate(rows)


def evaluate(trained: Trained, dataset: Dataset, backend: str) -> dict[str, Any]:
    """Loss and accuracy, over all and by class."""
    check_against(dataset, trained.model)
    with opened(trained, backend) as (device, program):
        metrics = trainer.evaluate(program, device.load(dataset.x, dataset.y), BATCH)
        right = scores(device, program, dataset.x).argmax(1) == dataset.y
    classes = {}
    for c in range(trained.model.num_classes):
        mine = dataset.y == c
        if mine.any():
            classes[str(c)] = {"examples": int(mine.sum()), "accuracy": float(right[mine].mean())}
    return {
        "model": trained.model.name,
        "data": dataset.source,
        "examples": metrics.count,
        "loss": metrics.loss,
        "accuracy": metrics.accuracy,
        "classes": classes,
    }


def predict(trained: Trained, source: str, backend: str) -> list[tuple[int, int, float]]:
    """(example, class, probability) of each example of a data set, labelled or not."""
    x = load_inputs(source)
    check_inputs(x, source, trained.model)
    with opened(trained, backend) as (device, program):
        logits = scores(device, program, x).astype(np.float64)
    e = np.exp(logits - logits.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    best = p.argmax(1)
    return [(i, int(c), float(p[i, c])) for i, c in enumerate(best)]


def write_predictions(path: Path, rows: list[tuple[int, int, float]]) -> None:
    """As CSV: example, class, probability."""
    try:
        with path.open("w", newline="") as f:
            writer = csv.writer(f)
            writer.writerow(("example", "class", "probability"))
            writer.writerows(rows)
    except OSError as e:
        raise StoreError(f"{path}: cannot be written: {e.strerror}") from None
