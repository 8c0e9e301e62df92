"""Flower's ServerApp: the rounds of server/engine on whatever nodes Flower's runtime brings.

The run's config carries ``experiment`` (the resolved experiment as JSON text), ``base`` (the
folder that its relative paths start from) and, if it should not be under runs/, ``out``.
"""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import HttpGrid

from client.config import Experiment
from client.data.shares import Shares
from client.fields import parse
from server.engine.pulling import PromptGrid
from server.engine.roster import gather
from server.engine.strategies import strategy_of
from server.live import PlainLines
from server.run import new_run

WAIT_S = 600.0
"""How long nodes may take to connect, before the first round and before each other one."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """A run of the experiment in the run's config."""
    config = context.run_config
    base = Path(str(config["base"]))
    out = Path(str(config["out"])) if config.get("out") else None
    value = json.loads(str(config["experiment"]))
    experiment = parse(Experiment, value, "run config: experiment")
    model = experiment.build()
    shares = Shares(experiment, model, base)
    wanted = len(shares.names)
    strategy_of(experiment, wanted)  # complains before a folder is made
    with new_run(experiment, base, out) as run:
        observer = PlainLines()  # what is printed here is what `flwr log` shows
        if isinstance(grid, HttpGrid):
            grid = PromptGrid(grid)
        nodes = gather(grid, experiment.federation, wanted, WAIT_S, run.store, observer)
        run.carry_out(nodes, run.read_data(shares), observer)
