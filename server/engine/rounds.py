"""The round loop: any Flower strategy, with guards, deadlines, records and checkpoints.

``Rounds.run_round`` is a round as a straight line; how tasks go out and replies come in is in
exchange.py. Equal seeds give equal rounds: sampling is keyed (sampling.py) and replies are
aggregated in the order of partition names, not of arrival.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.exception import AppExitException
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from client import wire
from client.config import Experiment
from client.errors import RoundError
from client.model.graph import Model
from client.record import Event
from server.engine.checkpoint import Checkpoints, State, strategy_state
from server.engine.choices import Choices
from server.engine.exchange import Exchange
from server.engine.nodes import Nodes
from server.engine.replies import keep_common_metrics, mean_values
from server.engine.sampling import OrderedGrid, keyed_random
from server.engine.strategies import averages_only, fit_to
from server.observer import Observer
from server.store import RoundInfo, Store

Arrays = dict[str, NDArray[np.float32]]
Evaluation = Callable[[Arrays], tuple[float, float | None]]
"""(loss, accuracy if the loss has one) of global parameters."""

log = logging.getLogger(__name__)


@dataclass
class Rounds:
    """What the rounds of a run work on.

    The strategy works on what nodes send back alone; what is frozen is added to its messages.
    ``evaluate``: (loss, accuracy) of the global model on the central examples, None if there are
    none.
    """

    experiment: Experiment
    model: Model
    nodes: Nodes
    strategy: Strategy
    store: Store
    checkpoints: Checkpoints
    evaluate: Evaluation | None = None
    observer: Observer = field(default_factory=Observer)
    choices: Choices = field(default_factory=Choices)

    @property
    def _exchange(self) -> Exchange:
        return Exchange(self.experiment, self.model, self.nodes, self.store, self.observer)

    def run(self, arrays: Arrays, first_round: int = 1) -> Arrays:
        """All rounds from ``first_round`` on; the last round's global parameters."""
        for number in range(first_round, self.experiment.federation.rounds + 1):
            arrays = self.run_round(number, arrays)
        return arrays

    def run_round(self, number: int, arrays: Arrays) -> Arrays:
        """One round; RoundError if it cannot be completed. What came in is recorded either way."""
        self._take_stock()
        began_s = time.monotonic()
        tasks = self._configure_train(number, arrays)
        partitions = [self._partition(task) for task in tasks]
        self.observer.round_started(number, self.experiment.federation.rounds, partitions)
        replies = self._exchange.run(number, "train", tasks)
        arrays, train_loss = self._aggregate_train(number, arrays, replies)
        loss, accuracy = self.evaluate(arrays) if self.evaluate else (None, None)
        node_loss, node_accuracy = self._evaluate_on_nodes(number, arrays)
        saved = self.checkpoints.save(
            State(
                number,
                self.experiment.seed,
                dict(arrays),
                strategy_state(self.strategy),
                self.nodes.states(),
            )
        )
        info = RoundInfo(
            round=number,
            loss=loss,
            accuracy=accuracy,
            train_loss=train_loss,
            node_loss=node_loss,
            node_accuracy=node_accuracy,
            wall_s=time.monotonic() - began_s,
            replies=len(replies),
            lr=self._lr(number),
            checkpoint=saved.name,
            checkpoint_sha256=saved.sha256,
        )
        self.store.add_round(info)
        self.checkpoints.prune(self.store.rounds())
        log.info("round %d: %d replies, loss %s, accuracy %s", number, len(replies), loss, accuracy)
        self.observer.round_finished(info)
        return arrays

    # -- the steps of a round ------------------------------------------------------------------

    def _take_stock(self) -> None:
        """Who is there for this round: late nodes are taken in, nodes that left are left out."""
        if self.nodes.refresh is None:
            return
        names = self.nodes.refresh()
        known = self.nodes.names
        new = {node_id: name for node_id, name in names.items() if node_id not in known}
        self.nodes.names = names
        if new:
            self.store.add_nodes(new)
            self.observer.nodes_joined(sorted(new.values()))
        federation = self.experiment.federation
        fit_to(self.strategy, len(names), federation.nodes_per_round, federation.evaluate_nodes)

    def _configure_train(self, number: int, arrays: Arrays) -> list[Message]:
        """The strategy's messages, with what every task carries, in the order of partitions."""
        grid = OrderedGrid(self.nodes.grid, self.nodes.names)
        with keyed_random("sample", self.experiment.seed, number):
            messages = self.strategy.configure_train(
                number, wire.arrays_to_record(self._sent(arrays)), ConfigRecord(), grid
            )
        frozen = self._frozen(arrays)
        tasks = []
        for message in sorted(messages, key=self._partition):
            partition = self._partition(message)
            if self.choices.takes_part(number, partition):
                choice = self.choices.of(number, partition)
                tasks.append(self._task(message, number, frozen, choice))
            else:
                text = "took no part in this round of the run that is repeated"
                self._note(number, partition, Event("left out", text))
        return tasks

    def _sent(self, arrays: Arrays) -> Arrays:
        return {value.name: arrays[value.name] for value in self.model.sent}

    def _frozen(self, arrays: Arrays) -> ArrayRecord:
        sent = {value.name for value in self.model.sent}
        return wire.arrays_to_record({k: v for k, v in arrays.items() if k not in sent})

    def _lr(self, number: int) -> float:
        train = self.experiment.train
        return train.schedule.lr(train.lr, number, self.experiment.federation.rounds)

    def _task(self, message: Message, number: int, frozen: ArrayRecord, choice: str) -> Message:
        content = dict(message.content)
        if frozen:
            arrays = content[wire.ARRAYS]
            assert isinstance(arrays, ArrayRecord)
            content[wire.ARRAYS] = ArrayRecord({**arrays, **frozen})
        config = content[wire.CONFIG]
        assert isinstance(config, ConfigRecord)
        ours = wire.task_config(self.experiment, self.model, number, self._lr(number), choice)
        # the strategy gives all nodes one record; a choice is one node's
        content[wire.CONFIG] = ConfigRecord({**config, **ours})
        message.content = RecordDict(content)
        if self.experiment.federation.round_deadline_s is not None:
            message.metadata.ttl = self.experiment.federation.round_deadline_s
        return message

    def _aggregate_train(
        self, number: int, before: Arrays, replies: list[Message]
    ) -> tuple[Arrays, float | None]:
        """The new global parameters in float32, and the nodes' mean loss, if all report it."""
        keep_common_metrics(replies)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # found below, with its name
                record, metrics = self.strategy.aggregate_train(number, replies)
        except AppExitException as e:
            raise RoundError(f"round {number}: aggregation failed: {e}") from None
        if record is None or metrics is None:
            raise RoundError(f"round {number}: the strategy gave no new parameters")
        found = wire.record_to_arrays(record) | self._averaged(replies)
        arrays = dict(before)
        for p in self.model.sent:
            with np.errstate(over="ignore"):
                arrays[p.name] = found[p.name].astype(np.float32)
            if flaw := p.flaw(arrays[p.name]):
                raise RoundError(
                    f"round {number}: the aggregate's {p.name} {flaw}: "
                    "lower train.lr or the strategy's server learning rate"
                )
        return arrays, _number(metrics["train-loss"]) if "train-loss" in metrics else None

    def _averaged(self, replies: list[Message]) -> Arrays:
        """Values that are the nodes' means whatever the strategy does with the others."""
        if averages_only(self.strategy):
            return {}
        local = self.experiment.federation.batch_norm == "local"
        names = {v.name for v in (self.model.batch_norm if local else self.model.buffers)}
        return mean_values(replies, [v.name for v in self.model.sent if v.name in names])

    def _evaluate_on_nodes(self, number: int, arrays: Arrays) -> tuple[float | None, float | None]:
        """Mean (loss, accuracy) on the nodes' held-out examples, if the experiment asks for it."""
        if not self.experiment.federation.evaluate_nodes:
            return None, None
        grid = OrderedGrid(self.nodes.grid, self.nodes.names)
        with keyed_random("sample to evaluate", self.experiment.seed, number):
            messages = self.strategy.configure_evaluate(
                number, wire.arrays_to_record(self._sent(arrays)), ConfigRecord(), grid
            )
        frozen = self._frozen(arrays)
        tasks = [self._task(m, number, frozen, "") for m in sorted(messages, key=self._partition)]
        replies = self._exchange.run(number, "evaluate", tasks)
        keep_common_metrics(replies)
        metrics = self.strategy.aggregate_evaluate(number, replies)
        accurate = self.experiment.train.recipe.loss.has_accuracy
        needed = {"eval-loss", "eval-accuracy"} if accurate else {"eval-loss"}
        if metrics is None or not needed <= set(metrics):
            text = "no node gave a usable evaluation"
            self._note(number, None, Event("evaluation", text))
            return None, None
        accuracy = _number(metrics["eval-accuracy"]) if accurate else None
        return _number(metrics["eval-loss"]), accuracy

    def _note(self, number: int, partition: str | None, event: Event) -> None:
        self.store.add_event(event.kind, event.message, number, partition)
        self.observer.note(event.kind, event.message, partition)
        log.warning("round %d: %s: %s", number, partition or event.kind, event.message)

    def _partition(self, message: Message) -> str:
        return self.nodes.names[message.metadata.dst_node_id]


def _number(value: int | float | list[int] | list[float]) -> float:
    assert isinstance(value, int | float)
    return float(value)
