"""Experiment files: composing, overriding, and one line for each thing that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from client.config import Experiment, load_experiment
from client.errors import ConfigError
from client.fields import parse, read_yaml
from client.model import build_model

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def experiment(**changes: Any) -> dict[str, Any]:
    """A small valid experiment; ``train__lr=1`` changes a key of a part, None takes it out."""
    value: dict[str, Any] = {
        "name": "try",
        "model": {
            "name": "net",
            "input": {"shape": [4]},
            "layers": [{"type": "linear", "out_features": 2}],
        },
        "data": {"source": "digits", "partition": {"kind": "iid", "nodes": 4}},
        "train": {"lr": 0.1},
        "federation": {"rounds": 2},
    }
    for path, new in changes.items():
        *parents, last = path.split("__")
        target = value
        for parent in parents:
            target = target[parent]
        if new is None:
            del target[last]
        else:
            target[last] = new
    return value


def write(folder: Path, value: Any, name: str = "try.yaml") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return path


def complaint(path: Path, *settings: str) -> str:
    """The one line that is said about an experiment."""
    with pytest.raises(ConfigError) as caught:
        load_experiment(path, settings)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


# -- what works ---------------------------------------------------------------------------------


def test_quickstart() -> None:
    found = load_experiment(QUICKSTART)
    assert found.name == "quickstart"
    assert build_model(found.model, "model").num_params == 61_706
    assert (found.data.holdout, found.data.partition.nodes) == (1000, 8)
    assert (found.train.batch, found.train.local_epochs, found.federation.rounds) == (32, 2, 10)
    assert found.federation.strategy == {"name": "fedavg"}


def test_batch_auto_is_the_default_in_micro_batches(tmp_path: Path) -> None:
    """The same batch on every device, whatever its memory."""
    path = write(tmp_path, experiment())
    train = load_experiment(path, ("train.batch=auto",)).train
    assert (train.batch, train.micro_batch) == (32, "auto")
    train = load_experiment(path, ("train.batch=auto", "train.micro_batch=8")).train
    assert (train.batch, train.micro_batch) == (32, 8)
    assert load_experiment(path, ("train.batch=512",)).train.micro_batch is None


def test_resolved_experiment_reads_back(tmp_path: Path) -> None:
    first = load_experiment(QUICKSTART, ("train.lr=0.5",))
    again = load_experiment(write(tmp_path, first.to_dict()))
    assert again == first
    assert parse(Experiment, first.to_dict(), "x") == first


def test_defaults(tmp_path: Path) -> None:
    found = load_experiment(write(tmp_path, experiment()))
    assert found.seed == 0
    assert found.devices.backend == "auto"
    assert (found.train.momentum, found.train.batch) == (0.0, 32)
    assert found.federation.strategy == {"name": "fedavg"}


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    text = yaml.safe_dump(experiment()).replace("lr: 0.1", "lr: 1e-3\n  weight_decay: 5E-4")
    found = load_experiment(write(tmp_path, text))
    assert (found.train.lr, found.train.weight_decay) == (0.001, 0.0005)
    assert load_experiment(write(tmp_path, experiment(train__lr=1))).train.lr == 1.0


def test_parts_from_files(tmp_path: Path) -> None:
    """Beside the experiment first, then in a folder of the part's name, then the shipped ones."""
    write(tmp_path, {"lr": 0.7}, "mine.yaml")
    (tmp_path / "federations").mkdir()
    write(tmp_path / "federations", {"rounds": 9}, "long.yaml")
    parts = experiment(model="lenet5", train="mine", federation="long.yaml")
    found = load_experiment(write(tmp_path, parts))
    assert (found.model["name"], found.train.lr, found.federation.rounds) == ("lenet5", 0.7, 9)
    write(tmp_path, {**experiment()["model"], "name": "other"}, "lenet5.yaml")
    assert load_experiment(tmp_path / "try.yaml").model["name"] == "other"


def test_a_base_is_laid_under(tmp_path: Path) -> None:
    write(tmp_path, {"lr": 0.7, "batch": 8}, "mine.yaml")
    over = experiment(train={"base": "mine", "lr": 0.2})
    found = load_experiment(write(tmp_path, over))
    assert (found.train.lr, found.train.batch) == (0.2, 8)
    normalised = {"base": "lenet5", "input": {"mean": [0.5]}}
    model = load_experiment(write(tmp_path, experiment(model=normalised))).model
    assert model["input"] == {"shape": [1, 28, 28], "mean": [0.5], "std": [0.3081]}


