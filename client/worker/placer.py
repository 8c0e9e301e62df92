"""Which layouts a session's nodes consider: all devices first, then what is predicted of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from client.backends.device_info import DeviceInfo
from client.config import Experiment
from client.model.graph import Model
from client.placement import probe
from client.placement.layout import Layout
from client.placement.monitor import MOST_TRIED
from client.placement.pilot import Pilot, Steps
from client.placement.trials import FAR, MARGIN, Candidate
from client.record import Decision, Placement
from client.trainer import Task, batches
from client.worker.devices import Devices
from client.worker.knowledge import Knowledge
from client.worker.recorded import layout_of

MOST_PROPOSALS = 3
"""Trials of a node after which cuts and splits are no longer proposed."""

WORTH = 2.0
"""What a layout is predicted to gain in the rest of the run, over what its programs cost."""


class Placer:
    """See the module; the pilots, one for each node, decide."""

    def __init__(self, experiment: Experiment, model: Model, devices: Devices) -> None:
        self._experiment, self._model, self._devices = experiment, model, devices
        self.knowledge = Knowledge(experiment.train, model)
        self._aside: set[Layout] = set()
        self._proposed: dict[int, int] = {}  # pilot (by id) -> its trials when it was last done

    def pilot(self) -> Pilot:
        """Of a new node."""
        return Pilot(self.describe)

    def describe(self, layout: Layout) -> str:
        """By backends; by names of devices, too, where a backend has several."""
        backends = [info.backend for info in self._devices.found()]
        text = layout.describe(self._model.block_names)
        if layout.kind == "whole" and backends.count(text) > 1:
            return f"{text} ({self._devices.find(layout.devices[0]).name})"
        return text

    def steps(self, task: Task, num_examples: int) -> Steps:
        """Of a node: all rounds that are known of, of which it has its share."""
        federation = self._experiment.federation
        epoch = len(batches(num_examples, task.batch))
        of_a_round = task.local_epochs * epoch
        rounds = max(federation.rounds, task.round)
        share, nodes = 1.0, self._experiment.data.partition.nodes
        if federation.nodes_per_round is not None and nodes:
            share = federation.nodes_per_round / nodes
        run, left = (max(1, round(share * n)) for n in (rounds, rounds - task.round + 1))
        return Steps(epoch, of_a_round, run * of_a_round, left * of_a_round)

    def prepare(self, pilot: Pilot, steps: Steps, batch: int) -> tuple[Layout, ...]:
        """Before a round that repeats none: a plan where there is none. The layouts it needs."""
        pilot.release({})
        infos = self._devices.usable()
        if len(infos) == 1:
            forced = self._experiment.devices.backend != "auto"
            why = "forced by devices.backend" if forced else "the only device that can train"
            layout = self._whole(infos[0])
            pilot.settle(layout, Decision("only", f"{why}: {self.describe(layout)}"))
        elif pilot.lost:
            pilot.plan(self._candidates(infos, batch), steps)
        elif self._experiment.devices.placement == "auto" and pilot.idle:
            began_s = time.perf_counter()
            self._propose(pilot, steps, batch)
            pilot.spend(time.perf_counter() - began_s)
        return pilot.wanted

    def _candidates(self, infos: Sequence[DeviceInfo], batch: int) -> list[Candidate]:
        """Every device with the whole network; those that are known to be far worse without turns.

        However uncertain what is known of both.
        """
        layouts = [self._whole(info) for info in infos]
        for info in infos:
            self.knowledge.find_profile(info)
        known = self.knowledge.expected(layouts, batch)
        if len(known) < len(layouts):
            return [Candidate(layout) for layout in layouts]
        most_s = FAR * min(step_s * (1 + uncertain) for step_s, uncertain in known.values())
        return [
            Candidate(layout, step_s, hopeless=step_s / (1 + uncertain) > most_s)
            for layout, (step_s, uncertain) in known.items()
        ]

    def _propose(self, pilot: Pilot, steps: Steps, batch: int) -> None:
        """Once after each of a node's trials: cuts and splits that are predicted to be better.

        From what was seen of each device's unit-blocks, and from what its link does. They must be
        worth their programs, which are built for them, and the budget must have room for it all.
        """
        seen_s = pilot.seen_s
        if seen_s is None or self._proposed.get(id(pilot), 0) == pilot.concluded:
            return
        self._proposed[id(pilot)] = pilot.concluded
        if pilot.concluded > MOST_PROPOSALS:
            return
        infos = [i for i in self._devices.usable() if self.knowledge.saw(i.key, batch)]
        if len(infos) < 2 or not self._profiled(infos, pilot):
            return
        keys = [info.key for info in infos]
        predicted: dict[Layout, float] = {}
        for prediction in self.knowledge.predict(keys, batch, steps.round):
            layout, step_s = prediction.layout, prediction.step_s
            if layout.kind == "whole" or layout in self._aside or pilot.knows(layout):
                continue
            cost_s = self._devices.build_s(layout)
            gain_s = (seen_s - step_s) * steps.left
            worth = step_s < (1 - MARGIN) * seen_s and gain_s > WORTH * cost_s
            if worth and cost_s < pilot.room_s and len(predicted) < MOST_TRIED:
                predicted[layout] = step_s
        if predicted:
            pilot.propose(predicted, self._proposal(pilot, predicted, seen_s))

    def _profiled(self, infos: Sequence[DeviceInfo], pilot: Pilot) -> bool:
        """Whether all have a profile, measured now if the nodes' budgets have room for it."""
        devices = [self._devices.open(info) for info in infos]
        missing = [d for d in devices if not self.knowledge.find_profile(d.info)]
        if len(missing) * probe.QUICK_S > pilot.room_s * max(1, len(self._proposed)):
            return False
        for device in missing:
            self.knowledge.profile(device)
        return True

    def _proposal(self, pilot: Pilot, predicted: Mapping[Layout, float], seen_s: float) -> Decision:
        assert pilot.kept is not None
        names = {self.describe(layout): step_s for layout, step_s in predicted.items()}
        told = " and ".join(f"{name} {step_s * 1e3:.2f} ms" for name, step_s in names.items())
        kept = f"{self.describe(pilot.kept)} takes {seen_s * 1e3:.2f} ms"
        numbers = {f"{name} predicted_step_s": step_s for name, step_s in names.items()}
        return Decision("try", f"predicted a step: {told}; {kept}", {"step_s": seen_s} | numbers)

    def repeat(self, pilot: Pilot, recorded: Placement) -> tuple[Layout, ...]:
        """Before a round that repeats one: its layouts, the one that was kept first."""
        layouts = tuple(layout_of(layout) for layout in recorded.layouts)
        for key in dict.fromkeys(key for layout in layouts for key in layout.devices):
            self._devices.find(key)
        pilot.settle(layouts[0], Decision("recorded", "recorded choice"))
        return layouts

    def leave_aside(self, layout: Layout) -> None:
        """It cannot train here: propose it no more."""
        self._aside.add(layout)

    def _whole(self, info: DeviceInfo) -> Layout:
        return Layout.whole(info.key, len(self._model.block_names))

    def evaluates(self, pilot: Pilot) -> Layout:
        """One device for evaluation: one that trains, if it has room for the whole network."""
        usable = {info.key: info for info in self._devices.usable()}
        trains = [] if pilot.kept is None else [k for k in pilot.kept.devices if k in usable]
        batch = self._experiment.train.batch
        for key in trains:
            if len(trains) == 1 or self._devices.holds_whole(usable[key], batch):
                return self._whole(usable[key])
        return self._whole(next(iter(usable.values())))
