"""A federation of real processes on loopback, for tests: servers, nodes, and their children.

Every wait is bounded, and everything is ended by process id.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from client.children import free_port

POCKETFED = str(Path(sys.executable).parent / "pocketfed")


def wait_until(true: Callable[[], object], limit_s: float, what: Callable[[], str]) -> None:
    """Wait for a condition; AssertionError with ``what`` was seen instead."""
    end_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end_s, f"not within {limit_s:g} s:\n{what()}"
        time.sleep(0.1)


def descendants(pid: int) -> dict[int, str]:
    """Process id -> command line of all living children, and theirs."""
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            threads = list(Path(f"/proc/{parent}/task").iterdir())
            children = [int(c) for t in threads for c in (t / "children").read_text().split()]
        except OSError:
            continue
        for child in children:
            try:
                line = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue
            found[child] = line.replace(b"\0", b" ").decode()
            waiting.append(child)
    return found


def alive(pid: int) -> bool:
    """Does the process run (and is not a zombie)?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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
        return self.output.read_text()

    def waits_for(self, text: str, limit_s: float = 60) -> None:
        """Until it has printed ``text``."""
        wait_until(lambda: text in self.text(), limit_s, lambda: f"{text!r} in\n{self.text()}")

    def child(self, module: str) -> int:
        """Process id of its child that runs ``module``."""
        self.look()
        (pid,) = [p for p, line in descendants(self.pid).items() if f"-m {module}" in line]
        return pid

    def look(self) -> None:
        """Remember its children, so that it can be seen whether all have ended."""
        self.seen |= set(descendants(self.pid))

    def ends(self, limit_s: float = 60) -> int:
        """Its exit code, once it has ended, and all its children with it."""
        end_s = time.monotonic() + limit_s
        while self.process.poll() is None:
            self.look()
            assert time.monotonic() < end_s, f"not ended within {limit_s:g} s:\n{self.text()}"
            time.sleep(0.1)
        left = lambda: [pid for pid in self.seen if alive(pid)]  # noqa: E731
        wait_until(lambda: not left(), 20, lambda: f"left behind: {left()}")
        return self.process.returncode

    def interrupt(self, how: signal.Signals = signal.SIGINT) -> int:
        """Ctrl-C; its exit code."""
        self.look()
        self.process.send_signal(how)
        return self.ends()

    def crash(self) -> None:
        """As if the machine lost power: this process and all its children, at once."""
        pids = [self.pid, *descendants(self.pid)]
        self.seen |= set(pids[1:])
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def kill(self) -> None:
        """End it whatever it does."""
        if self.process.poll() is None:
            self.crash()


class Machines:
    """Servers and nodes on one port; ``folder`` holds what they read and write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
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
