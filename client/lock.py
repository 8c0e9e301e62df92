"""A file that one process at a time holds; the system lets go of it however the process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TextIO


class HeldError(Exception):
    """Another process holds the file; its text is the process's id."""


def take(path: Path) -> TextIO:
    """Hold the file, which is made if it is not there, until what is returned is closed.

    HeldError if another process holds it; OSError if it cannot be written.
    """
    file = path.open("a+")
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise HeldError(file.read().strip()) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
    except BaseException:
        file.close()
        raise
    return file
