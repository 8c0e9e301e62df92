"""What runner and server need of Flower's Runtime API: acquire a task, keep it, report its end.

Flower's own ``flower-superexec`` acquires a task and starts a process of its own for each; ours are
carried out by the process that acquires them. Acquiring needs a secret of this start, so that no
other user of the machine can take a task away.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"

BUSY = (httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT)
"""Answers after which a heartbeat is tried again."""


class TaskSource:
    """Where tasks of one kind come from: a SuperLink's or SuperNode's Runtime API."""

    def __init__(self, address: str, kind: str, secret: Path) -> None:
        self._kind = kind
        self._client = RuntimeHttpClient.from_server_address(
            address,
            insecure=True,
            root_certificates=None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperExec"),
                SuperExecAuthHttpInterceptor(
                    master_secret=secret.read_bytes(), protected_methods={ACQUIRE}
                ),
            ],
        )

    def acquire(self) -> str | None:
        """The token of the oldest task that waits, None if there is none or nobody answers."""
        try:
            task = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[self._kind]))
        except httpx.TransportError:
            return None
        return task.token or None

    def wait(self, limit_s: float, poll_s: float) -> str | None:
        """As ``acquire``, but waits for a task."""
        end_s = time.monotonic() + limit_s
        while (token := self.acquire()) is None and time.monotonic() < end_s:
            time.sleep(poll_s)
        return token

    def close(self) -> None:
        """Hang up."""
        self._client.close()


def is_unauthorized(error: Exception) -> bool:
    """Is this the answer to a task that has been taken away?"""
    return (
        isinstance(error, httpx.HTTPStatusError)
        and error.response.status_code == httpx.codes.UNAUTHORIZED
    )


def _interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def heartbeat(client: RuntimeHttpClient, lost: Callable[[], None] = _interrupt) -> Iterator[None]:
    """Inside, Flower is told that the task is alive.

    ``lost`` is called, in a thread, if the task was taken away; by default that is as Ctrl-C.
    """

    def beat() -> bool:
        try:
            alive = client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success
        except httpx.TransportError:
            return False
        except httpx.HTTPStatusError as e:
            if e.response.status_code in BUSY:
                return False
            if not is_unauthorized(e):
                raise
            alive = False
        if not alive:
            lost()
        return True

    sender = HeartbeatSender(beat)
    sender.start()
    try:
        yield
    finally:
        if sender.is_running:
            sender.stop()
