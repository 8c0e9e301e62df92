"""What outlives a message: a node's data, devices, programs and measurements.

``Session.train`` is a node's round as a straight line. One session serves all nodes of a simulated
federation, which share the process and its devices but neither data nor measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from client import backends, trainer
from client.backends.base import Device, DeviceData, DeviceInfo, Metrics, Program, Traffic
from client.config import Experiment
from client.data.shares import NodeData, Shares
from client.errors import DeviceError, MismatchError, TrainingError
from client.model import build_model
from client.model.graph import Float32Array, Model
from client.placement import planner, probe
from client.record import NodeRecord, Placement
from client.timing import RoundClock
from client.trainer import Outcome, Task
from client.worker.devices import Devices


@dataclass
class Node:
    """What the session keeps of one node."""

    data: NodeData
    chosen: str | None = None  # DeviceInfo.key
    reason: str = ""  # why it was chosen
    loaded: dict[tuple[str, bool], DeviceData] = field(default_factory=dict)


class NodeSession(Protocol):
    """What a ClientApp needs of a session, whether it works in its process or in a worker's."""

    experiment: Experiment
    model: Model
    shares: Shares

    def train(
        self,
        partition: str,
        path: Path | None,
        params: Float32Array,
        task: Task,
        recorded: Placement | None,
        clock: RoundClock,
    ) -> tuple[Outcome, NodeRecord]:
        """See ``Session.train``."""

    def evaluate(
        self, partition: str, path: Path | None, params: Float32Array, clock: RoundClock
    ) -> tuple[Metrics, NodeRecord]:
        """See ``Session.evaluate``."""

    def close(self) -> None:
        """Give devices and data back."""


