"""A node's layout, round after round: planned by trials, kept, held against others again. Pure.

The pilot is asked which layout trains the next steps, told how long they took, and knows neither
devices nor clocks. Its round is

    decision = pilot.begin_round(); turns by next() and took(), then the rest on ``kept``; end_round()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
    """Training steps of a node: of one round, and of all rounds of the run, as far as is known."""

    round: int
    run: int


@dataclass
class Pilot:
    """See the module. ``describe`` names a layout in a sentence.

    ``reason``: why the kept layout trains; ``spent_s``: what planning took so far, and
    ``trained_s`` what training did.
    """

    describe: Callable[[Layout], str]
    reason: str = ""
    trained_s: float = 0.0
    steps: Steps = Steps(1, 1)
    _kept: Layout | None = None
    _spent_s: float = 0.0
    _trials: Trials | None = None
    _monitor: Monitor | None = None
    _advice: Advice | None = None

    # -- what is known -----------------------------------------------------------------------

    @property
    def kept(self) -> Layout | None:
        """The layout that trains whenever no trial does; None before anything was planned."""
        return self._kept if self._trials is None else self._trials.best

    @property
    def spent_s(self) -> float:
        """See the class."""
        return self._spent_s if self._trials is None else self._trials.spent_s

    @property
    def beside(self) -> tuple[Layout, ...]:
        """Layouts that the next round needs beside the kept one."""
        if self._trials is not None:
            return tuple(k for k in self._trials.layouts if k != self.kept)
        return () if self._advice is None else self._advice.beside

    @property
    def measured(self) -> Mapping[Layout, float]:
        """Seconds of a step, of layouts that trials have timed up to now."""
        return {} if self._trials is None else self._trials.measured

    # -- from outside ------------------------------------------------------------------------

    def spend(self, seconds: float) -> None:
        """Planning took so long, beside trials."""
        if self._trials is None:
            self._spent_s += seconds
        else:
            self._trials.spend(seconds)

    def settle(self, layout: Layout, reason: str) -> None:
        """This layout trains from now on: there is no choice, or it was made elsewhere."""
        if layout != self._kept or self._trials is not None:
            self._spent_s = self.spent_s
            self._kept, self._trials, self._advice = layout, None, None
            self._monitor = Monitor(layout, self.describe)
        self.reason = reason

    def plan(self, candidates: Sequence[Candidate], steps: Steps) -> None:
        """Trials of these decide; a single one is simply kept."""
        self.steps = steps
        if len(candidates) == 1:
            self.settle(candidates[0].layout, self.reason)
            return
        self._spent_s = self.spent_s
        self._monitor, self._advice = None, None
        budget = FIRST_SHARE * steps.run
        self._trials = Trials(candidates, steps.round, budget, self._spent_s)

    def learn(self, predicted: Mapping[Layout, float]) -> None:
        """What layouts that were never tried are predicted to take a step."""
        if self._monitor is not None:
            self._monitor.learn(predicted)

    def drop(self, devices: Sequence[str]) -> None:
        """These devices (by key) train no more, nor do layouts with them."""

        def gone(layout: Layout | None) -> bool:
            return layout is not None and not set(devices).isdisjoint(layout.devices)

        if self._monitor is not None:
            self._monitor.forget(gone)
        if self._advice is not None and any(gone(layout) for layout in self._advice.beside):
            self._advice = None
        if self._trials is not None:
            self._trials.drop([k for k in self._trials.layouts if gone(k)])
            if not self._trials.layouts:
                self._spent_s, self._trials = self._trials.spent_s, None
        if gone(self._kept):
            self._kept, self._monitor, self._advice = None, None, None

    # -- a round -----------------------------------------------------------------------------

    def begin_round(self) -> Decision:
        """What this round does about the layout. To be called when there is one, or a plan."""
        if self._trials is not None:
            self._trials.begin_round()
            names = ", ".join(self.describe(layout) for layout in self._trials.layouts)
            return Decision("plan", f"timed on batches that count: {names}")
        if self._monitor is None or self._advice is None:
            return Decision("keep", self.reason)
        if self._advice.beside:
            known_s = self._monitor.seen_s
            candidates = [
                Candidate(self._monitor.kept, known_s, recent=known_s is not None),
                *(Candidate(layout) for layout in self._advice.beside),
            ]
            budget = PLANNING_SHARE * self.steps.run
            self._trials = Trials(
                candidates, self.steps.round, budget, self._spent_s, self._monitor.kept
            )
        return self._advice.decision

    def next(self) -> Turn | None:
        """The next turn of this round's trials; None: the rest is the kept layout's."""
        return None if self._trials is None else self._trials.next()

    def took(self, turn: Turn, seconds: float) -> None:
        """A turn's training steps took so long."""
        assert self._trials is not None
        self._trials.took(turn, seconds)
        self.trained_s += seconds

    def moved(self, layout: Layout, seconds: float, transfer_s: float) -> None:
        """The state was brought to a layout (see ``Trials.moved``)."""
        if self._trials is not None:
            self._trials.moved(layout, seconds, transfer_s)
        else:
            self._spent_s += seconds

    def end_round(self, rest_steps: int, rest_s: float) -> bool:
        """The kept layout trained the rest so long; whether this round changed the layout."""
        layout, moved = self.kept, False
        assert layout is not None
        self.trained_s += rest_s
        if self._trials is not None and self._trials.done:
            moved = self._conclude(self._trials)
        if self._monitor is None:
            return moved
        if rest_steps and layout == self._monitor.kept and self._trials is None:
            step_s = rest_s / rest_steps
            self._monitor.observe(step_s)
            self._advice = self._monitor.advise(step_s * self.steps.round)
        return moved

    def _conclude(self, trials: Trials) -> bool:
        """Trials are over: their best one is kept."""
        best, before = trials.best, self._kept
        self._kept, self._spent_s, self._trials = best, trials.spent_s, None
        self.reason = self._told(trials)
        if self._monitor is None:
            self._monitor = Monitor(best, self.describe)
            self._monitor.learn(trials.expected)
            return before is not None and before != best
        return self._monitor.tried(best, trials.measured, trials.excess_s)

    def _told(self, trials: Trials) -> str:
        """The figures by which a layout was taken, the order that of the candidates."""
        figures = []
        for layout in trials.layouts:
            step_s, round_s = trials.measured.get(layout), trials.round_s(layout)
            if step_s is not None and round_s is not None:
                name = self.describe(layout)
                figures.append(f"{name} {round_s:.3f} s ({step_s * 1e3:.2f} ms a step)")
        return f"measured a round: {', '.join(figures)}"
