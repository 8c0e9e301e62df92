"""A node's own part: is the server there, and what is kept in the node's folder."""

from __future__ import annotations

import errno
import itertools
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from client import join
from client.errors import ConfigError
from tests import fakes


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


class Another(Healthy):
    def do_GET(self) -> None:
        self.send_error(404)


@contextmanager
def answering(handler: type[Healthy]) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def tunnel_without_a_server() -> Iterator[str]:
    """As ssh's, which accepts a connection before it finds that the other end refuses it."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()

        def hang_up() -> None:
            s.accept()[0].close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        yield f"127.0.0.1:{s.getsockname()[1]}"
        thread.join(10)


def test_a_server_is_there_when_it_says_so() -> None:
    with answering(Healthy) as server:
        assert join._trouble(server) == ""
    with answering(Another) as server:
        assert join._trouble(server) == "not Flower's: HTTP status 404"
    with tunnel_without_a_server() as server:
        assert join._trouble(server) != ""
    with socket.socket() as taken:  # by somebody who does not listen
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        assert join._trouble(nobody) == "connection refused"


def test_each_trouble_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["reset", "closed", "reset", "closed", ""])
    monkeypatch.setattr(join, "_trouble", lambda server: next(answers))
    monkeypatch.setattr(join, "ASK_S", 0.01)
    told: list[str] = []
    join._wait_for_server(node(tmp_path), told.append)
    assert told == [
        "server 127.0.0.1:1 does not answer (reset): asking every 0.01 s",
        "server 127.0.0.1:1 does not answer (closed): asking every 0.01 s",
        "server 127.0.0.1:1 is there",
    ]


def node(folder: Path, name: str = "node") -> join.Node:
    return join.Node("127.0.0.1:1", name, folder / "x.npz", 1, folder / "state")


def test_the_identity_stays_and_is_this_users_alone(tmp_path: Path) -> None:
    with join._own(node(tmp_path)) as identity:
        file = tmp_path / "state" / "identity"
        assert len(identity) == 32
        assert file.stat().st_mode & 0o777 == 0o600
    with join._own(node(tmp_path)) as again:
        assert again == identity


def test_a_full_disk_names_the_folder_and_leaves_no_half_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    said = rf"--state {re.escape(str(tmp_path))}/state: cannot be used: no space left on device"
    with pytest.raises(ConfigError, match=said), join._own(node(tmp_path)):
        pass
    assert [p.name for p in (tmp_path / "state").iterdir()] == ["lock"]


def test_who_the_node_is_stands_in_a_file_and_on_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other users can read command lines; and a large model would not fit there."""
    started: list[list[str]] = []

    class Recorded:
        def __init__(self, module: str, arguments: list[str], *rest: Any, **more: Any) -> None:
            started.append(arguments)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(join, "Child", Recorded)
    with (
        join._own(node(tmp_path)) as identity,
        join._Life(node(tmp_path), identity, {}, print),
    ):
        file = tmp_path / "state" / "node.json"
        assert json.loads(file.read_text())["identity"] == identity
        assert file.stat().st_mode & 0o777 == 0o600
        assert str(file) in started[-1]
        assert not any(identity in text for arguments in started for text in arguments)


def test_a_runner_that_ends_in_mid_reply_takes_the_supernode_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's SuperNode would wait for the reply's other half for ever, and hear nothing else."""

    class Ended:
        began_s = 0.0

        def __init__(self, module: str, arguments: list[str], *rest: Any, **more: Any) -> None:
            self.exit_codes: Iterator[int | None] = iter(
                [None, None, None, 1]
            )  # a SuperNode's; it ends sometime
            (tmp_path / "state" / "supernode.log").touch()
            if module == "client.runner":
                self.exit_codes = itertools.repeat(-9)
                Path(arguments[arguments.index("--handing-over") + 1]).touch()

        @property
        def exit_code(self) -> int | None:
            return next(self.exit_codes, 1)

        def how_it_ended(self) -> str:
            return "SIGKILL"

        def stop(self) -> None:
            pass

    monkeypatch.setattr(join, "Child", Ended)
    monkeypatch.setattr(join, "POLL_S", 0.0)
    with (
        join._own(node(tmp_path)) as identity,
        join._Life(node(tmp_path), identity, {}, print) as life,
    ):
        said = life.watch()
    assert said == "the runner has ended (SIGKILL) before its reply was handed over"


def test_a_runner_that_keeps_ending_is_started_less_and_less_often() -> None:
    pauses = [0.0]
    for _ in range(8):
        pauses.append(join.pause_after(2.0, pauses[-1]))
    assert pauses[1:] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert join.pause_after(60.0, 60.0) == 1


def test_a_schedule_of_a_nodes_own_is_refused(tmp_path: Path) -> None:
    data = fakes.write_examples(tmp_path / "data.npz", 12)
    model = tmp_path / "small.yaml"
    model.write_text(yaml.safe_dump(fakes.MODEL))
    settings = ("train.lr=0.1", "train.frozen=[fc1]")
    node = join.describe("127.0.0.1:1", data, model=model, settings=settings)
    assert node.experiment is not None
    assert node.experiment.train.frozen == ("fc1",)
    settings = (*settings, "train.schedule={kind: step, step_rounds: 2}")
    with pytest.raises(ConfigError, match=r"--model .*: train\.schedule: rounds are counted by"):
        join.describe("127.0.0.1:1", data, model=model, settings=settings)
