"""Processors that can train. A backend is a folder here; it is found by itself."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from importlib import import_module

from client import children
from client.backends.base import Backend
from client.errors import ConfigError, did_you_mean

REFERENCE = "numpy"
"""The backend that others are held against, and that trains where they cannot."""

EMULATED = "emulated"
"""The backend of devices that are not there: see its package."""

EMULATED_VARIABLE = children.EMULATED
"""Names the files of emulated devices."""

on_backend: ContextVar[Callable[[str], None] | None] = ContextVar("on_backend", default=None)
"""Told the names of backends before they are asked to work, where somebody watches this process:
see ``at_work``."""


@cache
def names() -> tuple[str, ...]:
    """Names of all backends; nothing is imported."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.ispkg))


def at_hand() -> tuple[str, ...]:
    """Names of the backends that are asked for their devices where none is named.

    The emulated one is, where the environment names its devices.
    """
    emulated = os.environ.get(EMULATED_VARIABLE)
    return tuple(name for name in names() if name != EMULATED or emulated)


@cache
def get(name: str) -> Backend:
    """The backend of a name; its package is imported now, its libraries when it is used."""
    if name not in names():
        raise ConfigError(
            f"backend: found '{name}', allowed: {', '.join(names())}{did_you_mean(name, names())}"
        )
    backend: Backend = import_module(f"{__name__}.{name}").BACKEND
    return backend


def at_work(*names: str) -> None:
    """Say that the backends of these names are asked to work from now on.

    Together they are told as "a+b", the reference left out: whoever fails, it will not be that.
    """
    listener = on_backend.get()
    if listener is not None:
        listener("+".join(sorted(set(names) - {REFERENCE})) or REFERENCE)
