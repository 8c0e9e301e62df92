"""What a session's nodes have seen of its devices, and what it predicts of layouts."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TypeVar

from client.backends.base import Device
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

RECENT = 6
"""So many of the latest sights of a device or a layout count: devices change."""

T = TypeVar("T")


class Knowledge:
    """See the module: profiles of devices; sampled commands and timed steps, by batch."""

    def __init__(self, train: TrainConfig, model: Model) -> None:
        self._train, self._model = train, model
        self._profiles: dict[str, ProcessorProfile] = {}
        self._sampled: dict[tuple[int, str], deque[SampledStep]] = defaultdict(_few)
        self._timed: dict[tuple[int, Layout], deque[TimedSteps]] = defaultdict(_few)

    def learn(self, course: Fixed, batch: int) -> None:
        """What a round's stages took, and the commands of its sampled steps."""
        for ran in (*course.trials, *([] if course.rest is None else [course.rest])):
            self._learn_commands(ran, batch)
            if not ran.warm_up:
                layout = ran.placed.layout
                timed = TimedSteps(layout, batch, ran.seconds / ran.steps)
                self._timed[batch, layout].append(timed)

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

    def saw(self, key: str, batch: int) -> bool:
        """Whether commands of a device (by key) were sampled."""
        return bool(self._sampled.get((batch, key)))

    def profiled(self, device: Device) -> bool:
        """Whether a profile of a device is at hand, here or in the cache folder."""
        found = self._profiles.get(device.info.key) or probe.saved(device.info)
        if found is not None:
            self._profiles[device.info.key] = found
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
