"""Tasks go out to nodes and replies come in: waited for, checked, and recorded one by one.

A node that fails, is late, or sends what cannot be used costs the round that node, never the run,
as long as ``federation.quorum`` replies are left.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from flwr.app import Message
from flwr.common.constant import ErrorCode

from client import wire
from client.config import Experiment
from client.errors import RoundError
from client.model.graph import Model
from client.record import NodeRecord
from server.engine.nodes import Nodes
from server.engine.replies import (
    Expected,
    RejectedError,
    check_foreign_reply,
    check_reply,
    payload_nbytes,
)
from server.observer import Observer
from server.store import NodeRound, Store

TaskName = Literal["train", "evaluate"]


POLL_S = 0.05
"""Pause before asking a Grid again that had no reply."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Sent:
    """A message on its way."""

    partition: str
    node_id: int
    nbytes: int
    at_s: float


@dataclass(frozen=True)
class _Arrived:
    """A message that came back."""

    nbytes: int
    at_s: float


@dataclass(frozen=True)
class Exchange:
    """See the module."""

    experiment: Experiment
    model: Model
    nodes: Nodes
    store: Store
    observer: Observer

    def run(self, number: int, task: TaskName, messages: list[Message]) -> list[Message]:
        """Send, wait for replies until all are in or the deadline passes, check and record each.

        Returns the replies that can be aggregated, in the order of partitions; RoundError if they
        are fewer than the quorum of a training round.
        """
        rows: dict[str, NodeRound] = {}
        usable: dict[str, Message] = {}
        waiting = self._send(number, task, messages, rows)
        limit_s = self.experiment.federation.round_deadline_s
        end_s = None if limit_s is None else time.monotonic() + limit_s
        while waiting and (end_s is None or time.monotonic() < end_s):
            replies = list(self.nodes.grid.pull_messages(list(waiting)))
            arrived_s = time.monotonic()
            for reply in replies:
                # error replies that a runtime makes itself do not name the node
                sent = waiting.pop(reply.metadata.reply_to_message_id)
                row = self._judge(number, task, reply, sent, arrived_s)
                rows[sent.partition] = row
                if row.status == "ok":
                    usable[sent.partition] = reply
                self._record(row)
            if not replies:
                time.sleep(POLL_S)
        for sent in waiting.values():
            rows[sent.partition] = _row(number, task, sent, "late", self._too_late())
            self._record(rows[sent.partition])
        if task == "train" and len(usable) < self.experiment.federation.quorum:
            raise self._too_few(number, len(usable), rows)
        return [usable[partition] for partition in sorted(usable)]

    def _send(
        self, number: int, task: TaskName, messages: list[Message], rows: dict[str, NodeRound]
    ) -> dict[str, _Sent]:
        """Push messages: message id -> what was sent; what could not be goes to ``rows``."""
        at_s = time.monotonic()
        pushed = set(self.nodes.grid.push_messages(messages))
        waiting = {}
        for message in messages:
            node_id = message.metadata.dst_node_id
            sent = _Sent(self.nodes.names[node_id], node_id, payload_nbytes(message), at_s)
            if message.metadata.message_id in pushed:
                waiting[message.metadata.message_id] = sent
                self.observer.node_dispatched(number, sent.partition, task)
            else:
                error = "the message to this node could not be sent"
                rows[sent.partition] = _row(number, task, sent, "failed", error)
                self._record(rows[sent.partition])
        return waiting

    def _judge(
        self, number: int, task: TaskName, reply: Message, sent: _Sent, arrived_s: float
    ) -> NodeRound:
        """What a reply amounts to."""
        arrived = _Arrived(payload_nbytes(reply), arrived_s)
        if reply.has_error():
            text = wire.error_text(reply).removeprefix(f"{sent.partition}: ")
            if reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE:
                # the task's time to live, which is the deadline too, may end a moment earlier
                error = self._too_late() or text
                return _row(number, task, sent, "late", error, arrived)
            return _row(number, task, sent, "failed", text, arrived)
        try:
            if sent.partition in self.nodes.foreign:
                check_foreign_reply(reply.content, task, self._expected)
                return _row(number, task, sent, "ok", None, arrived)
            record = check_reply(reply.content, task, sent.partition, self._expected)
        except RejectedError as e:
            return _row(number, task, sent, "rejected", str(e), arrived, e.record)
        return _row(number, task, sent, "ok", None, arrived, record)

    @cached_property
    def _expected(self) -> Expected:
        return Expected.of(self.model, self.experiment.train.recipe.loss)

    def _too_late(self) -> str | None:
        limit_s = self.experiment.federation.round_deadline_s
        if limit_s is None:
            return None
        return f"no reply within federation.round_deadline_s ({limit_s:g} s)"

    def _record(self, row: NodeRound) -> None:
        """Store what a node did, and tell who watches."""
        self.store.add_node_round(row)
        for event in row.record.events if row.record else []:
            self.observer.note(event.kind, event.message, row.partition)
            log.warning("%s: %s: %s", row.partition, event.kind, event.message)
        if row.status == "ok":
            self.observer.node_finished(row)
        else:
            log.warning("round %d: %s: %s: %s", row.round, row.partition, row.status, row.error)
            self.observer.node_failed(row)

    def _too_few(self, number: int, usable: int, rows: dict[str, NodeRound]) -> RoundError:
        failures = [row for row in rows.values() if row.status != "ok"]
        cause = f"; first failure: {failures[0].partition}: {failures[0].error}" if failures else ""
        return RoundError(
            f"round {number}: {usable} of {len(rows)} nodes gave a usable reply, "
            f"federation.quorum is {self.experiment.federation.quorum}{cause}"
        )


def _row(
    number: int,
    task: TaskName,
    sent: _Sent,
    status: Literal["ok", "failed", "rejected", "late"],
    error: str | None,
    arrived: _Arrived | None = None,
    record: NodeRecord | None = None,
) -> NodeRound:
    return NodeRound(
        round=number,
        partition=sent.partition,
        node_id=sent.node_id,
        task=task,
        status=status,
        bytes_down=sent.nbytes,
        bytes_up=arrived.nbytes if arrived else 0,
        dispatch_to_reply_s=arrived.at_s - sent.at_s if arrived else None,
        error=error,
        record=record,
    )
