"""Which placed network trains the next steps of a round: one, a recorded sequence, or a pilot's.

Each course notes what ran, so that the round can be repeated step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from client import backends
from client.placed import Placed
from client.placement.layout import Layout
from client.placement.pilot import Pilot
from client.placement.trials import Turn
from client.trainer import Moved, Sample, Stage, Took, sampled_steps


@dataclass(frozen=True)
class Ran:
    """Training steps that one placed network did, one after the other, and what they took."""

    placed: Placed
    steps: int
    seconds: float
    samples: tuple[Sample, ...]
    warm_up: bool = False


class Fixed:
    """One placed network to the end of the round, after ``before``: (network, steps) in order.

    ``epoch_steps``: training steps of an epoch.
    """

    def __init__(
        self, placed: Placed, epoch_steps: int, before: Sequence[tuple[Placed, int]] = ()
    ) -> None:
        self.num_examples = placed.num_examples
        self.trials: list[Ran] = []
        self.rest: Ran | None = None  # none where trials took the whole round
        self._placed, self._epoch_steps = placed, epoch_steps
        self._before = list(before)
        self._last: Stage | None = None
        self.at_work = placed  # the one that trains, if anything fails
        self.networks = tuple(dict.fromkeys([placed, *(network for network, _ in before)]))

    @property
    def kept(self) -> Placed:
        """The network that has the rest of the round, after trials."""
        return self._placed

    def next(self, left: int) -> Stage:
        """See ``client.trainer.Course``."""
        if self._before:
            placed, steps = self._before.pop(0)
            return self._at_work(Stage(placed, min(steps, left)))
        return self._rest(left)

    def moved(self, stage: Stage, moved: Moved) -> None:
        """See ``client.trainer.Course``."""

    def took(self, stage: Stage, took: Took) -> None:
        """See ``client.trainer.Course``."""
        self._ran(stage, took, warm_up=False)

    def _ran(self, stage: Stage, took: Took, warm_up: bool) -> None:
        ran = Ran(stage.placed, stage.steps, took.seconds, took.samples, warm_up)
        if stage is self._last:
            self.rest = ran
        else:
            self.trials.append(ran)

    def _rest(self, left: int) -> Stage:
        in_epoch = (left - 1) % self._epoch_steps + 1
        self._last = Stage(self.kept, left, sampled_steps(in_epoch))
        return self._at_work(self._last)

    def _at_work(self, stage: Stage) -> Stage:
        """Whoever watches this process is told before a device may take it down."""
        backends.at_work(*(part.backend for part in stage.placed.layout.parts))
        self.at_work = stage.placed
        return stage


class Piloted(Fixed):
    """Turns of a pilot's trials, then the layout that it keeps."""

    def __init__(self, pilot: Pilot, placed: Mapping[Layout, Placed], epoch_steps: int) -> None:
        super().__init__(next(iter(placed.values())), epoch_steps)
        self._pilot, self._all = pilot, placed
        self.networks = tuple(placed.values())
        self._turn: Turn | None = None
        self._before_this: Placed | None = None

    @property
    def kept(self) -> Placed:
        assert self._pilot.kept is not None
        return self._all[self._pilot.kept]

    def next(self, left: int) -> Stage:
        self._turn = self._pilot.next()
        if self._turn is None:
            return self._rest(left)
        steps = self._turn.steps
        sampled = (steps - 1,) if self._turn.sampled else ()
        return self._at_work(Stage(self._all[self._turn.layout], steps, sampled))

    def moved(self, stage: Stage, moved: Moved) -> None:
        layout, before = stage.placed.layout, self._before_this
        if before is not None:
            self._pilot.spend(moved.seconds)
            self._pilot.transferred(before.layout, None, moved.read_s * moved.values_share)
        self._pilot.transferred(layout, moved.upload_s, None)

    def took(self, stage: Stage, took: Took) -> None:
        self._ran(stage, took, self._turn is not None and self._turn.warm_up)
        self._before_this = stage.placed
        if self._turn is not None:
            self._pilot.took(self._turn, took.seconds)
