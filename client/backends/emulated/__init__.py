"""Emulated devices: a device here computes, on a slower clock and behind a link with its own speed.

They stand in for hardware that a machine does not have, where placement is developed and tested.
POCKETFED_EMULATE names the YAML files that describe them, or shipped ones (configs/emulated);
without it there are none. docs/emulated.md has the model, the keys, and its limits.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from client import backends
from client.backends.base import Backend, Device
from client.backends.device_info import DeviceInfo, numbered
from client.backends.emulated.spec import Emulation, load
from client.errors import ConfigError, DeviceError
from client.fields import find_config

VARIABLE = backends.EMULATED_VARIABLE


class EmulatedBackend(Backend):
    """The devices of the files in POCKETFED_EMULATE, in that order."""

    name: ClassVar[str] = backends.EMULATED

    def devices(self) -> list[DeviceInfo]:
        return [info for info, _ in _find()]

    def open(self, info: DeviceInfo) -> Device:
        for found, emulation in _find():
            if found == info:
                return open_emulated(info, emulation)
        raise DeviceError(
            f"{info.name}: the emulated device is no longer there: was {VARIABLE} or a file that "
            "it names changed?"
        )


def open_emulated(info: DeviceInfo, emulation: Emulation) -> Device:
    """The device that a file describes, whatever the environment says."""
    from client.backends.emulated.device import EmulatedDevice

    inner = emulation.inner
    opened = backends.get(inner.backend).open_part(
        _inner_info(emulation), inner.cores, emulation.memory_nbytes
    )
    return EmulatedDevice(info, emulation, opened)


def describe(emulation: Emulation) -> DeviceInfo:
    """What an emulated device says of itself; DeviceError where its inner device is not here."""
    from client.backends.emulated.device import describe as describe_on

    return describe_on(emulation, _inner_info(emulation))


def _find() -> list[tuple[DeviceInfo, Emulation]]:
    names = [name for name in os.environ.get(VARIABLE, "").split(":") if name]
    if not names:
        raise DeviceError(
            f"there are emulated devices only where {VARIABLE} names their files: "
            f"set {VARIABLE}=phone for a shipped one"
        )
    paths = [find_config(name, "emulated", Path(), VARIABLE) for name in names]
    emulations = [load(path) for path in paths]
    infos = numbered(describe(emulation) for emulation in emulations)
    return list(zip(infos, emulations, strict=True))


def _inner_info(emulation: Emulation) -> DeviceInfo:
    inner = emulation.inner
    allowed = [name for name in backends.names() if name != backends.EMULATED]
    if inner.backend not in allowed:
        raise ConfigError(
            f"{emulation.name}: inner.backend: found '{inner.backend}', "
            f"allowed: {', '.join(allowed)}"
        )
    infos = backends.get(inner.backend).devices()
    part = (inner.device or "").lower()
    info = next((i for i in infos if part in i.name.lower()), None)
    if info is None:
        here = ", ".join(i.name for i in infos) or "none"
        raise DeviceError(
            f"{emulation.name}: no inner device of the backend {inner.backend}"
            + (f" with '{inner.device}' in its name" if part else "")
            + f"; here: {here}"
        )
    return info


BACKEND = EmulatedBackend()

__all__ = ["BACKEND"]
