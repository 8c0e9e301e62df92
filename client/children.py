"""Child processes: started from an empty folder, logged, and ended by their process id.

A child runs in a session of its own, so that Ctrl-C on a terminal reaches only its parent, which
then ends it in order; and it watches its parent, so that it ends even where that was killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from client.cache import cache_dir

FLOWER_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Flower as we use it: it asks nobody on the internet and installs nothing."""

EMULATED = "POCKETFED_EMULATE"
"""Names files of emulated devices (see client.backends.emulated), or shipped ones."""

STOP_LIMIT_S = 10.0
"""How long a child may take to end in order before it is killed."""

FURTHER_READING = "For more information"
"""How Flower and httpx begin the line with a page's address."""

PROGRESS = r"(INFO|WARNING)\s*:"
"""How Flower and uvicorn begin lines that give no reason for an end."""


def set_up_flower() -> None:
    """Settings for Flower in this process; to be called before it is imported."""
    for key, value in FLOWER_SETTINGS.items():
        os.environ.setdefault(key, value)
    os.environ.setdefault("FLWR_HOME", str(cache_dir() / "flower"))
    os.environ.update(_direct())


def environment() -> dict[str, str]:
    """A child's environment: this interpreter's programs first on PATH, no code from its folder."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    home = {"FLWR_HOME": os.environ.get("FLWR_HOME", str(cache_dir() / "flower"))}
    ours = {**FLOWER_SETTINGS, **home, **_direct(), **_emulated()}
    return {**os.environ, **ours, "PATH": path, "PYTHONSAFEPATH": "1"}


def _emulated() -> dict[str, str]:
    """Files of emulated devices by their full paths: a child starts in a folder of its own."""
    names = os.environ.get(EMULATED, "").split(":")
    found = [next((p for p in (Path(n), Path(f"{n}.yaml")) if p.is_file()), None) for n in names]
    full = [str(path.absolute()) if path else n for n, path in zip(names, found, strict=True)]
    return {EMULATED: ":".join(full)} if any(names) else {}


def _direct() -> dict[str, str]:
    """Our processes talk to each other over loopback, whatever proxy the environment names."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host for host in given.split(",") if host]
    hosts += [host for host in ("127.0.0.1", "localhost") if host not in hosts]
    return {"no_proxy": ",".join(hosts), "NO_PROXY": ",".join(hosts)}


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    with socket.socket() as s:
        s.bind((host, 0))
        return int(s.getsockname()[1])


def new_secret(path: Path) -> Path:
    """A file with a new secret that only this user can read."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(secrets.token_bytes(32))
    return path


class Child:
    """``python -m module arguments…`` in the folder ``home``, which should be empty of code.

    What it prints goes to ``log``; its standard output to this process's own if ``speaks``.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        home: Path,
        log: Path,
        speaks: bool = False,
        extra: dict[str, str] | None = None,
    ) -> None:
        self.name = module.rpartition(".")[2]
        self.log = log
        self.began_s = time.monotonic()
        empty = home / "empty"
        empty.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=empty,
                env={**environment(), **(extra or {}), "POCKETFED_PARENT": str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=None if speaks else out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def how_it_ended(self) -> str:
        """The signal that ended it, or "in good order", else its last words."""
        code = self.exit_code
        if code == 0:
            return "in good order"
        return self.last_words() if code is None or code > 0 else signal.Signals(-code).name

    def last_words(self) -> str:
        """What its log says of why it ended, in one line."""
        with self.log.open("rb") as f:
            f.seek(max(0, self.log.stat().st_size - 4096))
            text = re.sub(r"\x1b\[[0-9;]*m", "", f.read().decode(errors="replace"))  # colours
        *_, reason = re.split(r"Exit Code: \d+\n", text)  # what Flower calls its reasons
        if reason != text:
            lines = reason.partition("\n\n")[0].splitlines()
            return " ".join(line.strip() for line in lines if not line.startswith(FURTHER_READING))
        said = (line.strip() for line in reversed(text.splitlines()))
        useful = (line for line in said if line and not re.match(PROGRESS, line))
        return next(useful, "nothing logged")

    def stop(self) -> None:
        """End it in order; kill it if that takes too long. Its own children go with it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        with contextlib.suppress(ProcessLookupError):  # nobody is left of its session
            os.killpg(self.pid, signal.SIGKILL)


def end_with_parent() -> None:
    """Called in a child: it ends when its parent does, however that ended."""
    parent = int(os.environ["POCKETFED_PARENT"])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="parent watch").start()


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, are as Ctrl-C inside: what is open is
    closed in order. A SIGHUP that is ignored, as by nohup, stays so."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    heeded = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        heeded.append(signal.SIGHUP)
    before = [(number, signal.signal(number, interrupt)) for number in heeded]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
