"""A machine as a node: keeps Flower's SuperNode, our runner and the device worker alive.

    this process ── SuperNode (Flower: talks to the server)
                 ├─ runner (carries out messages; client/runner.py)
                 └─ broker ── worker (trains; client/worker)

Whatever ends is started again, for as long as this process lives; Flower's SuperNode ends by itself
when the server does not know it any more. A server that is not there is asked again for ever.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from uuid import uuid4

from client import data
from client.backends import names as backend_names
from client.cache import write_atomically
from client.children import Child, free_port, new_secret
from client.config import Experiment, apply_setting, load_experiment
from client.errors import ConfigError, did_you_mean
from client.fields import find_config, parse, read_yaml
from client.lock import HeldError, take
from client.worker.supervisor import hosted_worker

POLL_S = 0.5
ASK_S = 3.0
"""How often a server that is not there is asked again."""

ANSWER_LIMIT_S = 5.0
"""How long a server may take to say that it is there."""

AGAIN_S = 5.0
"""Pause before a SuperNode that has ended is started again; a server may hold on to a node's former
life for a minute and more, and refuse it until then."""

RUNNER_AGAIN_S, RUNNER_LONGEST_S = 1.0, 60.0
"""First and longest pause before a runner that has ended is started again."""

STEADY_S = 60.0
"""A runner that lived as long as this had no trouble with its start."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Node:
    """What this machine is to a federation. ``state``: a folder of its own, kept over restarts."""

    server: str
    name: str
    data: Path
    num_examples: int
    state: Path
    backend: str | None = None
    experiment: Experiment | None = None  # of its own, for a server that is not pocketfed's


def describe(
    server: str,
    path: Path,
    name: str | None = None,
    backend: str | None = None,
    state: Path | None = None,
    model: Path | None = None,
    settings: tuple[str, ...] = (),
) -> Node:
    """A node from options; ConfigError or DataError names the one that cannot be."""
    found = re.fullmatch(r"([\w.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", server, re.ASCII)
    if found is None or not 0 < int(found[2]) < 65536:
        raise ConfigError(f"--server {server}: needs HOST:PORT, as in 127.0.0.1:8000")
    allowed = backend_names()
    if backend is not None and backend not in allowed:
        raise ConfigError(
            f"--backend {backend}: allowed: {', '.join(allowed)}{did_you_mean(backend, allowed)}"
        )
    name = name or path.stem
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(
            f"--name {name!r}: allowed: letters, digits, '-', '_', '.', beginning with a letter, "
            "a digit or '_'"
        )
    experiment = None
    if model is not None:
        experiment = _own_experiment(model, settings)
        own, loss = experiment.build(str(model)), experiment.train.recipe.loss
        cut = data.cut_for(own, loss, experiment.data.stride)
        dataset = data.fit_to(data.load(str(path), None, cut), own, loss)
    elif settings:
        raise ConfigError("--set goes with --model: a server of ours sends the experiment")
    else:
        dataset = data.load(str(path))  # a file that cannot be trained on is found now
    home = (state or _state_home() / name).resolve()
    return Node(server, name, path.resolve(), len(dataset), home, backend, experiment)


def _own_experiment(path: Path, settings: tuple[str, ...]) -> Experiment:
    """From an experiment's file, or a model's with the hyperparameters in ``settings``.

    ConfigError where it has a schedule: the rounds are the server's, which may send an lr.
    """
    experiment = _read_own(path, settings)
    if experiment.train.schedule.kind != "constant" or experiment.train.schedule.warmup_rounds:
        raise ConfigError(
            f"--model {path}: train.schedule: rounds are counted by the server, which sends an lr "
            "or leaves train.lr as it is: remove train.schedule"
        )
    return experiment


def _read_own(path: Path, settings: tuple[str, ...]) -> Experiment:
    if path.is_file() and "layers" not in read_yaml(path):
        return load_experiment(path, settings)
    if not path.is_file():
        path = find_config(str(path), "models", path.parent, f"--model {path}")
    model = read_yaml(path)
    value: dict[str, Any] = {
        "name": model.get("name"),
        "model": model,
        "data": {"source": "its own file", "partition": {"nodes": 1}},
        "train": {},
        "federation": {"rounds": 1},
    }
    for setting in settings:
        apply_setting(value, setting)
    if "lr" not in value["train"]:
        raise ConfigError(
            f"--model {path}: the file says nothing of training: add --set train.lr=0.05 "
            "or the like, or give an experiment's file"
        )
    return parse(Experiment, value, str(path))


def join(node: Node, tell: Tell) -> None:
    """Be a node until interrupted. ``tell`` is told what a person should know.

    ConfigError where another process is this node already.
    """
    with _own(node) as identity:
        tell(f"{node.name}: {node.num_examples} examples of {node.data.name}, for {node.server}")
        with contextlib.suppress(KeyboardInterrupt), hosted_worker(home=node.state) as variables:
            while True:
                _wait_for_server(node, tell)
                with _Life(node, identity, variables, tell) as life:
                    tell(f"{life.watch()}: starting again in {AGAIN_S:g} s")
                time.sleep(AGAIN_S)
        tell(f"{node.name}: stopped")


