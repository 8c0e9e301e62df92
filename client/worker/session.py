"""What outlives a message: a node's data, devices, programs and measurements.

``Session.train`` is a node's round as a straight line. One session serves all nodes of a simulated
federation, which share the process and its devices but neither data nor measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from client import backends, trainer
from client.backends.base import Device, DeviceData, Program
from client.backends.device_info import DeviceInfo
from client.backends.figures import Metrics
from client.config import Experiment
from client.data.shares import NodeData, Shares
from client.errors import DeviceError, MismatchError, TrainingError
from client.model.graph import Float32Array, Model
from client.placement import planner, probe
from client.record import NodeRecord, PlacedLayout, PlacedPart, Placement, cannot_be_repeated
from client.timing import RoundClock
from client.trainer import Outcome, Task
from client.worker.devices import Devices


@dataclass
class Node:
    """What the session keeps of one node."""

    data: NodeData
    batch: int  # the experiment's, or all examples where they are fewer
    micro_batch: int | Literal["auto"] | None  # the experiment's, or as recorded
    chosen: str | None = None  # DeviceInfo.key
    reason: str = ""  # why it was chosen
    loaded: dict[tuple[str, bool], DeviceData] = field(default_factory=dict)


@dataclass(frozen=True)
class _Round:
    """One node's training round: what was asked for, and what is reported of it on the way."""

    node: Node
    params: Float32Array
    task: Task
    recorded: Placement | None
    clock: RoundClock
    record: NodeRecord


