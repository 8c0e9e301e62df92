"""Device-busy time of sampled steps, from the events of their commands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import pyopencl as cl

from client.backends.figures import Command, Traffic

Busy = Literal["compute", "copy", "transfer"]


@dataclass
class Sample:
    """The commands of one step: kind, event, and which share of it is this step's.

    A chunk of streamed data is uploaded for many steps; each has its share of that.
    ``wanted``: where those that are described go, with the time that they took.
    """

    wanted: list[Command] | None = None
    commands: list[tuple[Busy, cl.Event, float, Command | None]] = field(default_factory=list)

    def add(
        self, busy: Busy, event: cl.Event, share: float = 1.0, what: Command | None = None
    ) -> None:
        self.commands.append((busy, event, share, what))


class Samples:
    """Steps that were enqueued and not yet read."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._steps: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """A whole step was enqueued."""
        self._steps.append(sample)

    def read(self) -> None:
        """Add the steps to the traffic; all their commands must be complete."""
        for sample in self._steps:
            for busy, event, share, what in sample.commands:
                seconds = (event.profile.end - event.profile.start) * 1e-9 * share
                name = f"{busy}_s"
                setattr(self._traffic, name, getattr(self._traffic, name) + seconds)
                if what is not None and sample.wanted is not None:
                    sample.wanted.append(replace(what, seconds=seconds))
            self._traffic.sampled_steps += 1
        self._steps.clear()
