"""Which layouts train the next few steps of a round, so that the best can be told. Pure.

Candidates take turns at groups of a few training steps: all of them train the model. What is lost
is what they took beyond the best one's time, and moving the state between them: at most a share of
the run's training time, after which the trials end as they stand. A node with few steps a round
goes on with its trials in the next one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from client.placement.layout import Layout

GROUPS = 3
GROUP_STEPS = 4
"""Groups of each candidate that count, and the steps in one, unless they are short or a round has
fewer. The other candidates' groups lie between, so that a machine that slows down meanwhile slows
all of them."""

GROUP_S = 0.02
"""Groups of short steps last so long where a round has the steps for it: each group is ended by a
wait, and waking from it is no part of training that enqueues step after step."""

WARM_UPS = 2
"""Turns of a single step before a candidate's first group: caches, pages, clocks."""

HOPELESS = 10.0
"""A warm-up so many times longer than the best group ends a candidate's trials."""

WORSE, FAR = 1.3, 3.0
"""So does the shortest of its groups, two at least, that is so many times longer; ``FAR`` where it
is the layout that trained before, which must not be left by chance."""

AGAIN = 1.6
"""Both warm-ups of a layout that trained before, so many times longer, end its trials."""

COLD = 2.0
"""A warm-up takes some such multiple of the steps that follow, when it comes to affording them."""

MARGIN = 0.1
"""A kept layout is left only for one that takes so much less time."""

SHARE_OF_ROUND = 0.5
"""Of a round's steps, at most so many are trials, and at least one."""


@dataclass(frozen=True)
class Candidate:
    """A layout to be tried.

    ``expected_s``: of a step, predicted or seen before; None where nothing is known.
    ``transfer_s``: of a round, beside its steps; None: to be seen here. ``recent``: ``expected_s``
    was seen in the last round, so that it needs no warm-up. ``again``: it trained before, and its
    warm-up will not be much longer than other steps. ``hopeless``: it is expected to be so much
    worse than another that it has no turns; for the record.
    """

    layout: Layout
    expected_s: float | None = None
    transfer_s: float | None = None
    recent: bool = False
    again: bool = False
    hopeless: bool = False


@dataclass
class _Tried:
    """What was seen of a candidate."""

    candidate: Candidate
    warm_ups: list[float] = field(default_factory=list)
    groups: list[float] = field(default_factory=list)  # of a step
    upload_s: float | None = None  # of a round's values
    download_s: float | None = None
    out: str = ""  # why its trials ended early

    @property
    def ran(self) -> bool:
        return bool(self.groups or self.warm_ups) or self.candidate.recent

    @property
    def warm(self) -> bool:
        return self.candidate.recent or len(self.warm_ups) == WARM_UPS

    @property
    def warm_up_s(self) -> float | None:
        """The shorter of its warm-ups."""
        return min(self.warm_ups, default=None)

    @property
    def expected_s(self) -> float | None:
        """The least that a step took here, else what is to be expected after the warm-up, else
        before it."""
        if self.groups:
            return min(self.groups)
        return self.candidate.expected_s if self.warm_up_s is None else self.warm_up_s / COLD

    @property
    def transfer_s(self) -> float:
        """Of a round, as expected, else as seen."""
        if self.candidate.transfer_s is not None:
            return self.candidate.transfer_s
        return (self.upload_s or 0.0) + (self.download_s or 0.0)

    @property
    def step_s(self) -> float | None:
        """As measured here: the median of its groups."""
        return statistics.median(self.groups) if self.groups else None


@dataclass(frozen=True)
class Turn:
    """So many steps on a layout. ``sampled``: the last one's commands are wanted, too."""

    layout: Layout
    steps: int
    warm_up: bool
    sampled: bool


