"""OpenCL C sources, a file per family of operations; this module only hands them out."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files


@cache
def source(name: str) -> str:
    """Text of ``<name>.cl``."""
    return (files(__name__) / f"{name}.cl").read_text(encoding="utf-8")


@cache
def digest() -> str:
    """Hex digest of all sources: two sides with equal digests run the same kernels."""
    h = hashlib.blake2b(digest_size=16)
    for entry in sorted(files(__name__).iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".cl"):
            h.update(entry.name.encode())
            h.update(entry.read_bytes())
    return h.hexdigest()
