"""Training steps of a layout on opened devices; ``run`` is what is timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from client import placed
from client.backends.base import Device, DeviceData, Program
from client.backends.recipe import Hyper
from client.model import Model, initialise
from client.placed import Placed, Site
from client.placement.layout import Layout
from server.bench.workloads import HYPER, SEED, Examples


@dataclass(frozen=True)
class Loaded:
    """A model's examples on the devices that layouts name, to be trained by batches of ``batch``.

    ``devices`` and ``data`` by the device's key.
    """

    model: Model
    examples: Examples
    batch: int
    devices: Mapping[str, Device]
    data: Mapping[str, DeviceData]

    @classmethod
    def on(
        cls, devices: Mapping[str, Device], model: Model, examples: Examples, batch: int
    ) -> Loaded:
        """Bring the examples to each device."""
        data = {key: device.load(examples.x, examples.y) for key, device in devices.items()}
        return cls(model, examples, batch, devices, data)

    def release(self) -> None:
        """Free the examples; the devices stay open."""
        for data in self.data.values():
            data.release()


class PlacedSteps:
    """Steps of a layout, with programs of its own; DeviceError where it cannot be trained so."""

    def __init__(self, layout: Layout, loaded: Loaded, hyper: Hyper = HYPER) -> None:
        self._loaded, self._hyper = loaded, hyper
        self._programs: list[Program] = []
        self._step = 0
        try:
            self.placed = self._place(layout)
        except BaseException:
            self.release()
            raise

    def _place(self, layout: Layout) -> Placed:
        loaded = self._loaded
        sites = []
        for part in layout.parts:
            device = loaded.devices[part.device]
            program = device.compile(part.segment(loaded.model), loaded.batch)
            self._programs.append(program)
            sites.append(Site(device, program, loaded.data[part.device]))
        found = placed.place(layout, sites)
        found.upload(initialise(loaded.model, SEED))
        found.begin_epoch(loaded.examples.order, loaded.batch, dropout_key=SEED)
        found.finish()
        return found

    def run(self, steps: int) -> None:
        """``steps`` training steps, ended by one wait."""
        for _ in range(steps):
            self.one()
        self.placed.finish()

    def one(self) -> None:
        """One training step; not waited for."""
        self.placed.step(*self._loaded.examples.batch(self._step, self._loaded.batch), self._hyper)
        self._step += 1

    def release(self) -> None:
        """Free the programs."""
        for program in self._programs:
            program.release()
        self._programs.clear()
