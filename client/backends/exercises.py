"""The primitives by which a device is measured, prepared by its backend and timed by the probe.

A backend only says how each is done; how long, how often, and what is made of the times is the
same for every device (``client.placement.probe``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

LinkKind = Literal["pageable", "pinned", "mapped"]
"""Host memory of a transfer: as malloc gives it; locked, so that the device reads it by itself;
the device's own memory, mapped into the process."""

LINK_KINDS: tuple[LinkKind, ...] = get_args(LinkKind)


def _nothing() -> None:
    """Where there is nothing to wait for, or to free."""


@dataclass(frozen=True)
class Exercise:
    """One primitive with its operands. ``enqueue`` may return before it is done, ``finish`` not."""

    enqueue: Callable[[], object]
    finish: Callable[[], object] = _nothing
    release: Callable[[], object] = _nothing

    def run(self, repeats: int) -> None:
        """Do it so often; returns when the last one is done."""
        for _ in range(repeats):
            self.enqueue()
        self.finish()


class Exercises(ABC):
    """Each method allocates and builds what it needs; DeviceError where the device cannot.

    ``link_kinds``: kinds of transfers that there are; ``link_used``: the one that programs' tensors
    go through; ``most_nbytes``: of the largest copy or transfer that fits.
    """

    link_kinds: tuple[LinkKind, ...]
    link_used: LinkKind
    most_nbytes: int

    @abstractmethod
    def gemm(self, m: int, n: int, k: int) -> Exercise:
        """A float32 product (m, k) x (k, n), by the kernels that training uses."""

    @abstractmethod
    def copy(self, nbytes: int) -> Exercise:
        """Read so many bytes of the device's memory and write them elsewhere in it."""

    @abstractmethod
    def launch(self) -> Exercise:
        """A command that does next to nothing."""

    @abstractmethod
    def upload(self, nbytes: int, kind: LinkKind) -> Exercise:
        """Host to device; each is done when ``enqueue`` returns, as at a network's cuts."""

    @abstractmethod
    def download(self, nbytes: int, kind: LinkKind) -> Exercise:
        """Device to host, into new memory unless it is pinned; done when ``enqueue`` returns."""