def test_settings(tmp_path: Path) -> None:
    path = write(tmp_path, experiment())
    settings = (
        "train.lr=0.05",
        "train.lr=5e-2",
        "seed=7",
        "data.partition={kind: shards, nodes: 2}",
        "federation.strategy.name=fedprox",
        "devices.backend=numpy",
        "model=mlp",
        "model.name=renamed",
    )
    found = load_experiment(path, settings)
    assert (found.train.lr, found.seed) == (0.05, 7)
    assert (found.data.partition.kind, found.data.partition.nodes) == ("shards", 2)
    assert found.federation.strategy == {"name": "fedprox"}
    assert found.devices.backend == "numpy"
    assert found.model["name"] == "renamed"
    assert len(found.model["layers"]) == 6


def test_anchors_and_merges(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n"
    assert read_yaml(write(tmp_path, text)) == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}


# -- what is said when something is wrong ---------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"sed": 3}, [": sed: unknown key", "did you mean 'seed'"]),
        ({"train__momentun": 0.9}, [": train.momentun: unknown key", "did you mean 'momentum'"]),
        ({"data__partition__node": 3}, [": data.partition.node: unknown key", "'nodes'"]),
        ({"train__lr": None}, [": train: the key 'lr' is missing"]),
        ({"model": None}, [": the key 'model' is missing"]),
        ({"train__lr": "fast"}, [": train.lr: found 'fast', needs a number"]),
        ({"train__lr": float("inf")}, [": train.lr:", "finite"]),
        ({"train__lr": float("nan")}, [": train.lr:", "finite"]),
        ({"train__lr": 10**400}, [": train.lr:", "finite"]),
        ({"train__lr": -1}, [": train.lr: found -1", "at least 0"]),
        ({"train__clip_norm": -1}, [": train.clip_norm: found -1", "at least 0"]),
        ({"train__batch": 0}, [": train.batch: found 0, must be at least 1"]),
        ({"train__batch": 2.5}, [": train.batch: found 2.5, needs a whole number"]),
        ({"train__batch": True}, [": train.batch: found True, needs a whole number"]),
        ({"train__nesterov": 1}, [": train.nesterov: found 1, needs true or false"]),
        ({"train__nesterov": True}, [": train.nesterov: needs a momentum above 0"]),
        ({"train__optimizer": "sdg"}, [": train.optimizer: found 'sdg'", "did you mean 'sgd'"]),
        ({"train__loss": "msee"}, [": train.loss: found 'msee'", "did you mean 'mse'"]),
        ({"train__loss": {"name": "x"}}, [": train.loss.name: found 'x'", "allowed: cross_ent"]),
        ({"train__loss": 3}, [": train.loss: found 3"]),
        (
            {"train__loss": {"name": "cross_entropy", "label_smoothing": -1}},
            [": train.loss.label_smoothing: found -1", "between 0 and 1"],
        ),
        ({"train__eps": 1e-3}, [": train.eps: belongs to adam and adamw, optimizer is 'sgd'"]),
        (
            {"train": {"lr": 1, "optimizer": "adam", "momentum": 0.9}},
            [": train.momentum: belongs to sgd, optimizer is 'adam'"],
        ),
        ({"train": {"lr": 1, "optimizer": "adam", "betas": [0.9, 1]}}, [": train.betas:", "below"]),
        ({"train": {"lr": 1, "optimizer": "adam", "betas": 0.9}}, [": train.betas: found 0.9"]),
        ({"train": {"lr": 1, "optimizer": "adam", "eps": 0}}, [": train.eps: found 0", "positive"]),
        ({"train__schedule": {"kind": "cos"}}, [": train.schedule.kind: found 'cos'", "'cosine'"]),
        ({"train__schedule": {"kind": "step"}}, [": train.schedule.step_rounds: is missing"]),
        (
            {"train__schedule": {"min_lr": 0.1}},
            [": train.schedule.kind: found 'constant', but min_lr belongs to 'cosine'"],
        ),
        (
            {"train__schedule": {"kind": "cosine", "warmup_rounds": 99}},
            [": train.schedule.warmup_rounds: found 99", "federation.rounds"],
        ),
        ({"train__frozen": "conv1"}, [": train.frozen: found 'conv1'"]),
        ({"train": 3}, [": train: found 3, needs a mapping"]),
        ({"train": [1]}, [": train: found [1], needs a mapping"]),
        ({"model": 3}, [": model: found 3, needs a mapping"]),
        ({"name": "a/b"}, [": name: found 'a/b'", "letters, digits"]),
        ({"name": ""}, [": name: found ''"]),
        ({"seed": -1}, [": seed: found -1"]),
        ({"data__partition__kind": "dirichle"}, [": data.partition.kind:", "mean 'dirichlet'"]),
        ({"data__partition__alpha": 0}, [": data.partition.alpha: found 0", "positive"]),
        ({"data__partition__nodes": None}, [": data.partition.nodes: is missing"]),
        ({"data__partition__nodes": 0}, [": data.partition.nodes: found 0"]),
        ({"data__partition__kind": "column"}, [": data.partition.column: is missing"]),
        ({"data__node_holdout": 1}, [": data.node_holdout: found 1", "below 1"]),
        ({"federation__rounds": 0}, [": federation.rounds: found 0"]),
        ({"federation__strategy": {}}, [": federation.strategy: the key 'name' is missing"]),
        ({"federation__strategy": "fedavg"}, [": federation.strategy: found 'fedavg'", "mapping"]),
        ({"federation__round_deadline_s": 0}, [": federation.round_deadline_s:", "positive"]),
        ({"federation__nodes_per_round": 5}, [": federation.nodes_per_round: found 5", "is 4"]),
        ({"federation__quorum": 5}, [": federation.quorum: found 5", "only 4"]),
        ({"federation__evaluate_nodes": True}, [": federation.evaluate_nodes:", "node_holdout"]),
        ({"devices": {"backend": "numpi"}}, [": devices.backend: found 'numpi'", "mean 'numpy'"]),
        ({"model": "lenet55"}, [": model: no file 'lenet55.yaml'", "did you mean 'lenet5'"]),
        ({"train": "none"}, [": train: no file 'none.yaml'"]),
        ({"train": {"base": 3}}, [": train.base: found 3, needs the name of a file"]),
        ({"train": {"base": "nowhere", "lr": 1}}, [": train: no file 'nowhere.yaml'"]),
    ],
)
def test_complaints(tmp_path: Path, changes: dict[str, Any], parts: list[str]) -> None:
    path = write(tmp_path, experiment(**changes))
    message = complaint(path)
    assert message.startswith(f"{path}: ")
    for part in parts:
        assert part in message


