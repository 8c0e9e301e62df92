"""Replies over HTTP, taken as they become whole.

The SuperLink hands out a reply's header, once, as soon as that has come; the reply's objects are
pulled one by one. Flower's own Grid then waits for all of them, minutes long where a node goes
away in mid-upload, and meanwhile takes no other reply and keeps no deadline. Here a reply that is
not whole is set aside, and what it lacks is asked for at the next pull. One that is not asked for
any more is forgotten, but for answers to "who are you?", which are asked for between rounds alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.message_pb2 import Message as Header
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid import HttpGrid

from client import wire
from server.engine.delegate import DelegatingGrid


class _NotYetError(Exception):
    """An object is still on its way."""


@dataclass
class _Arriving:
    """A reply whose header has come. ``contents``: object id -> what was pulled so far."""

    header: Header
    object_ids: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)


class PromptGrid(DelegatingGrid):
    """Flower's Grid over HTTP, whose pulls do not wait; see the module."""

    def __init__(self, grid: HttpGrid) -> None:
        super().__init__(grid)
        self._http = grid
        self._arriving: dict[str, _Arriving] = {}  # id of the message replied to -> its reply

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are whole, and errors for those that can no longer become so."""
        wanted = set(message_ids)
        self._pull_headers(wanted)
        replies = []
        for message_id in sorted(wanted & set(self._arriving)):
            reply = self._reply(self._arriving[message_id])
            if reply is not None:
                del self._arriving[message_id]
                replies.append(reply)
        for message_id in set(self._arriving) - wanted:  # it need not fill the memory
            if self._arriving[message_id].header.metadata.message_type == wire.WHO:
                self._arriving[message_id].contents.clear()
            else:  # late: a round that is over asks no more
                del self._arriving[message_id]
        return replies

    def _pull_headers(self, wanted: set[str]) -> None:
        # a header comes once: who asks again is told that there is no such message
        unknown = sorted(wanted - set(self._arriving))
        if not unknown:
            return
        request = PullAppMessagesRequest(message_ids=unknown)
        found = self._http._runtime_client.PullMessages(request)
        for header, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            object_ids = [part.object_id for part in iterate_object_tree(tree)]
            self._arriving[header.metadata.reply_to_message_id] = _Arriving(header, object_ids)

    def _reply(self, arriving: _Arriving) -> Message | None:
        """The reply, if all of it is there; an error, if the SuperLink has dropped it."""
        run_id = self.run.run_id
        client = self._http._runtime_client
        ask = make_pull_object_fn_protobuf(client.PullObject, self._http.node, run_id)

        def pull(object_id: str) -> bytes:
            try:
                content = arriving.contents[object_id] = ask(object_id)
            except ObjectUnavailableError:  # for which Flower would wait
                raise _NotYetError from None
            return content

        missing = [i for i in arriving.object_ids if i not in arriving.contents]
        try:
            pull_objects(missing, pull)
        except _NotYetError:
            return None
        except ObjectPullError:
            return _broken_off(run_id, arriving.header.metadata.reply_to_message_id)
        message_id = arriving.header.metadata.message_id
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._http.node, run_id=run_id, message_object_id=message_id
            )
        )
        reply = inflate_object_from_contents(message_id, arriving.contents)
        assert isinstance(reply, Message)
        reply.metadata.__dict__["_message_id"] = message_id
        return reply


def _broken_off(run_id: int, replied_to: str) -> Message:
    """The error that Flower's Grid gives where a reply's objects have gone."""
    metadata = Metadata(
        run_id=run_id,
        message_id="",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=replied_to,
        group_id="",
        created_at=now().timestamp(),
        ttl=0,
        message_type=SYSTEM_MESSAGE_TYPE,
    )
    reason = "the upload of the reply broke off: see the node's log"
    return make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, reason))
