"""A federation of real processes on loopback, for tests: servers, nodes, and their children.

Every wait is bounded, and everything is ended by process id.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FIRST_PORT, LAST_PORT = 15000, 32000
"""Below what systems give to outgoing connections. Nodes ask for their server before it listens,
and one of their connections could be given the very port that it is about to listen on."""

POCKETFED = str(Path(sys.executable).parent / "pocketfed")

LIMIT_S = 300.0
"""For what takes seconds on an idle machine: it is waited for as long as it may come at all."""


def wait_until(true: Callable[[], object], limit_s: float, what: Callable[[], str]) -> None:
    """Wait for a condition; AssertionError with ``what`` was seen instead."""
    end_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end_s, f"not within {limit_s:g} s:\n{what()}"
        time.sleep(0.1)


def quiet_port() -> int:
    """A port that nobody listens on, nor will by chance."""
    while True:
        port = random.randint(FIRST_PORT, LAST_PORT)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def descendants(pid: int) -> dict[int, str]:
    """Process id -> command line of all living children, and theirs."""
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for child in _children(parent):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                line = Path(f"/proc/{child}/cmdline").read_bytes()
                found[child] = line.replace(b"\0", b" ").decode()
                waiting.append(child)
    return found


def _children(pid: int) -> set[int]:
    """Process ids of all children of a process, whichever of its threads started them."""
    while True:
        found: set[int] = set()
        try:
            threads = list(Path(f"/proc/{pid}/task").iterdir())
        except OSError:
            return found
        try:
            for thread in threads:
                found |= {int(c) for c in (thread / "children").read_text().split()}
        except OSError:  # a thread has ended, and another one has its children now
            continue
        return found


def alive(pid: int) -> bool:
    """Does the process run (and is not a zombie)?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _send(pids: set[int], number: signal.Signals) -> None:
    """A signal to each process that has not ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Program:
    """A pocketfed command that runs, and what it has printed."""

    def __init__(self, folder: Path, label: str, *arguments: str, **extra: str) -> None:
        self.output = folder / f"{label}.txt"
        env = {
            **os.environ,
            "PATH": os.defpath,  # the programs of the virtual environment are not on it
            "POCKETFED_CACHE": str(folder / "cache"),
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",  # nodes share this machine: threads would wait for each other
            **extra,
        }
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                arguments, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT
            )
        self.seen: set[int] = set()

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def waits_for(self, text: str) -> None:
        """Until it has printed ``text``."""
        self.wait_until(lambda: text in self.text(), f"it has not printed {text!r}")

    def wait_until(self, true: Callable[[], object], otherwise: str) -> None:
        """Wait for what this program is about to do; in vain if it ends before."""

        def done() -> bool:
            over = self.process.poll() is not None
            if true():
                return True
            assert not over, f"ended, but {otherwise}:\n{self.text()}"
            return False

        wait_until(done, LIMIT_S, lambda: f"{otherwise}:\n{self.text()}")

    def child(self, module: str) -> int:
        """Process id of its child that runs ``module``."""
        found: list[int] = []

        def alone() -> bool:
            """One that is being replaced, or starts a process, may be there twice or not at all."""
            self.look()
            found[:] = [p for p, line in descendants(self.pid).items() if f"-m {module}" in line]
            return len(found) == 1

        self.wait_until(alone, f"not one child runs {module}")
        return found[0]

    def trained(self) -> tuple[int, int]:
        """Of a node: the last rounds whose training it has begun, and done; 0 if none."""
        told = re.findall(r"round (\d+): train: (started|done)", self.text())
        last = {what: int(number) for number, what in told}
        return last.get("started", 0), last.get("done", 0)

    def look(self) -> None:
        """Remember its children, so that it can be seen whether all have ended."""
        self.seen |= set(descendants(self.pid))

    def ends(self, limit_s: float = LIMIT_S) -> int:
        """Its exit code, once it has ended, and all its children with it."""

        def ended() -> bool:
            self.look()
            return self.process.poll() is not None

        wait_until(ended, limit_s, self.text)
        left = lambda: [pid for pid in self.seen if alive(pid)]  # noqa: E731
        wait_until(lambda: not left(), LIMIT_S, lambda: f"left behind: {left()}")
        return self.process.returncode

    def interrupt(self, how: signal.Signals = signal.SIGINT) -> int:
        """Ctrl-C; its exit code."""
        self.look()
        self.process.send_signal(how)
        return self.ends()

    def crash(self) -> None:
        """As if the machine lost power: this process and all its children, at once."""
        halted: set[int] = set()
        while new := {self.pid, *descendants(self.pid)} - halted:  # until none can start another
            _send(new, signal.SIGSTOP)
            halted |= new
        self.seen |= halted - {self.pid}
        _send(halted, signal.SIGKILL)
        self.process.wait()

    def kill(self) -> None:
        """End it whatever it does."""
        if self.process.poll() is None:
            self.crash()


def halt_between_rounds(nodes: list[Program]) -> tuple[int, list[int]]:
    """Stop the workers of nodes, all between the same two rounds.

    Returns the number of the round that they will begin and not finish, and the workers. A node
    prints that it has begun before its worker hears of it: with all workers stopped, and nothing
    begun that is not done, none of them can be at work.
    """
    workers = [node.child("client.worker.process") for node in nodes]
    done = 0

    def halted() -> bool:
        nonlocal done
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        done = nodes[0].trained()[0]
        if all(node.trained() == (done, done) for node in nodes):
            return True
        resume(workers)
        return False

    what = lambda: "\n".join(node.text() for node in nodes)  # noqa: E731
    wait_until(halted, LIMIT_S, what)
    return done + 1, workers


def resume(workers: list[int]) -> None:
    """Let stopped workers go on."""
    for worker in workers:
        os.kill(worker, signal.SIGCONT)


class Machines:
    """Servers and nodes on one port; ``folder`` holds what they read and write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = quiet_port()
        self.programs: list[Program] = []

    def start(self, label: str, *command: str, **extra: str) -> Program:
        """A program that is ended with the machines."""
        program = Program(self.folder, label, *command, **extra)
        self.programs.append(program)
        return program

    def serve(self, label: str, *arguments: str, by: str = POCKETFED, **extra: str) -> Program:
        """A server; ``by`` is the program that is run."""
        command = (by, "serve", *arguments, "--port", str(self.port), "--json")
        return self.start(label, *command, **extra)

    def join(self, label: str, data: Path, *arguments: str, **extra: str) -> Program:
        """A node."""
        where = ("--server", f"127.0.0.1:{self.port}", "--data", str(data))
        return self.start(label, POCKETFED, "join", *where, *arguments, **extra)


@contextmanager
def machines(folder: Path) -> Iterator[Machines]:
    """All that was started is ended, whatever happens."""
    found = Machines(folder)
    try:
        yield found
    finally:
        for program in found.programs:
            program.kill()
