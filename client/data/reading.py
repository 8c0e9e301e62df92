"""What may go wrong while a file is read, in the same words for every kind of file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client.errors import DataError


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """DataError, naming ``path``, where the system cannot read it or has no memory for it."""
    try:
        yield
    except OSError as e:
        raise DataError(f"{path}: cannot be read: {e.strerror or e}") from None
    except MemoryError:
        raise DataError(f"{path}: does not fit into this machine's memory") from None


def entries(folder: Path) -> list[Path]:
    """What lies in a folder, by name."""
    with readable(folder):
        return sorted(folder.iterdir())