BOMB = "".join(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(40))
"""Each line twice the one before: a terabyte, written out."""


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name: a\nname: b\n", ["the key 'name' stands twice", "line 2"]),
        ("train: {lr: 1, lr: 2}\n", ["the key 'lr' stands twice"]),
        ("name: [1\n", ["not YAML", "line 2"]),
        ("name: !!python/name:os.system\n", ["not YAML"]),
        ("? [a, b]\n: 1\n", ["a key must be plain text"]),
        ("when: 2024-13-45\n", ["not YAML"]),
        ("name: \x00\n", ["not YAML"]),
        ("a: " + "[" * 3000, ["not YAML"]),
        ("- a\n- b\n", ["needs a mapping", "['a', 'b']"]),
        ("", ["needs a mapping", "found nothing"]),
        ("just text\n", ["needs a mapping", "'just text'"]),
        ("a: &a [1, *a]\n", ["an anchor (&) holds an alias (*) of itself"]),
        ("a: &a {b: {c: *a}}\n", ["an anchor (&) holds an alias (*) of itself"]),
        ("a0: &a0 [1, 1]\n" + BOMB, ["more than 100000 values"]),
        ("a: " + "[" * 60 + "]" * 60, ["more than 50 within each other"]),
        ("when: 2024-12-01\n", ["found the date '2024-12-01'", "text (in quotes)"]),
        ("what: !!binary aGVsbG8=\n", ["found the bytes"]),
        ("what: !!set {a, b}\n", ["found the set"]),
        ("? 0x" + "f" * 9999 + "\n: 1\n", ["whole number of 39996 bits"]),
        ("seed: 0x" + "f" * 9999, ["whole number of 39996 bits"]),
    ],
)
def test_unreadable_text(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = write(tmp_path, text)
    message = complaint(path)
    assert message.startswith(f"{path}: ")
    for part in parts:
        assert part in message


def test_unreadable_files(tmp_path: Path) -> None:
    assert complaint(tmp_path / "no.yaml") == f"{tmp_path / 'no.yaml'}: no such file"
    assert "is a folder" in complaint(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    assert "cannot be read" in complaint(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("train.lr", "needs the form key.path=value"),
        ("=3", "needs the form key.path=value"),
        ("train..lr=3", "needs the form key.path=value"),
        ("train.lr=[1", "not YAML"),
        ("train.lr.more=1", "'train.lr' has no keys below it"),
        ("train.lrr=1", "train.lrr: unknown key"),
        ("train.lr=fast", "train.lr: found 'fast'"),
        ("model=lenet55", "did you mean 'lenet5'"),
        ("model=" + "x" * 300, "name too long"),
        ("federation.rounds=1" + "0" * 30, "federation.rounds: found 1000"),
        ("federation.strategy={name: fedavg, 1: 2}", "strategy: found the key 1, needs text"),
    ],
)
def test_unfit_settings(tmp_path: Path, setting: str, part: str) -> None:
    assert part in complaint(write(tmp_path, experiment()), setting)
