"""Flower's ServerApp: the rounds of server/rounds.py on whatever nodes Flower's runtime brings.

The run's config carries ``experiment`` (the resolved experiment as JSON text), ``base`` (the
folder that its relative paths start from) and, if it should not be under runs/, ``out``.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from client import wire
from client.config import Experiment
from client.data.shares import Shares
from client.errors import RoundError
from client.fields import parse
from client.model import build_model
from server.observer import Observer
from server.run import new_run, strategy_of

POLL_S = 1.0

log = logging.getLogger(__name__)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """A run of the experiment in the run's config."""
    config = context.run_config
    base = Path(str(config["base"]))
    out = Path(str(config["out"])) if config.get("out") else None
    value = json.loads(str(config["experiment"]))
    experiment = parse(Experiment, value, "run config: experiment")
    model = build_model(experiment.model, f"{experiment.name}: model")
    shares = Shares(experiment, model, base)
    names = partition_names(grid, len(shares.names))
    strategy = strategy_of(experiment, len(names))
    with new_run(experiment, base, out) as run:
        run.carry_out(strategy, grid, names, shares.held_out, Observer())


def partition_names(grid: Grid, expected: int) -> dict[int, str]:
    """Node id -> partition name, asked of the nodes once ``expected`` of them are connected."""
    while len(node_ids := list(grid.get_node_ids())) < expected:
        log.info("%d of %d nodes are connected", len(node_ids), expected)
        time.sleep(POLL_S)
    replies = grid.send_and_receive(
        [Message(RecordDict(), node_id, wire.WHO) for node_id in node_ids]
    )
    names: dict[int, str] = {}
    for reply in replies:
        if reply.has_error():
            raise RoundError(f"a node could not say who it is: {reply.error.reason}")
        names[reply.metadata.src_node_id] = wire.unpack_name(reply.content)
    twice = sorted({name for name in names.values() if list(names.values()).count(name) > 1})
    if twice:
        raise RoundError(f"several nodes hold the same partition: {', '.join(twice)}")
    return names
