"""What runner and server need of Flower's Runtime API: acquire a task, keep it, report its end.

Flower's own ``flower-superexec`` acquires a task and starts a process of its own for each; ours are
carried out by the process that acquires them. Acquiring needs a secret of this start, so that no
other user of the machine can take a task away.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


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


@contextlib.contextmanager
def heartbeat(client: RuntimeHttpClient) -> Iterator[None]:
    """Inside, Flower is told that the task is alive. SIGINT comes if the task was taken away."""
    sender = HeartbeatSender(make_task_heartbeat_fn_http(client))
    sender.start()
    try:
        yield
    finally:
        if sender.is_running:
            sender.stop()
