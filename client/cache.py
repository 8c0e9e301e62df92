"""Where this machine keeps what it measured and compiled, between runs."""

from __future__ import annotations

import os
from pathlib import Path

from client.errors import ConfigError


def cache_dir() -> Path:
    """$POCKETFED_CACHE, else $XDG_CACHE_HOME/pocketfed, else ~/.cache/pocketfed; not created.

    ConfigError where none of them is known.
    """
    own = os.environ.get("POCKETFED_CACHE")
    if own:
        return Path(own)
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg:
        return Path(xdg) / "pocketfed"
    try:
        return Path.home() / ".cache" / "pocketfed"
    except RuntimeError:  # a user without an entry in the system's list, and no HOME
        raise ConfigError(
            "this user has no home folder: set POCKETFED_CACHE to a folder to keep what was "
            "measured and compiled"
        ) from None


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part.

    ``mode``: who may use it, less what the process's umask takes away.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
