"""How long a training step of a layout takes, by its costs: the executors' order of work. Pure.

Of a cut, the chain of forwards, transfers and backwards passes one after the other. The update of
a part that is not the first overlaps with what comes before it in the chain, where its processor
has a queue of its own; where it computes in the caller's thread, with the backward of the part
before it, if that one has a queue.

Of a split, the slices pass at the same time, then gradients and values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from client.placement.cost import FLOAT_NBYTES, Costs, ProcessorCost
from client.placement.layout import Layout, Part, slices

SHARED = 0.5
"""From this much contention on, two processors count as one where updates are to overlap."""


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

    Of a cut: activations forward and gradients back. Of a split: values to a slice's processor
    from the owner of the optimizer's state, and gradients back.
    """

    source: str
    target: str
    forward_nbytes: int
    forward_s: float
    back_nbytes: int
    back_s: float

    @property
    def seconds(self) -> float:
        """Both ways."""
        return self.forward_s + self.back_s


@dataclass(frozen=True)
class Step:
    """A training step of a layout: seconds in all, what it consists of.

    ``uncertainty``: relative, the mean of its figures' own, weighted by their seconds.
    """

    step_s: float
    parts: tuple[PartFigures, ...]
    edges: tuple[EdgeFigures, ...]
    uncertainty: float


def predict(costs: Costs, layout: Layout) -> Step:
    """A step of a batch; ValueError where the layout names a processor that has no costs."""
    if layout.blocks != len(costs.block_names):
        raise ValueError(f"a layout of {layout.blocks} blocks, costs of {len(costs.block_names)}")
    return _split(costs, layout) if layout.kind == "split" else _chain(costs, layout)


def hides_updates(costs: Costs, processor: ProcessorCost) -> bool:
    """Whether an update on this processor passes while others work.

    Not where gradients are clipped: their norm is known when all parts have theirs.
    """
    alone = all(c < SHARED for pair, c in costs.contention.items() if processor.key in pair)
    return processor.queued and alone and not costs.clips


def covers_update(costs: Costs, before: ProcessorCost, processor: ProcessorCost) -> bool:
    """Whether an update in the caller's thread passes while the part before goes backward."""
    apart = costs.contends(before.key, processor.key) < SHARED
    return not processor.queued and before.queued and apart and not costs.clips


def edge(costs: Costs, source: ProcessorCost, target: ProcessorCost, block: int) -> EdgeFigures:
    """What passes behind a unit-block of a cut."""
    boundary = costs.boundaries[block]
    nbytes = boundary.row_nbytes * costs.batch
    back = nbytes if boundary.gradient else 0
    return EdgeFigures(
        source.key,
        target.key,
        nbytes,
        costs.move_s(source, target, nbytes),
        back,
        costs.move_s(target, source, back) if back else 0.0,
    )


def exchange(
    costs: Costs, owner: ProcessorCost, other: ProcessorCost, again: bool = False
) -> EdgeFigures:
    """What passes between a split's owner and another slice's processor: values, gradients.

    ``again``: the host has the values already, for a slice before.
    """
    values, grads = FLOAT_NBYTES * costs.num_values, FLOAT_NBYTES * costs.num_trained
    known_s = owner.link.download_s(values) if again else 0.0
    return EdgeFigures(
        owner.key,
        other.key,
        values,
        costs.move_s(owner, other, values) - known_s,
        grads,
        costs.move_s(other, owner, grads),
    )


def chain_overhead_s(costs: Costs, processor: ProcessorCost) -> float:
    """What each part of a cut costs beside its blocks; clipping waits for the part's norm."""
    return processor.part_s + (processor.link.download_s(FLOAT_NBYTES) if costs.clips else 0.0)


