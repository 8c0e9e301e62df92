"""The ray engine: Flower's simulation runtime, which runs nodes in processes of their own.

Flower starts a ServerApp in a thread and nodes in Ray's actors. The ServerApp here does nothing but
hand its Grid over, so that the round loop stays in the caller's thread: it is interrupted, fails
and shows progress as on the inline engine, and no daemon is left behind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from client import wire
from client.app import app
from client.children import environment, signals_as_interrupt
from client.errors import MissingExtraError, RoundError
from client.temporary import TemporaryFolder
from server.engine.delegate import DelegatingGrid

START_LIMIT_S = 300.0
"""Ray starts within some 10 s, and its nodes as long after; a machine under load takes longer."""

STOP_LIMIT_S = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _WithConfig:
    """The installed ClientApp, given the run's config, which this runtime has no place for."""

    config: Mapping[str, bool | float | int | str]

    def __call__(self, message: Message, context: Context) -> Message:
        given = copy(context)  # Flower refuses a Context that came back with another config
        given.run_config = dict(self.config)
        reply = app(message, given)
        context.state = given.state
        return reply


class _Runtime:
    """Flower's runtime in a thread: hands its Grid over, and says if it crashed."""

    def __init__(self, num_nodes: int, run_config: Mapping[str, bool | float | int | str]) -> None:
        self.crash: BaseException | None = None
        self._num_nodes = num_nodes
        self._node = ClientApp()
        work = _WithConfig(run_config)
        self._node.train()(work)
        self._node.evaluate()(work)
        self._node.query(wire.WHO.partition(".")[2])(work)
        self._grids: queue.Queue[Grid] = queue.Queue()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="simulation runtime")

    def start(self) -> Grid:
        """The Grid; RoundError if there is none in time."""
        self._thread.start()
        for _ in range(int(START_LIMIT_S)):
            self.check()
            with contextlib.suppress(queue.Empty):
                return self._grids.get(timeout=1.0)
        raise RoundError(f"Flower's simulation runtime did not start within {START_LIMIT_S:g} s")

    def check(self) -> None:
        """RoundError if the runtime crashed."""
        if self.crash is not None:
            kind, cause = type(self.crash).__name__, self.crash.__cause__ or self.crash
            raise RoundError(f"Flower's simulation runtime crashed: {kind}: {cause}")

    def stop(self) -> None:
        """Let the ServerApp return and the nodes end."""
        self._done.set()
        self._thread.join(STOP_LIMIT_S)

    def _run(self) -> None:
        from flwr.server.superlink.fleet.vce.backend.backend import BackendConfig
        from flwr.simulation import run_simulation

        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self._grids.put(grid)
            self._done.wait()

        resources: BackendConfig = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}
        try:
            run_simulation(server, self._node, self._num_nodes, backend_config=resources)
        except Exception as e:  # noqa: BLE001 (whatever it is, who waits must learn of it)
            self.crash = e
            self._done.set()


class _WatchedGrid(DelegatingGrid):
    """Pulling replies fails if the runtime has crashed, rather than waiting for them."""

    def __init__(self, grid: Grid, runtime: _Runtime) -> None:
        super().__init__(grid)
        self._runtime = runtime

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that are there."""
        self._runtime.check()
        return self._grid.pull_messages(message_ids)


def require_ray() -> None:
    """MissingExtraError where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("ray", "ray", "the engine 'ray'")


@contextlib.contextmanager
def simulation(
    num_nodes: int, run_config: Mapping[str, bool | float | int | str]
) -> Iterator[Grid]:
    """A Grid to ``num_nodes`` nodes, which end with the context.

    ``run_config``: what client/app.py reads. MissingExtraError where Ray is not installed;
    RoundError if the runtime does not start.
    """
    require_ray()
    with _ray():
        runtime = _Runtime(num_nodes, run_config)
        try:
            yield _WatchedGrid(runtime.start(), runtime)
        finally:
            runtime.stop()


@contextlib.contextmanager
def _ray() -> Iterator[None]:
    """Ray, started in an empty folder: its processes put the folder they start in on sys.path."""
    import ray

    quiet = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or Ray hides GPUs from the nodes
        **environment(),
    }
    with TemporaryFolder(room=85) as folder:
        empty = folder.path / "empty"
        empty.mkdir()
        with _environment(quiet), contextlib.chdir(empty):
            ray.init(
                include_dashboard=False,
                logging_level="ERROR",
                log_to_driver=False,
                _temp_dir=str(folder.path),
            )
        try:
            with signals_as_interrupt():  # Ray has taken SIGTERM for itself
                yield
        except RoundError:
            for line in _last_words(folder.path):
                log.warning("%s", line)
            raise
        finally:
            ray.shutdown()


def _last_words(home: Path) -> list[str]:
    """The last line of each log of Ray's in which a process may have said why it failed."""
    logs = sorted(home.glob("session_2*/logs/*.err"))  # not those by its other name
    texts = ((path.name, path.read_text(errors="replace").split("\n")) for path in logs)
    said = ((name, [line for line in lines if line.strip()]) for name, lines in texts)
    return [f"Ray: {name}: {lines[-1]}" for name, lines in said if lines]


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """``values`` over the environment inside, which processes started there inherit."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
