"""A timed step on an emulated device: the inner device's commands, on the emulated clock."""

from __future__ import annotations

from dataclasses import replace

from client.backends.emulated.reference import References
from client.backends.emulated.schedule import Span
from client.backends.figures import Command, Part, Traffic

BELOW = 1 - 1e-6
"""Commands fill their part of the step up to here, so that no rounding makes them more than it."""


class SampledStep:
    """What a timed step took on the device's clock, part by part.

    Within a part, the inner device's commands share its time as they do there (the calm minimum of
    each); what is left is the time between them. Once made, it is
    used in the timeline's thread alone.
    """

    def __init__(self, wanted: list[Command] | None, references: References) -> None:
        self.commands: list[Command] = []  # of the inner device, added by it
        self._wanted, self._references = wanted, references
        self._compute_s: dict[Part, float] = {}
        self._transfer_s = 0.0

    def ran(self, part: Part | None, span: Span) -> None:
        """Told where a command of this part (None: a boundary's transfer) lies on the clock."""
        if part is not None:
            self._compute_s[part] = self._compute_s.get(part, 0.0) + span.compute_s
        self._transfer_s += span.transfer_s

    def end(self, traffic: Traffic) -> None:
        """The step is over: add it to the traffic, its commands to those that were asked for."""
        found = self._on_this_clock()
        if self._wanted is not None:
            self._wanted += found
        copy_s = sum(c.seconds for c in found if c.busy == "copy")
        if not any(c.part == "gather" for c in found):
            copy_s += self._compute_s.get("gather", 0.0)
        traffic.copy_s += copy_s
        traffic.compute_s += sum(self._compute_s.values()) - copy_s
        traffic.transfer_s += self._transfer_s
        traffic.sampled_steps += 1

    def _on_this_clock(self) -> list[Command]:
        found = self.commands
        calm_s = [
            self._references.of((i, replace(c, seconds=0.0)), c.seconds) or 0.0
            for i, c in enumerate(found)
        ]
        total_s: dict[Part, float] = {}
        for command, seconds in zip(found, calm_s, strict=True):
            total_s[command.part] = total_s.get(command.part, 0.0) + seconds
        scale = {
            part: BELOW * self._compute_s[part] / seconds if seconds else 0.0
            for part, seconds in total_s.items()
        }
        return [
            replace(c, seconds=seconds * scale[c.part])
            for c, seconds in zip(found, calm_s, strict=True)
        ]
