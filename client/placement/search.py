"""Finds the best cut and the best shares, by the model of ``client.placement.steps``. Pure.

The best cut is a shortest path over (unit-block, processor) with several costs at once: the chain's
time, and, only where they can matter, each processor's memory and own time, and energy. Partial
placements that are no better in any of these than another one are dropped (Martins, European
Journal of Operational Research 1984), which leaves the optimum; and those that cannot become better
than what is known already.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise, product
from math import inf, isclose
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client.placement.cost import Costs, ProcessorCost
from client.placement.layout import Layout
from client.placement.limits import Limits
from client.placement.steps import (
    chain_overhead_s,
    covers_update,
    edge,
    hides_updates,
    predict,
)

MOST_KEPT = 200
"""Partial placements kept of one block and processor. Where memory is short on several processors
of a deep network, far more may be of use; then they are thinned, and the result is not exact."""

Float64Array = NDArray[np.float64]


class _Labels(NamedTuple):
    """Placements of the first blocks: what each costs so far, the processor of each block."""

    costs: Float64Array  # (labels, costs); which, see _Chain
    devices: NDArray[np.int8]  # (labels, blocks so far)


@dataclass(frozen=True)
class _Entry:
    """What a block adds on a processor, beside the edge to it."""

    work_s: float  # forward, backward, and what else is on the chain
    backward_s: float
    update_s: float
    round_s: float  # of a round's moves, divided by its steps
    nbytes: int


class _Chain:
    """The search over one model's blocks. Costs of a label, in order: seconds of the chain; of each
    processor whose updates may be longer than what they overlap with, all of its own seconds; bytes
    of each processor that cannot hold everything; joules if they are limited; and, negative,
    seconds of backward that updates in the caller's thread may still overlap with."""

    def __init__(self, costs: Costs, limits: Limits, steps: int) -> None:
        self._costs, self._steps = costs, steps
        self._all = [
            p for p in costs.processors if limits.energy_j is None or p.power_w is not None
        ]
        self._blocks = len(costs.block_names)
        self._rooms = [limits.room(p) for p in self._all]
        self._hides = [hides_updates(costs, p) for p in self._all]
        needs = [sum(b.nbytes(costs.batch) for b in p.blocks) for p in self._all]
        numbers = range(len(self._all))
        self._tight = [i for i in numbers if needs[i] > self._rooms[i]]
        self._edges = [
            [[self._edge_s(p, q, b) for q in numbers] for p in numbers]
            for b in range(self._blocks - 1)
        ]
        self._entries = {
            (b, p, begins): self._entry(b, p, begins)
            for b in range(self._blocks)
            for p in numbers
            for begins in (False, True)
        }
        self._own = [i for i in numbers if self._hides[i] and self._update_may_show(i)]
        self._measures_energy = limits.energy_j is not None
        self._most = [inf] * (1 + len(self._own)) + [self._rooms[i] for i in self._tight]
        if limits.energy_j is not None:
            self._most.append(limits.energy_j / steps)
        self._covers = [[covers_update(costs, p, q) for q in self._all] for p in self._all]
        self._in_caller = [i for i in numbers if not self._all[i].queued]
        self._to_come = [  # by block and processor: seconds of the later blocks' updates
            [sum(cost.update_s for cost in p.blocks[b + 1 :]) for p in self._all]
            for b in range(self._blocks)
        ]
        self._most.append(inf)
        self._width = len(self._most)
        self.exact = True
        self._least = self._least_to_come()

    def best(self, parts: int | None, below_s: float) -> tuple[Layout, float] | None:
        """The best cut of exactly so many parts, or of any number, and its seconds a step.

        None if there is none within the limits, or none shorter than ``below_s``.
        """
        most = parts or 2  # what is beyond two is counted as two where any number will do
        numbers = range(len(self._all))
        nothing = _Labels(np.zeros((1, self._width)), np.zeros((1, 0), np.int8))
        states = {
            (1, p): self._kept([self._enter(nothing, 0, p, None, True)], 0, p, below_s)
            for p in numbers
        }
        for block in range(1, self._blocks):
            found: dict[tuple[int, int], list[_Labels]] = {}
            for ((count, p), labels), q in product(states.items(), numbers):
                after = count if p == q else count + 1
                if after > most and parts is not None:
                    continue
                after = min(after, most)
                entered = self._enter(labels, block, q, p if p != q else None, after == 1)
                found.setdefault((after, q), []).append(entered)
            states = {(n, p): self._kept(x, block, p, below_s) for (n, p), x in found.items()}
        ends = [labels for (count, _), labels in states.items() if count == most]
        if not any(len(labels.costs) for labels in ends):
            return None
        costs = np.concatenate([labels.costs for labels in ends])
        seconds = costs[:, : 1 + len(self._own)].max(axis=1)
        best = int(seconds.argmin())
        devices = np.concatenate([labels.devices for labels in ends])[best]
        return self._layout([int(p) for p in devices]), float(seconds[best])

    def _layout(self, devices: list[int]) -> Layout:
        stops = [i + 1 for i, (a, b) in enumerate(pairwise(devices)) if a != b]
        stops.append(self._blocks)
        return Layout.cut([self._all[devices[s - 1]].key for s in stops], stops)

    def _enter(self, labels: _Labels, block: int, p: int, came: int | None, first: bool) -> _Labels:
        """The labels with one more block, on processor ``p``, reached from another if ``came``."""
        added = self._entries[block, p, block == 0 or came is not None]
        edge_s = 0.0 if came is None else self._edges[block - 1][came][p]
        busy_s = added.work_s + added.update_s
        cover_s = -labels.costs[:, -1]
        if came is not None and not self._covers[came][p]:
            cover_s = np.zeros_like(cover_s)
        hidden_s: Float64Array | float = np.minimum(added.update_s, cover_s)
        if any(self._covers[p]):  # it has a queue: what it covers is for the part behind it
            hidden_s, before_s = 0.0, cover_s if came is None else 0.0
            left_s = before_s + added.backward_s
        else:
            left_s = cover_s - hidden_s
        if self._hides[p] and not first:
            hidden_s = added.update_s
        costs = np.zeros((len(labels.costs), self._width))
        costs[:, 0] = edge_s + busy_s - hidden_s + added.round_s
        at = 1
        for q in self._own:
            costs[:, at] = added.round_s + (busy_s if q == p else 0.0)
            at += 1
        for q in self._tight:
            costs[:, at] = added.nbytes if q == p else 0
            at += 1
        if self._measures_energy:
            costs[:, at] = busy_s * (self._all[p].power_w or 0.0)
        costs += labels.costs
        # what can no longer make a difference is made equal, so that the chain's time alone counts:
        # own time that later updates cannot bring beyond the chain's, cover for more than they take
        for at, q in enumerate(self._own, 1):
            costs[:, at] = np.maximum(costs[:, at], costs[:, 0] - self._to_come[block][q])
        in_caller_s = max((self._to_come[block][q] for q in self._in_caller), default=0.0)
        costs[:, -1] = -np.minimum(left_s, in_caller_s)
        column = np.full((len(labels.devices), 1), p, np.int8)
        return _Labels(costs, np.concatenate([labels.devices, column], axis=1))

    def _entry(self, block: int, p: int, begins: bool) -> _Entry:
        costs, processor = self._costs, self._all[p]
        cost, n = processor.blocks[block], self._costs.batch
        work_s = cost.forward.at(n) + cost.backward.at(n)
        if begins:
            work_s += chain_overhead_s(costs, processor)
        if block == 0:
            work_s += processor.gather.at(n)
        if block == self._blocks - 1:
            work_s += processor.loss.at(n)
        moves_s = costs.round_moves_s(processor, block, block + 1)
        if not begins:  # the part's one latency is counted already
            moves_s -= costs.round_moves_s(processor, block, block)
        backward_s = cost.backward.at(n)
        return _Entry(work_s, backward_s, cost.update_s, moves_s / self._steps, cost.nbytes(n))

    def _kept(self, found: list[_Labels], block: int, p: int, below_s: float) -> _Labels:
        """Labels within the limits that may become the best, without those dominated."""
        costs = np.concatenate([labels.costs for labels in found])
        devices = np.concatenate([labels.devices for labels in found])
        use = (costs[:, 0] + self._least[block][p] < below_s) & (costs <= self._most).all(axis=1)
        costs, devices = costs[use], devices[use]
        order = np.lexsort(costs.T[::-1])
        costs, devices = costs[order], devices[order]
        kept: list[int] = []
        left = np.ones(len(costs), bool)
        while left.any():  # the first that is left is dominated by none
            best = int(left.argmax())
            kept.append(best)
            left &= (costs < costs[best]).any(axis=1)
        if len(kept) > MOST_KEPT:
            self.exact = False
            kept = [kept[i] for i in np.linspace(0, len(kept) - 1, MOST_KEPT, dtype=int)]
        return _Labels(costs[kept], devices[kept])

    def _edge_s(self, p: int, q: int, block: int) -> float:
        return 0.0 if p == q else edge(self._costs, self._all[p], self._all[q], block).seconds

    def _update_may_show(self, p: int) -> bool:
        """Whether updates may take longer than the least that others do in a step."""
        n, numbers = self._costs.batch, range(len(self._all))
        others = [
            b.forward.at(n) + b.backward.at(n)
            for q in numbers
            if q != p
            for b in self._all[q].blocks
        ]
        edges = [e[a][b] for e in self._edges for a in numbers for b in numbers if a != b]
        least_s = min(others, default=0.0) + min(edges, default=0.0)
        return sum(b.update_s for b in self._all[p].blocks) > least_s

    def _least_to_come(self) -> list[list[float]]:
        """By block and processor: the least seconds that the chain's later blocks add."""
        numbers = range(len(self._all))
        least = [[0.0 for _ in numbers]]
        for block in range(self._blocks - 1, 0, -1):
            row = []
            for p in numbers:
                steps = []
                for q in numbers:
                    added = self._entries[block, q, p != q]
                    may_hide = self._hides[q] or any(covers[q] for covers in self._covers)
                    hidden_s = added.update_s if may_hide else 0.0
                    work_s = added.work_s + added.update_s - hidden_s + added.round_s
                    steps.append(work_s + self._edges[block - 1][p][q] + least[0][q])
                row.append(min(steps))
            least.insert(0, row)
        return least