class Session:
    """See the module. ``base`` is the folder that relative paths of the experiment start from.

    ``excluded``: backends that must not be used, and why.
    """

    def __init__(
        self, experiment: Experiment, base: Path, excluded: Mapping[str, str] | None = None
    ) -> None:
        self.experiment = experiment
        self.model: Model = build_model(experiment.model, f"{experiment.name}: model")
        self.shares = Shares(experiment, self.model, base)
        self.devices = Devices(experiment.devices, self.model, excluded or {})
        self._nodes: dict[str, Node] = {}

    def train(
        self,
        partition: str,
        path: Path | None,
        params: Float32Array,
        task: Task,
        recorded: Placement | None,
        clock: RoundClock,
        stop: Callable[[], bool] = lambda: False,
    ) -> tuple[Outcome, NodeRecord]:
        """Train ``partition`` (or the examples in ``path``) from ``params`` for one round.

        ``recorded`` repeats a placement. A device that fails is refused and the round is done
        again on the next one: nothing but time is lost, and the record says so.
        """
        record = NodeRecord(partition)
        node = self._node(partition, path, clock)
        task = replace(task, partition=partition)
        while True:
            info, reason = self._place(node, params, task, recorded, clock, record)
            try:
                outcome = self._train_on(info, node, params, task, recorded, clock, record, stop)
                break
            except DeviceError as e:
                if recorded is not None:
                    raise
                self._drop(node, info, e)
        node.chosen, node.reason = info.key, reason
        record.reason = reason
        record.num_examples = outcome.num_examples
        record.loss = outcome.metrics.loss_sum / outcome.metrics.count
        record.accuracy = outcome.metrics.correct / outcome.metrics.count
        record.events = self.devices.take_events()
        return outcome, record

    def evaluate(
        self, partition: str, path: Path | None, params: Float32Array, clock: RoundClock
    ) -> tuple[Metrics, NodeRecord]:
        """Loss and accuracy of ``params`` on the node's own held-out examples."""
        record = NodeRecord(partition)
        node = self._node(partition, path, clock)
        while True:
            with clock.phase("plan"):
                usable = self.devices.usable()
                info = next((i for i in usable if i.key == node.chosen), usable[0])
                backends.at_work(info.backend)
            try:
                metrics = self._evaluate_on(info, node, params, clock, record)
                break
            except DeviceError as e:
                self._drop(node, info, e)
        record.num_examples = metrics.count
        record.loss = metrics.loss_sum / metrics.count
        record.accuracy = metrics.correct / metrics.count
        record.events = self.devices.take_events()
        return metrics, record

    def close(self) -> None:
        """Give devices and data back."""
        for node in self._nodes.values():
            for data in node.loaded.values():
                data.release()
        self._nodes.clear()
        self.devices.close()

    # -- the steps of a round ----------------------------------------------------------------

    def _node(self, partition: str, path: Path | None, clock: RoundClock) -> Node:
        with clock.phase("data"):
            node = self._nodes.get(partition)
            if node is None:
                data = self.shares.of_file(partition, path) if path else self.shares.of(partition)
                node = self._nodes[partition] = Node(data)
            return node

    def _place(
        self,
        node: Node,
        params: Float32Array,
        task: Task,
        recorded: Placement | None,
        clock: RoundClock,
        record: NodeRecord,
    ) -> tuple[DeviceInfo, str]:
        """The device to train on: recorded, kept from an earlier round, forced, or measured now."""
        with clock.phase("plan"):
            if recorded is not None:
                info = self.devices.find(recorded.device)
                backends.at_work(info.backend)
                return info, "recorded choice"
            usable = self.devices.usable()
            kept = next((i for i in usable if i.key == node.chosen), None)
            if kept is not None:
                backends.at_work(kept.backend)
                return kept, node.reason
        candidates: dict[str, probe.Candidate] = {}
        for info in usable:
            try:
                ready = self._ready(info, node, task.batch, clock)
                candidates[info.key] = probe.Candidate(*ready)
            except DeviceError as e:
                self._drop(node, info, e)
        infos = self.devices.usable()  # raises if all were refused
        with clock.phase("plan"):
            if len(infos) > 1:
                figures = self._measure(node, infos, candidates, params, task)
                record.measured |= {key: asdict(f) for key, f in figures.items()}
                infos = self.devices.usable()
            names = [_short_name(i, infos) for i in infos]
            if len(infos) > 1:
                decision = planner.choose(names, [figures[i.key] for i in infos])
                chosen = infos[decision.index]
                for key in [k for k in node.loaded if k[0] != chosen.key]:
                    node.loaded.pop(key).release()
                return chosen, decision.reason
            forced = self.experiment.devices.backend != "auto"
            why = "forced by devices.backend" if forced else "the only device that can train"
            return infos[0], f"{why}: {names[0]}"

    def _measure(
        self,
        node: Node,
        infos: list[DeviceInfo],
        candidates: dict[str, probe.Candidate],
        params: Float32Array,
        task: Task,
    ) -> dict[str, probe.Measured]:
        """Figures of each device by its key; one that fails meanwhile is refused."""
        found = {}
        measured = probe.measure([candidates[i.key] for i in infos], params, task)
        for info, figures in zip(infos, measured, strict=True):
            if isinstance(figures, DeviceError):
                self._drop(node, info, figures)
            else:
                found[info.key] = figures
        return found

    def _ready(
        self, info: DeviceInfo, node: Node, batch: int, clock: RoundClock, held_out: bool = False
    ) -> tuple[Device, Program, DeviceData]:
        """Device opened, program built and checked, the node's data on it."""
        with clock.phase("build"):
            device, program = self.devices.ready(info, batch)
        with clock.phase("data"):
            data = node.loaded.get((info.key, held_out))
            if data is None:
                examples = node.data.held_out if held_out else node.data.train
                if examples is None:
                    raise TrainingError(
                        f"{node.data.name}: no examples are held out to evaluate on: "
                        "set data.node_holdout above 0"
                    )
                data = node.loaded[info.key, held_out] = device.load(examples.x, examples.y)
        return device, program, data

    def _train_on(
        self,
        info: DeviceInfo,
        node: Node,
        params: Float32Array,
        task: Task,
        recorded: Placement | None,
        clock: RoundClock,
        record: NodeRecord,
        stop: Callable[[], bool],
    ) -> Outcome:
        device, program, data = self._ready(info, node, task.batch, clock)
        record.device = asdict(info)
        record.placement = Placement(
            info.backend, info.key, info.compute_units, program.usage.variants
        )
        if recorded is not None and recorded != record.placement:
            raise MismatchError(
                f"the recorded placement cannot be repeated here: recorded {recorded}, "
                f"here {record.placement}"
            )
        record.launches = program.usage.launches
        record.peak_nbytes = program.usage.params_nbytes + program.usage.arena_nbytes + data.nbytes
        before = replace(device.traffic)
        outcome = trainer.train(device, program, data, params, task, clock, stop)
        record.set_traffic(device.traffic.since(before))
        return outcome

    def _evaluate_on(
        self,
        info: DeviceInfo,
        node: Node,
        params: Float32Array,
        clock: RoundClock,
        record: NodeRecord,
    ) -> Metrics:
        batch = self.experiment.train.batch
        device, program, data = self._ready(info, node, batch, clock, held_out=True)
        record.device = asdict(info)
        before: Traffic = replace(device.traffic)
        with clock.phase("upload"):
            program.upload(params)
            device.finish()
        with clock.phase("evaluate"):
            metrics = trainer.evaluate(program, data, batch)
        record.set_traffic(device.traffic.since(before))
        return metrics

    def _drop(self, node: Node, info: DeviceInfo, error: DeviceError) -> None:
        self.devices.refuse(info, error)
        for each in self._nodes.values():
            for key in [k for k in each.loaded if k[0] == info.key]:
                del each.loaded[key]  # not released: the device may answer no more
        if node.chosen == info.key:
            node.chosen = None


def _short_name(info: DeviceInfo, among: list[DeviceInfo]) -> str:
    """The backend's name, with the device's where the backend has several."""
    alone = sum(other.backend == info.backend for other in among) == 1
    return info.backend if alone else f"{info.backend} ({info.name})"
