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
from client.backends.recipe import Recipe
from client.config import DevicesConfig
from client.data import Dataset, cut_for, fit_inputs, fit_to, load_inputs
from client.errors import StoreError
from client.model import Model, build_model
from client.model.graph import Float32Array
from client.model.losses import BCEWithLogits, CrossEntropy, Loss
from client.worker.devices import Devices
from server.model_file import load_loss, load_model_file

BATCH = 256


@dataclass(frozen=True)
class Trained:
    """A model, its flat values, and the loss it was trained by."""

    model: Model
    params: Float32Array
    loss: Loss


def load_trained(path: Path) -> Trained:
    """From a model file of ours, which carries its own description."""
    mapping, arrays = load_model_file(path)
    model = build_model(mapping, f"{path}: model")
    return Trained(model, model.flatten(arrays, str(path)), load_loss(path))


@contextmanager
def opened(trained: Trained, backend: str) -> Iterator[tuple[Device, Program]]:
    """A device with the model's program and parameters; closed with the context."""
    devices = Devices(DevicesConfig(backend), trained.model, recipe=Recipe(trained.loss))
    try:
        device, program = devices.ready(devices.usable()[0], BATCH)  # checked against numpy
        program.upload(trained.params)
        yield device, program
    finally:
        devices.close()


def scores(device: Device, program: Program, x: NDArray[Any]) -> Float32Array:
    """The network's output (n, *shape) for examples (n, *shape)."""
    n, loss, output = len(x), program.recipe.loss, program.segment.model.output_shape
    data = device.load(x, np.zeros((n, *loss.labels_shape(output)), loss.label_dtype))
    program.begin_epoch(data, np.arange(n, dtype=np.int32), BATCH, 0)
    rows = []
    for start, count in trainer.batches(n, BATCH):
        program.gather(start, count)
        program.forward(count, training=False)
        rows.append(program.take_output(count))
    data.release()
    return np.concatenate(rows)


def evaluate(trained: Trained, dataset: Dataset, backend: str) -> dict[str, Any]:
    """Loss and accuracy, over all and, where examples are of one class each, by class."""
    dataset = fit_to(dataset, trained.model, trained.loss)
    with opened(trained, backend) as (device, program):
        metrics = trainer.evaluate(program, device.load(dataset.x, dataset.y), BATCH)
        output = scores(device, program, dataset.x)
    classes = {}
    if dataset.has_classes:
        right = output.argmax(1) == dataset.y
        for c in range(trained.model.num_classes):
            mine = dataset.y == c
            if mine.any():
                share = float(right[mine].mean())
                classes[str(c)] = {"examples": int(mine.sum()), "accuracy": share}
    return {
        "model": trained.model.name,
        "data": dataset.source,
        "examples": len(dataset),
        "loss": metrics.loss,
        "accuracy": metrics.accuracy,
        "classes": classes,
    }


@dataclass(frozen=True)
class Predictions:
    """A row for each prediction: its example, its place in the example if there are several, and
    a class with its probability, a probability alone, or a value, as the loss has it."""

    columns: tuple[str, ...]
    rows: list[tuple[int | float, ...]]


def predict(trained: Trained, source: str, backend: str) -> Predictions:
    """What the model says of each example of a data set, labelled or not."""
    x = load_inputs(source, None, cut_for(trained.model, trained.loss))
    x = fit_inputs(x, source, trained.model)
    with opened(trained, backend) as (device, program):
        output = scores(device, program, x).astype(np.float64)
    if isinstance(trained.loss, CrossEntropy):
        e = np.exp(output - output.max(1, keepdims=True))
        columns = {"class": output.argmax(1), "probability": (e / e.sum(1, keepdims=True)).max(1)}
        place = "step"
    elif isinstance(trained.loss, BCEWithLogits):
        columns, place = {"probability": 1 / (1 + np.exp(-output))}, "output"
    else:
        columns, place = {"value": output}, "output"
    flat = {name: values.reshape(len(x), -1) for name, values in columns.items()}
    several = next(iter(flat.values())).shape[1]
    rows: list[tuple[int | float, ...]] = [
        (i, *((j,) if several > 1 else ()), *(values[i, j].item() for values in flat.values()))
        for i in range(len(x))
        for j in range(several)
    ]
    return Predictions(("example", *((place,) if several > 1 else ()), *flat), rows)


def write_predictions(path: Path, predictions: Predictions) -> None:
    """As CSV, with a line of names."""
    try:
        with path.open("w", newline="") as f:
            writer = csv.writer(f)
            writer.writerow(predictions.columns)
            writer.writerows(predictions.rows)
    except OSError as e:
        raise StoreError(f"{path}: cannot be written: {e.strerror}") from None
