"""Decides: which layout trains, from what it costs. Pure; says why, and why not.

See docs/placement.md for the model of time and for what the search finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from client.placement.layout import Layout
from client.placement.probe import Measured


@dataclass(frozen=True)
class Limits:
    """What a layout must keep to. ``memory_nbytes`` by processor, where less than all it has."""

    memory_nbytes: Mapping[str, int] = field(default_factory=dict)
    round_s: float | None = None
    energy_j: float | None = None  # of a round


@dataclass(frozen=True)
class PartFigures:
    """A part of a layout in one training step, as predicted. Seconds and bytes on its processor.

    ``hidden_s``: of its update, so much passes while the others work.
    """

    device: str
    first: int
    stop: int
    rows: int
    forward_s: float  # with gather, and the loss where it is its
    backward_s: float
    update_s: float
    hidden_s: float
    nbytes: int

    @property
    def busy_s(self) -> float:
        """Of the processor."""
        return self.forward_s + self.backward_s + self.update_s


@dataclass(frozen=True)
class EdgeFigures:
    """What passes between two parts in one training step, as predicted, through the host.

    Of a cut: activations forward and gradients back. Of a split: gradients to the owner of the
    optimizer's state, and values back.
    """

    source: str
    target: str
    forward_nbytes: int
    forward_s: float
    back_nbytes: int
    back_s: float


@dataclass(frozen=True)
class Prediction:
    """A layout and what it is expected to take. ``uncertainty``: relative, of the times.

    ``energy_j``: of a round, None where the power of one of its processors is not known.
    ``observed``: the time of a step is one that was measured.
    """

    layout: Layout
    step_s: float
    round_s: float
    parts: tuple[PartFigures, ...]
    edges: tuple[EdgeFigures, ...]
    energy_j: float | None
    uncertainty: float
    observed: bool


@dataclass(frozen=True)
class Refusal:
    """What is not among the predictions, and why: ``what`` in the words of ``Layout.describe``.

    ``layer``: the one that needs a whole batch's statistics.
    """

    what: str
    why: Literal["batch statistics", "memory", "time", "energy"]
    message: str
    layer: str | None = None


@dataclass(frozen=True)
class Ranking:
    """Predictions, the best first, and what was refused."""

    predictions: tuple[Prediction, ...]
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class Decision:
    """The device chosen (its place in the list) and the reason in one sentence."""

    index: int
    reason: str


def choose(names: list[str], measured: list[Measured]) -> Decision:
    """The device with the shortest round; the earlier one where two are equal."""
    index = min(range(len(measured)), key=lambda i: measured[i].round_s)
    figures = ", ".join(
        f"{name} {m.round_s:.3f} s ({m.step_s * 1e3:.2f} ms a step)"
        for name, m in zip(names, measured, strict=True)
    )
    return Decision(index, f"measured a round: {figures}")