class _Life:
    """A SuperNode and a runner, from their start until the SuperNode ends."""

    def __init__(self, node: Node, identity: str, variables: dict[str, str], tell: Tell) -> None:
        self._node = node
        self._variables = variables
        self._tell = tell
        self._config = node.state / "node.json"
        with _state_told(node):
            self._secret = new_secret(node.state / "runtime.secret")
            write_atomically(self._config, json.dumps(_config(node, identity)).encode(), 0o600)
        self._runtime = f"127.0.0.1:{free_port()}"
        self._log = node.state / "supernode.log"
        self._log.unlink(missing_ok=True)
        self._handing_over = node.state / "handing-over"
        self._handing_over.unlink(missing_ok=True)
        self._children: list[Child] = []

    def __enter__(self) -> _Life:
        try:
            self._supernode = self._start_supernode()
            self._runner: Child | None = self._start_runner()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def watch(self) -> str:
        """Returns when the SuperNode has ended, or can hear nothing more, and says why. A runner
        that ended is replaced."""
        connected, trouble, asked_s = False, "", time.monotonic()
        pause_s, again_s = 0.0, 0.0
        while self._supernode.exit_code is None:
            time.sleep(POLL_S)
            if not connected and b"SuperNode ID:" in self._log.read_bytes():
                connected = True
                self._tell(f"{self._node.name}: connected to {self._node.server}")
            if self._runner is None:
                if time.monotonic() >= again_s:
                    self._runner = self._start_runner()
            elif self._runner.exit_code is not None:
                how = self._runner.how_it_ended()
                if self._handing_over.exists():  # the SuperNode would wait for the rest for ever
                    return f"the runner has ended ({how}) before its reply was handed over"
                pause_s = pause_after(time.monotonic() - self._runner.began_s, pause_s)
                again_s = time.monotonic() + pause_s
                self._tell(f"the runner has ended ({how}): starting again in {pause_s:g} s")
                self._runner.stop()
                self._children.remove(self._runner)
                self._runner = None
            if time.monotonic() - asked_s > ASK_S:
                trouble, before = _trouble(self._node.server), trouble
                asked_s = time.monotonic()
                if bool(trouble) != bool(before):
                    state = f"does not answer ({trouble}): asking again"
                    self._tell(
                        f"server {self._node.server} {state if trouble else 'is there again'}"
                    )
        if self._supernode.exit_code == 0:
            return "the server does not know this node any more, as after a new start"
        return f"the SuperNode has ended ({self._supernode.how_it_ended()})"

    def _start_supernode(self) -> Child:
        host, _, port = self._runtime.rpartition(":")
        where = ["--superlink", self._node.server, "--host", host, "--port", port]
        guarded = ["--isolation", "process", "--superexec-auth-secret-file", str(self._secret)]
        arguments = ["supernode", "--insecure", *where, *guarded]
        child = Child("client.flower", arguments, self._node.state, self._log)
        self._children.append(child)
        return child

    def _start_runner(self) -> Child:
        options = {
            "runtime": self._runtime,
            "secret": str(self._secret),
            "node": str(self._config),
            "handing-over": str(self._handing_over),
        }
        child = Child(
            "client.runner",
            [text for name, value in options.items() for text in (f"--{name}", value)],
            self._node.state,
            self._node.state / "runner.log",
            speaks=True,
            extra=self._variables,
        )
        self._children.append(child)
        return child

    def _stop(self) -> None:
        for child in reversed(self._children):
            child.stop()


def pause_after(lived_s: float, before_s: float) -> float:
    """How long a runner that lived for ``lived_s`` is not started again, in seconds: twice the
    pause before, unless it had been steady."""
    if lived_s >= STEADY_S or before_s == 0:
        return RUNNER_AGAIN_S
    return min(RUNNER_LONGEST_S, 2 * before_s)


def _config(node: Node, identity: str) -> dict[str, str]:
    """What the ClientApp finds in its context's node config."""
    config = {"name": node.name, "data": str(node.data), "identity": identity}
    if node.backend is not None:
        config["backend"] = node.backend
    if node.experiment is not None:
        config["experiment"] = json.dumps(node.experiment.to_dict())
    return config


def _wait_for_server(node: Node, tell: Tell) -> None:
    told: set[str] = set()
    while trouble := _trouble(node.server):
        if trouble not in told:  # a tunnel hangs up in more than one way
            tell(f"server {node.server} does not answer ({trouble}): asking every {ASK_S:g} s")
            told.add(trouble)
        time.sleep(ASK_S)
    if told:
        tell(f"server {node.server} is there")


def _trouble(server: str) -> str:
    """Why no Flower server answers there; nothing if one does.

    That somebody accepts the connection means nothing: a tunnel does, whether or not there is a
    server at its other end.
    """
    host, _, port = server.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=ANSWER_LIMIT_S)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as e:
        return (getattr(e, "strerror", None) or str(e) or type(e).__name__).lower()
    finally:
        connection.close()
    return "" if status == HTTPStatus.OK else f"not Flower's: HTTP status {status}"


def _state_home() -> Path:
    """$XDG_STATE_HOME/pocketfed/nodes, by default below ~/.local/state."""
    xdg = os.environ.get("XDG_STATE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".local" / "state") / "pocketfed" / "nodes"


@contextlib.contextmanager
def _own(node: Node) -> Iterator[str]:
    """The node's identity, which stays over restarts; one process at a time is this node."""
    with _state_told(node):
        node.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            held = take(node.state / "lock")
        except HeldError as e:
            raise ConfigError(
                f"'{node.name}' has joined already (process {e}, state in {node.state}): "
                "join with another --name, or another --state"
            ) from None
    with held:
        file = node.state / "identity"
        with _state_told(node):
            if not file.is_file():
                write_atomically(file, uuid4().hex.encode(), 0o600)
            identity = file.read_text()
        yield identity.strip()


@contextlib.contextmanager
def _state_told(node: Node) -> Iterator[None]:
    """What cannot be written inside is the state folder's trouble."""
    try:
        yield
    except OSError as e:
        raise ConfigError(
            f"--state {node.state}: cannot be used: {(e.strerror or str(e)).lower()}"
        ) from None
