"""The round loop: what is aggregated, what is left out and why, and that equal seeds are equal."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from tiny import (
    EXAMPLES,
    NAMES,
    Clock,
    TinyApp,
    carry_out,
    edit_record,
    experiment,
    fails,
    resume_tiny,
    run_tiny,
    stops,
    tiny_run,
    update,
)

from client.errors import RoundError
from client.model import build_model
from server.engine import exchange
from server.engine.choices import Choices
from server.engine.inline import InlineGrid
from server.model_file import load_model_file
from server.observer import Observer
from server.run import resumed_run, seeded_parameters
from server.store import NodeRound, RoundInfo, Store

STRATEGIES = [
    {"name": "fedavg"},
    {"name": "fedprox", "proximal_mu": 0.5},
    {"name": "fedavgm", "server_momentum": 0.9},
    {"name": "fedadam", "eta": 0.1},
    {"name": "fedyogi", "eta": 0.1},
    {"name": "fedmedian"},
    {"name": "krum", "num_malicious_nodes": 1},
]


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_model_file(folder / "model.safetensors")[1]


def rows(folder: Path, whole: bool = False) -> list[NodeRound]:
    with Store.read(folder / "run.db") as store:
        return store.node_rounds(whole)


def assert_equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == np.float32
        np.testing.assert_array_equal(a[name], b[name])


def initial(seed: int = 5) -> dict[str, np.ndarray]:
    return seeded_parameters(build_model(experiment().model, "tiny"), seed)


# -- what is aggregated -----------------------------------------------------------------------


def test_fedavg_is_the_mean_weighted_by_examples(tmp_path: Path) -> None:
    run_tiny(tmp_path / "run", TinyApp())
    expected = {k: v.astype(np.float64) for k, v in initial().items()}
    total = sum(EXAMPLES.values())
    for number in (1, 2, 3):
        for name in NAMES:
            for key, step in update(5, number, name, number - 1).items():
                expected[key] += step.astype(np.float64) * EXAMPLES[name] / total
    for key, found in weights(tmp_path / "run").items():
        np.testing.assert_allclose(found, expected[key], atol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: str(s["name"]))
def test_every_strategy_gives_finite_float32(tmp_path: Path, strategy: dict[str, Any]) -> None:
    run_tiny(tmp_path / "run", TinyApp(), federation={"strategy": strategy})
    for name, value in weights(tmp_path / "run").items():
        assert value.dtype == np.float32
        assert np.isfinite(value).all()
        assert not np.array_equal(value, initial()[name])


def test_tasks_carry_what_nodes_need(tmp_path: Path) -> None:
    app = TinyApp()
    strategy = {"name": "fedprox", "proximal_mu": 0.5}
    run_tiny(tmp_path / "run", app, federation={"strategy": strategy, "rounds": 2})
    kind, name, config = app.seen[-1]
    assert (kind, name) == ("train", NAMES[-1])
    assert config["proximal-mu"] == 0.5
    assert (config["round"], config["server-round"], config["seed"]) == (2, 2, 5)
    assert config["choice"] == ""
    assert {"version", "kernels", "model"} < set(config)


def test_nodes_evaluate_when_asked(tmp_path: Path) -> None:
    app = TinyApp()
    out = tmp_path / "run"
    over = {"federation": {"evaluate_nodes": True, "rounds": 1}, "data": {"node_holdout": 0.2}}
    run_tiny(out, app, **over)
    assert [kind for kind, _, _ in app.seen] == ["train"] * 5 + ["evaluate"] * 5
    with Store.read(out / "run.db") as store:
        (info,) = store.rounds()
    assert (info.node_loss, info.node_accuracy) == (0.25, 0.75)
    assert [r.task for r in rows(out)] == ["train"] * 5 + ["evaluate"] * 5


# -- who takes part ---------------------------------------------------------------------------


def sampled(out: Path, seed: int = 5, grid: InlineGrid | None = None) -> list[list[str]]:
    app = TinyApp()
    with tiny_run(out, federation={"nodes_per_round": 2}, seed=seed) as run:
        carry_out(run, app, grid=grid)
    return [[r.partition for r in rows(out) if r.round == n] for n in (1, 2, 3)]


class _OtherIds(InlineGrid):
    """The same nodes under other ids, given in another order."""

    def get_node_ids(self) -> list[int]:
        return super().get_node_ids()[::-1]


def test_sampling_depends_on_seed_and_round_alone(tmp_path: Path) -> None:
    random.seed(1)
    first = sampled(tmp_path / "1")
    after = random.random()
    random.seed(1)
    assert random.random() == after  # the process's generator was left as it was
    assert sampled(tmp_path / "2") == first
    assert len({tuple(names) for names in first}) > 1
    others = [sampled(tmp_path / f"seed{s}", seed=s) for s in (6, 7, 8)]
    assert any(other != first for other in others)
    grid = _OtherIds(TinyApp(), NAMES[::-1], {})
    assert sampled(tmp_path / "3", grid=grid) == first


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: str(s["name"]))
def test_replies_in_another_order_give_equal_weights(
    tmp_path: Path, strategy: dict[str, Any]
) -> None:
    class Backwards(InlineGrid):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            return super().push_messages(list(messages)[::-1])

    over = {"federation": {"strategy": strategy}}
    run_tiny(tmp_path / "1", TinyApp(), **over)
    with tiny_run(tmp_path / "2", **over) as run:
        carry_out(run, None, grid=Backwards(TinyApp(), NAMES, {}))
    assert_equal(weights(tmp_path / "1"), weights(tmp_path / "2"))


# -- what is left out -------------------------------------------------------------------------


def _set_array(name: str, value: Any) -> Any:
    def trick(content: RecordDict) -> None:
        content["arrays"][name] = Array(np.asarray(value))

    return trick


def _set_metric(key: str, value: Any) -> Any:
    def trick(content: RecordDict) -> None:
        content["metrics"][key] = value

    return trick


def _drop(*path: str) -> Any:
    def trick(content: RecordDict) -> None:
        target: Any = content
        for key in path[:-1]:
            target = target[key]
        del target[path[-1]]

    return trick


def _cut_array(content: RecordDict) -> None:
    content["arrays"]["fc.bias"].data = b"cut"


def _second_arrays(content: RecordDict) -> None:
    content["more"] = ArrayRecord()


def _no_json(content: RecordDict) -> None:
    content["record"] = ConfigRecord({"json": "{"})


BAD = {
    "nan": (_set_array("fc.bias", np.float32([0, np.nan])), "arrays.fc.bias: holds values"),
    "infinite": (_set_array("fc.bias", np.float32([np.inf, 0])), "arrays.fc.bias: holds values"),
    "shape": (_set_array("fc.weight", np.zeros((3, 2), np.float32)), "found shape (3, 2)"),
    "dtype": (_set_array("fc.bias", np.zeros(2)), "found dtype float64, needs float32"),
    "missing": (_drop("arrays", "fc.bias"), "missing fc.bias"),
    "extra": (_set_array("fc2.bias", np.zeros(2, np.float32)), "not in the model: fc2.bias"),
    "cut": (_cut_array, "arrays.fc.bias: cannot be read"),
    "two records": (_second_arrays, "exactly one ArrayRecord"),
    "no arrays": (_drop("arrays"), "exactly one ArrayRecord"),
    "no examples": (_set_metric("num-examples", 0), "num-examples: found 0"),
    "too many": (_set_metric("num-examples", 2**31 + 1), "needs a whole number from 1 to"),
    "half an example": (_set_metric("num-examples", 1.5), "num-examples: found 1.5"),
    "batches": (_set_metric("num-examples", 3), "found 3, but the record says 30"),
    "loss nan": (_set_metric("train-loss", float("nan")), "train-loss: found nan"),
    "loss list": (_set_metric("train-loss", [1.0]), "train-loss: found [1.0]"),
    "metric extra": (_set_metric("f1", 1.0), "metrics: found ['f1'"),
    "metric missing": (_drop("metrics", "train-loss"), "needs num-examples, train-loss"),
    "no metrics": (_drop("metrics"), "exactly one MetricRecord"),
    "no record": (_drop("record"), "needs a ConfigRecord under 'record'"),
    "no json": (_no_json, "record: is not JSON"),
    "another's": (edit_record(partition="node-4"), "found 'node-4', this node is 'node-2'"),
    "no placement": (edit_record(placement=None), "record.placement: is missing"),
    "time as text": (edit_record(wall_s="1 s"), "record.wall_s: found '1 s', needs a number"),
    "time nan": (edit_record(phases={"train": float("nan")}), "needs a finite number"),
    "traffic": (edit_record(traffic={"bytes": 3}), "record.traffic: unknown bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_reply_is_rejected_by_name_and_left_out(tmp_path: Path, name: str) -> None:
    trick, reason = BAD[name]
    out = tmp_path / "run"
    run_tiny(out, TinyApp({"node-2": trick}), federation={"rounds": 1})
    by_name = {r.partition: r for r in rows(out, whole=True)}
    assert {p for p, r in by_name.items() if r.status != "ok"} == {"node-2"}
    assert by_name["node-2"].status == "rejected"
    assert reason in str(by_name["node-2"].error)
    total = sum(n for p, n in EXAMPLES.items() if p != "node-2")
    for key, found in weights(out).items():
        steps = [update(5, 1, p, 0)[key] * EXAMPLES[p] for p in NAMES if p != "node-2"]
        np.testing.assert_allclose(found, initial()[key] + sum(steps) / total, atol=1e-6)


def test_a_node_that_fails_costs_the_round_that_node(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_tiny(out, TinyApp({"node-1": fails}))
    failed = [r for r in rows(out) if r.status == "failed"]
    assert [(r.round, r.partition, r.error) for r in failed] == [
        (n, "node-1", "the loss became nan") for n in (1, 2, 3)
    ]
    with Store.read(out / "run.db") as store:
        assert [r.replies for r in store.rounds()] == [4, 4, 4]


class _Runtime(InlineGrid):
    """Answers for one node as Flower's SuperLink does when the node is gone, or never answers."""

    def __init__(self, gone: str, code: int | None) -> None:
        super().__init__(TinyApp(), NAMES, {})
        self._gone = next(i for i, name in self.names.items() if name == gone)
        self._code = code
        self._held: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        ids = super().push_messages(messages)
        self._held = [m for m in messages if m.metadata.dst_node_id == self._gone]
        for message in self._held:
            del self._pending[message.metadata.message_id]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        if self._held and self._code is not None:
            reply = Message(Error(self._code), reply_to=self._held.pop())
            reply.metadata.__dict__["_src_node_id"] = 1
            return [reply]
        return super().pull_messages(message_ids)


