"""The broker: where ClientApps and the device worker of a machine meet.

A gRPC server in the process that hosts the worker, on a Unix socket in a folder of its own that
only this user can enter. Every call carries the token of this start. The broker checks, queues
and passes on; what happens to a command is decided in supervisor.py.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import queue
import re
import secrets
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import grpc

from client.errors import MismatchError, WorkerError
from client.temporary import MAX_SOCKET_PATH, TemporaryFolder
from client.worker.protocol import ADDRESS_VARIABLE, TOKEN_KEY, TOKEN_VARIABLE, parts
from client.worker.protocol.parts import Message
from client.worker.protocol.worker_pb2 import Answer, Command, Confirmed, Part, Progress
from client.worker.protocol.worker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server

MAX_WAITING = 8
"""ClientApps that may wait for the worker; more are turned away."""

THREADS = 2 * MAX_WAITING + 4
"""A call holds a thread of the server as long as it lasts; the worker must always find one."""

log = logging.getLogger(__name__)


@dataclass
class Job:
    """A ClientApp's command on its way. ``out`` takes what goes back: the answer comes last."""

    command: Command
    params: bytes
    cancelled: threading.Event = field(default_factory=threading.Event)
    out: queue.Queue[Progress | tuple[Answer, bytes]] = field(default_factory=queue.Queue)


class WorkerLink:
    """A connected worker. ``received`` ends with None when the connection does; then ``ended``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended = threading.Event()
        self.received: queue.Queue[tuple[Message, bytes] | None] = queue.Queue()
        self.to_send: queue.Queue[Part | None] = queue.Queue()

    def send(self, part: Part) -> None:
        """Put a part on its way."""
        self.to_send.put(part)

    def close(self) -> None:
        """End the connection after what was sent."""
        self.to_send.put(None)


class Broker:
    """See the module. ``address``: in gRPC's form; by default a new Unix socket.

    ``home``: the host's own folder, which no other process uses. WorkerError if nothing can
    listen at the address.
    """

    def __init__(self, address: str | None = None, home: Path | None = None) -> None:
        self._temporary: TemporaryFolder | None = None
        # not a temporary one by choice: those of a node that stays for weeks may be tidied up
        own = _own_folder(home)
        if own is None:
            self._temporary = TemporaryFolder(room=30)
            own = self._temporary.path
        self.folder = own
        self.address = address or f"unix:{self.folder / 'broker'}"
        self.jobs: queue.Queue[Job] = queue.Queue(MAX_WAITING)
        self._links: dict[int, WorkerLink] = {}
        self._linked = threading.Condition()
        self._token_file = self.folder / "token"
        token = secrets.token_hex(32)
        self._token_file.touch(mode=0o600)
        self._token_file.write_text(token)
        self._server = grpc.server(
            futures.ThreadPoolExecutor(THREADS, thread_name_prefix="broker"),
            interceptors=[_TokenGate(token)],
            options=[("grpc.so_reuseport", 0)],
        )
        add_BrokerServicer_to_server(_Service(self), self._server)
        try:
            self._listen()
        except WorkerError:
            self._remove_folder()
            raise

    def _listen(self) -> None:
        if self.address.startswith("unix:"):
            _remove_if_stale(Path(self.address.removeprefix("unix:")))
        try:
            port = self._server.add_insecure_port(self.address)
        except RuntimeError:
            port = 0
        if port == 0:  # how older releases of gRPC say it
            raise WorkerError(f"broker: cannot listen on {self.address}")
        self._server.start()

    @property
    def environment(self) -> dict[str, str]:
        """What a ClientApp and a worker need to dial: variables of their environment."""
        return {ADDRESS_VARIABLE: self.address, TOKEN_VARIABLE: str(self._token_file)}

    def wait_for_worker(self, pid: int, limit_s: float) -> WorkerLink | None:
        """The connection of the worker with this process id, None if it does not come in time."""
        with self._linked:
            self._linked.wait_for(lambda: pid in self._links, limit_s)
            return self._links.get(pid)

    def add_worker(self, link: WorkerLink) -> None:
        """A worker has connected."""
        with self._linked:
            self._links[link.pid] = link
            self._linked.notify_all()

    def remove_worker(self, link: WorkerLink) -> None:
        """A worker's connection has ended."""
        with self._linked:
            if self._links.get(link.pid) is link:
                del self._links[link.pid]

    def close(self) -> None:
        """Hang up and remove the socket and the token."""
        self._server.stop(grace=0.5).wait()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._temporary is not None:
            self._temporary.remove()
        else:
            with contextlib.suppress(FileNotFoundError):  # somebody else has tidied up
                shutil.rmtree(self.folder)


