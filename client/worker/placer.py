"""Which layouts a session's nodes consider: all devices first, then what is predicted of them."""

from __future__ import annotations

from client.backends.device_info import DeviceInfo
from client.config import Experiment
from client.model.graph import Model
from client.placement.layout import Layout
from client.placement.pilot import Pilot, Steps
from client.placement.trials import Candidate
from client.record import Decision, Placement
from client.trainer import Task, batches
from client.worker.devices import Devices
from client.worker.recorded import layout_of


class Placer:
    """See the module; the pilots, one for each node, decide."""

    def __init__(self, experiment: Experiment, model: Model, devices: Devices) -> None:
        self._experiment, self._model, self._devices = experiment, model, devices
        self._aside: set[Layout] = set()

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

    def prepare(self, pilot: Pilot, steps: Steps) -> tuple[Layout, ...]:
        """Before a round that repeats none: a plan where there is none. The layouts it needs."""
        pilot.release({})
        infos = self._devices.usable()
        if len(infos) == 1:
            forced = self._experiment.devices.backend != "auto"
            why = "forced by devices.backend" if forced else "the only device that can train"
            layout = self._whole(infos[0])
            pilot.settle(layout, Decision("only", f"{why}: {self.describe(layout)}"))
        elif pilot.lost:
            pilot.plan([Candidate(self._whole(info)) for info in infos], steps)
        return pilot.wanted

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
