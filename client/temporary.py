"""Temporary folders that a process which was killed leaves only until the next one starts."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Self

from client.lock import HeldError, take

MAX_SOCKET_PATH = 100
"""Longer paths of Unix sockets are refused by some systems (Linux: above 107 bytes)."""

REMOVE_LIMIT_S, AGAIN_S = 10.0, 0.1
"""How long, and how often, a folder is removed in which processes that are ending still write."""

PREFIX, LOCK = "pocketfed-", "lock"


class TemporaryFolder:
    """A folder that only this user can enter, until ``remove``; ``room`` more bytes name a Unix
    socket in it.

    Its owner holds the file ``lock`` in it, so that who finds the file free knows that the owner
    is no more, whatever container or process id it had; such folders are removed first.
    """

    def __init__(self, room: int) -> None:
        home = temporary_home(room)
        _remove_stale(Path(home))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=home))
        self._held = take(self.path / "taking")
        (self.path / "taking").rename(self.path / LOCK)  # nobody sees it before it is held

    def remove(self) -> None:
        """All that is in it goes too; what others write there for long is left."""
        end_s = time.monotonic() + REMOVE_LIMIT_S
        shutil.rmtree(self.path, ignore_errors=True)
        while self.path.exists() and time.monotonic() < end_s:
            time.sleep(AGAIN_S)
            shutil.rmtree(self.path, ignore_errors=True)
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def temporary_home(room: int) -> str:
    """The folder for a temporary folder in which ``room`` more bytes name a Unix socket."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) + room <= MAX_SOCKET_PATH else "/tmp"


def _remove_stale(home: Path) -> None:
    """Remove this user's folders whose owners were killed."""
    for entry in os.scandir(home):
        if not entry.name.startswith(PREFIX):
            continue
        with contextlib.suppress(OSError, HeldError):  # somebody else's, or gone meanwhile
            mine = entry.stat(follow_symlinks=False).st_uid == os.geteuid()
            lock = Path(entry.path, LOCK)
            if mine and entry.is_dir(follow_symlinks=False) and lock.is_file():
                with take(lock):
                    shutil.rmtree(entry.path, ignore_errors=True)