def cuts(costs: Costs, limits: Limits, steps: int) -> tuple[list[Layout], bool]:
    """The best cut of two parts, of three, and of any number, where there are any.

    And whether it is certain that none is better (see MOST_KEPT).
    """
    if len(costs.processors) < 2 or len(costs.block_names) < 2:
        return [], True
    chain, found, shortest_s = _Chain(costs, limits, steps), [], inf
    for parts in (2, 3, None):
        best = chain.best(parts, inf if parts else shortest_s)
        if best is not None:
            found.append(best[0])
            shortest_s = min(shortest_s, best[1])
    return list(dict.fromkeys(found)), chain.exact


TENTHS = tuple(i / 10 for i in range(1, 10))

BESIDE = 0.05
"""Shares that differ by less are not told apart by any prediction."""


def splits(costs: Costs, members: list[ProcessorCost]) -> list[Layout]:
    """For each set of two or more of ``members``: the best shares, and beside them, of pairs, the
    nearest tenths that are fewer and more. The first of a layout's parts owns the optimizer."""
    found = []
    for size in range(2, len(members) + 1):
        for group in combinations(members, size):
            best = min(
                _candidates(costs, group), key=lambda x: predict(costs, x).step_s, default=None
            )
            if best is None:
                continue
            found.append(best)
            if size == 2:
                found += _beside(costs, best)
    return found


