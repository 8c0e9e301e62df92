"""Replies over HTTP: taken as they become whole, whatever the others do; a task that was lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from client import wire
from client.children import Child
from client.errors import RoundError
from client.runtime import heartbeat
from server.engine.deployment import HOST, TASK_LOST, _Grid
from server.engine.pulling import PromptGrid

RUN_ID = 7


class SuperLink:
    """What a Grid asks of a SuperLink, with its habits: a header is handed out once."""

    def __init__(self) -> None:
        self.headers: dict[str, Message] = {}  # id of the message replied to -> reply
        self.objects: dict[str, bytes] = {}  # empty: not here yet
        self.asked: list[str] = []  # whose header was handed out
        self.pulled: list[str] = []
        self.confirmed: list[str] = []

    def reply(self, value: float, kind: str = "train") -> str:
        """A node's reply, all of it; the id of the message that it answers."""
        task = Message(RecordDict(), 1, kind)
        task.metadata.__dict__["_message_id"] = message_id = f"task {value:g}"
        arrays = ArrayRecord({"w": _array(value), "b": _array(value + 0.5)})
        reply = Message(RecordDict({"arrays": arrays}), reply_to=task)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.headers[message_id] = reply
        self.objects |= {k: v.deflate() for k, v in get_all_nested_objects(reply).items()}
        return message_id

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        assert not set(request.message_ids) & set(self.asked), "there is no such message any more"
        found = [self.headers[i] for i in request.message_ids if i in self.headers]
        self.asked += [m.metadata.reply_to_message_id for m in found]
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(m)) for m in found],
            message_object_trees=[get_object_tree(m) for m in found],
        )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        content = self.objects.get(request.object_id)
        if content:
            self.pulled.append(request.object_id)
        return PullObjectResponse(
            object_found=content is not None,
            object_available=bool(content),
            object_content=content or b"",
        )

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)


def _array(value: float) -> Array:
    return Array(np.full(5, value, np.float32))


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> SuperLink:
    for name in ("_task_id", "_run_id", "_node_id"):  # of whoever makes a message
        monkeypatch.setattr(TaskIdentity, name, RUN_ID)
    return SuperLink()


@pytest.fixture
def grid(link: SuperLink) -> PromptGrid:
    http = HttpGrid("127.0.0.1:1", insecure=True, token="none")
    http._client = cast(Any, link)
    http.set_run(Run.create_empty(RUN_ID))
    return PromptGrid(http)


def values(replies: list[Message]) -> list[float]:
    return sorted(float(m.content.array_records["arrays"]["w"].numpy()[0]) for m in replies)


@contextmanager
def held_back(link: SuperLink, message_id: str) -> Iterator[str]:
    """One array of a reply is on its way inside."""
    objects = get_all_nested_objects(link.headers[message_id])
    leaf = next(k for k, v in objects.items() if type(v).__name__ == "ArrayChunk")
    content, link.objects[leaf] = link.objects[leaf], b""
    yield leaf
    link.objects[leaf] = content


@pytest.mark.timeout(60)  # Flower's own Grid would wait for minutes
def test_a_reply_on_its_way_holds_nobody_up(link: SuperLink, grid: PromptGrid) -> None:
    ids = [link.reply(value) for value in (1, 2, 3)]
    with held_back(link, ids[0]):
        replies = grid.pull_messages([*ids, "task 4"])
        assert values(replies) == [2, 3]
        assert grid.pull_messages([ids[0], "task 4"]) == []
        ids.append(link.reply(4))
        assert values(grid.pull_messages([ids[0], "task 4"])) == [4]
        assert len(link.confirmed) == 3
    (late,) = grid.pull_messages([ids[0]])
    assert values([late]) == [1]
    assert late.metadata.reply_to_message_id == ids[0]
    assert late.metadata.message_id == link.headers[ids[0]].metadata.message_id
    assert len(link.confirmed) == 4
    assert len(link.pulled) == len(set(link.pulled)), "what was there was pulled again"


def test_a_late_reply_is_forgotten(link: SuperLink, grid: PromptGrid) -> None:
    """Whole or not: nothing of it stays in memory for as long as the run lasts."""
    late, other = link.reply(1), link.reply(2)
    with held_back(link, late):
        assert grid.pull_messages([late]) == []
        assert list(grid._arriving) == [late]
        assert values(grid.pull_messages([other])) == [2]
        assert grid._arriving == {}


def test_who_a_node_is_may_be_asked_for_between_rounds_alone(
    link: SuperLink, grid: PromptGrid
) -> None:
    answer, other = link.reply(1, wire.WHO), link.reply(2)
    with held_back(link, answer):
        assert grid.pull_messages([answer]) == []
    assert values(grid.pull_messages([other])) == [2]
    assert values(grid.pull_messages([answer])) == [1]


def test_a_reply_that_was_dropped_is_an_error(link: SuperLink, grid: PromptGrid) -> None:
    """As where the node is gone for as long as Flower keeps what it has sent."""
    broken, whole = link.reply(1), link.reply(2)
    with held_back(link, broken) as leaf:
        assert values(grid.pull_messages([broken, whole])) == [2]
        del link.objects[leaf]
        (reply,) = grid.pull_messages([broken])
        assert reply.has_error()
        assert reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE
        assert reply.metadata.reply_to_message_id == broken
        assert "broke off" in reply.error.reason
        link.objects[leaf] = b""


# -- a task that was taken away -----------------------------------------------------------------


class _Refuses(BaseHTTPRequestHandler):
    """A SuperLink that does not know the task's token any more."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(401)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def refusing_port() -> Iterator[int]:
    with HTTPServer((HOST, 0), _Refuses) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def new_grid(port: int) -> _Grid:
    child = Child.__new__(Child)
    child.log = Path("superlink.log")
    return _Grid(child, port, "token")


def test_a_task_that_was_taken_away_fails_the_run_and_is_no_ctrl_c(refusing_port: int) -> None:
    grid = new_grid(refusing_port)
    with pytest.raises(RoundError) as e:
        grid.get_node_ids()
    assert str(e.value) == TASK_LOST
    grid.finish(e.value)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_heartbeat_that_comes_too_late_tells_whoever_waits(refusing_port: int) -> None:
    grid = new_grid(refusing_port)
    told = threading.Event()

    def lost() -> None:
        grid.task_lost()
        told.set()

    with heartbeat(grid._runtime_client, lost):
        assert told.wait(60)
    with pytest.raises(RoundError, match="heard nothing from this process for 60 s"):
        grid.pull_messages(["a"])
    grid.close()
