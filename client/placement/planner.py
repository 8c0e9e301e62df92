"""Decides: which layout trains, from what it costs. Pure; says why, and why not.

See docs/placement.md for the model of time and for what the search finds.
"""

from __future__ import annotations

from dataclasses import dataclass

from client.placement import limits as limits_of
from client.placement import search, steps
from client.placement.cost import Costs
from client.placement.layout import Layout
from client.placement.limits import NO_LIMITS, Limits, Refusal
from client.placement.steps import EdgeFigures, PartFigures

__all__ = [
    "NO_LIMITS",
    "Limits",
    "Prediction",
    "Ranking",
    "Refusal",
    "predict",
    "rank",
]

OBSERVED_STEP = 0.05
"""Relative uncertainty of a step's time that was measured, on a machine that has other work."""


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
class Ranking:
    """Predictions, the best first, and what was refused.

    ``exact``: no cut is predicted to be shorter than the best one here; see ``search.MOST_KEPT``.
    """

    predictions: tuple[Prediction, ...]
    refusals: tuple[Refusal, ...]
    exact: bool = True


def rank(costs: Costs, limits: Limits = NO_LIMITS, num_steps: int = 1) -> Ranking:
    """Layouts of every kind that keep to the limits, by the time of a round of ``num_steps``.

    Single processors; of cuts the best of two parts, of three, and of any number (exact); of each
    set of processors that share every batch, the best shares and, of pairs, shares beside them.
    """
    refusals, layouts, roomy, exact = [], [], [], True
    for processor in costs.processors:
        refusal = limits_of.memory(costs, limits, processor)
        if refusal is None:
            roomy.append(processor)
            layouts.append(Layout.whole(processor.key, len(costs.block_names)))
        else:
            refusals.append(refusal)
    if len(costs.processors) > 1:
        cuts, exact = search.cuts(costs, limits, num_steps)
        layouts += cuts
        if not cuts and len(costs.block_names) > 1:
            refusals.append(limits_of.no_cut(costs, limits))
        if costs.batch_layers:
            refusals.append(limits_of.batch_statistics(costs))
        else:
            layouts += search.splits(costs, roomy)
    predictions = []
    for layout in dict.fromkeys(layouts):
        prediction = predict(costs, layout, num_steps)
        refusal = _beyond(costs, limits, prediction)
        if refusal is None:
            predictions.append(prediction)
        else:
            refusals.append(refusal)
    predictions.sort(key=lambda p: p.round_s)
    return Ranking(tuple(predictions), tuple(refusals), exact)


def predict(costs: Costs, layout: Layout, num_steps: int = 1) -> Prediction:
    """What a layout is expected to take, whether or not it keeps to any limits."""
    step = steps.predict(costs, layout)
    observed_s = costs.observed.get(layout)
    step_s = step.step_s if observed_s is None else observed_s
    moves_s = sum(
        costs.round_moves_s(costs.processor(part.device), part.first, part.stop)
        for part in layout.parts
    )
    return Prediction(
        layout=layout,
        step_s=step_s,
        round_s=num_steps * step_s + moves_s,
        parts=step.parts,
        edges=step.edges,
        energy_j=_energy_j(costs, step.parts, num_steps),
        uncertainty=step.uncertainty if observed_s is None else OBSERVED_STEP,
        observed=observed_s is not None,
    )


def _energy_j(costs: Costs, parts: tuple[PartFigures, ...], num_steps: int) -> float | None:
    """Power of each processor while it is busy: what it draws when idle is drawn anyway."""
    total = 0.0
    for part in parts:
        power_w = costs.processor(part.device).power_w
        if power_w is None:
            return None
        total += power_w * part.busy_s
    return total * num_steps


def _beyond(costs: Costs, limits: Limits, found: Prediction) -> Refusal | None:
    """Why a prediction does not keep to the limits of time and energy; None if it does."""
    what = found.layout.describe(costs.block_names)
    if limits.energy_j is not None:
        if found.energy_j is None:
            unknown = next(d for d in found.layout.devices if costs.processor(d).power_w is None)
            name = costs.processor(unknown).name
            message = f"the power of {name} is not known: state power_w in its profile"
            return Refusal(what, "energy", message)
        if found.energy_j > limits.energy_j:
            message = f"a round would take {found.energy_j:.3g} J of {limits.energy_j:.3g} J"
            return Refusal(what, "energy", message)
    if limits.round_s is not None and found.round_s > limits.round_s:
        message = f"a round would take {found.round_s:.3g} s of {limits.round_s:.3g} s"
        return Refusal(what, "time", message)
    return None
