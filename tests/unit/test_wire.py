"""Messages: what goes in comes out, and two sides that differ say in what."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import kernels
from client import __version__, wire
from client.backends.figures import Metrics
from client.backends.recipe import Hyper
from client.config import Experiment
from client.data.shares import Shares
from client.errors import ConfigError, MismatchError, ModelError, PocketfedError
from client.model import Model, initialise
from client.record import Event, NodeRecord, placement_from_json, record_from_json
from client.trainer import Outcome
from tests import fakes
from tests.fakes import placement

CHOICE = placement("opencl", "opencl|PoCL|cpu", 2, (("fc1", "gemm 8x2"), ("fc2", "gemm 4x4")))


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return fakes.experiment(
        tmp_path, train={"nesterov": True, "weight_decay": 0.01, "clip_norm": 3.0}, seed=2**40
    )


@pytest.fixture(autouse=True)
def sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's Message reads who it is sent by from process-wide fields."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


MODEL = fakes.model()
PARAMS = initialise(MODEL, seed=1)


def message(experiment: Experiment, choice: str = "", **over: Any) -> Message:
    config = {**wire.task_config(experiment, MODEL, 7, 0.1, choice), **over}
    content = RecordDict(
        {
            wire.ARRAYS: wire.arrays_to_record(MODEL.views(PARAMS)),
            wire.CONFIG: ConfigRecord({k: v for k, v in config.items() if v is not None}),
        }
    )
    return Message(content, 2, "train")


def unpack(experiment: Experiment, sent: Message, model: Model = MODEL) -> Any:
    return wire.unpack_task(sent, model, experiment, "node-1")


def test_a_task_arrives_as_it_was_sent(experiment: Experiment) -> None:
    task, params = unpack(experiment, message(experiment))
    assert (task.partition, task.round, task.seed) == ("node-1", 7, 2**40)
    assert (task.local_epochs, task.batch) == (2, 8)
    assert task.hyper == Hyper(
        0.1, 0.9, nesterov=True, weight_decay=0.01, proximal_mu=0.0, clip_norm=3.0
    )
    np.testing.assert_array_equal(params, PARAMS)
    assert params.dtype == np.float32


def test_fedprox_reaches_the_node_as_flower_sends_it(experiment: Experiment) -> None:
    task, _ = unpack(experiment, message(experiment, **{"proximal-mu": 0.5}))
    assert task.hyper.proximal_mu == 0.5


def test_a_recorded_placement_arrives_as_it_was_sent(experiment: Experiment) -> None:
    assert wire.recorded_placement(message(experiment)) is None
    choice = json.dumps(asdict(CHOICE))
    assert wire.recorded_placement(message(experiment, choice)) == CHOICE


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"backend": "numpy"}', '{"variants": [1]}'])
def test_a_placement_that_cannot_be_read_is_one_line(text: str) -> None:
    with pytest.raises(PocketfedError, match="recorded placement") as e:
        placement_from_json(text)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("key", "ours", "remedy"),
    [
        ("version", __version__, "install the same pocketfed on both sides"),
        ("kernels", kernels.digest(), "install the same pocketfed on both sides"),
        ("model", MODEL.digest, "give both sides the same experiment"),
    ],
)
def test_each_mismatch_names_both_values_and_the_remedy(
    experiment: Experiment, key: str, ours: str, remedy: str
) -> None:
    for theirs, said in (("another", "another"), (None, "unknown")):
        with pytest.raises(MismatchError) as e:
            unpack(experiment, message(experiment, **{key: theirs}))
        expected = f"server and node differ in {key}: server {said}, node {ours}: {remedy}"
        assert str(e.value) == expected


def test_parameters_of_another_model_are_named(experiment: Experiment) -> None:
    sent = message(experiment)
    arrays = {**MODEL.views(PARAMS), "fc3.weight": np.zeros(2, np.float32)}
    del arrays["fc1.bias"]
    sent.content[wire.ARRAYS] = wire.arrays_to_record(arrays)
    with pytest.raises(ModelError, match=r"missing \['fc1.bias'\], .* \['fc3.weight'\]"):
        unpack(experiment, sent)


def test_arrays_keep_order_values_and_layout() -> None:
    odd = {"b": np.arange(6, dtype=np.float32).reshape(2, 3).T, "a": np.float32([[1, 2]])}
    back = wire.record_to_arrays(wire.arrays_to_record(odd))
    assert list(back) == ["b", "a"]
    for name, value in odd.items():
        np.testing.assert_array_equal(back[name], value)
        assert back[name].dtype == np.float32


def test_a_record_comes_back_as_it_was() -> None:
    record = NodeRecord("node-1", placement=CHOICE, measured={"gpu": {"step_s": 0.5}})
    record.events = [Event("fallback", "no OpenCL")]
    assert record_from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("measured", {"gpu": {"step_s": "fast"}}, "record.measured.gpu.step_s: found 'fast'"),
        ("events", [{"kind": 1, "message": ""}], "record.events[0].kind: found 1, needs text"),
        ("events", {}, "record.events: found {}, needs a list"),
        ("phases", [1.0], "record.phases: found [1.0], needs a mapping"),
        ("colour", 3, "record.colour: unknown key"),
    ],
)
def test_what_does_not_fit_a_record_is_named(key: str, value: object, found: str) -> None:
    said = json.loads(NodeRecord("node-1").to_json()) | {key: value}
    with pytest.raises(ConfigError, match=re.escape(found)):
        record_from_json(json.dumps(said))


def test_a_reply_holds_weights_metrics_and_the_record() -> None:
    outcome = Outcome(
        PARAMS * 2, Metrics(loss_sum=30.0, correct=15, count=20, weight=20.0), num_examples=20
    )
    content = wire.pack_trained(MODEL, outcome)
    record = NodeRecord("node-1", placement=CHOICE, num_examples=20)
    wire.add_record(content, record)
    assert dict(content[wire.METRICS]) == {
        "num-examples": 20,
        "train-loss": 1.5,
        "train-accuracy": 0.75,
    }
    arrays = wire.record_to_arrays(content[wire.ARRAYS])  # type: ignore[arg-type]
    np.testing.assert_array_equal(MODEL.flatten(arrays, "reply"), PARAMS * 2)
    assert list(arrays) == [p.name for p in MODEL.params]
    said = json.loads(str(content[wire.RECORD]["json"]))
    assert (said["partition"], said["num_examples"]) == ("node-1", 20)
    assert placement_from_json(json.dumps(said["placement"])) == CHOICE


def test_an_evaluation_has_no_arrays() -> None:
    content = wire.pack_evaluated(Metrics(loss_sum=1.0, correct=3, count=4, weight=4.0), 4)
    assert list(content) == [wire.METRICS]
    assert dict(content[wire.METRICS]) == {
        "num-examples": 4,
        "eval-loss": 0.25,
        "eval-accuracy": 0.75,
    }


def context(**config: str | int) -> Context:
    return Context(run_id=1, node_id=2, node_config=config, state=RecordDict(), run_config={})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"partition-id": 1}, wire.Identity("node-1", None)),
        ({"partition-id": 1, "name": "node-0"}, wire.Identity("node-0", None)),
        ({"data": "/d/phone.npz"}, wire.Identity("phone", Path("/d/phone.npz"))),
        ({"name": "me", "data": "phone.npz"}, wire.Identity("me", Path("phone.npz"))),
    ],
)
def test_a_node_is_known_by_name_file_or_number(
    experiment: Experiment,
    tmp_path: Path,
    config: dict[str, str | int],
    expected: wire.Identity,
) -> None:
    shares = Shares(experiment, MODEL, tmp_path)
    assert wire.identity(context(**config), lambda: shares.names) == expected


def test_what_a_node_says_of_itself_arrives() -> None:
    answer = wire.unpack_answer(wire.pack_answer(context(identity="abc"), "node-1"))
    assert answer == wire.Answer("node-1", "abc", __version__, kernels.digest())
    wire.check_answer(answer)
    with pytest.raises(MismatchError, match="has no 'partition': install the same pocketfed"):
        wire.unpack_answer(RecordDict())


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("<class 'client.errors.MismatchError'>:<'both: values'>", "both: values"),
        ("<class 'ZeroDivisionError'>:<'by zero'>", "ZeroDivisionError: by zero"),
        (
            "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'ray::run()\nException "
            "ClientAppException occurred. Message: the loss became nan'>",
            "the loss became nan",
        ),
        ("the node is gone", "the node is gone"),
        ("", "Flower's error code 5"),
    ],
)
def test_error_replies_say_what_the_node_said(reason: str, text: str) -> None:
    question = Message(wire.question(), 2, wire.WHO)
    assert wire.error_text(Message(Error(5, reason), reply_to=question)) == text


def test_digests_of_models_differ_where_models_do() -> None:
    layers = [*fakes.MODEL["layers"][:-1], {"type": "linear", "name": "fc2", "out_features": 4}]
    other = fakes.build_model({**fakes.MODEL, "layers": layers}, "other")
    assert other.digest != MODEL.digest
    assert replace(MODEL).digest == fakes.model().digest