@pytest.mark.parametrize(("code", "status"), [(3, "late"), (5, "failed"), (8, "failed")])
def test_errors_of_the_runtime_are_mapped_to_their_node(
    tmp_path: Path, code: int, status: str
) -> None:
    out = tmp_path / "run"
    with tiny_run(out, federation={"rounds": 1}) as run:
        carry_out(run, None, grid=_Runtime("node-3", code))
    bad = [r for r in rows(out) if r.status != "ok"]
    assert [(r.partition, r.status) for r in bad] == [("node-3", status)]
    assert f"error code {code}" in str(bad[0].error)


def test_a_node_that_never_answers_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "time", Clock())
    out = tmp_path / "run"
    with tiny_run(out, federation={"rounds": 2, "round_deadline_s": 60}) as run:
        carry_out(run, None, grid=_Runtime("node-3", None))
    late = [r for r in rows(out) if r.status == "late"]
    assert [(r.round, r.partition) for r in late] == [(1, "node-3"), (2, "node-3")]
    assert "round_deadline_s (60 s)" in str(late[0].error)
    assert late[0].dispatch_to_reply_s is None


def test_a_message_that_expires_at_the_deadline_is_late_in_the_same_words(tmp_path: Path) -> None:
    """A task lives as long as the deadline lasts; Flower may say so a moment before we do."""
    out = tmp_path / "run"
    with tiny_run(out, federation={"rounds": 1, "round_deadline_s": 30}) as run:
        carry_out(run, None, grid=_Runtime("node-3", 3))
    (late,) = (r for r in rows(out) if r.status == "late")
    assert late.error == "no reply within federation.round_deadline_s (30 s)"


