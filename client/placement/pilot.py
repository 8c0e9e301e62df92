"""A node's layout, round after round: planned by trials, kept, held against others again. Pure.

The pilot is asked which layout trains the next steps, told how long they took, and knows neither
devices nor clocks. A round is ``begin_round``; turns of trials by ``next`` and ``took``; the rest
on ``kept``; ``end_round``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from client.placement.layout import Layout
from client.placement.monitor import Advice, Monitor
from client.placement.trials import Candidate, Trials, Turn
from client.record import Decision

PLANNING_SHARE = 0.05
"""Of a run's training time, at most so much is lost by planning, of which"""

FIRST_SHARE = 0.03
"""the first plan may take so much, so that later trials are not without any."""


@dataclass(frozen=True)
class Steps:
    """Training steps of a node: of an epoch, of a round, of the run and of what is left of it, as
    far as is known."""

    epoch: int
    round: int
    run: int
    left: int


@dataclass(frozen=True)
class Ended:
    """What came of a round: the decision with its outcome and numbers, and what was timed.

    ``measured``: figures of layouts that had trials (see ``Trials.figures``), in s.
    """

    decision: Decision
    moved: bool
    measured: Mapping[Layout, Mapping[str, float]]


class Pilot:
    """See the module. ``describe`` names a layout in a sentence."""

    def __init__(self, describe: Callable[[Layout], str]) -> None:
        self.trained_s = 0.0  # the training steps of all rounds, trials included
        self.concluded = 0  # how many trials came to an end
        self._describe = describe
        self._steps = Steps(1, 1, 1, 1)
        self._kept: Layout | None = None
        self._settled: Decision | None = None  # there was no choice
        self._reason = ""
        self._spent_s = 0.0
        self._trials: Trials | None = None
        self._monitor: Monitor | None = None
        self._advice: Advice | None = None
        self._decision: Decision | None = None  # of this round

    # -- what is known -----------------------------------------------------------------------

    @property
    def kept(self) -> Layout | None:
        """The layout that trains whenever no trial does; None before anything was planned."""
        return self._kept if self._trials is None else self._trials.best

    @property
    def beside(self) -> tuple[Layout, ...]:
        """Layouts that the next round needs beside the kept one."""
        if self._trials is not None:
            return tuple(k for k in self._trials.needed if k != self.kept)
        return () if self._advice is None else self._advice.beside

    @property
    def wanted(self) -> tuple[Layout, ...]:
        """Both: what the next round needs."""
        return self.beside if self.kept is None else (self.kept, *self.beside)

    @property
    def reason(self) -> str:
        """Why the kept layout trains."""
        return self._reason if self._trials is None else self._told(self._trials)

    @property
    def spent_s(self) -> float:
        """What planning took so far: see ``Trials.spent_s``."""
        return self._spent_s if self._trials is None else self._trials.spent_s

    @property
    def idle(self) -> bool:
        """A layout was chosen, and nothing is to be tried."""
        chosen = self._trials is None and self._kept is not None and self._settled is None
        return chosen and not self.beside

    @property
    def lost(self) -> bool:
        """Nothing is known of any layout, or of none that could do better than one that became
        slow: a plan is needed."""
        return self.kept is None or (self._advice is not None and self._advice.lost)

    @property
    def room_s(self) -> float:
        """What planning may still take, by the last round's steps; 0 while none was seen."""
        seen_s = self.seen_s
        if seen_s is None:
            return 0.0
        return max(0.0, PLANNING_SHARE * self._steps.run * seen_s - self.spent_s)

    @property
    def seen_s(self) -> float | None:
        """Of a step of the kept layout, in the last round that it trained."""
        return None if self._monitor is None else self._monitor.seen_s

    def knows(self, layout: Layout) -> bool:
        """Whether it is kept, or was predicted or tried before."""
        return self._monitor is not None and self._monitor.knows(layout)

    # -- from outside ------------------------------------------------------------------------

    def settle(self, layout: Layout, decision: Decision) -> None:
        """This layout trains from now on: there is no choice, or it was made elsewhere."""
        if layout != self._kept or self._trials is not None:
            self._stop_trials()
            self._kept, self._advice = layout, None
            self._monitor = Monitor(layout, self._describe)
        self._settled, self._reason = decision, decision.reason

    def release(self, predicted: Mapping[Layout, float]) -> None:
        """The settled layout may be left again, for others, which take so long a step."""
        self._settled = None
        if self._monitor is not None:
            self._monitor.learn(predicted)

    def plan(self, candidates: Sequence[Candidate], steps: Steps) -> None:
        """Trials of these decide."""
        self._stop_trials()
        self._settled, self._advice, self._steps = None, None, steps
        if self._kept not in [c.layout for c in candidates]:
            self._kept, self._monitor = None, None
        budget = FIRST_SHARE * steps.run
        self._trials = Trials(candidates, steps.round, budget, self._spent_s, self._kept)

    def propose(self, predicted: Mapping[Layout, float], decision: Decision) -> None:
        """Have layouts tried in the next round that are predicted to be better, by a step's s."""
        assert self._monitor is not None
        self._monitor.learn(predicted)
        self._advice = Advice(decision, tuple(predicted))

    def spend(self, seconds: float) -> None:
        """Planning took so long, beside turns of trials."""
        if self._trials is None:
            self._spent_s += seconds
        else:
            self._trials.spend(seconds)

    def leave_out(self, gone: Callable[[Layout], bool]) -> None:
        """Layouts that cannot train, or no more."""
        if self._monitor is not None:
            self._monitor.forget(gone)
        if self._advice is not None:
            left = tuple(layout for layout in self._advice.beside if not gone(layout))
            self._advice = replace(self._advice, beside=left)
        if self._trials is not None:
            self._trials.drop([layout for layout in self._trials.layouts if gone(layout)])
            if not self._trials.layouts:
                self._stop_trials()
        if self._kept is not None and gone(self._kept):
            self._kept, self._monitor, self._advice, self._settled = None, None, None, None

    def _stop_trials(self) -> None:
        self._spent_s, self._trials = self.spent_s, None

    # -- a round -----------------------------------------------------------------------------

    def begin_round(self, steps: Steps) -> None:
        """A round begins, with a kept layout or a plan."""
        self._steps = steps
        if self._settled is not None:
            self._decision = self._settled
        elif self._advice is not None:
            self._decision = self._advice.decision
            if self._advice.beside and self._trials is None:
                self._hold_against(self._advice.beside)
        elif self._trials is not None:
            self._decision = Decision("plan", "timed on batches that count")
        else:
            self._decision = Decision("keep", self._reason)
        if self._trials is not None:
            self._trials.begin_round()

    def _hold_against(self, others: Sequence[Layout]) -> None:
        assert self._kept is not None
        assert self._monitor is not None
        seen_s = self.seen_s
        candidates = [
            Candidate(self._kept, seen_s, recent=seen_s is not None),
            *(Candidate(layout, again=self._monitor.ran(layout)) for layout in others),
        ]
        budget = PLANNING_SHARE * self._steps.run
        self._trials = Trials(candidates, self._steps.round, budget, self._spent_s, self._kept)

    def next(self) -> Turn | None:
        """The next turn of this round's trials; None: the rest is the kept layout's."""
        return None if self._trials is None else self._trials.next()

    def took(self, turn: Turn, seconds: float) -> None:
        """A turn's training steps took so long."""
        assert self._trials is not None
        self._trials.took(turn, seconds)
        self.trained_s += seconds

    def transferred(self, layout: Layout, upload_s: float | None, download_s: float | None) -> None:
        """See ``Trials.transferred``."""
        if self._trials is not None:
            self._trials.transferred(layout, upload_s, download_s)

    def end_round(self, rest_steps: int, rest_s: float) -> Ended:
        """The kept layout trained the rest so long."""
        assert self._decision is not None
        self.trained_s += rest_s
        layout, before, trials = self.kept, self._kept, self._trials
        assert layout is not None
        measured = {} if trials is None else trials.figures
        if trials is not None and trials.done:
            self._conclude(trials)
        moved = before is not None and layout != before
        numbers = self._numbers(trials)
        if self._trials is None and self._monitor is not None and rest_steps:
            step_s = rest_s / rest_steps
            self._monitor.observe(step_s)
            self._advice = self._affordable(self._monitor.advise(step_s * self._steps.round))
        reason = self._decision.reason
        if trials is not None:
            reason += f"; {self._told(trials)}"
            for left, why in trials.ended_early.items():
                reason += f"; {self._describe(left)} ended early: {why}"
            goes_on = "" if self._trials is None else ", so far"
            reason += f"; so {self._describe(layout)}{goes_on}"
        decision = Decision(self._decision.kind, reason, self._decision.numbers | numbers)
        return Ended(decision, moved, measured)

    def _affordable(self, advice: Advice) -> Advice:
        """Nothing is tried, nor made ready for it, when planning has had its share."""
        if not advice.beside or self.room_s > 0:
            return advice
        reason = f"{advice.decision.reason}: not tried, planning has had its share"
        return replace(
            advice, beside=(), decision=replace(advice.decision, kind="keep", reason=reason)
        )

    def _numbers(self, trials: Trials | None) -> dict[str, float]:
        numbers = {"planning_s": self.spent_s, "training_s": self.trained_s}
        if trials is not None:
            numbers["excess_s"] = trials.excess_s
            if trials.budget_s is not None:
                numbers["budget_s"] = trials.budget_s
        return numbers

    def _conclude(self, trials: Trials) -> None:
        """Trials are over: their best one is kept."""
        best = trials.best
        self._reason = self._told(trials)
        self._stop_trials()
        self._kept, self._advice = best, None
        self.concluded += 1
        if self._monitor is None:
            self._monitor = Monitor(best, self._describe)
            self._monitor.learn(trials.expected)
        else:
            self._monitor.tried(best, trials.layouts, trials.measured, trials.excess_s)

    def _told(self, trials: Trials) -> str:
        """The figures by which a layout is taken, in the order of the candidates."""
        told = []
        for layout, of in trials.figures.items():
            name = self._describe(layout)
            if "step_s" in of:
                told.append(f"{name} {of['round_s']:.3f} s ({of['step_s'] * 1e3:.2f} ms a step)")
            elif "first_step_s" in of:
                told.append(f"{name} (its first step {of['first_step_s'] * 1e3:.2f} ms)")
            elif layout in trials.ended_early:
                told.append(f"{name} (expected {of['expected_step_s'] * 1e3:.2f} ms a step)")
        return f"measured a round: {', '.join(told)}"
