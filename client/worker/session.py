"""What outlives a message: a node's data, devices, programs and measurements.

``Session.train`` is a node's round as a straight line. One session serves all nodes of a simulated
federation, which share the process and its devices but neither data nor measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from client import trainer
from client.backends.base import Device, DeviceData, Program
from client.backends.device_info import DeviceInfo
from client.backends.figures import Metrics
from client.config import Experiment
from client.data.shares import NodeData, Shares
from client.errors import DeviceError, TrainingError
from client.model.graph import Float32Array, Model
from client.placed import Placed, Site, place
from client.placement.course import Fixed, Piloted
from client.placement.layout import Layout
from client.placement.pilot import Pilot
from client.record import NodeRecord, Placement
from client.timing import RoundClock
from client.trainer import Outcome, Task
from client.worker.devices import Devices
from client.worker.placer import Placer
from client.worker.recorded import described, placement_of, repeated


@dataclass
class Node:
    """What the session keeps of one node."""

    data: NodeData
    batch: int  # the experiment's, or all examples where they are fewer
    micro_batch: int | Literal["auto"] | None  # the experiment's, or as recorded
    pilot: Pilot
    loaded: dict[tuple[str, bool], DeviceData] = field(default_factory=dict)
    trained_on: set[str] = field(default_factory=set)  # DeviceInfo.key of all that were kept

    def release_others(self) -> None:
        """Give data back on devices that were tried alone."""
        for key in [k for k in self.loaded if k[0] not in self.trained_on]:
            self.loaded.pop(key).release()


@dataclass(frozen=True)
class _Round:
    """One node's training round: what was asked for, and what is reported of it on the way."""

    node: Node
    params: Float32Array
    task: Task
    recorded: Placement | None
    clock: RoundClock
    record: NodeRecord


