"""`pocketfed tune`: kernel variants are measured on the devices here, and the best ones kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from client import backends
from client.errors import ConfigError, DeviceError
from client.model import load_model

MODELS = ("mlp", "lenet5", "femnist_cnn")
"""Tuned for where no model is named."""


def seconds(text: str) -> float:
    """``30``, ``30s``, ``2m`` in seconds; ConfigError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|)", text.strip())
    if found is None or float(found[1]) == 0:
        raise ConfigError(f"--budget: found '{text}', needs seconds or minutes, as 30s or 2m")
    return float(found[1]) * (60 if found[2] == "m" else 1)


def tune(
    models: list[str], batch: int, budget_s: float, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Tune each device that has something to tune, one after the other; what came of each.

    DeviceError where there is none, or where one cannot be tuned.
    """
    files = [_absolute(name) for name in models or MODELS]
    found = []
    reasons = []
    for name in backends.at_hand():
        backend = backends.get(name)
        try:
            infos = [info for info in backend.devices() if backend.tuning(info)]
        except DeviceError as e:
            reasons.append(f"{name}: {e}")
            continue
        for info in infos:
            say(f"{info.name}: {backend.tuning(info)}")
            backend.tune(info, files, batch, budget_s, say)
            found.append({"backend": name, "device": info.name, "tuning": backend.tuning(info)})
    if not found:
        raise DeviceError(f"no device here can be tuned: {'; '.join(reasons) or 'none was found'}")
    return found


def _absolute(name: str) -> str:
    """A model file by its full path, since the child that tunes starts elsewhere; a name as it is.

    ConfigError or ModelError where it is neither.
    """
    path = Path(name)
    load_model(path)
    return str(path.absolute()) if path.is_file() else name
