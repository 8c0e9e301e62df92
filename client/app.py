"""Flower's ClientApp: a straight line from message to reply."""

from __future__ import annotations

import json
import logging
import os
from functools import lru_cache
from pathlib import Path

from flwr.clientapp import ClientApp
from flwr.common import Context, Message

from client import wire
from client.config import Experiment
from client.fields import parse
from client.model.graph import Float32Array
from client.timing import RoundClock
from client.trainer import Task
from client.worker.protocol import ADDRESS_VARIABLE, read_token
from client.worker.session import NodeSession, Session

log = logging.getLogger(__name__)

app = ClientApp()


@lru_cache(maxsize=1)
def session_of(experiment: str, base: str) -> NodeSession:
    """The session for an experiment (JSON text): devices, programs and data stay.

    It is this process's own, or the device worker's where the environment names a broker. Another
    experiment's session takes its place, and its devices' memory is freed with it.
    """
    parsed = parse(Experiment, json.loads(experiment), "the server's experiment")
    address = os.environ.get(ADDRESS_VARIABLE)
    if address is None:
        return Session(parsed, Path(base))
    from client.worker.remote import RemoteSession

    return RemoteSession(parsed, Path(base), address, read_token(os.environ))


def _session(context: Context) -> NodeSession:
    config = {"base": "."} | dict(context.run_config) | wire.own_experiment(context)
    experiment = str(config["experiment"])
    backend = context.node_config.get("backend")
    if backend is not None:  # the node's owner decides which of its processors may train
        value = json.loads(experiment) | {"devices": {"backend": backend}}
        experiment = json.dumps(value)
    return session_of(experiment, str(config["base"]))


def _unpack(
    message: Message, context: Context
) -> tuple[NodeSession, wire.Identity, Task, Float32Array]:
    """What a task asks for, from a server of ours or, with a model of the node's own, any other."""
    own = bool(wire.own_experiment(context))
    if not own:
        wire.check_software(message)  # before anything else is read
    session = _session(context)
    node = wire.identity(context, lambda: session.shares.names)
    unpack = wire.unpack_stock_task if own else wire.unpack_task
    task, params = unpack(message, session.model, session.experiment, node.partition)
    return session, node, task, wire.with_own(context, session.model, session.experiment, params)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of training on this node."""
    clock = RoundClock()
    with clock.phase("decode"):
        own = bool(wire.own_experiment(context))
        session, node, task, params = _unpack(message, context)
        recorded = None if own else wire.recorded_placement(message)
    outcome, record = session.train(task, node.path, params, recorded, clock)
    with clock.phase("encode"):
        wire.keep_own(context, session.model, session.experiment, outcome.params)
        content = wire.pack_trained(session.model, outcome, all_values=own)
    record.set_timing(clock.stop())
    if own:
        return Message(wire.for_stock_server(content), reply_to=message)
    wire.add_record(content, record)
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The global model on this node's own held-out examples."""
    clock = RoundClock()
    with clock.phase("decode"):
        session, node, _, params = _unpack(message, context)
    metrics, record = session.evaluate(node.partition, node.path, params, clock)
    with clock.phase("encode"):
        content = wire.pack_evaluated(metrics, record.num_examples)
    record.set_timing(clock.stop())
    if wire.own_experiment(context):
        return Message(wire.for_stock_server(content), reply_to=message)
    wire.add_record(content, record)
    return Message(content, reply_to=message)


@app.query("who")
def who(message: Message, context: Context) -> Message:
    """Who this node is: by partition names a server samples and aggregates."""
    refused = wire.refusal(message)
    if refused:
        log.warning("the server does without this node: %s", refused)
    name = wire.identity(context, lambda: _session(context).shares.names).partition
    return Message(wire.pack_answer(context, name), reply_to=message)
