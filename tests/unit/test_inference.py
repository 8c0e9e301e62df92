"""A trained model on data: loss, accuracy, classes, against the same network written out."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from client.data import Dataset, load
from client.errors import ConfigError, DataError, DeviceError, ModelError, ParityError, StoreError
from client.model import Model, initialise
from client.model.graph import Float32Array
from server import inference
from server.inference import BATCH, Trained
from server.model_file import from_safetensors, save_model, to_safetensors
from tests import fakes
from tests.fakes import Fake

N = BATCH + 44  # a full batch and a part of one


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    """Read back from a model file."""
    model = fakes.model()
    path = tmp_path / "model.safetensors"
    save_model(path, fakes.MODEL, model.views(initialise(model, seed=1)), {"experiment": "small"})
    return inference.load_trained(path)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return load(str(fakes.write_examples(tmp_path / "data.npz", N)))


def zeros(model: Model, grads: Float32Array, count: int) -> None:
    grads[...] = 0


def test_a_model_file_gives_model_and_parameters(trained: Trained) -> None:
    assert trained.model == fakes.model()
    np.testing.assert_array_equal(trained.params, initialise(fakes.model(), seed=1))


def test_scores_are_those_of_the_network(trained: Trained, dataset: Dataset) -> None:
    with inference.opened(trained, "numpy") as (device, program):
        found = inference.scores(device, program, dataset.x)
    assert found.shape == (N, 3)
    np.testing.assert_allclose(found, fakes.logits(trained.params, dataset.x), rtol=1e-4, atol=1e-5)


def test_evaluation_over_all_and_by_class(trained: Trained, dataset: Dataset) -> None:
    value = inference.evaluate(trained, dataset, "numpy")
    logits = fakes.logits(trained.params, dataset.x)
    right = logits.argmax(1) == dataset.y
    e = np.exp(logits - logits.max(1, keepdims=True))
    losses = -np.log(e[np.arange(N), dataset.y] / e.sum(1))
    assert value["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert value["accuracy"] == right.mean()
    assert (value["model"], value["data"], value["examples"]) == ("small", dataset.source, N)
    assert value["classes"] == {
        str(c): {"examples": 100, "accuracy": right[dataset.y == c].mean()} for c in range(3)
    }


def test_classes_without_examples_are_left_out(trained: Trained, dataset: Dataset) -> None:
    value = inference.evaluate(trained, dataset.subset(np.flatnonzero(dataset.y == 2)), "numpy")
    assert list(value["classes"]) == ["2"]


def test_predictions_need_no_labels(trained: Trained, tmp_path: Path) -> None:
    x, _ = fakes.examples(20)
    path = tmp_path / "unlabelled.npz"
    np.savez(path, x=x)
    found = inference.predict(trained, str(path), "numpy")
    assert found.columns == ("example", "class", "probability")
    rows = found.rows
    logits = fakes.logits(trained.params, x)
    e = np.exp(logits - logits.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    assert [(i, c) for i, c, _ in rows] == list(enumerate(logits.argmax(1)))
    np.testing.assert_allclose([q for *_, q in rows], p.max(1), rtol=1e-4)


def test_examples_of_another_shape_are_refused(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "wide.npz"
    np.savez(path, x=np.zeros((4, 1, 5, 5), np.uint8), y=np.zeros(4, np.int64))
    with pytest.raises(DataError, match=r"examples have shape \(1, 5, 5\)"):
        inference.predict(trained, str(path), "numpy")
    with pytest.raises(DataError, match=r"examples have shape \(1, 5, 5\)"):
        inference.evaluate(trained, load(str(path)), "numpy")


def test_predictions_as_csv(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    found = inference.Predictions(("example", "class", "probability"), [(0, 2, 0.75), (1, 0, 0.5)])
    inference.write_predictions(path, found)
    with path.open(newline="") as f:
        assert list(csv.reader(f)) == [
            ["example", "class", "probability"],
            ["0", "2", "0.75"],
            ["1", "0", "0.5"],
        ]
    with pytest.raises(StoreError, match="cannot be written"):
        inference.write_predictions(tmp_path / "none" / "out.csv", found)


# -- other backends --------------------------------------------------------------------------


def test_another_backend_computes_and_is_checked_first(
    trained: Trained, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Fake("alpha")
    fakes.register(monkeypatch, good)
    found = inference.evaluate(trained, dataset, "alpha")
    assert found == inference.evaluate(trained, dataset, "numpy")
    assert good.calls["open"] == good.calls["release"] == 1

    fakes.register(monkeypatch, Fake("beta", spoil=zeros))
    with pytest.raises(ParityError, match="computes wrong numbers"):
        inference.evaluate(trained, dataset, "beta")


@pytest.mark.parametrize("fake", [Fake("alpha", empty=True), Fake("alpha", unavailable="none")])
def test_a_backend_without_devices_is_one_line(
    trained: Trained, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, fake: Fake
) -> None:
    fakes.register(monkeypatch, fake)
    with pytest.raises(DeviceError, match="none"):
        inference.evaluate(trained, dataset, "alpha")


def test_an_unknown_backend_is_named(trained: Trained, dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"found 'nunpy', .*; did you mean 'numpy'\?"):
        inference.evaluate(trained, dataset, "nunpy")


# -- model files -----------------------------------------------------------------------------


def test_model_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(StoreError, match="cannot be read: no such file"):
        inference.load_trained(path)
    path.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00 no safetensors")
    with pytest.raises(StoreError, match="is damaged or no safetensors file"):
        inference.load_trained(path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_is_not_finite_is_refused(tmp_path: Path, value: float) -> None:
    model, path = fakes.model(), tmp_path / "model.safetensors"
    flat = initialise(model, seed=1)
    flat[model.values[1].slice] = value
    save_model(path, fakes.MODEL, model.views(flat), {})
    with pytest.raises(DataError, match=f"{model.values[1].name} holds values that are not finite"):
        inference.load_trained(path)


def test_a_model_file_without_a_parameter_or_with_another_names_it(tmp_path: Path) -> None:
    model, path = fakes.model(), tmp_path / "model.safetensors"
    arrays = dict(model.views(initialise(model, seed=1)))
    first = next(iter(arrays))
    save_model(path, fakes.MODEL, arrays, {})
    metadata = from_safetensors(path.read_bytes(), path)[1]
    for name, changed in (
        ("missing", {k: v for k, v in arrays.items() if k != first}),
        ("not in the model", {**arrays, "more": arrays[first]}),
    ):
        path.write_bytes(to_safetensors(changed, metadata))
        named = first if name == "missing" else "more"
        with pytest.raises(ModelError, match=rf"{name} \['{named}'\]"):
            inference.load_trained(path)