class Trials:
    """The candidates' turns. ``kept``: the one that trained so far, left only for a clear gain.

    ``round_steps``: of a round of this node. ``budget_steps``: planning may take the time of so
    many steps, ``spent_s`` included, which it took before.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        round_steps: int,
        budget_steps: float,
        spent_s: float = 0.0,
        kept: Layout | None = None,
    ) -> None:
        self._tried = {
            c.layout: _Tried(c, out="so much is known" if c.hopeless else "") for c in candidates
        }
        self._round_steps = round_steps
        self._budget_steps = budget_steps
        self._spent_s = spent_s
        self._turns: list[tuple[Layout, int, float]] = []
        self._kept = kept
        self._left = 0
        self._most_steps = 1
        self.begin_round()

    # -- the turns ---------------------------------------------------------------------------

    def begin_round(self) -> None:
        """A round begins, with so many steps for trials."""
        self._left = max(1, int(self._round_steps * SHARE_OF_ROUND))
        turns = max(1, len(self._tried) * GROUPS)
        self._most_steps = max(1, self._left // turns)

    def next(self) -> Turn | None:
        """Who is next; None where all is known, or the round's or the budget's share is used."""
        while not self.done and self._left > 0:
            tried = self._whose_turn()
            warm_up = not tried.warm
            first = not warm_up and not tried.groups
            steps = min(self._left, 1 if warm_up else self._group(tried))
            if not self._affordable(tried, steps):
                tried.out = "the budget for trials is spent"
                continue
            return Turn(tried.candidate.layout, steps, warm_up, sampled=first)
        return None

    def took(self, turn: Turn, seconds: float) -> None:
        """What a turn took."""
        tried, step_s = self._tried[turn.layout], seconds / turn.steps
        self._turns.append((turn.layout, turn.steps, seconds))
        self._left -= turn.steps
        if turn.warm_up:
            tried.warm_ups.append(step_s)
        else:
            tried.groups.append(step_s)
        best_s = self._reference_s()
        least_s = min(tried.groups, default=step_s)
        if turn.warm_up:
            again = tried.candidate.again and tried.warm
            limit, least_s = AGAIN if again else HOPELESS, min(tried.warm_ups)
        elif len(tried.groups) < 2:
            limit = HOPELESS
        else:
            limit = FAR if turn.layout == self._kept else WORSE
        if least_s > limit * best_s:
            tried.out = f"{least_s / best_s:.1f} times the best one's time"

    def _reference_s(self) -> float:
        """Of a step: the shortest that was seen of any candidate."""
        tried = self._tried.values()
        seen = [s for t in tried for s in t.groups]
        seen += [s for t in tried for s in t.warm_ups]
        recent = [t.candidate.expected_s for t in tried if t.candidate.recent and not t.groups]
        return min(seen + [s for s in recent if s is not None])

    def transferred(self, layout: Layout, upload_s: float | None, download_s: float | None) -> None:
        """What it took to bring a round's values to a layout, or from it."""
        tried = self._tried.get(layout)
        if tried is None:
            return
        if upload_s is not None:
            tried.upload_s = min(upload_s, tried.upload_s or upload_s)
        if download_s is not None:
            tried.download_s = min(download_s, tried.download_s or download_s)

    def drop(self, layouts: Sequence[Layout]) -> None:
        """Candidates that can no longer train."""
        for layout in layouts:
            del self._tried[layout]

    def spend(self, seconds: float) -> None:
        """Planning took so long, beside turns: moving the state between them, for one."""
        self._spent_s += seconds

    # -- what came of them -------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Nothing more is to be learned: the best is left alone, or each had all its turns."""
        running = [t for t in self._tried.values() if not t.out]
        if len(self._tried) < 2 or not running:
            return True
        best = self._best()
        if all(t is best for t in running):
            # without any group it gets one, for the record: that loses nothing
            return bool(best.groups) or best.candidate.recent
        return all(len(t.groups) >= GROUPS for t in running)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Of the candidates."""
        return tuple(self._tried)

    @property
    def needed(self) -> tuple[Layout, ...]:
        """The best, and those that will have turns."""
        running = [layout for layout, t in self._tried.items() if not t.out]
        return tuple(dict.fromkeys((self.best, *running)))

    @property
    def best(self) -> Layout:
        """The shortest round by what was measured, else by what was expected; the first of equals.

        The kept one, unless another is clearly better.
        """
        return self._best().candidate.layout

    @property
    def measured(self) -> dict[Layout, float]:
        """Seconds of a step, of candidates that were measured: their groups' median."""
        return {k: t.step_s for k, t in self._tried.items() if t.step_s is not None}

    @property
    def expected(self) -> dict[Layout, float]:
        """The same, or where a candidate has no group the least that is known of it."""
        known = {k: t.step_s or t.expected_s for k, t in self._tried.items()}
        return {k: s for k, s in known.items() if s is not None}

    @property
    def ended_early(self) -> dict[Layout, str]:
        """Candidates whose trials ended early, and why."""
        return {k: t.out for k, t in self._tried.items() if t.out}

    @property
    def figures(self) -> dict[Layout, dict[str, float]]:
        """What is known of candidates, in s: ``step_s`` and ``round_s`` made of it, else
        ``first_step_s``, of those that ran; else ``expected_step_s``."""
        found: dict[Layout, dict[str, float]] = {}
        for layout, tried in self._tried.items():
            if tried.step_s is not None:
                found[layout] = {"step_s": tried.step_s, "round_s": self.round_s(layout)}
            elif tried.warm_up_s is not None:
                found[layout] = {"first_step_s": tried.warm_up_s}
            elif tried.candidate.expected_s is not None:
                found[layout] = {"expected_step_s": tried.candidate.expected_s}
        return found

    def round_s(self, layout: Layout) -> float:
        """Of a round of this node on a layout, by what is known; infinite where nothing is."""
        tried = self._tried[layout]
        known = (tried.step_s, tried.warm_up_s, tried.candidate.expected_s)
        step_s = next((s for s in known if s is not None), None)
        return math.inf if step_s is None else tried.transfer_s + self._round_steps * step_s

    @property
    def excess_s(self) -> float:
        """What the other candidates' turns took beyond the best one's time, as known so far."""
        best_s = self._best_step_s()
        if best_s is None:
            return 0.0
        others = [(steps, s) for layout, steps, s in self._turns if layout != self.best]
        return sum(max(0.0, seconds - steps * best_s) for steps, seconds in others)

    @property
    def spent_s(self) -> float:
        """All that planning took: the excess, and what it was told of."""
        return self._spent_s + self.excess_s

    @property
    def budget_s(self) -> float | None:
        """The most that planning may take, by the kept layout's steps, else by the best one's; None
        while nothing is known of a step."""
        kept = None if self._kept is None else self._tried.get(self._kept)
        known_s = None if kept is None else kept.candidate.expected_s
        step_s = self._best_step_s() if known_s is None else known_s
        return None if step_s is None else self._budget_steps * step_s

    # -- inner -------------------------------------------------------------------------------

    def _whose_turn(self) -> _Tried:
        """Of those with the fewest turns: the last one's, to save a move; else the first."""
        running = [t for t in self._tried.values() if not t.out]
        turns = {
            id(t): len(t.groups) + (WARM_UPS if t.candidate.recent else len(t.warm_ups))
            for t in running
        }
        fewest = [t for t in running if turns[id(t)] == min(turns.values())]
        last = self._tried.get(self._turns[-1][0]) if self._turns else None
        return last if last is not None and last in fewest else fewest[0]

    def _group(self, tried: _Tried) -> int:
        """Steps of its next group."""
        step_s = tried.expected_s
        long_enough = math.ceil(GROUP_S / step_s) if step_s else 1
        return min(self._most_steps, max(GROUP_STEPS, long_enough))

    def _affordable(self, tried: _Tried, steps: int) -> bool:
        budget_s, best_s = self.budget_s, self._best_step_s()
        if budget_s is None or best_s is None or tried is self._best():
            return True
        expected_s = tried.expected_s
        excess_s = 0.0 if expected_s is None else steps * max(0.0, expected_s - best_s)
        return self.spent_s + excess_s < budget_s

    def _best(self) -> _Tried:
        def key(tried: _Tried) -> tuple[bool, float]:
            return not tried.ran, self.round_s(tried.candidate.layout)

        best = min(self._tried.values(), key=key)
        kept = None if self._kept is None else self._tried.get(self._kept)
        return best if kept is None or self._clearly_better(best, kept) else kept

    def _clearly_better(self, one: _Tried, kept: _Tried) -> bool:
        """Beyond the margin, and each of its groups shorter than each of the kept one's."""
        if one is kept or not (one.groups and kept.groups):
            return False
        one_s, kept_s = self.round_s(one.candidate.layout), self.round_s(kept.candidate.layout)
        enough = bool(kept.out) or min(len(one.groups), len(kept.groups)) >= GROUPS
        apart = max(one.groups) < min(kept.groups)
        return enough and apart and one_s < (1 - MARGIN) * kept_s

    def _best_step_s(self) -> float | None:
        """By groups, else by warm-ups, else by what is expected."""
        tried = self._tried.values()
        groups = [t.step_s for t in tried if t.step_s is not None]
        warm_ups = [t.warm_up_s for t in tried if t.warm_up_s is not None]
        expected = [t.expected_s for t in tried if t.expected_s is not None]
        return min(groups or warm_ups or expected, default=None)