def _chain(costs: Costs, layout: Layout) -> Step:
    parts, last = layout.parts, len(layout.parts) - 1
    whole = last == 0
    chain_s, hidden_s = 0.0, []
    figures: list[PartFigures] = []
    busy_s: dict[str, float] = {}
    for i, part in enumerate(parts):
        processor = costs.processor(part.device)
        overhead_s = processor.part_s if whole else chain_overhead_s(costs, processor)
        f = _part(costs, part, costs.batch, overhead_s, loss=i == last)
        hidden = 0.0
        if i > 0 and hides_updates(costs, processor):
            hidden = f.update_s
        elif i > 0 and covers_update(costs, costs.processor(parts[i - 1].device), processor):
            hidden = min(f.update_s, figures[-1].backward_s)
        chain_s += f.busy_s - hidden
        busy_s[part.device] = busy_s.get(part.device, 0.0) + f.busy_s
        hidden_s.append(hidden)
        figures.append(f)
    edges = tuple(
        edge(costs, costs.processor(a.device), costs.processor(b.device), a.stop - 1)
        for a, b in pairwise(parts)
    )
    chain_s += sum(e.seconds for e in edges)
    step_s = max(chain_s, *busy_s.values())
    # where a processor's own work is longer than the chain, its updates show by the difference
    shown = {key: max(0.0, own - chain_s) for key, own in busy_s.items()}
    found = []
    for f, hidden in zip(figures, hidden_s, strict=True):
        seen = min(hidden, shown[f.device])
        shown[f.device] -= seen
        found.append(replace(f, hidden_s=hidden - seen))
    return Step(step_s, tuple(found), edges, _uncertainty(costs, found, edges))


def _split(costs: Costs, layout: Layout) -> Step:
    rows = slices(costs.batch, layout.shares)
    owner = costs.processor(layout.parts[0].device)
    figures, slice_s = [], {}
    for i, (part, count) in enumerate(zip(layout.parts, rows, strict=True)):
        processor = costs.processor(part.device)
        f = _part(costs, part, count, processor.part_s if count else 0.0, loss=count > 0)
        if i > 0:  # the owner updates
            f = replace(f, update_s=0.0)
        slice_s[part.device] = f.forward_s + f.backward_s
        figures.append(f)
    edges = tuple(
        exchange(costs, owner, costs.processor(part.device), again=i > 0)
        for i, part in enumerate(layout.parts[1:])
    )
    step_s = together_s(costs, slice_s) + sum(e.seconds for e in edges) + figures[0].update_s
    return Step(step_s, tuple(figures), edges, _uncertainty(costs, figures, edges))


def together_s(costs: Costs, alone_s: dict[str, float]) -> float:
    """Seconds until all have done their work at the same time; ``alone_s`` by processor.

    Each waits for the longer of two, and loses to each that it contends with.
    """
    return max(
        own + sum(costs.contends(key, k) * min(own, s) for k, s in alone_s.items() if k != key)
        for key, own in alone_s.items()
    )


def _part(costs: Costs, part: Part, rows: int, overhead_s: float, loss: bool) -> PartFigures:
    processor = costs.processor(part.device)
    blocks = processor.blocks[part.first : part.stop]
    forward_s = overhead_s + sum(b.forward.at(rows) for b in blocks)
    if part.first == 0:
        forward_s += processor.gather.at(rows)
    if loss:
        forward_s += processor.loss.at(rows)
    return PartFigures(
        device=part.device,
        first=part.first,
        stop=part.stop,
        rows=rows,
        forward_s=forward_s,
        backward_s=sum(b.backward.at(rows) for b in blocks),
        update_s=sum(b.update_s for b in blocks),
        hidden_s=0.0,
        nbytes=sum(b.nbytes(costs.batch) for b in blocks),  # programs are made for whole batches
    )


def _uncertainty(costs: Costs, parts: list[PartFigures], edges: tuple[EdgeFigures, ...]) -> float:
    weights, total = 0.0, 0.0
    for f in parts:
        blocks = costs.processor(f.device).blocks[f.first : f.stop]
        seconds = [b.forward.at(f.rows) + b.backward.at(f.rows) + b.update_s for b in blocks]
        total += sum(seconds)
        weights += sum(s * b.uncertainty for s, b in zip(seconds, blocks, strict=True))
    for e in edges:
        total += e.seconds
        weights += e.seconds * costs.edge_uncertainty(e.source, e.target)
    return weights / total if total else 0.0
