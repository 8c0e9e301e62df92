"""Times layouts on this machine's devices, on random examples of a model's shape.

First each processor by itself, with whole and half batches and its commands one by one, by which
the costs are corrected; then the layouts that these costs rank first. Layouts are timed in turn,
group by group, so that a machine that slows down meanwhile slows all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from client import backends, placed
from client.backends.base import Device, DeviceData, Program
from client.backends.figures import Command
from client.backends.recipe import DEFAULT_RECIPE, Hyper
from client.errors import ConfigError, DeviceError
from client.model import Model, initialise
from client.placed import Placed, Site
from client.placement.calibrate import calibrate
from client.placement.cost import Costs, SampledStep, TimedSteps
from client.placement.layout import Layout, Part
from client.placement.planner import Ranking
from client.placement.probe import REST_S
from client.random import generator
from client.trainer import quiet

SEED = 0
HYPER = Hyper(lr=1e-3, momentum=0.9)

GROUPS = 5
GROUP_S = 0.08
"""A group's steps last about so long, by the first ones."""

SAMPLES = 3
MOST_LAYOUTS = 8
PASSES = 2
"""What is measured corrects the costs, which may rank others first: those are timed as well."""


@dataclass
class Measured:
    """``steps_s``: median seconds of a step; ``corrected``: costs after the single processors.

    A processor that cannot train the whole network is in neither of the costs. ``failed``: layouts
    that could not run, and why.
    """

    corrected: Costs
    costs: Costs
    steps_s: dict[Layout, float] = field(default_factory=dict)
    failed: dict[Layout, str] = field(default_factory=dict)


def measure(
    model: Model, costs: Costs, rank: Callable[[Costs], Ranking], say: Callable[[str], None]
) -> Measured:
    """Time what ``rank`` finds best; ConfigError where a processor of the costs is not here."""
    with ExitStack() as stack:
        runs = _Runs(model, costs.batch, _open(costs, stack))
        stack.callback(runs.release)
        singles = [p.layout for p in rank(costs).predictions if p.layout.kind == "whole"]
        say(f"timing {len(singles)} processors …")
        rows = sorted({max(1, costs.batch // 2), costs.batch})
        timed = [t for n in rows for t in runs.time(singles, n)]
        sampled = [s for n in rows for layout in singles for s in runs.sample(layout, n)]
        works = {t.layout.devices[0] for t in timed}
        left = tuple(p for p in costs.processors if p.key in works)
        corrected = calibrate(replace(costs, processors=left), model, sampled, timed)
        found = Measured(corrected, corrected, failed=runs.failed)
        for _ in range(PASSES):
            layouts = [p.layout for p in rank(found.costs).predictions[:MOST_LAYOUTS]]
            new = [x for x in layouts if x not in found.costs.observed and x not in runs.failed]
            if not new:
                break
            best = [x for x in layouts if x in found.costs.observed][:1]
            say(f"timing {len(new)} placements over several processors …")
            timed += runs.time([*best, *new], costs.batch)
            found.costs = calibrate(costs, model, sampled, timed)
        found.steps_s = dict(found.costs.observed)
        return found


def _open(costs: Costs, stack: ExitStack) -> dict[str, Device]:
    opened = {}
    for processor in costs.processors:
        backend = backends.get(processor.backend)
        info = next((i for i in backend.devices() if i.key == processor.key), None)
        if info is None:
            raise ConfigError(
                f"--measure: {processor.backend} {processor.name}, which the profile has, is not "
                "here: leave --profile out to plan for this machine"
            )
        opened[info.key] = device = backend.open(info)
        stack.callback(device.close)
    return opened


class _Runs:
    """Placed networks on opened devices, built once each. ``failed``: layouts that cannot run."""

    def __init__(self, model: Model, batch: int, devices: dict[str, Device]) -> None:
        self._model, self._batch, self._devices = model, batch, devices
        g = generator("plan", SEED)
        n = 4 * batch
        self._x = model.input.draw(g, n)
        self._y = DEFAULT_RECIPE.loss.random_labels(model.output_shape, n, g)
        self._order = g.permutation(n).astype(np.int32)
        self._values = initialise(model, SEED)
        self._data: dict[str, DeviceData] = {}
        self._programs: dict[tuple[str, int, int], Program] = {}
        self._placed: dict[Layout, Placed] = {}
        self.failed: dict[Layout, str] = {}

    def time(self, layouts: Sequence[Layout], rows: int) -> list[TimedSteps]:
        """A step of each with ``rows`` examples: the median over groups."""
        counts: dict[Layout, int] = {}
        taken: dict[Layout, list[float]] = {layout: [] for layout in layouts}
        for group in range(GROUPS + 1):
            for layout in layouts:
                if layout in self.failed:
                    continue
                try:
                    found = self._ready(layout)
                    time.sleep(REST_S)
                    step_s = self._group(found, rows, counts.get(layout, 1))
                    if group == 0:  # the first warms up, and says how many steps make a group
                        step_s = self._group(found, rows, 2)
                except DeviceError as e:
                    self.failed[layout] = str(e)
                    continue
                if group == 0:
                    counts[layout] = max(2, min(500, round(GROUP_S / max(step_s, 1e-6))))
                else:
                    taken[layout].append(step_s)
        return [
            TimedSteps(layout, rows, median(taken[layout]))
            for layout in layouts
            if layout not in self.failed
        ]

    def sample(self, layout: Layout, rows: int) -> list[SampledStep]:
        """Commands of some steps of a single processor."""
        if layout in self.failed:
            return []
        found, steps = self._ready(layout), []
        self._begin(found)
        for _ in range(SAMPLES):
            commands: list[Command] = []
            found.sample_next_step([commands])
            self._step(found, 0, rows)
            found.finish()
            steps.append(SampledStep(layout.devices[0], rows, tuple(commands)))
        return steps

    def release(self) -> None:
        """Free programs and data."""
        for program in self._programs.values():
            program.release()
        for data in self._data.values():
            data.release()

    def _group(self, found: Placed, rows: int, steps: int) -> float:
        self._begin(found)
        self._step(found, 0, rows)
        found.finish()
        began = time.perf_counter()
        for i in range(steps):
            self._step(found, i % 4 * self._batch, rows)
        found.finish()
        return (time.perf_counter() - began) / steps

    def _begin(self, found: Placed) -> None:
        found.upload(self._values)
        found.begin_epoch(self._order, self._batch, SEED)

    def _step(self, found: Placed, start: int, rows: int) -> None:
        with quiet():
            found.step(start, rows, HYPER)

    def _ready(self, layout: Layout) -> Placed:
        if layout not in self._placed:
            sites = [self._site(part) for part in layout.parts]
            self._placed[layout] = placed.place(layout, sites)
        return self._placed[layout]

    def _site(self, part: Part) -> Site:
        device, what = self._devices[part.device], (part.device, part.first, part.stop)
        backends.at_work(part.backend)
        if part.device not in self._data:
            self._data[part.device] = device.load(self._x, self._y)
        if what not in self._programs:
            segment = part.segment(self._model)
            self._programs[what] = device.compile(segment, self._batch, DEFAULT_RECIPE)
        return Site(device, self._programs[what], self._data[part.device])