class _TokenGate(grpc.ServerInterceptor):
    """Turns calls without the token away, and says so in the log."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Constant in time, so that a token cannot be guessed byte by byte."""
        metadata = dict(handler_call_details.invocation_metadata)
        given = metadata.get(TOKEN_KEY, b"")
        if hmac.compare_digest(given.encode() if isinstance(given, str) else given, self._token):
            return continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(_refuse)


def _refuse(requests: Iterator[Part], context: grpc.ServicerContext) -> Iterator[Part]:
    log.warning("broker: a call from %s was refused: wrong token", context.peer())
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token: the broker was started anew")


class _Service(BrokerServicer):
    """The two calls of worker.proto."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def Submit(  # noqa: N802 (the protocol's name)
        self, request_iterator: Iterator[Part], context: grpc.ServicerContext
    ) -> Iterator[Part]:
        """A ClientApp's command, answered when the supervisor is done with it."""
        try:
            parts.check_hello(request_iterator, "ClientApp")
            command, params = next(parts.messages(request_iterator), (None, b""))
            if not isinstance(command, Command):
                raise WorkerError("broken stream: needs a command after the hello")
        except MismatchError as e:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, e)
        except WorkerError as e:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, e)
        except grpc.RpcError:
            return  # it has hung up
        job = Job(command, params)
        if not context.add_callback(job.cancelled.set):
            return
        try:
            self._broker.jobs.put_nowait(job)
        except queue.Full:
            error = WorkerError(f"{MAX_WAITING} ClientApps wait for the worker already")
            _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, error)
        while isinstance(item := job.out.get(), Progress):
            yield Part(progress=item)
        yield from parts.with_params(*item)

    def Work(  # noqa: N802
        self, request_iterator: Iterator[Part], context: grpc.ServicerContext
    ) -> Iterator[Part]:
        """A worker's connection: what it says is queued for the supervisor, and the other way."""
        try:
            link = WorkerLink(parts.check_hello(request_iterator, "worker").pid)
        except MismatchError as e:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, e)
        except WorkerError as e:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, e)
        except grpc.RpcError:
            return  # it has hung up

        def receive() -> None:
            try:
                for message, params in parts.messages(request_iterator):
                    link.received.put((message, params))
                    if isinstance(message, Progress) and message.confirm:
                        link.send(Part(confirmed=Confirmed()))
            except WorkerError as e:
                log.warning("broker: worker %d: %s", link.pid, e)
            except grpc.RpcError:
                log.info("broker: worker %d has hung up", link.pid)
            finally:
                link.received.put(None)
                link.ended.set()
                link.close()

        threading.Thread(target=receive, daemon=True, name="broker receives").start()
        self._broker.add_worker(link)
        try:
            while (part := link.to_send.get()) is not None:
                yield part
        finally:
            self._broker.remove_worker(link)


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, error: Exception) -> NoReturn:
    log.warning("broker: a call from %s was refused: %s", context.peer(), error)
    context.abort(code, str(error))


def _own_folder(home: Path | None) -> Path | None:
    """``home/broker``, empty; None where a socket in it could not be dialled.

    A socket's path must be short, and without letters that mean something in an address.
    """
    if home is None:
        return None
    folder = home / "broker"
    plain = re.fullmatch(r"[A-Za-z0-9/._-]+", str(folder)) is not None
    if not plain or len(f"{folder}/broker") > MAX_SOCKET_PATH:
        return None
    if folder.exists():  # of a former life that was killed
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    return folder


def _remove_if_stale(path: Path) -> None:
    """Remove the socket of a broker that is no more; WorkerError if one answers there."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise WorkerError(f"broker: {path}: is longer than {MAX_SOCKET_PATH} bytes: a shorter path")
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as e:
            raise WorkerError(f"broker: {path}: cannot be used: {e.strerror}") from None
    raise WorkerError(f"broker: {path}: another broker listens there")
