"""The clock that an emulated device's time is kept on: the host's."""

from __future__ import annotations

import time
from typing import Protocol

SPIN_S = 100e-6
"""A sleep ends some 60 us late (more where the machine is busy): the last bit is not slept."""


class Clock(Protocol):
    """Tells the time, and lets it pass."""

    def now_s(self) -> float:
        """Seconds since some moment."""

    def wait_until(self, moment_s: float) -> None:
        """Return at that moment, or at once where it is past."""


class HostClock:
    """``time.perf_counter``."""

    def now_s(self) -> float:
        return time.perf_counter()

    def wait_until(self, moment_s: float) -> None:
        while (left_s := moment_s - time.perf_counter()) > 0:
            time.sleep(max(0.0, left_s - SPIN_S))  # 0: others may run, no more
