"""Seconds to the first training step, with an empty kernel cache and with a warm one.

Each in a process of its own: `python -m server.bench.start MODEL BATCH BACKEND DEVICE_KEY`.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from client.backends.device_info import DeviceInfo
from client.config import DevicesConfig
from client.errors import DeviceError, PocketfedError
from client.model import load_model
from client.worker.devices import Devices
from server.bench.workloads import OurSteps, random_examples

TIMEOUT_S = 600

CACHES = ("POCKETFED_CACHE", "POCL_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME")
"""Variables for the folders in which we and OpenCL drivers keep compiled kernels."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """Seconds from the choice of a backend to the end of its first training step.

    The backend's library is imported, the device found and opened, kernels are built or read, the
    parity gate is passed (with an empty cache by computing, else from the note of it), the data
    set and the parameters are uploaded. Python's own start and the import of numpy are not in it.
    """

    cold_s: float  # no kernel was ever compiled
    warm_s: float  # the same process once more


def measure_start(model: str, batch: int, info: DeviceInfo) -> Start:
    """Two processes in turn, with a cache folder of their own; DeviceError where one fails."""
    with TemporaryDirectory(prefix="pocketfed-start-") as folder:
        env = {**os.environ, **{name: str(Path(folder, name.lower())) for name in CACHES}}
        for name in CACHES:
            Path(env[name]).mkdir()
        command = [sys.executable, "-m", "server.bench.start"]
        command += [model, str(batch), info.backend, info.key]
        cold, warm = (_seconds(command, env) for _ in range(2))
        return Start(cold, warm)


def _seconds(command: list[str], env: dict[str, str]) -> float:
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(f"no first training step within {TIMEOUT_S} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DeviceError(f"the process that was to do the first training step failed: {last}")
    return float(json.loads(done.stdout.splitlines()[-1])["start_s"])


def first_step(model_name: str, batch: int, backend: str, key: str) -> float:
    """Seconds to the end of the first step in this process."""
    model = load_model(Path(model_name))
    examples = random_examples(model, batch)
    begin = time.perf_counter()
    pool = Devices(DevicesConfig(backend), model)
    try:
        device, program = pool.ready(pool.find(key), batch)
        OurSteps(device, program, model, examples, batch).run(1)
        return time.perf_counter() - begin
    finally:
        pool.close()


if __name__ == "__main__":
    try:
        seconds = first_step(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
    except PocketfedError as e:
        sys.exit(str(e))
    print(json.dumps({"start_s": seconds}))  # noqa: T201
