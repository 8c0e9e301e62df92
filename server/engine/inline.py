"""The inline engine: a Grid in this process that calls a ClientApp for each node, one at a time.

What Flower's own runtimes do over a network happens here in ``pull_messages``: each call lets one
node work, so that whoever pulls can show progress and keep a deadline. Each node has a Context of
its own, whose state stays between messages. What a node is given and what it gives back are
copies, as they would be after a journey: no node can change what another one sees.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from client.errors import PocketfedError

SERVER_NODE_ID = 1
"""Flower's id of the server; error replies that a runtime makes itself carry it as their source."""

RUN_ID = 1

ClientAppLike = Callable[[Message, Context], Message]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Task:
    message: Message
    expires_s: float  # on the monotonic clock


class InlineGrid(Grid):
    """See the module. ``names``: partition names of the nodes; their ids follow that order.

    ``on_start`` is called with a node's id just before it works. KeyboardInterrupt passes through;
    any other exception of a node becomes an error reply.
    """

    def __init__(
        self,
        app: ClientAppLike,
        names: Sequence[str],
        run_config: Mapping[str, bool | float | int | str],
        on_start: Callable[[int], None] = lambda node_id: None,
    ) -> None:
        # Flower's Message constructor reads who it is sent by from these process-wide fields
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = RUN_ID, 1, SERVER_NODE_ID
        self._app = app
        self._on_start = on_start
        self._run = Run.create_empty(RUN_ID)
        self._pending: dict[str, _Task] = {}
        self.names = {SERVER_NODE_ID + 1 + i: name for i, name in enumerate(names)}
        self.contexts = {
            node_id: Context(
                run_id=RUN_ID,
                node_id=node_id,
                node_config={"partition-id": i, "num-partitions": len(names), "name": name},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for i, (node_id, name) in enumerate(self.names.items())
        }

    # -- what Flower's strategies and round loops call -----------------------------------------

    def set_run(self, run: Run) -> None:
        """Set the run, as Flower's runtimes do."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Ids of all nodes, in the order of their names."""
        return list(self.names)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages in; their nodes work when replies are pulled."""
        now_s = time.monotonic()
        self._pending = {k: t for k, t in self._pending.items() if t.expires_s > now_s}
        ids = []
        for message in messages:
            if message.metadata.dst_node_id not in self.contexts:
                raise ValueError(f"no node {message.metadata.dst_node_id}")
            message_id = str(uuid4())
            message.metadata.__dict__["_message_id"] = message_id
            self._pending[message_id] = _Task(message, now_s + message.metadata.ttl)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Let the next of these messages' nodes work and return its reply; empty if none is left.

        A message that outlived its time to live is answered by an error reply instead.
        """
        wanted = set(message_ids)
        for message_id in list(self._pending):
            if message_id in wanted:
                return [self._answer(self._pending.pop(message_id))]
        return []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push messages and pull replies until all are there or ``timeout`` seconds have passed."""
        waiting = set(self.push_messages(messages))
        end_s = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while waiting and (end_s is None or time.monotonic() < end_s):
            pulled = self.pull_messages(waiting)
            replies += pulled
            waiting -= {reply.metadata.reply_to_message_id for reply in pulled}
        return replies

    # -- a node's work -------------------------------------------------------------------------

    def _answer(self, task: _Task) -> Message:
        node_id = task.message.metadata.dst_node_id
        if time.monotonic() >= task.expires_s:
            reply = Message(
                Error(ErrorCode.MESSAGE_UNAVAILABLE, "Message Unavailable"), reply_to=task.message
            )
            reply.metadata.__dict__["_src_node_id"] = SERVER_NODE_ID
        else:
            self._on_start(node_id)
            reply = self._call(_delivered(task.message), self.contexts[node_id])
        reply.metadata.__dict__["_message_id"] = str(uuid4())
        return reply

    def _call(self, message: Message, context: Context) -> Message:
        try:
            return _delivered(self._app(message, context))
        except Exception as e:
            log.exception("node %s failed", self.names[context.node_id])
            reason = str(e) if isinstance(e, PocketfedError) else f"{type(e).__name__}: {e}"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def _delivered(message: Message) -> Message:
    """The message as its receiver gets it: records of its own, the arrays' bytes shared."""
    if message.has_error():
        return message
    content = RecordDict({key: _copy(record) for key, record in message.content.items()})
    return Message(content=content, metadata=message.metadata)  # type: ignore[call-overload,no-any-return]


def _copy(
    record: ArrayRecord | MetricRecord | ConfigRecord,
) -> ArrayRecord | MetricRecord | ConfigRecord:
    if isinstance(record, ArrayRecord):
        return ArrayRecord({k: Array(v.dtype, v.shape, v.stype, v.data) for k, v in record.items()})
    if isinstance(record, MetricRecord):
        return MetricRecord(dict(record))
    return ConfigRecord(dict(record))
