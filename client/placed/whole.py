"""The whole network on one device: one program, to which every call goes straight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from client.backends.figures import Metrics
from client.backends.recipe import Hyper
from client.backends.state import State
from client.model.graph import Float32Array
from client.placed.base import Placed, Site
from client.placement.layout import Layout, LayoutKind


class Whole(Placed):
    """See the module. A batch over the program's capacity goes through it in slices."""

    kind: ClassVar[LayoutKind] = "whole"

    def __init__(self, layout: Layout, sites: Sequence[Site]) -> None:
        super().__init__(layout, sites)
        self._program = sites[0].program

    def upload(self, values: Float32Array) -> None:
        self._program.upload(values)

    def download(self) -> Float32Array:
        return self._program.download()

    def read_state(self) -> State:
        return self._program.read_state()

    def write_state(self, state: State) -> None:
        self._program.write_state(state)

    def step(self, start: int, count: int, hyper: Hyper) -> None:
        self._program.step(start, count, hyper)
        self._stepped()

    def evaluate(self, start: int, count: int) -> None:
        program = self._program
        for at in range(0, count, program.capacity):
            rows = min(program.capacity, count - at)
            program.gather(start + at, rows)
            program.forward(rows, training=False)
            program.loss(rows)

    def read_metrics(self) -> Metrics:
        return self._program.read_metrics()
