"""Keeps a device worker alive, and sees to it that each command gets an answer.

Commands are carried out one at a time. A worker that ends, or shows no sign of life for the
command's deadline, is killed and another is started; the command is done again. A backend at work
when that happens may try once more; the second time it is left alone for as long as this process
lives, and what is left (numpy, in the end) does the work. numpy may fail a command twice.

Where a worker ended is told from facts. If its connection or its process was at an end before the
command was sent, it ended **between two rounds**. A process that is killed takes some time to go,
in which neither can be seen: a worker that has answered before, and ends without a sign of life on
this command, ended **since the last round**; that is not held against the command either.

The **deadline** runs from the last sign of life: each phase as it begins, and at least once a
second while batches go by. It is ``deadline_s`` if given; else ``FACTOR`` times what the last
command of this kind for this partition took, at least ``FLOOR_S``, and ``FIRST_S`` for the first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from client.backends import REFERENCE
from client.children import Child
from client.errors import WorkerError
from client.record import Event
from client.worker.broker import Broker, Job, WorkerLink
from client.worker.protocol import convert, parts
from client.worker.protocol.worker_pb2 import Answer, Cancel, Command, Part, Progress

FACTOR = 10.0
FLOOR_S = 60.0
FIRST_S = 300.0

START_LIMIT_S = 180.0
"""How long a worker may take to import and dial: a second, or much longer on a machine under load;
one that ends is noticed at once."""

POLL_S = 0.2
"""How soon a deadline, or a ClientApp that has hung up, is noticed; answers are not polled for."""

ATTEMPTS = 2
"""How often a backend may take a worker down with it."""

CRASH_LIMIT_S = 12.0
"""How long after its connection a worker's exit code is waited for: longer than a worker stays
whose broker has gone (``process.LAST_BATCH_S``). One that was killed is gone much sooner."""

END_LIMIT_S = 5.0
"""How long a worker may take to end in order before it is killed."""

STOPPED = "the process that hosts the worker is being stopped"

log = logging.getLogger(__name__)


@contextmanager
def hosted_worker(
    deadline_s: float | None = None, home: Path | None = None
) -> Iterator[dict[str, str]]:
    """A broker with a worker, as long as the context is open.

    Gives the variables that a ClientApp needs in its environment to train there. The worker starts
    with the first command. ``home``: see Broker.
    """
    broker = Broker(home=home)
    try:
        supervisor = Supervisor(broker, deadline_s)
        try:
            yield broker.environment
        finally:
            supervisor.stop()
    finally:
        broker.close()


class _LostError(Exception):
    """The worker ended (``kind`` "worker died") or showed no sign of life ("worker hung")."""

    def __init__(self, kind: str, message: str, backend: str, idle: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.backend = backend
        self.idle = idle  # it may have ended before it got the command


class Supervisor:
    """See the module. Works in a thread of its own until ``stop``."""

    def __init__(self, broker: Broker, deadline_s: float | None = None) -> None:
        self._broker = broker
        self._deadline_s = deadline_s
        self._child: Child | None = None
        self._link: WorkerLink | None = None  # of the child, once it has dialled
        self._starts = 0
        self._losses: Counter[str] = Counter()  # backend -> workers that ended with it
        self._excluded: dict[str, str] = {}  # backend -> why
        self._took_s: dict[tuple[object, ...], float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="worker supervisor")
        self._thread.start()

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker, None if none runs."""
        child = self._child
        return child.pid if child is not None and child.exit_code is None else None

    def stop(self) -> None:
        """End the worker, whatever it does; waiting ClientApps are told."""
        self._stopping.set()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while not self._stopping.is_set():
                with contextlib.suppress(queue.Empty):
                    self._handle(self._broker.jobs.get(timeout=POLL_S))
        finally:
            self._stopping.set()
            with contextlib.suppress(queue.Empty):
                while True:
                    self._handle(self._broker.jobs.get_nowait())
            self._end_worker()

    def _handle(self, job: Job) -> None:
        """Answer a job; every job gets one, or its ClientApp would wait for ever."""
        try:
            job.out.put(self._carry_out(job))
        except WorkerError as e:
            level = logging.INFO if self._stopping.is_set() else logging.WARNING
            log.log(level, "%s: %s", job.command.partition, e)
            job.out.put((Answer(failure=convert.failure_to_message(e)), b""))
        except Exception as e:
            log.exception("the worker's supervisor failed")
            job.out.put((Answer(failure=convert.failure_to_message(e)), b""))

    # -- one command ---------------------------------------------------------------------------

    def _carry_out(self, job: Job) -> tuple[Answer, bytes]:
        events = self._ended_meanwhile()
        reference_losses = 0
        while True:
            try:
                answer, params = self._attempt(job)
            except _LostError as lost:
                self._kill_worker()
                if lost.backend in ("", REFERENCE) and not lost.idle:
                    reference_losses += 1
                    if reference_losses == ATTEMPTS:
                        raise WorkerError(f"{lost.kind} {ATTEMPTS} times: {lost}") from None
                events += self._after(lost)
                continue
            answer.events.extend(convert.events_to_message(events))
            return answer, params

    def _ended_meanwhile(self) -> list[Event]:
        """A worker that ended between two commands is put away; for the record."""
        if self._child is None:
            return []
        hung_up = self._link is not None and self._link.ended.is_set()
        if not hung_up and self._child.exit_code is None:
            return []
        event = Event("worker died", f"between two rounds: {self._how_it_died()}: started again")
        log.warning("%s: %s", event.kind, event.message)
        self._kill_worker()
        return [event]

    def _after(self, lost: _LostError) -> list[Event]:
        """What is done about a lost worker, for the record."""
        events = [Event(lost.kind, f"{lost}: started again, the round is done again")]
        if lost.backend not in ("", REFERENCE):
            for backend in lost.backend.split("+"):  # of several at once, any may be to blame
                self._losses[backend] += 1
                if self._losses[backend] >= ATTEMPTS:
                    why = f"it took the worker down {ATTEMPTS} times ({lost})"
                    self._excluded[backend] = why
                    text = f"{backend}: {why}: not used again until this node is started again"
                    events.append(Event("backend excluded", text))
        for event in events:
            log.warning("%s: %s", event.kind, event.message)
        return events

    def _attempt(self, job: Job) -> tuple[Answer, bytes]:
        """Send the command to the worker and wait; _LostError if the worker does not survive it."""
        if job.cancelled.is_set():
            raise WorkerError("the ClientApp has hung up")
        if self._stopping.is_set():
            raise WorkerError(STOPPED)
        warm = self._link is not None
        link = self._worker()
        command = Command()
        command.CopyFrom(job.command)
        command.id = uuid4().hex
        command.excluded.clear()
        command.excluded.update(self._excluded)
        key = (command.kind, command.experiment, command.base, command.partition, command.path)
        began_s = time.monotonic()
        for part in parts.with_params(command, job.params):
            link.send(part)
        answer, params = self._wait(link, job, command.id, self._limit_s(key), warm)
        if not answer.HasField("failure"):
            self._took_s[key] = time.monotonic() - began_s
        return answer, params

    def _limit_s(self, key: tuple[object, ...]) -> float:
        if self._deadline_s is not None:
            return self._deadline_s
        took_s = self._took_s.get(key)
        return FIRST_S if took_s is None else max(FLOOR_S, FACTOR * took_s)

    def _wait(
        self, link: WorkerLink, job: Job, command_id: str, limit_s: float, warm: bool
    ) -> tuple[Answer, bytes]:
        """The worker's answer to the command; what it reports on the way is passed on.

        ``warm``: the worker has carried out another command before.
        """
        progress = Progress()
        last_sign_s = time.monotonic()
        cancelled = False
        while True:
            if self._stopping.is_set():
                raise WorkerError(STOPPED)
            if job.cancelled.is_set() and not cancelled:
                cancelled = True
                link.send(Part(cancel=Cancel(id=command_id)))
            try:
                received = link.received.get(timeout=POLL_S)
            except queue.Empty:
                if time.monotonic() - last_sign_s > limit_s:
                    message = f"no sign of life for {limit_s:g} s{_where(progress)}; killed"
                    raise _LostError("worker hung", message, progress.backend) from None
                continue
            if received is None:
                if warm and not progress.id:
                    message = f"since the last round: {self._how_it_died()}"
                    raise _LostError("worker died", message, "", idle=True)
                message = self._how_it_died(_where(progress))
                raise _LostError("worker died", message, progress.backend)
            said, params = received
            if isinstance(said, Answer) and said.id == command_id:
                return said, params
            if isinstance(said, Progress) and said.id == command_id:
                progress, last_sign_s = said, time.monotonic()
                job.out.put(progress)

    # -- the process ---------------------------------------------------------------------------

    def _worker(self) -> WorkerLink:
        """The connection of the worker that runs, or of a new one."""
        if self._link is not None:
            return self._link
        if self._child is None:
            self._starts += 1
            self._child = Child(
                "client.worker.process",
                ["--broker", self._broker.address],
                self._broker.folder,
                self._broker.folder / f"worker-{self._starts}.log",
                extra=self._broker.environment,
            )
        end_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end_s and not self._stopping.is_set():
            link = self._broker.wait_for_worker(self._child.pid, POLL_S)
            if link is not None:
                self._link = link
                return link
            if self._child.exit_code is not None:
                raise _LostError("worker died", self._how_it_died(), "")
        message = f"did not dial within {START_LIMIT_S:g} s"
        raise _LostError("worker hung", f"{message}: {self._child.last_words()}", "")

    def _how_it_died(self, where: str = "") -> str:
        """Why the worker's connection ended, as far as can be seen."""
        assert self._child is not None
        self._wait_for_end(self._child, CRASH_LIMIT_S)
        code = self._child.exit_code
        if code is None:
            how = "hung up"
        else:
            how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return f"{how}{where}; its last words: {self._child.last_words()}"

    def _end_worker(self) -> None:
        """Let the worker end in order, if it does so soon."""
        if self._child is not None:
            link = self._broker.wait_for_worker(self._child.pid, 0)
            if link is not None:
                link.close()
                self._wait_for_end(self._child, END_LIMIT_S)
            self._kill_worker()

    def _kill_worker(self) -> None:
        """Kill the worker with whatever it started."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):  # nobody is left of its session
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.process.wait()
            self._child.log.unlink(missing_ok=True)
            self._child, self._link = None, None

    def _wait_for_end(self, child: Child, limit_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(limit_s)


def _where(progress: Progress) -> str:
    """Where a worker was when it was last heard of; it may have come further since."""
    phase = f", last heard of in phase {progress.phase}" if progress.phase else ""
    return phase + (f" on {progress.backend}" if progress.backend else "")
