"""Where this machine keeps what it measured and compiled, between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$POCKETFED_CACHE, else $XDG_CACHE_HOME/pocketfed, else ~/.cache/pocketfed; not created."""
    own = os.environ.get("POCKETFED_CACHE")
    if own:
        return Path(own)
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "pocketfed"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
