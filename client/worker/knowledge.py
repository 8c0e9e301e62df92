"""What a session's nodes have seen of its devices, and what it predicts of layouts."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import median
from typing import TypeVar

from client.backends.base import Device
from client.backends.device_info import DeviceInfo
from client.config import TrainConfig
from client.model.graph import Model
from client.placement import probe
from client.placement.calibrate import calibrate
from client.placement.cost import SampledStep, TimedSteps
from client.placement.course import Fixed, Ran
from client.placement.estimate import estimate
from client.placement.layout import Layout, slices
from client.placement.planner import Prediction, rank
from client.placement.profile import ProcessorProfile
from client.placement.trials import COLD

RECENT = 6
"""So many of the latest sights of a device or a layout count: devices change."""

SEEN, SEEN_COLD = 0.3, 1.0
"""Relative uncertainty of what other nodes took; of what is known by their first steps alone."""

T = TypeVar("T")


class Knowledge:
    """See the module: profiles of devices; sampled commands and timed steps, by batch."""

    def __init__(self, train: TrainConfig, model: Model) -> None:
        self._train, self._model = train, model
        self._profiles: dict[str, ProcessorProfile] = {}
        self._sampled: dict[tuple[int, str], deque[SampledStep]] = defaultdict(_few)
        self._warm_ups: dict[tuple[int, Layout], deque[float]] = defaultdict(_few)
        self._timed: dict[tuple[int, Layout], deque[TimedSteps]] = defaultdict(_few)

    def learn(self, course: Fixed, batch: int) -> None:
        """What a round's stages took, and the commands of its sampled steps."""
        for ran in (*course.trials, *([] if course.rest is None else [course.rest])):
            self._learn_commands(ran, batch)
            layout, step_s = ran.placed.layout, ran.seconds / ran.steps
            if ran.warm_up:
                self._warm_ups[batch, layout].append(step_s)
            else:
                self._timed[batch, layout].append(TimedSteps(layout, batch, step_s))

    def _learn_commands(self, ran: Ran, batch: int) -> None:
        layout = ran.placed.layout
        for sample in ran.samples:
            rows = [sample.count] * len(layout.parts)
            if layout.kind == "split":
                rows = list(slices(sample.count, layout.shares))
            for part, count, commands in zip(layout.parts, rows, sample.commands, strict=True):
                if commands:
                    step = SampledStep(part.device, count, tuple(commands))
                    self._sampled[batch, part.device].append(step)

    def expected(self, layouts: Sequence[Layout], batch: int) -> dict[Layout, tuple[float, float]]:
        """Seconds of a step, and their relative uncertainty, of whole networks; of all or none.

        As this session's nodes have seen them, else by profiles that are complete.
        """
        seen = {k: s for k in layouts if (s := self._seen(k, batch)) is not None}
        if len(seen) == len(layouts):
            return seen
        keys = [layout.devices[0] for layout in layouts]
        profiles = [self._profiles.get(key) for key in keys]
        if not all(profile is not None and profile.complete for profile in profiles):
            return {}
        found = {p.layout: (p.step_s, p.uncertainty) for p in self.predict(keys, batch, 1)}
        return {layout: found[layout] for layout in layouts if layout in found}

    def _seen(self, layout: Layout, batch: int) -> tuple[float, float] | None:
        timed = self._timed.get((batch, layout))
        if timed:
            return median(t.step_s for t in timed), SEEN
        warm_ups = self._warm_ups.get((batch, layout))
        return (min(warm_ups) / COLD, SEEN_COLD) if warm_ups else None

    def saw(self, key: str, batch: int) -> bool:
        """Whether commands of a device (by key) were sampled."""
        return bool(self._sampled.get((batch, key)))

    def find_profile(self, info: DeviceInfo) -> bool:
        """Whether a profile of a device is at hand, here or in the cache folder."""
        found = self._profiles.get(info.key) or probe.saved(info)
        if found is not None:
            self._profiles[info.key] = found
        return found is not None

    def profile(self, device: Device) -> None:
        """Measure launches and the link of a device: ``probe.QUICK_S`` or a little more."""
        self._profiles[device.info.key] = probe.measure_quickly(device)

    def predict(self, keys: Sequence[str], batch: int, round_steps: int) -> list[Prediction]:
        """Layouts of profiled devices, by the time of a round, the best first."""
        profile = probe.dated([self._profiles[key] for key in keys])
        train = self._train
        costs = estimate(profile, self._model, batch, train.recipe, clips=train.clip_norm > 0)
        sampled = [s for key in keys for s in self._sampled[batch, key]]
        timed = [t for (rows, _), found in self._timed.items() if rows == batch for t in found]
        costs = calibrate(costs, self._model, sampled, timed)
        return list(rank(costs, num_steps=round_steps).predictions)


def _few() -> deque[T]:
    return deque(maxlen=RECENT)
