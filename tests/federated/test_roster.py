"""Nodes that come and go, and who they are."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict
from test_simulate import base, experiment
from tiny import Clock, tiny_run

from client import __version__, wire
from client.app import app as client_app
from client.errors import RoundError
from server.app import main as server_main
from server.engine import roster as roster_module
from server.engine.inline import InlineGrid
from server.engine.roster import Roster, gather
from server.observer import Observer
from server.store import Store

__all__ = ["base"]

NAMES = ["node-0", "node-1", "node-2", "node-3"]


class Town(InlineGrid):
    """An inline Grid whose nodes can be away, or slow to answer."""

    def __init__(self, folder: Path) -> None:
        config = {"experiment": json.dumps(experiment().to_dict()), "base": str(folder)}
        super().__init__(self.answer, NAMES, config)
        self.old: set[int] = set()
        self.away: set[int] = set()
        self.silent: set[int] = set()
        self.sent: list[Message] = []

    def answer(self, message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        if context.node_id in self.old:
            reply.content["record"]["version"] = "0.0.9"
        return reply

    def get_node_ids(self) -> list[int]:
        return [i for i in super().get_node_ids() if i not in self.away]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        self.sent += messages
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        silent = {m.metadata.message_id for m in self.sent if m.metadata.dst_node_id in self.silent}
        return super().pull_messages(set(message_ids) - silent)

    def refusals(self, node_id: int) -> list[str]:
        """What a node was told by the server about being refused."""
        told = [m for m in self.sent if m.metadata.dst_node_id == node_id]
        return [text for m in told if (text := wire.refusal(m))]


def settle(roster: Roster) -> list[str]:
    for _ in range(6):
        roster.refresh()
    return sorted(roster.names.values())


@pytest.fixture
def town(base: Path, monkeypatch: pytest.MonkeyPatch) -> Town:
    """Waiting for its nodes takes no time, however slow this machine is."""
    monkeypatch.setattr(roster_module, "time", Clock())
    return Town(base)


def test_nodes_with_a_partition_id_alone_say_which_share_they_hold(town: Town) -> None:
    for context in town.contexts.values():
        del context.node_config["name"]
    assert settle(Roster(town)) == NAMES


def test_late_nodes_are_taken_in_and_nodes_that_left_are_left_out(town: Town) -> None:
    notes: list[tuple[str, str | None]] = []
    roster = Roster(town, lambda kind, text, name: notes.append((kind, name)))
    late = town.get_node_ids()[3]
    town.away = {late}
    assert settle(roster) == NAMES[:3]
    town.away = {town.get_node_ids()[0]}
    assert settle(roster) == NAMES[1:]
    assert notes[-2:] == [("left", "node-0"), ("joined", "node-3")]


def test_a_node_that_never_answers_holds_nobody_up(town: Town) -> None:
    town.silent = {town.get_node_ids()[1]}
    roster = Roster(town)
    assert settle(roster) == ["node-0", "node-2", "node-3"]
    assert sorted(roster.wait(3, 3, 5, lambda connected, wanted: None).values()) == settle(roster)


def test_two_nodes_of_one_name_are_told_apart_by_their_identity(town: Town) -> None:
    first, second = town.get_node_ids()[:2]
    town.contexts[second].node_config["name"] = "node-0"
    town.contexts[first].node_config["identity"] = "a"
    town.contexts[second].node_config["identity"] = "b"
    town.away = {second}
    roster = Roster(town)
    settle(roster)
    town.away = set()
    settle(roster)
    assert roster.names[first] == "node-0"
    assert second not in roster.names
    assert town.refusals(second) == ["another node is called 'node-0': join with another --name"]


def test_a_node_that_was_started_again_takes_its_former_place(town: Town) -> None:
    """Flower keeps its former id online until a heartbeat is missed for long enough."""
    first, second = town.get_node_ids()[:2]
    town.contexts[second].node_config["name"] = "node-0"
    for node_id in (first, second):
        town.contexts[node_id].node_config["identity"] = "a"
    town.away = {second}
    roster = Roster(town)
    settle(roster)
    town.away = set()
    settle(roster)
    assert "node-0" in roster.names.values()
    assert roster.names[second] == "node-0"
    assert first not in roster.names


def test_a_node_of_another_version_is_refused_with_both(town: Town) -> None:
    notes: list[str] = []
    town.old = {old := town.get_node_ids()[2]}
    roster = Roster(town, lambda kind, text, name: notes.append(f"{kind}: {text}"))
    assert settle(roster) == ["node-0", "node-1", "node-3"]
    text = (
        f"server and node differ in version: server {__version__}, node 0.0.9: "
        "install the same pocketfed on both sides"
    )
    assert f"refused: node {old}: {text}" in notes
    assert town.refusals(old) == [text]


def test_waiting_is_told_and_bounded(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    told: list[tuple[int, int]] = []
    town.away = set(town.get_node_ids()[2:])
    roster = Roster(town)
    with pytest.raises(RoundError, match=r"2 of 3 nodes connected within 9 s: start nodes by"):
        roster.wait(3, 3, 9.0, lambda connected, wanted: told.append((connected, wanted)))
    assert told == [(1, 3), (2, 3)]
    assert caplog.messages == ["1 of 3 nodes connected", "2 of 3 nodes connected"]
    assert len(roster.wait(4, 2, 9.0, lambda connected, wanted: None)) == 2


def test_flwr_run_prints_who_is_there_and_each_round(
    town: Town, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which is what `flwr log` shows; and the same stands in the run's log."""
    value = json.dumps(experiment().to_dict())
    config = {"experiment": value, "base": str(base), "out": str(tmp_path / "run")}
    server_main(town, Context(1, 0, {}, RecordDict(), config))
    printed = capsys.readouterr().out
    for text in ("1 of 4 nodes connected", "4 of 4 nodes connected", "round 1/"):
        assert text in printed
    assert "4 of 4 nodes connected" in (tmp_path / "run" / "log.txt").read_text()


def test_why_there_are_too_few_nodes_is_told(town: Town) -> None:
    first, second, third, _ = town.get_node_ids()
    town.old, town.silent, town.away = {first}, {second}, {third}
    with pytest.raises(RoundError) as e:
        Roster(town).wait(4, 4, 9.0, lambda connected, wanted: None)
    assert str(e.value).startswith(
        "1 of 4 nodes connected within 9 s (1 more have not said who they are; 1 refused, "
        "the first because server and node differ in version: "
    )


def test_a_run_that_begins_with_fewer_nodes_says_so(town: Town, tmp_path: Path) -> None:
    town.away = set(town.get_node_ids()[2:])
    out = tmp_path / "run"
    with tiny_run(out) as run:
        nodes = gather(town, experiment().federation, 4, 9.0, run.store, Observer())
    assert sorted(nodes.names.values()) == NAMES[:2]
    with Store.read(out / "run.db") as store:
        assert ("nodes", "begins with 2 of 4 nodes after 9 s") in [
            (e.kind, e.message) for e in store.events()
        ]
