"""Tuning in a child process, so that a variant that takes a driver down takes only the child."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from client.backends.device_info import DeviceInfo
from client.backends.opencl import tuned
from client.children import environment
from client.errors import DeviceError

HANGS_AFTER_S = 60.0
"""A variant that takes longer, its compilation included, is ended and skipped."""


def tune(
    info: DeviceInfo,
    models: Sequence[str],
    batch: int,
    budget_s: float,
    say: Callable[[str], None],
    module: str = "client.backends.opencl.tuner",
) -> None:
    """Tune a device for at most about ``budget_s``; DeviceError where no child can."""
    end_s = time.monotonic() + budget_s
    while True:
        asked = {
            "device": info.key,
            "seconds": end_s - time.monotonic(),
            "batch": batch,
            "models": list(models),
        }
        code, error = _child(module, asked, tuned.marker(info), say)
        if code == 0:
            return
        if not tuned.marker(info).exists():
            raise DeviceError(f"{info.name}: tuning ended with exit code {code}: {error}")
        if time.monotonic() >= end_s:
            variant = tuned.marker(info).read_text()
            say(f"{variant}: the process ended in it; it will be skipped")
            return


def _child(
    module: str, asked: dict[str, object], marker: Path, say: Callable[[str], None]
) -> tuple[int, str]:
    """Exit code and the last line of its errors."""
    child = subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(asked)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    stderr, stdout, errors = child.stderr, child.stdout, [""]
    readers = [
        threading.Thread(target=_read, args=(stdout, say), daemon=True),
        threading.Thread(target=_read, args=(stderr, errors.append), daemon=True),
    ]
    for reader in readers:
        reader.start()
    began_s = time.time()
    try:
        while child.poll() is None:
            time.sleep(0.05)
            if time.time() - max(began_s, _modified_s(marker)) > HANGS_AFTER_S:
                child.kill()
    except BaseException:
        child.kill()
        child.wait()
        marker.unlink(missing_ok=True)  # the variant is not to blame
        raise
    for reader in readers:
        reader.join()
    stdout.close()
    stderr.close()
    return child.returncode, errors[-1]


def _read(lines: IO[str], take: Callable[[str], object]) -> None:
    for line in lines:
        take(line.strip())


def _modified_s(marker: Path) -> float:
    try:
        return marker.stat().st_mtime
    except FileNotFoundError:
        return time.time()
