"""A federation of real nodes, served from this machine: start and resume."""

from __future__ import annotations

import math
from pathlib import Path

from client.app import app
from client.config import Experiment
from client.data.shares import Shares
from client.errors import ConfigError
from server.engine.bundle import build_bundle
from server.engine.deployment import HOST, check_port, deployment
from server.engine.inline import InlineGrid
from server.engine.nodes import Nodes
from server.engine.roster import gather
from server.engine.strategies import strategy_of
from server.observer import Observer, Result
from server.run import Run, given_parameters, new_run, resumed_run

DEFAULT_WAIT_S = 600.0


def start(
    experiment: Experiment,
    base: Path,
    port: int,
    observer: Observer,
    out: Path | None = None,
    nodes: int | None = None,
    wait_s: float = DEFAULT_WAIT_S,
    init: Path | None = None,
) -> Result:
    """Run an experiment on nodes that connect to ``port`` of this machine, in a new folder.

    ``nodes``: how many to wait for, at most ``wait_s``; by default as many as the experiment has
    partitions. See server/simulate.py for the others.
    """
    model = experiment.build()
    initial = given_parameters(init, model) if init else None
    wanted = _wanted(experiment, nodes)
    check_port(port)
    with new_run(experiment, base, out, initial) as run:
        return _carry_out(run, wanted, port, observer, wait_s)


def resume(
    path: Path,
    port: int,
    observer: Observer,
    nodes: int | None = None,
    wait_s: float = DEFAULT_WAIT_S,
) -> Result:
    """Go on with a run after its last whole round."""
    check_port(port)
    with resumed_run(path) as run:
        return _carry_out(run, _wanted(run.experiment, nodes), port, observer, wait_s)


def check_host(host: str) -> None:
    """ConfigError for any host but this machine itself."""
    if host not in (HOST, "localhost"):
        raise ConfigError(
            f"--host {host}: this version serves on {HOST} alone, for Flower lets whoever reaches "
            "the port submit a run; let nodes in by an ssh tunnel (docs/deployment.md)"
        )


def check_wait(wait_s: float) -> None:
    """ConfigError for a time that is no number; an infinite one is for ever."""
    if math.isnan(wait_s):
        raise ConfigError("--wait nan: needs seconds, or inf to wait for ever")


def _wanted(experiment: Experiment, nodes: int | None) -> int:
    wanted = nodes or experiment.data.partition.nodes
    if wanted is None:
        raise ConfigError(
            "--nodes: is missing; the experiment does not say how many nodes it has "
            "(data.partition.nodes)"
        )
    quorum = experiment.federation.quorum
    if wanted < quorum:
        raise ConfigError(f"--nodes {wanted}: federation.quorum asks for at least {quorum}")
    strategy_of(experiment, wanted)  # complains if they cannot be sampled as it asks
    return wanted


def _carry_out(run: Run, wanted: int, port: int, observer: Observer, wait_s: float) -> Result:
    held_out = None
    if run.experiment.data.holdout:  # else the server needs no data at all
        held_out = run.read_data(Shares(run.experiment, run.model, run.base))
    federation = run.experiment.federation
    if run.first_round > federation.rounds:  # nothing is left to do for nodes
        return run.carry_out(Nodes(InlineGrid(app, (), {}), {}, wanted), held_out, observer)
    bundle = build_bundle(run.experiment, run.base)
    with deployment(bundle, port, run.folder.path) as grid:
        observer.serving(f"{HOST}:{port}")
        found = gather(grid, federation, wanted, wait_s, run.store, observer)
        return run.carry_out(found, held_out, observer)
