"""Who is there: nodes that come and go, each under the name of its share of the data.

Flower knows nodes by ids, which change when a node restarts; sampling, data and records go by
names. So each new node is asked who it is, once, without waiting for the answer: a node that
never answers holds nobody up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from client import wire
from client.config import FederationConfig
from client.errors import MismatchError, RoundError
from server.engine.nodes import Nodes
from server.observer import Observer
from server.store import Store

POLL_S = 0.2

log = logging.getLogger(__name__)

FOREIGN = "No query function registered"
"""What a Flower ClientApp that does not know our question answers."""

NOT_ALLOWED = (
    "it runs another ClientApp than pocketfed's: set federation.allow_foreign: true, or "
    "join it by pocketfed join"
)


def _ignore(kind: str, message: str, partition: str | None) -> None:
    """Nobody is told."""


@dataclass
class Roster:
    """The nodes of a Grid. ``note`` is told (kind, message, partition) of all that happens."""

    grid: Grid
    note: Callable[[str, str, str | None], None] = _ignore
    allow_foreign: bool = False
    foreign: set[str] = field(default_factory=set)  # names of nodes that run another ClientApp
    names: dict[int, str] = field(default_factory=dict)  # node id -> partition name
    _identities: dict[int, str] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)  # message id -> node id
    _known: set[int] = field(default_factory=set)  # asked, answered or refused
    _refused: dict[int, str] = field(default_factory=dict)  # node id -> why

    def refresh(self) -> dict[int, str]:
        """Node id -> partition name of the nodes that are there and have said who they are."""
        there = set(self.grid.get_node_ids())
        for node_id in sorted(set(self.names) - there):
            self.note("left", "the node is gone", self.names[node_id])
            self._forget(node_id)
        self._known &= there
        self._refused = {i: text for i, text in self._refused.items() if i in there}
        new = sorted(there - self._known)
        if new:
            messages = [Message(wire.question(), node_id, wire.WHO) for node_id in new]
            self.grid.push_messages(messages)
            self._asked |= {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
            self._known |= set(new)
        self._asked = {m: node_id for m, node_id in self._asked.items() if node_id in there}
        if self._asked:
            for reply in list(self.grid.pull_messages(list(self._asked))):
                self._judge(self._asked.pop(reply.metadata.reply_to_message_id), reply)
        return dict(self.names)

    def wait(
        self, wanted: int, least: int, limit_s: float, tell: Callable[[int, int], None]
    ) -> dict[int, str]:
        """The nodes once ``wanted`` are there, or after ``limit_s`` at least ``least``.

        ``tell`` is told (connected, wanted) at the start and at each change. RoundError if there
        are fewer than ``least``.
        """
        end_s = time.monotonic() + limit_s
        told = -1
        while len(names := self.refresh()) < wanted and time.monotonic() < end_s:
            if len(names) != told:
                told = len(names)
                log.info("%d of %d nodes connected", told, wanted)
                tell(told, wanted)
            time.sleep(POLL_S)
        if len(names) < least:
            raise RoundError(
                f"{len(names)} of {least} nodes connected within {limit_s:g} s{self._others()}: "
                "start nodes by pocketfed join, or allow more time by --wait"
            )
        if told != -1:
            log.info("%d of %d nodes connected", len(names), wanted)
            tell(len(names), wanted)
        return names

    def _others(self) -> str:
        """What became of the other nodes that are there."""
        told = []
        if self._asked:
            told.append(f"{len(self._asked)} more have not said who they are")
        if self._refused:
            first = next(iter(self._refused.values()))
            told.append(f"{len(self._refused)} refused, the first because {first}")
        return f" ({'; '.join(told)})" if told else ""

    def _judge(self, node_id: int, reply: Message) -> None:
        """Take a node in by its answer, or tell it why not."""
        if reply.has_error():
            text = wire.error_text(reply)
            if FOREIGN not in text:
                self._refuse(node_id, f"it cannot say who it is: {text}")
            elif self.allow_foreign:
                self.names[node_id] = name = f"foreign-{node_id:016x}"
                self._identities[node_id] = ""
                self.foreign.add(name)
                self.note("joined", "a node with a ClientApp that is not ours is connected", name)
            else:
                self._refuse(node_id, NOT_ALLOWED)
            return
        try:
            answer = wire.unpack_answer(reply.content)
            wire.check_answer(answer)
        except MismatchError as e:
            self._refuse(node_id, str(e))
            return
        namesake = next((i for i, name in self.names.items() if name == answer.partition), None)
        if namesake is not None:
            if not answer.identity or self._identities[namesake] != answer.identity:
                text = f"another node is called '{answer.partition}': join with another --name"
                self._refuse(node_id, text)
                return
            self._forget(namesake)  # a former life of this node, which Flower has not missed yet
            self.note("came back", "the node was started again", answer.partition)
        else:
            self.note("joined", "the node is connected", answer.partition)
        self.names[node_id] = answer.partition
        self._identities[node_id] = answer.identity

    def _refuse(self, node_id: int, text: str) -> None:
        self._refused[node_id] = text
        self.note("refused", f"node {node_id}: {text}", None)
        self.grid.push_messages([Message(wire.question(text), node_id, wire.WHO)])

    def _forget(self, node_id: int) -> None:
        del self.names[node_id]
        del self._identities[node_id]


def gather(
    grid: Grid,
    federation: FederationConfig,
    wanted: int,
    wait_s: float,
    store: Store,
    observer: Observer,
) -> Nodes:
    """Nodes that come and go.

    Returns once ``wanted`` are there, or after ``wait_s`` with those that are, if they are at
    least ``federation.quorum``; each later round waits as long for that many. RoundError if they
    are fewer.
    """

    def note(kind: str, message: str, partition: str | None) -> None:
        store.add_event(kind, message, None, partition)
        observer.note(kind, message, partition)

    quorum = federation.quorum
    roster = Roster(grid, note, federation.allow_foreign)
    names = roster.wait(wanted, quorum, wait_s, observer.waiting)
    if len(names) < wanted:
        note("nodes", f"begins with {len(names)} of {wanted} nodes after {wait_s:g} s", None)
    return Nodes(
        grid,
        names,
        wanted,
        refresh=lambda: roster.wait(quorum, quorum, wait_s, observer.waiting),
        foreign=roster.foreign,
    )
