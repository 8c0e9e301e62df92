"""Measures kernel variants on a device: `python -m client.backends.opencl.tuner`, a child process.

First what all kernels are generated for (vector, sums, work-group), by the launches that take
longest; then tiles, each by the launches that depend on it, those that take longest first. Each
variant is timed in turn with what is shipped, so that a machine that slows down meanwhile slows
both. What is found is kept after each variant; a variant that takes the process down is known by
its marker (see ``tuned``) and the parent (``tuning``) starts another child.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyopencl as cl

from client.backends.opencl import tuned as store
from client.backends.opencl.device import OpenCLDevice
from client.backends.opencl.discover import find
from client.backends.opencl.launch import Launch, Memory
from client.backends.opencl.plan import SegmentPlan, plan_segment
from client.backends.opencl.prepare import Binder, Prepared
from client.backends.opencl.tiles import Target, Tile
from client.backends.opencl.tuned import WORTH, Tuned
from client.errors import DeviceError, PocketfedError
from client.model import Model, load_model

PAIRS = 7
"""Timings of a variant, each after one of what it is held against; the shortest of each counts,
since what else the machine does can only add. One that seems faster is timed once more."""

GROUP_S = 0.003
"""A timing repeats its launches for about so long."""

COSTLY = 3
"""Choices of tiles whose launches stand for all kernels while the target is tuned."""

CANDIDATES = 8
"""Tiles that are tried for a choice, by the cost model's order."""


