"""Corrects costs by what was seen in training. Pure.

Sampled commands say what each unit-block took of its processor; whole steps say what a processor
took in all, with what no command has; cuts and splits say what passing between two took, and what
two lose that work at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from client.backends.figures import Command
from client.model.graph import Model
from client.placement.cost import (
    OBSERVED,
    Affine,
    BlockCost,
    Costs,
    ProcessorCost,
    SampledStep,
    TimedSteps,
)
from client.placement.layout import Layout
from client.placement.steps import predict, together_s

SCALED = 0.3
"""Relative uncertainty of a block whose processor's whole steps alone were seen."""

MOST_BEYOND = 1.0
MOST_CONTENTION = 3.0
"""Of a cut's predicted step, so much may have been its passages' fault; of a split's shorter slice,
so much the other processor's. What is beyond had other causes."""


def calibrate(
    costs: Costs,
    model: Model,
    sampled: Sequence[SampledStep] = (),
    timed: Sequence[TimedSteps] = (),
) -> Costs:
    """The costs as corrected by all of ``sampled`` and ``timed``; what they do not know is left
    out, and the later of equals counts no more than the earlier."""
    keys = {p.key for p in costs.processors}
    timed = [t for t in timed if keys.issuperset(t.layout.devices)]
    processors = []
    for processor in costs.processors:
        commands = [s for s in sampled if s.device == processor.key]
        processor = _by_commands(processor, model, commands)
        whole = [
            t for t in timed if t.layout == Layout.whole(processor.key, len(costs.block_names))
        ]
        processors.append(_by_steps(processor, whole))
    found = replace(costs, processors=tuple(processors))
    found = _by_cuts(found, [t for t in timed if t.layout.kind == "cut"])
    found = _by_splits(found, [t for t in timed if t.layout.kind == "split"])
    return replace(found, observed=dict(costs.observed) | _medians(costs.batch, timed))


def _medians(batch: int, timed: Iterable[TimedSteps]) -> dict[Layout, float]:
    taken: dict[Layout, list[float]] = {}
    for t in timed:
        if t.rows == batch:
            taken.setdefault(t.layout, []).append(t.step_s)
    return {layout: median(steps) for layout, steps in taken.items()}


# -- a processor's blocks, by commands --------------------------------------------------------


@dataclass(frozen=True)
class _Sums:
    """Seconds of a sampled step by what they were spent on."""

    forward: dict[int, float]
    backward: dict[int, float]
    update: float
    gather: float
    loss: float


def _sums(commands: Sequence[Command], block_of: dict[str, int]) -> _Sums:
    found = _Sums({}, {}, 0.0, 0.0, 0.0)
    other = {"update": 0.0, "gather": 0.0, "loss": 0.0}
    for command in commands:
        block = block_of.get(command.op)
        if command.part in other:
            other[command.part] += command.seconds
        elif block is not None:
            sums = found.forward if command.part == "forward" else found.backward
            sums[block] = sums.get(block, 0.0) + command.seconds
    return replace(found, update=other["update"], gather=other["gather"], loss=other["loss"])


def _by_commands(
    processor: ProcessorCost, model: Model, sampled: Sequence[SampledStep]
) -> ProcessorCost:
    if not sampled:
        return processor
    block_of = {op.name: op.block for op in model.ops}
    steps = [(s.rows, _sums(s.commands, block_of)) for s in sampled]
    updates = [sums.update for _, sums in steps if sums.update]
    predicted = sum(b.update_s for b in processor.blocks)
    factor = median(updates) / predicted if updates and predicted else 1.0
    seen = {b for _, sums in steps for b in (*sums.forward, *sums.backward)}

    def block(number: int, cost: BlockCost) -> BlockCost:
        cost = replace(cost, update_s=cost.update_s * factor)
        if number not in seen:
            return cost
        # a block without commands of a part, in a program that has the block, does nothing there
        own = [(n, s) for n, s in steps if number in s.forward or number in s.backward]
        return replace(
            cost,
            forward=fit(cost.forward, [(n, s.forward.get(number, 0.0)) for n, s in own]),
            backward=fit(cost.backward, [(n, s.backward.get(number, 0.0)) for n, s in own]),
            uncertainty=OBSERVED,
            observed=True,
        )

    return replace(
        processor,
        blocks=tuple(block(i, b) for i, b in enumerate(processor.blocks)),
        gather=fit(processor.gather, [(n, s.gather) for n, s in steps if s.gather]),
        loss=fit(processor.loss, [(n, s.loss) for n, s in steps if s.loss]),
    )