class NodeSession(Protocol):
    """What a ClientApp needs of a session, whether it works in its process or in a worker's."""

    experiment: Experiment
    model: Model
    shares: Shares

    def train(
        self,
        task: Task,
        path: Path | None,
        params: Float32Array,
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
        self.model: Model = experiment.build()
        self.shares = Shares(experiment, self.model, base)
        self.devices = Devices(
            experiment.devices, self.model, excluded or {}, experiment.train.recipe
        )
        self._nodes: dict[str, Node] = {}

    def train(
        self,
        task: Task,
        path: Path | None,
        params: Float32Array,
        recorded: Placement | None,
        clock: RoundClock,
        stop: Callable[[], bool] = lambda: False,
    ) -> tuple[Outcome, NodeRecord]:
        """Train the task's partition (or the examples in ``path``) from ``params`` for one round.

        ``recorded`` repeats a placement. A device that fails is refused and the round is done
        again on the next one: nothing but time is lost, and the record says so.
        """
        with clock.phase("data"):
            node = self._node(task.partition, path)
            task = replace(task, batch=node.batch)
            if recorded is not None:
                node.micro_batch = recorded.kept.micro_batch or None
            asked = _Round(node, params, task, recorded, clock, NodeRecord(task.partition))
        while True:
            info, reason = self._place(asked)
            try:
                outcome = self._train_on(info, asked, stop)
                break
            except DeviceError as e:
                if recorded is not None:
                    raise
                self._drop(node, info, e)
        with clock.phase("encode"):
            node.chosen, node.reason = info.key, reason
            asked.record.reason = reason
            return outcome, self._report(asked.record, outcome.metrics, outcome.num_examples)

    def evaluate(
        self, partition: str, path: Path | None, params: Float32Array, clock: RoundClock
    ) -> tuple[Metrics, NodeRecord]:
        """Loss and accuracy of ``params`` on the node's own held-out examples."""
        with clock.phase("data"):
            record = NodeRecord(partition)
            node = self._node(partition, path)
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
        with clock.phase("encode"):
            held_out = node.data.held_out
            assert held_out is not None  # _ready has refused a node without
            return metrics, self._report(record, metrics, len(held_out))

    def close(self) -> None:
        """Give devices and data back."""
        for node in self._nodes.values():
            for data in node.loaded.values():
                data.release()
        self._nodes.clear()
        self.devices.close()

    # -- the steps of a round ----------------------------------------------------------------

    def _node(self, partition: str, path: Path | None) -> Node:
        node = self._nodes.get(partition)
        if node is None:
            data = self.shares.of_file(partition, path) if path else self.shares.of(partition)
            train = self.experiment.train
            batch = min(train.batch, len(data.train))
            node = self._nodes[partition] = Node(data, batch, train.micro_batch)
        return node

    def _place(self, asked: _Round) -> tuple[DeviceInfo, str]:
        """The device to train on, and why: known already, the only one there is, or measured."""
        with asked.clock.phase("plan"):
            known = self._known(asked)
            if known is not None:
                backends.at_work(known[0].backend)
                return known
        candidates = self._candidates(asked)
        with asked.clock.phase("plan"):
            figures = self._measure(asked, candidates)
            infos = self.devices.usable()  # raises if all were refused
            names = [_short_name(i, infos) for i in infos]
            if len(infos) == 1:
                forced = self.experiment.devices.backend != "auto"
                why = "forced by devices.backend" if forced else "the only device that can train"
                return infos[0], f"{why}: {names[0]}"
            decision = planner.choose(names, [figures[i.key] for i in infos])
            chosen, loaded = infos[decision.index], asked.node.loaded
            for key in [k for k in loaded if k[0] != chosen.key]:
                loaded.pop(key).release()
            return chosen, decision.reason

    def _known(self, asked: _Round) -> tuple[DeviceInfo, str] | None:
        """The recorded choice, or the one of an earlier round if its device still works."""
        if asked.recorded is not None:
            return self.devices.find(asked.recorded.kept.parts[0].device), "recorded choice"
        node = asked.node
        kept = next((i for i in self.devices.usable() if i.key == node.chosen), None)
        return None if kept is None else (kept, node.reason)

    def _candidates(self, asked: _Round) -> list[probe.Candidate]:
        """The usable devices with program and data; one that fails is refused."""
        candidates = []
        for info in self.devices.usable():
            try:
                ready = self._ready(info, asked.node, asked.clock)
                candidates.append(probe.Candidate(*ready))
            except DeviceError as e:
                self._drop(asked.node, info, e)
        return candidates

    def _measure(
        self, asked: _Round, candidates: list[probe.Candidate]
    ) -> dict[str, probe.Measured]:
        """Figures of each device by its key, if there are several; one that fails is refused."""
        figures: dict[str, probe.Measured] = {}
        if len(candidates) < 2:
            return figures
        measured = probe.measure(candidates, asked.params, asked.task)
        for candidate, found in zip(candidates, measured, strict=True):
            info = candidate.device.info
            if isinstance(found, DeviceError):
                self._drop(asked.node, info, found)
            else:
                figures[info.key] = found
        asked.record.measured |= {key: asdict(f) for key, f in figures.items()}
        return figures

    def _ready(
        self, info: DeviceInfo, node: Node, clock: RoundClock, held_out: bool = False
    ) -> tuple[Device, Program, DeviceData]:
        """Device opened, program built and checked, the node's data on it."""
        with clock.phase("build"):
            # nodes with fewer examples than a batch share programs of a few sizes
            capacity = min(self.experiment.train.batch, 1 << (node.batch - 1).bit_length())
            device, program = self.devices.ready(info, capacity, node.micro_batch)
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

    def _train_on(self, info: DeviceInfo, asked: _Round, stop: Callable[[], bool]) -> Outcome:
        task, clock, record = asked.task, asked.clock, asked.record
        device, program, data = self._ready(info, asked.node, clock)
        with clock.phase("plan"):
            record.device = asdict(info)
            part = PlacedPart(
                info.backend,
                info.key,
                info.compute_units,
                program.segment.first,
                program.segment.stop,
                variants=program.usage.variants,
            )
            slice_of = program.capacity if program.recipe.accumulates else 0
            record.placement = Placement((PlacedLayout((part,), slice_of),))
            record.layout = info.backend
            if asked.recorded is not None and asked.recorded != record.placement:
                raise MismatchError(cannot_be_repeated(asked.recorded, record.placement))
            slices = -(-task.batch // program.capacity)
            # adding up instead of an update in all slices, and the update
            record.launches = slices * program.usage.launches + (slices > 1)
            before = replace(device.traffic)
        outcome = trainer.train(device, program, data, asked.params, task, clock, stop)
        with clock.phase("encode"):
            record.peak_nbytes = program.nbytes + data.nbytes
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
        # batches as in training, so that its program serves
        device, program, data = self._ready(info, node, clock, held_out=True)
        with clock.phase("plan"):
            record.device = asdict(info)
            before = replace(device.traffic)
        with clock.phase("upload"):
            program.upload(params)
            device.finish()
        with clock.phase("evaluate"):
            metrics = trainer.evaluate(program, data, node.batch)
        with clock.phase("encode"):
            record.set_traffic(device.traffic.since(before))
        return metrics

    def _report(self, record: NodeRecord, metrics: Metrics, num_examples: int) -> NodeRecord:
        record.num_examples = num_examples
        record.loss, record.accuracy = metrics.loss, metrics.accuracy
        record.events = self.devices.take_events()
        return record

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