class Bench:
    """A plan's launches on buffers of their own, filled with ones: nothing is slow to compute."""

    def __init__(self, device: OpenCLDevice, plan: SegmentPlan) -> None:
        self._device, self._plan = device, plan
        make = device.allocator.make
        self._buffers = {m: make(n, m.name.lower()) for m, n in plan.nbytes.items()}
        own = [make(n, "activations") for n in plan.arena.sizes]
        self._arena = [self._buffers[Memory.GRADS], *own]  # in plan.arena's numbers
        for memory, buffer in self._buffers.items():
            whole = memory in (Memory.EXAMPLES, Memory.LABELS, Memory.DROPOUT_KEY)
            value = np.int32(0) if whole else np.float32(1)
            cl.enqueue_fill_buffer(device.queue, buffer, value, 0, buffer.size // 4 * 4)
        for buffer in own:
            cl.enqueue_fill_buffer(device.queue, buffer, np.float32(1), 0, buffer.size // 4 * 4)
        self._binder = Binder(
            device.context.devices[0],
            device.programs,
            self._buffers,
            self._arena,
            plan.arena.places,
            device.allocator.limits.max_work_group_size,
        )

    def prepare(self, choice: str) -> list[Prepared]:
        """Launches of a step's passes that depend on a choice."""
        launches: Sequence[Launch] = (*self._plan.forward, *self._plan.backward)
        return [
            self._binder.prepare(launch, self._plan.capacity)
            for launch in launches
            if launch.mode != "evaluation" and launch.choice == choice
        ]

    def seconds(self, launches: list[Prepared], repeats: int) -> float:
        """Wall time of the launches, repeated, and of waiting for them."""
        queue = self._device.queue
        began = time.perf_counter()
        for _ in range(repeats):
            for p in launches:
                cl.enqueue_nd_range_kernel(queue, p.kernel, p.global_size, p.local_size)
        queue.finish()
        return time.perf_counter() - began

    def release(self) -> None:
        self._device.queue.finish()
        for buffer in (*self._buffers.values(), *self._arena[1:]):
            self._device.allocator.give_back(buffer)


@dataclass(frozen=True)
class Subject:
    """A model and the batch that it is tuned for."""

    model: Model
    batch: int


class Tuner:
    """See the module. ``deadline_s``: on the clock of time.monotonic; from then on no variant is
    begun but the first, so that however small budgets come to an end in the end.
    """

    def __init__(
        self, device: OpenCLDevice, shipped: Target, subjects: list[Subject], deadline_s: float
    ) -> None:
        self._device, self._shipped, self._subjects = device, shipped, subjects
        self._deadline_s = deadline_s
        self._begun = False
        self._info = device.info
        self._tuned: Tuned = store.load(self._info)

    def run(self) -> bool:
        """Measure until all is measured (True) or the deadline has come."""
        lost = store.left_over(self._info)
        if lost:
            self._fail(lost, "the process ended in it")
        return self._tune_target() and self._tune_tiles()

    def _tune_target(self) -> bool:
        choices = self._choices(self._shipped)
        costly = [c for c in choices if c[1] in self._tuned.costly]  # as when tuning began
        if not costly:
            costly = choices[:COSTLY]
            self._tuned.costly = [name for _, name, _ in costly]
        best, best_share = self._shipped, WORTH
        for target in targets(self._shipped):
            shares = []
            for subject, choice, _ in costly:
                name = f"{target}: {choice}"
                if self._late(name):
                    return False
                shares.append(self._measure(name, subject, choice, target, self._shipped))
            share = math.exp(statistics.fmean(map(math.log, shares)))
            if share < best_share:
                best, best_share = target, share
        if best != self._shipped and self._tuned.vector == 0:
            self._tuned.vector, self._tuned.group = best.vector, best.group
            self._tuned.accumulators = best.accumulators
            self._tuned.tiles = {}
            store.save(self._info, self._tuned)
            say(f"{best} replace {self._shipped}: {best_share:.2f} of the time")
        return True

    def _tune_tiles(self) -> bool:
        target = replace(self._tuned.target(self._shipped), tiles={})
        for subject, choice, tiles in self._choices(target):
            best_share = WORTH
            for tile in tiles[1:]:
                name = f"{choice}: {tile} with {target}"
                if self._late(name):
                    return False
                other = replace(target, tiles={choice: (tile.rows, tile.columns)})
                share = self._measure(name, subject, choice, other, target)
                if share < best_share:
                    best_share = share
                    self._tuned.tiles[choice] = tile.rows, tile.columns
                    store.save(self._info, self._tuned)
            if choice in self._tuned.tiles:
                found = Tile(*self._tuned.tiles[choice])
                say(f"{choice}: {found} replaces {tiles[0]}: {best_share:.2f} of the time")
        return True

    def _choices(self, target: Target) -> list[tuple[Subject, str, list[Tile]]]:
        """What can be tuned, each once, with its tiles; what takes longest first."""
        found: list[tuple[float, Subject, str, list[Tile]]] = []
        known: set[str] = set()
        for subject in self._subjects:
            plan = self._plan(subject, target)
            new = {name: cover for name, cover in plan.choices.items() if name not in known}
            known |= set(new)
            bench = Bench(self._device, plan)
            try:
                for name, cover in new.items():
                    launches = bench.prepare(name)
                    bench.seconds(launches, 1)
                    tiles = [cover.best]
                    every = cover.tiles(cover.accumulators * 3 // 2)
                    tiles += [t for t in every if t != cover.best][:CANDIDATES]
                    found.append((bench.seconds(launches, 3), subject, name, tiles))
            finally:
                bench.release()
        found.sort(key=lambda f: -f[0])
        return [(subject, name, tiles) for _, subject, name, tiles in found]

    def _plan(self, subject: Subject, target: Target) -> SegmentPlan:
        most = self._device.allocator.limits.max_alloc_nbytes
        return plan_segment(subject.model.whole, subject.batch, target, most_nbytes=most)

    def _late(self, name: str) -> bool:
        known = name in self._tuned.measured or name in self._tuned.failed
        return not known and self._begun and time.monotonic() >= self._deadline_s

    def _measure(
        self, name: str, subject: Subject, choice: str, target: Target, base: Target
    ) -> float:
        """Time of a variant as a share of the base's; infinite where it failed."""
        if name in self._tuned.failed:
            return math.inf
        if name not in self._tuned.measured:
            self._begun = True
            try:
                with store.trying(self._info, name):
                    share = self._share(subject, choice, target, base)
                    if share < WORTH:
                        share = max(share, self._share(subject, choice, target, base))
            except (DeviceError, cl.Error) as e:
                self._fail(name, " ".join(str(e).split()))
                return math.inf
            self._tuned.measured[name] = round(share, 4)
            store.save(self._info, self._tuned)
        return self._tuned.measured[name]

    def _share(self, subject: Subject, choice: str, target: Target, base: Target) -> float:
        benches = [Bench(self._device, self._plan(subject, t)) for t in (base, target)]
        try:
            launches = [bench.prepare(choice) for bench in benches]
            for bench, mine in zip(benches, launches, strict=True):
                bench.seconds(mine, 1)  # warms up: compilers that wait for the first launch
            repeats = max(1, int(GROUP_S / max(benches[0].seconds(launches[0], 1), 1e-6)))
            both = list(zip(benches, launches, strict=True))
            rounds = [[bench.seconds(mine, repeats) for bench, mine in both] for _ in range(PAIRS)]
            before, after = (min(times) for times in zip(*rounds, strict=True))
            return float(after / before)
        finally:
            for bench in benches:
                bench.release()

    def _fail(self, name: str, why: str) -> None:
        self._tuned.failed[name] = why
        store.save(self._info, self._tuned)
        say(f"{name}: skipped from now on: {why}")


def targets(shipped: Target) -> list[Target]:
    """Neighbours of the shipped target: another vector, sums, or work-group."""
    vectors = [v for v in (shipped.vector // 2, shipped.vector * 2) if 1 <= v <= 16]
    sums = (shipped.accumulators // 2, shipped.accumulators * 3 // 2)
    groups = (shipped.group // 2, shipped.group * 4)
    return [
        *(replace(shipped, vector=v) for v in vectors),
        *(replace(shipped, accumulators=a) for a in sums),
        *(replace(shipped, group=g) for g in groups),
    ]


def say(text: str) -> None:
    """One line for the parent."""
    print(text, flush=True)  # noqa: T201


def main(arguments: list[str]) -> int:
    """One JSON argument: ``device`` (its key), ``seconds``, ``batch``, ``models``."""
    asked = json.loads(arguments[0])
    deadline_s = time.monotonic() + asked["seconds"]
    try:
        device = next(d for d in find() if d[0].key == asked["device"])
        opened = OpenCLDevice(device[1], device[0])
        subjects = [Subject(load_model(Path(name)), asked["batch"]) for name in asked["models"]]
        done = Tuner(opened, opened.shipped, subjects, deadline_s).run()
        opened.close()
    except PocketfedError as e:
        print(e, file=sys.stderr)  # noqa: T201
        return e.exit_code
    say("all variants are measured" if done else "the budget is spent; tuning can go on later")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
