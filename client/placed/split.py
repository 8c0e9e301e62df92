"""Every batch split over several devices, each with the whole network.

Each part has a slice of the batch, whose gradients are weighted by what the slice weighs in the
batch's loss, so that they add up to the batch's. They are added up on the first part, the owner,
which alone has the optimizer's state and makes the step; the others are given the new values. So a
step moves the gradients once to the owner and the values once from it. Devices with a queue are
given their work first, those that compute in the caller's thread work beside them.

Where a slice is empty (a small last batch, a small share), its part takes no part in the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from client.backends.figures import Command, Metrics
from client.backends.recipe import Hyper
from client.backends.state import State
from client.errors import DeviceError
from client.model.graph import Float32Array
from client.placed.base import Placed, Site
from client.placement.layout import Layout, LayoutKind, slices


class Split(Placed):
    """See the module. DeviceError where a layer needs the statistics of the whole batch."""

    kind: ClassVar[LayoutKind] = "split"

    def __init__(self, layout: Layout, sites: Sequence[Site]) -> None:
        super().__init__(layout, sites)
        model = sites[0].program.segment.model
        if model.batch_layers:
            raise DeviceError(
                f"model '{model.name}': a batch cannot be split over devices, because "
                f"{model.batch_layers[0]} needs the statistics of the whole batch: place the "
                "network on one device, or cut it"
            )
        self._owner = sites[0].program
        self._commands: Sequence[list[Command]] | None = None

    # -- a round -----------------------------------------------------------------------------
    def upload(self, values: Float32Array) -> None:
        for program in self.programs:
            program.upload(values)

    def download(self) -> Float32Array:
        return self._owner.download()

    def read_state(self) -> State:
        return self._owner.read_state()

    def write_state(self, state: State) -> None:
        self._owner.write_state(state)
        self._share(state.values)

    # -- an epoch ----------------------------------------------------------------------------
    def step(self, start: int, count: int, hyper: Hyper) -> None:
        rows = slices(count, self.layout.shares)
        at_work = [i for i, n in enumerate(rows) if n]
        if self._sample_next:
            for i in at_work:
                wanted = None if self._commands is None else self._commands[i]
                self.programs[i].sample_next_step(wanted)
        total = self._owner.weight(start, count)
        for i in self._queues_first(at_work):
            program = self.programs[i]
            self._forward(i, start, rows, training=True)
            program.loss(rows[i], total)
            program.backward(rows[i])
            self.sites[i].device.flush()
        for i in at_work:
            if i:  # the owner's own are there
                # the first ones take the place of an owner's that had no examples
                replace = i == at_work[0]
                self._owner.add_grads(self.programs[i].take_grads(), replace=replace)
        self._owner.update(hyper)
        self._share(self._owner.download())
        self._stepped()

    def evaluate(self, start: int, count: int) -> None:
        rows = slices(count, self.layout.shares)
        for i in self._queues_first([i for i, n in enumerate(rows) if n]):
            self._forward(i, start, rows, training=False)
            self.programs[i].loss(rows[i])
            self.sites[i].device.flush()

    def read_metrics(self) -> Metrics:
        first, *others = (program.read_metrics() for program in self.programs)
        return sum(others, start=first)

    def sample_next_step(self, commands: Sequence[list[Command]] | None = None) -> None:
        """As everywhere; a part whose slice of that step is empty has nothing to be timed."""
        self._sample_next, self._commands = True, commands

    def _queues_first(self, parts: Sequence[int]) -> list[int]:
        return sorted(parts, key=lambda i: not self.sites[i].device.has_queue)

    def _forward(self, i: int, start: int, rows: Sequence[int], training: bool) -> None:
        """A part's slice of the batch, brought in and through its network."""
        program = self.programs[i]
        program.gather(start + sum(rows[:i]), rows[i])
        program.forward(rows[i], training)

    def _share(self, values: Float32Array) -> None:
        """The owner's values to the other parts."""
        for program in self.programs[1:]:
            program.put_values(values)
