"""What an emulated device is measured by: the inner device's primitives, on its own timeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from client.backends.base import Device
from client.backends.emulated.reference import Compute, References
from client.backends.exercises import Exercise, Exercises, LinkKind

if TYPE_CHECKING:
    from client.backends.emulated.device import EmulatedDevice


class EmulatedExercises(Exercises):
    """Each runs for real on the inner device and takes as long as a program's commands would.

    Transfers pass the emulated link alone, as any that a program makes; there is one kind.
    """

    link_kinds: tuple[LinkKind, ...] = ("pageable",)
    link_used: LinkKind = "pageable"

    def __init__(self, device: EmulatedDevice, inner: Device) -> None:
        self._device = device
        self._inner: Exercises = device.aside(inner.exercises)
        self.most_nbytes = self._inner.most_nbytes

    def gemm(self, m: int, n: int, k: int) -> Exercise:
        return self._computing(lambda: self._inner.gemm(m, n, k))

    def copy(self, nbytes: int) -> Exercise:
        return self._computing(lambda: self._inner.copy(nbytes))

    def launch(self) -> Exercise:
        return self._computing(self._inner.launch)

    def upload(self, nbytes: int, kind: LinkKind) -> Exercise:
        return self._passing(up=nbytes)

    def download(self, nbytes: int, kind: LinkKind) -> Exercise:
        return self._passing(down=nbytes)

    def _computing(self, make: Callable[[], Exercise]) -> Exercise:
        inner: Exercise = self._device.aside(make)
        self._device.aside(lambda: inner.run(1))  # now what it needs is built
        return _OneCommand(
            inner.enqueue,
            inner.finish,
            partial(self._device.aside, inner.release),
            device=self._device,
            references=References(prepares=False),
        )

    def _passing(self, up: int = 0, down: int = 0) -> Exercise:
        device = self._device

        def enqueue() -> Any:
            return device.exercise(_nothing, up=up, down=down)

        return Exercise(enqueue)


@dataclass(frozen=True)
class _OneCommand(Exercise):
    """Repeated in one command, as a step's launches are: hand-over comes once."""

    device: EmulatedDevice = field(kw_only=True)
    references: References = field(kw_only=True)

    def run(self, repeats: int) -> None:
        run, compute = super().run, Compute(self.references, repeats)
        self.device.exercise(lambda: run(repeats), compute)


def _nothing() -> None:
    """What passes the link does not matter."""
