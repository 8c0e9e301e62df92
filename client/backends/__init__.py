"""Processors that can train. A backend is a folder here; it is found by itself."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from client.backends.base import Backend
from client.errors import ConfigError, did_you_mean


@cache
def names() -> tuple[str, ...]:
    """Names of all backends; nothing is imported."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.ispkg))


@cache
def get(name: str) -> Backend:
    """The backend of a name; its package is imported now, its libraries when it is used."""
    if name not in names():
        raise ConfigError(
            f"backend: found '{name}', allowed: {', '.join(names())}{did_you_mean(name, names())}"
        )
    backend: Backend = import_module(f"{__name__}.{name}").BACKEND
    return backend
