"""How much of the processors others took while something was timed.

Threads that wait for each other at every layer suffer out of proportion when one of them loses its
processor: PyTorch's step on a busy machine takes ten times as long and more. So a figure carries
the share of processor time that others had meanwhile.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

BUSY_SHARE = 0.05
"""From this share of processor time taken by others on, a figure is called doubtful."""

log = logging.getLogger(__name__)


class Load:
    """Processor time of this machine and of this process, from its making until ``others_share``.

    Of the processors that this process may use; its children that have ended count as its own.
    Linux only: elsewhere, and where /proc/stat may not be read (Android), the share is None.
    """

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._begin_s = time.perf_counter()
        self._busy_s, self._own_s = self._busy(), _own_s()

    def others_share(self) -> float | None:
        """0: all the processor time was ours or nobody's; 1: all of it was others'."""
        busy_s = self._busy()
        if busy_s is None or self._busy_s is None:
            return None
        others_s = (busy_s - self._busy_s) - (_own_s() - self._own_s)
        available_s = (time.perf_counter() - self._begin_s) * len(os.sched_getaffinity(0))
        return min(max(others_s / available_s, 0.0), 1.0)

    def warn(self, what: str) -> float | None:
        """The share of others; a warning that ``what`` was measured on a busy machine."""
        share = self.others_share()
        if share is not None and share >= BUSY_SHARE:
            log.warning(
                "%s: other processes took %.0f%% of the processors meanwhile: "
                "the figures are doubtful; measure again on a quiet machine",
                what,
                100 * share,
            )
        return share

    def _busy(self) -> float | None:
        try:
            lines = self._stat.read_text(encoding="ascii").splitlines()
            mine = {f"cpu{n}" for n in os.sched_getaffinity(0)}
        except (OSError, AttributeError):
            return None
        ticks = 0
        for line in lines:
            name, *fields = line.split()
            if name in mine:
                user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
                ticks += user + nice + system + irq + softirq + steal
        return ticks / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
