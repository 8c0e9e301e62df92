"""Files of a run that must survive a crash: written whole, found damaged rather than believed."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

from client.cache import write_atomically
from client.errors import StoreError


def write_durably(path: Path, content: bytes, resumable: bool = False) -> None:
    """Write a file atomically and make its name durable too; StoreError if that fails, which says
    what to do where its run is ``resumable`` and the disk is full."""
    try:
        write_atomically(path, content)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as e:
        raise cannot_be_written(path, e, resumable) from None


def cannot_be_written(path: Path, error: OSError, resumable: bool) -> StoreError:
    """Says what to do where the disk is full and the file's run is ``resumable``."""
    full = resumable and error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = ": free some space, then go on by --resume" if full else ""
    return StoreError(f"{path}: cannot be written: {reason(error)}{remedy}")


def read_bytes(path: Path) -> bytes:
    """The whole file; StoreError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as e:
        raise StoreError(f"{path}: cannot be read: {reason(e)}") from None


def remove(path: Path) -> None:
    """Remove a file that may be gone already; StoreError if it cannot be."""
    try:
        path.unlink(missing_ok=True)
    except OSError as e:
        raise StoreError(f"{path}: cannot be removed: {reason(e)}") from None


def sha256(content: bytes) -> str:
    """Hex digest of a file's content."""
    return hashlib.sha256(content).hexdigest()


def reason(error: OSError) -> str:
    """What the system says about a failure, without numbers and paths."""
    return (error.strerror or str(error)).lower()