def test_fewer_than_the_quorum_end_the_run_with_the_cause(tmp_path: Path) -> None:
    out = tmp_path / "run"
    bad = BAD["nan"][0]
    app = TinyApp({"node-0": fails, "node-1": fails, "node-2": bad})
    with pytest.raises(RoundError) as e:
        run_tiny(out, app, federation={"quorum": 3})
    assert str(e.value) == (
        "round 1: 2 of 5 nodes gave a usable reply, federation.quorum is 3; "
        "first failure: node-0: the loss became nan"
    )
    assert [r.status for r in rows(out)] == ["failed", "failed", "rejected", "ok", "ok"]
    assert rows(out, whole=True) == []
    with Store.read(out / "run.db") as store:
        assert store.rounds() == []
        assert store.events()[-1].kind == "failed"


def test_an_aggregate_that_overflows_is_named(tmp_path: Path) -> None:
    strategy = {"name": "fedavgm", "server_momentum": 0.9, "server_learning_rate": 1e39}
    with pytest.raises(RoundError, match=r"the aggregate's fc\.weight holds values that are not"):
        run_tiny(tmp_path / "run", TinyApp(), federation={"strategy": strategy})


# -- what is recorded and told ----------------------------------------------------------------


def test_times_and_bytes_are_the_servers_own(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_tiny(out, TinyApp(), federation={"rounds": 1})
    for row in rows(out):
        assert row.dispatch_to_reply_s is not None
        assert row.dispatch_to_reply_s > 0
        assert row.network_and_queue_s == row.dispatch_to_reply_s  # tiny nodes say they took 0 s
        assert row.bytes_up > 8 * 4
        assert row.bytes_down > 8 * 4


class _Listener(Observer):
    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def round_started(self, number: int, rounds: int, partitions: list[str]) -> None:
        self.heard.append(("round", number, rounds, *partitions))

    def node_dispatched(self, number: int, partition: str, task: str) -> None:
        self.heard.append(("sent", partition))

    def node_finished(self, row: NodeRound) -> None:
        self.heard.append(("ok", row.partition))

    def node_failed(self, row: NodeRound) -> None:
        self.heard.append((row.status, row.partition))

    def round_finished(self, info: RoundInfo) -> None:
        self.heard.append(("whole", info.round))

    def note(self, kind: str, message: str, partition: str | None = None) -> None:
        self.heard.append((kind, message, partition))


def test_who_watches_hears_it_in_order(tmp_path: Path) -> None:
    listener = _Listener()
    event = edit_record(events=[{"kind": "fallback", "message": "no OpenCL"}])
    with tiny_run(tmp_path / "run", federation={"rounds": 1}) as run:
        carry_out(run, TinyApp({"node-1": event, "node-2": fails}), listener)
    assert listener.heard == [
        ("round", 1, 1, *NAMES),
        *(("sent", name) for name in NAMES),
        ("ok", "node-0"),
        ("fallback", "no OpenCL", "node-1"),
        ("ok", "node-1"),
        ("failed", "node-2"),
        ("ok", "node-3"),
        ("ok", "node-4"),
        ("whole", 1),
    ]


# -- going on, and doing again ----------------------------------------------------------------


class _Interrupted(TinyApp):
    """Ctrl-C at the third node of a round."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def __call__(self, message: Message, context: Any) -> Message:
        if (message.content["config"]["round"], context.node_config["name"]) == (
            self._number,
            NAMES[2],
        ):
            stops(RecordDict())
        return super().__call__(message, context)


@pytest.mark.parametrize("interrupted", [1, 2, 4])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: str(s["name"]))
def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, strategy: dict[str, Any], interrupted: int
) -> None:
    over = {"federation": {"strategy": strategy, "rounds": 5}}
    run_tiny(tmp_path / "whole", TinyApp(), **over)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_tiny(out, _Interrupted(interrupted), **over)
    with Store.read(out / "run.db") as store:
        assert [r.round for r in store.rounds()] == list(range(1, interrupted))
        last = store.events()[-1]
        assert (last.kind, last.message) == ("interrupted", "by Ctrl-C or a signal")
    result = resume_tiny(out, TinyApp())
    assert (result.rounds, result.resumed_from_round) == (5, interrupted - 1)
    assert_equal(weights(out), weights(tmp_path / "whole"))
    with Store.read(out / "run.db") as store:
        assert [r.round for r in store.rounds()] == [1, 2, 3, 4, 5]
        assert len(store.node_rounds()) == 25
        assert len(store.node_rounds(whole=False)) == 27


def test_a_damaged_last_checkpoint_costs_a_round(tmp_path: Path) -> None:
    run_tiny(tmp_path / "whole", TinyApp(), federation={"rounds": 4})
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_tiny(out, _Interrupted(4), federation={"rounds": 4})
    last = out / "checkpoints" / "round-00003.safetensors"
    last.write_bytes(last.read_bytes()[:-1])
    assert resume_tiny(out, TinyApp()).resumed_from_round == 2
    assert_equal(weights(out), weights(tmp_path / "whole"))
    with Store.read(out / "run.db") as store:
        told = [e.message for e in store.events() if e.kind == "checkpoint"]
    assert len(told) == 1
    assert "checksum" in told[0]
    assert "the one before is used" in told[0]


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = run_tiny(out, TinyApp())
    before = weights(out)
    app = TinyApp()
    second = resume_tiny(out, app)
    assert app.seen == []
    assert (second.rounds, second.resumed_from_round) == (first.rounds, 3)
    assert_equal(weights(out), before)


def test_going_on_repeats_recorded_choices_then_lets_nodes_decide(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_tiny(out, _Interrupted(2), federation={"rounds": 4})
    app = TinyApp()
    resume_tiny(out, app)
    told: dict[tuple[int, str], Any] = {}
    for _, name, config in app.seen:
        choice = config["choice"]
        parts = json.loads(choice)["layouts"][0]["parts"] if choice else [{"variants": 0}]
        told[config["round"], name] = parts[0]["variants"]
    # rounds 1 and 2 were seen by the first two nodes, round 1 alone by the others
    assert [told[2, name] for name in NAMES] == [
        [["fc", "variant-2"]],
        [["fc", "variant-2"]],
        [["fc", "variant-1"]],
        [["fc", "variant-1"]],
        [["fc", "variant-1"]],
    ]
    assert {told[n, name] for n in (3, 4) for name in NAMES} == {0}


def test_repeating_a_run_tells_every_choice_and_leaves_out_who_took_no_part(
    tmp_path: Path,
) -> None:
    recorded = {(n, name): f"choice {n} {name}" for n in (1, 2) for name in NAMES[:4]}
    del recorded[2, "node-0"]
    app = TinyApp()
    out = tmp_path / "run"
    with tiny_run(out, federation={"rounds": 2}) as run:
        run.choices = Choices(recorded, all_rounds=True)
        carry_out(run, app)
    told = {(config["round"], name): config["choice"] for _, name, config in app.seen}
    assert told == recorded
    with Store.read(out / "run.db") as store:
        left = [(e.round, e.partition) for e in store.events() if e.kind == "left out"]
    assert left == [(1, "node-4"), (2, "node-0"), (2, "node-4")]


def test_node_state_lies_in_the_checkpoint(tmp_path: Path) -> None:
    """Without it, nodes would count their visits from none again: another update."""
    assert not np.array_equal(
        update(5, 2, "node-0", 0)["fc.weight"], update(5, 2, "node-0", 1)["fc.weight"]
    )
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_tiny(out, _Interrupted(2))
    grid = InlineGrid(TinyApp(), NAMES, {})
    with resumed_run(out) as run:
        assert run.state is not None
        assert run.state.nodes["node-0"]["visits"] == MetricRecord({"n": 1})
        carry_out(run, None, grid=grid)
    assert {c.state["visits"]["n"] for c in grid.contexts.values()} == {3}