def fit(predicted: Affine, points: Sequence[tuple[int, float]]) -> Affine:
    """The line through what was seen of two batch sizes or more; of one, the predicted, scaled.

    ``points``: (rows, seconds); of equal rows, their median counts. Neither part is negative.
    """
    if not points:
        return predicted
    by_rows = {n: median(s for m, s in points if m == n) for n in {n for n, _ in points}}
    low, high = min(by_rows), max(by_rows)
    if low < high:
        row_s = (by_rows[high] - by_rows[low]) / (high - low)
        row_s = min(max(row_s, 0.0), by_rows[high] / high)
        return Affine(by_rows[high] - row_s * high, row_s)
    if predicted.at(high) == 0:
        return Affine(by_rows[high], 0.0)
    factor = by_rows[high] / predicted.at(high)
    return Affine(predicted.fixed_s * factor, predicted.row_s * factor)


# -- a processor in all, by whole steps -------------------------------------------------------


def _by_steps(processor: ProcessorCost, timed: Sequence[TimedSteps]) -> ProcessorCost:
    """Each of a processor's lines scaled, at each batch size that was seen, so that they add up to
    the step that was seen there; what is the same for any batch by the largest one seen."""
    if not timed:
        return processor
    lines = [processor.gather, processor.loss]
    lines += [line for b in processor.blocks for line in (b.forward, b.backward)]
    constant_s = processor.part_s + sum(b.update_s for b in processor.blocks)
    factors = []
    for rows in sorted({t.rows for t in timed}):
        predicted_s = constant_s + sum(line.at(rows) for line in lines)
        seen_s = median(t.step_s for t in timed if t.rows == rows)
        factors.append((rows, seen_s / predicted_s if predicted_s else 1.0))
    largest = factors[-1][1]

    def scaled(line: Affine) -> Affine:
        return fit(line, [(rows, line.at(rows) * factor) for rows, factor in factors])

    return replace(
        processor,
        blocks=tuple(
            replace(
                b,
                forward=scaled(b.forward),
                backward=scaled(b.backward),
                update_s=b.update_s * largest,
                uncertainty=min(b.uncertainty, SCALED),
                observed=True,
            )
            for b in processor.blocks
        ),
        gather=scaled(processor.gather),
        loss=scaled(processor.loss),
        part_s=processor.part_s * largest,
    )


# -- pairs, by cuts and splits ----------------------------------------------------------------


def _by_cuts(costs: Costs, timed: Sequence[TimedSteps]) -> Costs:
    """What a cut's step took beyond its parts is its passages', alike: waiting for a queue to run
    empty and to fill again has no size. They take no less than their links' bandwidths say."""
    beyond: dict[frozenset[str], list[float]] = {}
    for t in timed:
        pair = frozenset(t.layout.devices)
        if t.rows != costs.batch or len(pair) != 2:
            continue
        step = predict(costs, t.layout)
        passages = sum(1 + (e.back_s > 0) for e in step.edges)
        links = [costs.processor(key).link for key in pair]
        least_s = -sum(min(x.upload_latency_s, x.download_latency_s) for x in links)
        most_s = MOST_BEYOND * step.step_s / passages
        seconds = costs.edges.get(pair, 0.0) + (t.step_s - step.step_s) / passages
        beyond.setdefault(pair, []).append(min(max(seconds, least_s), most_s))
    edges = {pair: median(found) for pair, found in beyond.items()}
    return replace(costs, edges={**costs.edges, **edges})


def _by_splits(costs: Costs, timed: Sequence[TimedSteps]) -> Costs:
    """What a split's slices took beyond the longest of them is what they lose to each other."""
    found: dict[frozenset[str], list[float]] = {}
    for t in timed:
        pair = frozenset(t.layout.devices)
        if t.rows != costs.batch or len(pair) != 2:
            continue
        step = predict(costs, t.layout)
        alone_s = {p.device: p.forward_s + p.backward_s for p in step.parts}
        rest_s = step.step_s - together_s(costs, alone_s)
        lost_s = t.step_s - rest_s - max(alone_s.values())
        if min(alone_s.values()) > 0:
            contention = min(max(lost_s / min(alone_s.values()), 0.0), MOST_CONTENTION)
            found.setdefault(pair, []).append(contention)
    return replace(
        costs, contention={**costs.contention, **{p: median(c) for p, c in found.items()}}
    )
