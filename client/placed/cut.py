"""A network cut over several devices: a chain of segments that train as one.

Between neighbours one tensor passes forward and its gradient back, each once a step through the
host (also between segments on one device, which is how moving everything is measured). A segment
is updated while those before it go backward: its update is enqueued once its input's gradient was
asked for; where a device computes in the caller's thread, once the segment before it is at work.
Where gradients are clipped, their norm is that of all segments, and updates wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import ClassVar

from client.backends.figures import Metrics
from client.backends.recipe import Hyper
from client.backends.state import State, join_states, join_values
from client.model.graph import Float32Array
from client.placed.base import Placed, Site
from client.placement.layout import Layout, LayoutKind


class Cut(Placed):
    """See the module. Labels are used by the last segment, which keeps the metrics."""

    kind: ClassVar[LayoutKind] = "cut"

    def __init__(self, layout: Layout, sites: Sequence[Site]) -> None:
        super().__init__(layout, sites)
        self._segments = [program.segment for program in self.programs]

    # -- a round -----------------------------------------------------------------------------
    def upload(self, values: Float32Array) -> None:
        for program in self.programs:
            program.upload(program.segment.values_of(values))

    def download(self) -> Float32Array:
        return join_values(self._segments, [program.download() for program in self.programs])

    def read_state(self) -> State:
        return join_states(self._segments, [program.read_state() for program in self.programs])

    def write_state(self, state: State) -> None:
        parts = state.cut(self._segments)
        for program, part in zip(self.programs, parts, strict=True):
            program.write_state(part)

    # -- an epoch ----------------------------------------------------------------------------
    def step(self, start: int, count: int, hyper: Hyper) -> None:
        self._forward(start, count, training=True)
        self._backward(count, hyper)
        if hyper.clip_norm:
            self._clipped_update(hyper)
        self._stepped()

    def evaluate(self, start: int, count: int) -> None:
        self._forward(start, count, training=False)

    def read_metrics(self) -> Metrics:
        return self.programs[-1].read_metrics()

    def _forward(self, start: int, count: int, training: bool) -> None:
        """Down the chain, and the loss at its end."""
        for program in self.programs:
            program.gather(start, count)
        boundary: Float32Array | None = None
        for program in self.programs:
            if boundary is not None:
                program.put_input(boundary)
            program.forward(count, training)
            if not program.segment.is_last:
                boundary = program.take_output(count)
        self.programs[-1].loss(count)

    def _backward(self, count: int, hyper: Hyper) -> None:
        """Up the chain; updates, unless they wait for the gradients' norm."""
        waiting: Site | None = None  # to be updated once the segment before it is at work
        for i, site in reversed(list(enumerate(self.sites))):
            program = site.program
            program.backward(count)
            site.device.flush()
            if waiting is not None:
                _update(waiting, hyper)
                waiting = None
            grad = program.take_input_grad(count) if program.segment.needs_input_grad else None
            if not hyper.clip_norm:
                if site.device.has_queue or i == 0:
                    _update(site, hyper)
                else:
                    waiting = site
            if grad is not None:
                self.sites[i - 1].program.put_output_grad(grad)

    def _clipped_update(self, hyper: Hyper) -> None:
        """Every segment's step, by the norm of them all."""
        sites = sorted(self.sites, key=lambda site: site.device.has_queue)
        norm = sqrt(sum(site.program.grad_squares(hyper) for site in sites))
        for site in reversed(sites):  # those with a queue first: they work beside the others
            _update(site, hyper, norm)


def _update(site: Site, hyper: Hyper, norm: float | None = None) -> None:
    site.program.update(hyper, norm)
    site.device.flush()
