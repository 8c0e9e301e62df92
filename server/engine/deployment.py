"""The deployment engine: a SuperLink on this machine, to which real nodes connect.

The SuperLink is a child of this process. The round loop is not: Flower would start a ServerApp in
a process of its own, but any process may acquire that task, so the caller does, and runs the
rounds itself. So it shows what happens, fails with the cause, and is interrupted like any other
run; and whoever else submits a run to this SuperLink gets no code run by the server.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
from flwr.app import Message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_PATIENCE, SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from client.children import Child, new_secret
from client.errors import ConfigError, RoundError
from client.runtime import TaskSource, heartbeat, is_unauthorized
from server.engine.pulling import PromptGrid

HOST = "127.0.0.1"
"""Flower authenticates nobody who submits a run: only this machine may reach the port."""

START_LIMIT_S = 180.0
"""Flower starts within some 3 s, on a machine under load much later; one that ends is noticed at
once."""

POLL_S = 0.3
"""Pause after a question to the SuperLink that brought no reply; nodes poll every 3 s."""

LOST_LIMIT_S = 20.0
"""How long a SuperLink that does not answer is asked again."""

TASK_LOST = (
    "the SuperLink has ended the run: it heard nothing from this process for "
    f"{HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL} s, as where the machine slept or had no "
    "processor time to give; go on by --resume"
)


class _Grid(HttpGrid):
    """Flower's Grid over HTTP, which asks in measure and gives up a SuperLink that is gone, or that
    has given up this run."""

    def __init__(self, link: Child, port: int, token: str) -> None:
        super().__init__(f"{HOST}:{port}", insecure=True, token=token)
        self._link = link
        self._prompt = PromptGrid(self)
        self._task_lost = threading.Event()
        self._retry_invoker.max_time = LOST_LIMIT_S
        others = self._retry_invoker.should_giveup
        assert others is not None
        # where the task was taken away Flower would send SIGINT to this process
        self._retry_invoker.should_giveup = lambda e: is_unauthorized(e) or others(e)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of the nodes that are connected."""
        with self._lost_told():
            return super().get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        messages = list(messages)
        if not messages:
            return []
        with self._lost_told():
            return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that are there; a short pause if there is none."""
        with self._lost_told():
            replies = self._prompt.pull_messages(message_ids)
        if not replies:
            time.sleep(POLL_S)
        return replies

    def task_lost(self) -> None:
        """The SuperLink has taken the run's task away: the next call fails with that."""
        self._task_lost.set()

    def finish(self, error: BaseException | None) -> None:
        """Tell the SuperLink how the run ended, if it is still there to be told."""
        self._retry_invoker.max_tries = 1
        done = PushTaskOutputRequest(
            sub_status=SubStatus.COMPLETED if error is None else SubStatus.FAILED,
            details="" if error is None else (str(error) or type(error).__name__),
        )
        with contextlib.suppress(httpx.HTTPError):  # it ends with this process in any case
            self._runtime_client.PushTaskOutput(done)
        self.close()

    @contextlib.contextmanager
    def _lost_told(self) -> Iterator[None]:
        if self._task_lost.is_set():
            raise RoundError(TASK_LOST)
        try:
            yield
        except httpx.HTTPStatusError as e:
            if not is_unauthorized(e):
                raise
            raise RoundError(TASK_LOST) from None
        except httpx.TransportError as e:
            ended = self._link.exit_code is not None
            what = f"has ended: {self._link.how_it_ended()}" if ended else f"does not answer: {e}"
            raise RoundError(f"the SuperLink {what}; see {self._link.log}") from None


@contextlib.contextmanager
def deployment(bundle: Fab, port: int, home: Path) -> Iterator[Grid]:
    """A Grid to the nodes that connect to ``port`` of this machine, for one run.

    ``home``: where the SuperLink's log and secret lie. ConfigError where the port is taken;
    RoundError if the SuperLink does not start. All ends with the context.
    """
    secret = new_secret(home / "superlink.secret")
    with _superlink(port, secret, home) as link:
        tasks = TaskSource(f"{HOST}:{port}", TaskType.SERVER_APP, secret)
        try:
            _submit(bundle, port)
            token = tasks.wait(START_LIMIT_S, POLL_S)
        finally:
            tasks.close()
        if token is None:
            raise RoundError(f"the SuperLink did not start the run: {link.last_words()}")
        grid = _Grid(link, port, token)
        error: BaseException | None = None
        try:
            with heartbeat(grid._runtime_client, grid.task_lost):
                task = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
                if task.run.fab_hash != bundle.hash_str:
                    raise RoundError("somebody else submitted a run to this SuperLink: start again")
                TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
                TaskIdentity.node_id = task.context.node_id
                grid.set_run(run_from_proto(task.run))
                yield grid
        except BaseException as e:
            error = e
            raise
        finally:
            grid.finish(error)


def check_port(port: int) -> None:
    """ConfigError where somebody listens on ``port`` of this machine already."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((HOST, port))
        except OSError as e:
            raise ConfigError(
                f"--port {port}: cannot be used ({(e.strerror or str(e)).lower()}): "
                "name another port, or end the program that listens there"
            ) from None


@contextlib.contextmanager
def _superlink(port: int, secret: Path, home: Path) -> Iterator[Child]:
    check_port(port)
    where = ["--host", HOST, "--port", str(port)]
    guarded = ["--isolation", "process", "--superexec-auth-secret-file", str(secret.resolve())]
    link = Child(
        "client.flower",
        ["superlink", "--insecure", *where, *guarded],
        home,
        home / "superlink.log",
    )
    try:
        _wait_for_health(link, port)
        yield link
    finally:
        link.stop()


def _wait_for_health(link: Child, port: int) -> None:
    end_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end_s:
        if link.exit_code is not None:
            raise RoundError(f"the SuperLink ended: {link.how_it_ended()}; see {link.log}")
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=2.0),
        ):
            return
        time.sleep(POLL_S)
    raise RoundError(f"the SuperLink did not start within {START_LIMIT_S:g} s; see {link.log}")


def _submit(bundle: Fab, port: int) -> None:
    client = ControlHttpClient.from_server_address(
        f"{HOST}:{port}",
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        answer = client.StartRun(StartRunRequest(fab=fab_to_proto(bundle)))
    except httpx.HTTPStatusError as e:
        raise RoundError(f"the SuperLink refused the run: {e.response.text.strip()}") from None
    finally:
        client.close()
    if not answer.HasField("run_id"):
        raise RoundError("the SuperLink refused the run: the experiment is too large for a bundle")