class _LostError(Exception):
    """A layout cannot train, because of ``infos`` if any is known to have failed."""

    def __init__(self, layout: Layout, infos: list[DeviceInfo], error: DeviceError) -> None:
        super().__init__(str(error))
        self.layout, self.infos, self.error = layout, infos, error


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
        self._placer = Placer(experiment, self.model, self.devices)
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
        again without it: nothing but time is lost, and the record says so.
        """
        with clock.phase("data"):
            node = self._node(task.partition, path)
            task = replace(task, batch=node.batch)
            if recorded is not None:
                node.micro_batch = recorded.kept.micro_batch or None
            asked = _Round(node, params, task, recorded, clock, NodeRecord(task.partition))
        while True:
            try:
                course = self._course(asked)
                outcome = self._train_on(course, asked, stop)
                break
            except _LostError as lost:
                if recorded is not None:
                    raise lost.error from None
                self._drop(lost)
        with clock.phase("encode"):
            self._conclude(course, asked)
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
                layout = self._placer.evaluates(node.pilot)
            try:
                metrics = self._evaluate_on(layout, node, params, clock, record)
                break
            except _LostError as lost:
                self._drop(lost)
        with clock.phase("encode"):
            held_out = node.data.held_out
            assert held_out is not None  # _load has refused a node without
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
            node = Node(data, batch, train.micro_batch, self._placer.pilot())
            self._nodes[partition] = node
        return node

    def _course(self, asked: _Round) -> Fixed:
        """Which layouts train this round, all of them ready to."""
        node, clock = asked.node, asked.clock
        if asked.task.hyper.proximal_mu:
            with clock.phase("build"):
                self.devices.need_proximal()
        with clock.phase("plan"):
            steps = self._placer.steps(asked.task, len(node.data.train))
            if asked.recorded is None:
                wanted = self._placer.prepare(node.pilot, steps, node.batch)
            else:
                wanted = self._placer.repeat(node.pilot, asked.recorded)
            if node.pilot.idle:
                node.release_others()
            before_s = _ready_s(clock)
        placed: dict[Layout, Placed] = {}
        for layout in wanted:
            self._place(layout, placed, node, clock)
        with clock.phase("plan"):
            if node.pilot.concluded and len(wanted) > 1:  # the first plan's devices are needed
                node.pilot.spend(_ready_s(clock) - before_s)
            node.pilot.begin_round(steps)
            if asked.recorded is not None:
                return repeated(asked.recorded, list(placed.values()), steps.epoch)
            return Piloted(node.pilot, placed, steps.epoch)

    def _place(
        self, layout: Layout, placed: dict[Layout, Placed], node: Node, clock: RoundClock
    ) -> None:
        """Put the network on the layout's devices, into ``placed``; _LostError if one fails."""
        with clock.phase("build"):
            built = self._built(layout, node)
        with clock.phase("data"):
            sites = []
            for device, program in built:
                try:
                    data = self._load(device, node)
                except DeviceError as e:
                    raise _LostError(layout, [device.info], e) from None
                sites.append(Site(device, program, data))
            placed[layout] = place(layout, sites)

    def _built(self, layout: Layout, node: Node) -> list[tuple[Device, Program]]:
        """Devices opened, programs of the layout's parts built and checked."""
        # nodes with fewer examples than a batch share programs of a few sizes
        capacity = min(self.experiment.train.batch, 1 << (node.batch - 1).bit_length())
        built: list[tuple[Device, Program]] = []
        found: tuple[Device, Program] | None
        for part in layout.parts:
            info = self.devices.find(part.device)
            try:
                if layout.kind == "whole":
                    found = self.devices.ready(info, capacity, node.micro_batch)
                else:
                    found = self.devices.ready_part(info, part.segment(self.model), capacity)
            except DeviceError as e:
                raise _LostError(layout, [info], e) from None
            if found is None:
                error = DeviceError(f"{info.name}: has no room for batches of {capacity}")
                raise _LostError(layout, [], error)
            built.append(found)
        return built

    def _load(self, device: Device, node: Node, held_out: bool = False) -> DeviceData:
        """The node's examples on a device."""
        data = node.loaded.get((device.info.key, held_out))
        if data is None:
            examples = node.data.held_out if held_out else node.data.train
            if examples is None:
                raise TrainingError(
                    f"{node.data.name}: no examples are held out to evaluate on: "
                    "set data.node_holdout above 0"
                )
            data = device.load(examples.x, examples.y)
            node.loaded[device.info.key, held_out] = data
        return data

    def _train_on(self, course: Fixed, asked: _Round, stop: Callable[[], bool]) -> Outcome:
        with asked.clock.phase("plan"):
            before = {id(placed): placed.traffic for placed in course.networks}
        try:
            outcome = trainer.train(course, asked.params, asked.task, asked.clock, stop)
        except DeviceError as e:
            with asked.clock.phase("plan"):
                raise _LostError(course.at_work.layout, _failed(course.at_work), e) from None
        with asked.clock.phase("encode"):
            asked.record.set_traffic(course.kept.traffic.since(before[id(course.kept)]))
        return outcome

    def _evaluate_on(
        self,
        layout: Layout,
        node: Node,
        params: Float32Array,
        clock: RoundClock,
        record: NodeRecord,
    ) -> Metrics:
        """On one device, in batches as in training, so that its program serves."""
        with clock.phase("build"):
            [(device, program)] = self._built(layout, node)
        try:
            with clock.phase("data"):
                data = self._load(device, node, held_out=True)
                record.device = asdict(device.info)
                before = replace(device.traffic)
            with clock.phase("upload"):
                program.upload(params)
                device.finish()
            with clock.phase("evaluate"):
                metrics = trainer.evaluate(program, data, node.batch)
        except DeviceError as e:
            raise _LostError(layout, [device.info], e) from None
        with clock.phase("encode"):
            record.set_traffic(device.traffic.since(before))
        return metrics

    def _conclude(self, course: Fixed, asked: _Round) -> None:
        """What the round says of its layouts, for the record and for the rounds to come."""
        record, pilot, kept = asked.record, asked.node.pilot, course.kept
        rest_steps, rest_s = (course.rest.steps, course.rest.seconds) if course.rest else (0, 0.0)
        ended = pilot.end_round(rest_steps, rest_s)
        self._placer.knowledge.learn(course, asked.node.batch)
        record.placement = placement_of(course)
        record.layout, record.reason = self._placer.describe(kept.layout), pilot.reason
        record.decision = ended.decision
        record.measured = {
            self._placer.describe(layout): dict(of) for layout, of in ended.measured.items()
        }
        record.device = described(kept)
        program = kept.programs[0]
        slices = -(-asked.task.batch // program.capacity)  # more than one on a single device alone
        # adding up instead of an update in all slices, and the update
        record.launches = slices * kept.launches + (slices > 1)
        record.peak_nbytes = kept.nbytes
        asked.node.trained_on.update(kept.layout.devices)
        if ended.moved:
            self.devices.say("placement changed", ended.decision.reason)

    def _report(self, record: NodeRecord, metrics: Metrics, num_examples: int) -> NodeRecord:
        record.num_examples = num_examples
        record.loss, record.accuracy = metrics.loss, metrics.accuracy
        record.events = self.devices.take_events()
        return record

    def _drop(self, lost: _LostError) -> None:
        """Use devices that failed no more; without any, the layout."""
        keys = {info.key for info in lost.infos}
        for info in lost.infos:
            self.devices.refuse(info, lost.error)
        if not keys:
            self._placer.leave_aside(lost.layout)
            text = f"{self._placer.describe(lost.layout)}: {lost.error}"
            self.devices.say("layout left aside", text)

        def gone(layout: Layout) -> bool:
            return layout == lost.layout or not keys.isdisjoint(layout.devices)

        for node in self._nodes.values():
            node.pilot.leave_out(gone)
            for key in [k for k in node.loaded if k[0] in keys]:
                del node.loaded[key]  # not released: the device may answer no more


def _ready_s(clock: RoundClock) -> float:
    """What making devices ready took in this round."""
    return clock.phases.get("build", 0.0) + clock.phases.get("data", 0.0)


def _failed(placed: Placed) -> list[DeviceInfo]:
    """Of a network that failed, the devices that did: where it has one, that; else those that
    answer no more, perhaps none."""
    if len(placed.devices) == 1:
        return [placed.devices[0].info]
    failed = []
    for device in placed.devices:
        try:
            device.finish()
        except DeviceError:
            failed.append(device.info)
    return failed
