"""Decides: which processor trains, from what was measured. Pure; says why."""

from __future__ import annotations

from dataclasses import dataclass

from client.placement.probe import Measured


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
