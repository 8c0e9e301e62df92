"""Holds each round against what was expected: keep the layout, or try others beside it. Pure.

It only ever asks for trials (see trials.py), whose steps train the model and whose outcome decides;
a layout is left for one that is better by a margin there. So a round that was slow by chance costs
a few steps elsewhere, and moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from client.placement.layout import Layout
from client.placement.trials import MARGIN
from client.record import Decision

DRIFT = 0.25
"""So much slower than when it was chosen, a layout is held against others again."""

FALLS, RISES = 0.5, 0.1
"""Of the difference, so much is taken over into what is expected of the kept layout, where a round
was faster, or slower but no drift: a machine may have had other work at first."""

MOST_TRIED = 2
"""Layouts that are tried beside the kept one at a time."""

RETRY_SHARE = 0.02
"""Of the time between two trials of a layout that was better once, so much may be lost by them."""

MAX_WAIT = 4
"""Rounds between two such trials, where they do not cost too much for that: 1, 2, then these."""


RIVAL = 1.5
"""A layout that never took more than so many times what the kept one takes is looked at again now
and then: it may have been timed in a bad moment."""

SECOND_LOOK = 4
"""Rounds until then; twice as many each time."""


@dataclass
class _Known:
    """What is known of a layout that is not kept. Seconds are of a step.

    ``best_s``: the least that it ever took; before it ran, what is predicted. ``due``: the round in
    which it may be tried again, and after ``wait`` more the next time. ``ran``: it was measured.
    ``times``: of what the kept layout took at the same time; if that takes less now, on a calmer
    machine, so will this one.
    """

    step_s: float
    best_s: float
    due: int
    wait: int = 1
    ran: bool = False
    times: float | None = None

    def believed_s(self, expected_s: float) -> float:
        """Of a step now, where the kept layout should take so long."""
        return self.step_s if self.times is None else min(self.step_s, self.times * expected_s)


@dataclass(frozen=True)
class Advice:
    """What the next round is to do: the layouts to be held against the kept one; none: go on.

    ``lost``: the kept one became slow, and nothing is known of any other.
    """

    decision: Decision
    beside: tuple[Layout, ...] = ()
    lost: bool = False


@dataclass
class Monitor:
    """See the module; of one node. ``describe`` names a layout in a sentence.

    ``expected_s``: of a step of the kept layout, by the rounds since it was chosen; None until
    then.
    """

    kept: Layout
    describe: Callable[[Layout], str]
    expected_s: float | None = None
    _chosen_s: float = math.inf  # the first that was expected of it
    _best_s: float = math.inf  # the least that was expected of it
    _seen_s: float | None = None
    _round_s: float = 0.0
    _round: int = 0
    _others: dict[Layout, _Known] = field(default_factory=dict)

    @property
    def seen_s(self) -> float | None:
        """Of a step of the kept layout, in the last round."""
        return self._seen_s

    def learn(self, others: Mapping[Layout, float]) -> None:
        """What other layouts are predicted to take, or took beside the kept one if that is among
        them; nothing new of those that are known."""
        kept_s = others.get(self.kept)
        for layout, step_s in others.items():
            if layout != self.kept and layout not in self._others:
                due = self._round + SECOND_LOOK
                times = None if kept_s is None else step_s / kept_s
                known = _Known(step_s, step_s, due, SECOND_LOOK, times=times)
                self._others[layout] = known

    def knows(self, layout: Layout) -> bool:
        """Whether it is kept, or anything is known of it."""
        return layout == self.kept or layout in self._others

    def ran(self, layout: Layout) -> bool:
        """Whether another layout was measured before."""
        return layout in self._others and self._others[layout].ran

    def forget(self, gone: Callable[[Layout], bool]) -> None:
        """Layouts that can no longer train."""
        for layout in [layout for layout in self._others if gone(layout)]:
            del self._others[layout]

    def observe(self, step_s: float) -> None:
        """The kept layout trained a round, or the rest of one, so fast."""
        self._round += 1
        self._seen_s = step_s
        if self.expected_s is None:
            self.expected_s = self._chosen_s = step_s
        elif step_s <= (1 + DRIFT) * self.expected_s:
            part = FALLS if step_s < self.expected_s else RISES
            new_s = self.expected_s + part * (step_s - self.expected_s)
            # one that becomes slow little by little is not followed all the way
            self.expected_s = min(new_s, (1 + DRIFT) * self._chosen_s)
        self._best_s = min(self._best_s, self.expected_s)

    def tried(
        self,
        best: Layout,
        others: Sequence[Layout],
        measured: Mapping[Layout, float],
        excess_s: float,
    ) -> None:
        """Trials of these are over, and the best is kept. To be told before ``observe``.

        ``measured``: those that got far enough. ``excess_s``: what was lost by all of them, from
        which the next ones' date follows.
        """
        before = self.kept
        if best != before:
            for other in self._others.values():
                other.times = None
            old_s = measured.get(before, self._seen_s)
            if old_s is not None:
                best_s, due = min(old_s, self._best_s), self._round + 3
                self._others[before] = _Known(old_s, best_s, due, ran=True)
            known = self._others.pop(best, None)
            self.kept, self._best_s = best, math.inf if known is None else known.best_s
        now_s, expected_s = measured.get(best), self.expected_s
        slow = now_s is not None and expected_s is not None and now_s > (1 + DRIFT) * expected_s
        if best != before or slow:  # what it takes in a round is seen in this one
            self.expected_s = None
        kept_s = measured.get(best)
        for layout in others:
            if layout in self._others and layout != before:
                known = self._others[layout]
                self._put_off(known, measured.get(layout), excess_s)
                if layout in measured and kept_s is not None:
                    known.times = measured[layout] / kept_s

    def _put_off(self, known: _Known, step_s: float | None, excess_s: float) -> None:
        """It was tried and did not win."""
        if step_s is not None:
            # what was predicted of it counts no more
            best_s = min(known.best_s, step_s) if known.ran else step_s
            known.step_s, known.best_s, known.ran = step_s, best_s, True
        rounds = excess_s / (RETRY_SHARE * self._round_s) if self._round_s else 0.0
        known.due = self._round + 1 + max(known.wait, math.ceil(rounds))
        was_better = self._seen_s is not None and known.best_s < (1 - MARGIN) * self._seen_s
        known.wait = min(2 * known.wait, MAX_WAIT) if was_better else 2 * known.wait

    def advise(self, round_s: float) -> Advice:
        """For the next round. ``round_s``: what a round takes on the kept layout."""
        self._round_s = round_s
        seen_s, expected_s = self._seen_s, self.expected_s
        if seen_s is None or expected_s is None:
            return Advice(Decision("keep", f"{self.describe(self.kept)}: nothing was seen yet"))
        numbers = {"step_s": seen_s, "expected_step_s": expected_s}
        drifted = seen_s > (1 + DRIFT) * expected_s
        better = self._believed_better(seen_s, expected_s, drifted)
        if not better:
            decision = Decision("keep", self._kept_because(seen_s, expected_s), numbers)
            return Advice(decision, lost=drifted and not self._others)
        for layout in better:
            believed_s = self._others[layout].believed_s(expected_s)
            numbers[f"{self.describe(layout)} step_s"] = believed_s
        names = " and ".join(self.describe(layout) for layout in better)
        now = f"{self.describe(self.kept)} takes {_ms(seen_s)} a step"
        if drifted:
            why = f"{now}, {seen_s / expected_s:.1f} times what it did: held against {names}"
        else:
            best_s = min(self._others[layout].best_s for layout in better)
            why = f"{now}; {names}, which took {_ms(best_s)} once, may do better now"
        return Advice(Decision("try", why, numbers), better)

    def _believed_better(
        self, seen_s: float, expected_s: float, drifted: bool
    ) -> tuple[Layout, ...]:
        """The most promising first: by what they last took if the kept one drifted, or else, when
        their time has come, by the best that they ever did, if that is near."""
        limit_s = (1 - MARGIN) * seen_s
        found = {}
        for layout, known in self._others.items():
            believed_s = known.believed_s(expected_s)
            if drifted and believed_s < limit_s:
                found[layout] = believed_s
            elif known.best_s < RIVAL * seen_s and known.due <= self._round + 1:
                found[layout] = known.best_s
        return tuple(sorted(found, key=lambda layout: found[layout])[:MOST_TRIED])

    def _kept_because(self, seen_s: float, expected_s: float) -> str:
        name = self.describe(self.kept)
        return f"{name} takes {_ms(seen_s)} a step, {seen_s / expected_s:.2f} times what it did"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