def level_rows(costs: Costs, group: tuple[ProcessorCost, ...]) -> tuple[float, ...]:
    """Examples of each processor so that all are done at the same time.

    With seconds a + b·n on each, all end at L where the sum of (L - a)/b is the batch, over those
    whose fixed part is below L; the others have none.
    """
    lines = [(p, *_slice_line(costs, p)) for p in group]
    active = sorted(lines, key=lambda line: line[1])
    while active:
        total = sum(1 / row_s for _, _, row_s in active)
        level_s = (costs.batch + sum(a / b for _, a, b in active)) / total
        if active[-1][1] < level_s:
            break
        active.pop()
    rows = {p.key: (level_s - a) / b for p, a, b in active}
    return tuple(rows.get(p.key, 0.0) for p in group)


def _slice_line(costs: Costs, p: ProcessorCost) -> tuple[float, float]:
    lines = [p.gather, p.loss, *(x for b in p.blocks for x in (b.forward, b.backward))]
    row_s = sum(line.row_s for line in lines)
    return p.part_s + sum(line.fixed_s for line in lines), max(row_s, 1e-12)


def _candidates(costs: Costs, group: tuple[ProcessorCost, ...]) -> list[Layout]:
    """Layouts of a group, each member as the owner: the closed form, of pairs also tenths."""
    found = []
    whole_rows = _whole(level_rows(costs, group), costs.batch)
    shares = [tuple(rows / costs.batch for rows in whole_rows)] if min(whole_rows) > 0 else []
    if len(group) == 2:
        shares += [(share, round(1 - share, 1)) for share in TENTHS]
    for owner in range(len(group)):
        order = [owner, *(i for i in range(len(group)) if i != owner)]
        for each in shares:
            found.append(_layout(costs, [group[i].key for i in order], [each[i] for i in order]))
    return found


def _layout(costs: Costs, devices: list[str], shares: list[float]) -> Layout:
    return Layout.split(devices, shares, len(costs.block_names))


def _whole(rows: tuple[float, ...], batch: int) -> list[int]:
    """Whole examples that add up to the batch, by largest remainders."""
    found = [int(r) for r in rows]
    order = sorted(range(len(rows)), key=lambda i: found[i] - rows[i])
    for i in order[: batch - sum(found)]:
        found[i] += 1
    return found


def _beside(costs: Costs, best: Layout) -> list[Layout]:
    """Tenths next to a pair's best share, on both sides."""
    share = best.parts[0].share
    fewer = [t for t in TENTHS if t <= share - BESIDE or isclose(t, share - BESIDE)][-1:]
    more = [t for t in TENTHS if t >= share + BESIDE or isclose(t, share + BESIDE)][:1]
    return [_layout(costs, list(best.devices), [t, round(1 - t, 1)]) for t in (*fewer, *more)]
