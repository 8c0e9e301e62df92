"""The device worker: a process that keeps devices, programs and data between messages.

    python -m client.worker.process --broker ADDRESS

It dials the broker with the token in the file that POCKETFED_BROKER_TOKEN_FILE names, carries out
one command at a time, and ends when the broker goes away.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from client.backends import on_backend
from client.config import Experiment
from client.errors import PocketfedError, WorkerError
from client.fields import parse
from client.record import placement_from_json
from client.timing import RoundClock, on_phase
from client.worker.protocol import TOKEN_KEY, convert, parts, read_token
from client.worker.protocol.dial import dial
from client.worker.protocol.worker_pb2 import Answer, Cancel, Command, Confirmed, Part, Progress
from client.worker.protocol.worker_pb2_grpc import BrokerStub
from client.worker.session import Session

SIGN_OF_LIFE_S = 1.0
"""While batches go by, the supervisor is told so this often."""

CONFIRM_LIMIT_S = 5.0
"""How long a worker waits until it is known which backend it asks to work."""

LAST_BATCH_S = 10.0
"""How long a command may take to stop once the broker is gone; then the process just ends."""

log = logging.getLogger(__name__)


class Worker:
    """One session (of the last command's experiment), and the connection to the broker."""

    def __init__(self, address: str, token: str) -> None:
        self._channel = dial(address)
        self._token = token
        self._to_send: queue.Queue[Part | None] = queue.Queue()
        self._orders: queue.Queue[tuple[Command, bytes] | None] = queue.Queue()
        self._cancelled: set[str] = set()
        self._hung_up = threading.Event()
        self._confirmed = threading.Event()
        self._session: Session | None = None
        self._session_key: tuple[object, ...] = ()
        self._progress = Progress()
        self._told_s = 0.0

    def run(self) -> None:
        """Carry out commands until the broker goes away."""
        on_phase.set(self._on_phase)
        on_backend.set(self._on_backend)
        self._to_send.put(parts.hello(os.getpid()))
        threading.Thread(target=self._receive, daemon=True, name="worker receives").start()
        while (order := self._orders.get()) is not None:
            answer, params = self._carry_out(*order)
            for part in parts.with_params(answer, params):
                self._to_send.put(part)
        if self._session is not None:
            self._session.close()
        self._to_send.put(None)
        self._channel.close()

    def _receive(self) -> None:
        """What the broker says becomes orders; its end is the end of this process."""
        requests = iter(self._to_send.get, None)
        stub = BrokerStub(self._channel)
        try:
            replies = stub.Work(requests, metadata=((TOKEN_KEY, self._token),))
            for message, params in parts.messages(replies):
                if isinstance(message, Command):
                    self._orders.put((message, params))
                elif isinstance(message, Cancel):
                    self._cancelled.add(message.id)
                elif isinstance(message, Confirmed):
                    self._confirmed.set()
        except (grpc.RpcError, WorkerError) as e:
            reason = e.details() if isinstance(e, grpc.Call) else e
            log.warning("the broker is gone: %s", reason)
        self._hung_up.set()
        self._confirmed.set()
        self._orders.put(None)
        time.sleep(LAST_BATCH_S)  # the process ends meanwhile, unless a command hangs
        os._exit(1)

    # -- one command ---------------------------------------------------------------------------

    def _carry_out(self, command: Command, params: bytes) -> tuple[Answer, bytes]:
        self._progress = Progress(id=command.id)
        try:
            answer, result = self._work(command, params)
        except PocketfedError as e:
            answer, result = Answer(failure=convert.failure_to_message(e)), b""
        except Exception as e:
            log.exception("a command failed")
            answer, result = Answer(failure=convert.failure_to_message(e)), b""
        answer.id = command.id
        self._cancelled.discard(command.id)
        return answer, result

    def _work(self, command: Command, content: bytes) -> tuple[Answer, bytes]:
        clock = RoundClock()
        with clock.phase("decode"):
            session = self._session_of(command)
            params = convert.params_from_bytes(content, session.model.num_values)
            path = Path(command.path) if command.path else None
            recorded = placement_from_json(command.recorded) if command.recorded else None
            task = convert.task_from_message(command.task, command.partition)
        if command.kind == Command.EVALUATE:
            metrics, record = session.evaluate(command.partition, path, params, clock)
            answer, result = Answer(num_examples=record.num_examples), b""
        else:
            stop = self._stop(command.id)
            outcome, record = session.train(task, path, params, recorded, clock, stop)
            metrics = outcome.metrics
            with clock.phase("encode"):
                answer = Answer(num_examples=outcome.num_examples)
                result = convert.params_to_bytes(outcome.params)
        convert.metrics_to_message(metrics, answer)
        record.set_timing(clock.stop())
        answer.record = record.to_json()
        return answer, result

    def _session_of(self, command: Command) -> Session:
        key = (command.experiment, command.base, *sorted(command.excluded.items()))
        if self._session is None or key != self._session_key:
            if self._session is not None:
                self._session.close()
                self._session = None
            value = json.loads(command.experiment)
            experiment = parse(Experiment, value, "the server's experiment")
            self._session = Session(experiment, Path(command.base), dict(command.excluded))
            self._session_key = key
        return self._session

    # -- signs of life -------------------------------------------------------------------------

    def _on_phase(self, name: str) -> None:
        self._progress.phase = name
        self._tell()

    def _on_backend(self, name: str) -> None:
        """Go on when the broker knows: a backend that crashes at once must not go unnamed."""
        if name != self._progress.backend:
            self._progress.backend = name
            self._confirmed.clear()
            self._tell(confirm=True)
            self._confirmed.wait(CONFIRM_LIMIT_S)

    def _tell(self, confirm: bool = False) -> None:
        part = Part()
        part.progress.CopyFrom(self._progress)
        part.progress.confirm = confirm
        self._to_send.put(part)
        self._told_s = time.monotonic()

    def _stop(self, command_id: str) -> Callable[[], bool]:
        """Asked at each batch boundary, which is a sign of life too."""

        def stop() -> bool:
            if time.monotonic() - self._told_s > SIGN_OF_LIFE_S:
                self._tell()
            return command_id in self._cancelled or self._hung_up.is_set()

        return stop


def main() -> int:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="python -m client.worker.process", description=__doc__)
    parser.add_argument("--broker", required=True, metavar="ADDRESS", help="as unix:/run/x/broker")
    address = parser.parse_args().broker
    # a Ctrl-C on the terminal is for the process that started this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        Worker(address, read_token(os.environ)).run()
    except PocketfedError as e:
        log.error("%s", e)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
