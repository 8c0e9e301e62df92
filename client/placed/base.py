"""A network on the devices of a layout, trained as one: the executor's interface.

Whoever trains sees one network: values and state are the whole model's, whatever it runs on. What
is enqueued is not waited for, except by methods that say so, by boundaries between devices, and on
devices that compute in the caller's thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from client.backends.base import Device, DeviceData, Program
from client.backends.figures import Command, Metrics, Traffic
from client.backends.recipe import Hyper
from client.backends.state import State
from client.model.graph import Float32Array
from client.placement.layout import Layout, LayoutKind


@dataclass(frozen=True)
class Site:
    """Where a part of a layout runs: its device, its program, the data set on that device.

    Sites on one device share device and data. Each program holds a whole batch, so that a share
    compiles nothing anew.
    """

    device: Device
    program: Program
    data: DeviceData


class Placed(ABC):
    """See the module. ``sites``: one for each part of the layout, in order.

    It owns none of what it is given: devices, programs and data are released by whoever made them,
    and another ``Placed`` may use them before or after.
    """

    kind: ClassVar[LayoutKind]

    def __init__(self, layout: Layout, sites: Sequence[Site]) -> None:
        layout.check(sites[0].program.segment.model)
        found = [
            (s.device.info.key, s.program.segment.first, s.program.segment.stop) for s in sites
        ]
        wanted = [(part.device, part.first, part.stop) for part in layout.parts]
        if layout.kind != self.kind or found != wanted:
            raise ValueError(f"programs {found} for a {self.kind} layout of parts {wanted}")
        self.layout, self.sites = layout, tuple(sites)
        self._sample_next = False
        self._sampled_steps = 0

    # -- what it consists of -----------------------------------------------------------------
    @property
    def programs(self) -> tuple[Program, ...]:
        """One for each part, in order."""
        return tuple(site.program for site in self.sites)

    @property
    def devices(self) -> tuple[Device, ...]:
        """Each once, in order."""
        return tuple(dict.fromkeys(site.device for site in self.sites))

    @property
    def num_examples(self) -> int:
        """Of the data set."""
        return self.sites[0].data.num_examples

    @property
    def nbytes(self) -> int:
        """What programs and data hold, over all devices."""
        data = dict.fromkeys(site.data for site in self.sites)
        return sum(p.nbytes for p in self.programs) + sum(d.nbytes for d in data)

    @property
    def launches(self) -> int:
        """Of a training step of one batch, over all devices."""
        return sum(program.usage.launches for program in self.programs)

    @property
    def traffic(self) -> Traffic:
        """A copy of the counters, added up over its devices; ``sampled_steps``: its own.

        To be held against an earlier copy from the same object, taken while nothing else ran.
        """
        counters = [device.traffic for device in self.devices]
        total = Traffic(
            **{k: sum(getattr(c, k) for c in counters) for k in Traffic.__dataclass_fields__}
        )
        return replace(total, sampled_steps=self._sampled_steps)

    # -- a round -----------------------------------------------------------------------------
    @abstractmethod
    def upload(self, values: Float32Array) -> None:
        """A round begins from the model's values: see ``Program.upload``."""

    @abstractmethod
    def download(self) -> Float32Array:
        """Wait; the model's values (a copy)."""

    @abstractmethod
    def read_state(self) -> State:
        """Wait; the whole model's state (a copy)."""

    @abstractmethod
    def write_state(self, state: State) -> None:
        """Go on from a state: all but the round's start, which the last ``upload`` set."""

    # -- an epoch ----------------------------------------------------------------------------
    def begin_epoch(self, order: NDArray[np.int32], batch: int, dropout_key: int) -> None:
        """Visit the data in ``order`` from now on: see ``Program.begin_epoch``."""
        for site in self.sites:
            site.program.begin_epoch(site.data, order, batch, dropout_key)

    @abstractmethod
    def step(self, start: int, count: int, hyper: Hyper) -> None:
        """A training step on examples order[start:start + count]."""

    @abstractmethod
    def evaluate(self, start: int, count: int) -> None:
        """Forward and loss of these examples, as in evaluation: metrics alone."""

    @abstractmethod
    def read_metrics(self) -> Metrics:
        """Wait; what losses accumulated since the last reading."""

    def sample_next_step(self, commands: Sequence[list[Command]] | None = None) -> None:
        """Time the commands of the next ``step`` (see ``Program.sample_next_step``).

        ``commands``: a list for each part, in order.
        """
        for i, program in enumerate(self.programs):
            program.sample_next_step(None if commands is None else commands[i])
        self._sample_next = True

    def throttle(self, limit_s: float) -> None:
        """Wait until at most about ``limit_s`` of work is in flight on each device."""
        for device in self.devices:
            device.throttle(limit_s)

    def finish(self) -> None:
        """Wait until all enqueued work is done."""
        for device in self.devices:
            device.finish()

    def _stepped(self) -> None:
        """A training step was enqueued."""
        self._sampled_steps += self._sample_next
        self._sample_next = False
