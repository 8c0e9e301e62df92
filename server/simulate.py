"""A federation on this machine: start, resume, replay.

The engine ``inline`` runs every node in this process, one after the other; ``ray`` runs them in
processes of Flower's simulation runtime.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from client.app import app, session_of
from client.config import Experiment
from client.errors import ConfigError, StoreError
from client.worker.session import NodeSession, Session
from server.engine.choices import Choices
from server.engine.inline import InlineGrid
from server.engine.nodes import Nodes
from server.engine.ray import START_LIMIT_S, require_ray, simulation
from server.engine.roster import gather
from server.engine.strategies import strategy_of
from server.folder import RunFolder, versions
from server.observer import Observer, Result
from server.run import (
    Run,
    changed_versions,
    check_data,
    given_parameters,
    initial_parameters,
    new_run,
    recorded_experiment,
    resumed_run,
)
from server.store import Store

EngineName = Literal["inline", "ray"]


def start(
    experiment: Experiment,
    base: Path,
    out: Path | None = None,
    observer: Observer | None = None,
    init: Path | None = None,
    engine: EngineName = "inline",
    isolate: bool = False,
) -> Result:
    """Run an experiment in a new folder.

    ``base``: the folder that its relative paths start from, that of its file. ``out``: the run's
    folder, by default runs/<name>-<time>. ``init``: a model file to start from. ``isolate``: nodes
    of the inline engine train in a device worker, a process of its own.
    """
    model = experiment.build()
    initial = given_parameters(init, model) if init else None
    _check(engine, isolate)
    with _session(experiment, base, isolate) as session:
        strategy_of(experiment, len(session.shares.names))  # complains before a folder is made
        if isinstance(session, Session):
            session.devices.usable()  # so does this
        with new_run(experiment, base, out, initial) as run:
            return _carry_out(run, session, observer, engine)


def resume(
    path: Path,
    observer: Observer | None = None,
    engine: EngineName = "inline",
    isolate: bool = False,
) -> Result:
    """Go on with a run after its last whole round; a run that is finished stays as it is."""
    _check(engine, isolate)
    with resumed_run(path) as run, _session(run.experiment, run.base, isolate) as session:
        return _carry_out(run, session, observer, engine)


def replay(
    path: Path,
    out: Path | None = None,
    observer: Observer | None = None,
    engine: EngineName = "inline",
    isolate: bool = False,
) -> Result:
    """Do a recorded run again in a new folder: same nodes, placements, kernel variants, threads.

    The weights come out equal bit by bit. Only whole rounds are repeated.
    """
    _check(engine, isolate)
    folder = RunFolder.existing(path)
    with Store.read(folder.db) as store:
        info, rounds, rows = store.run(), store.rounds(), store.node_rounds()
        choices, recorded_data = store.choices(), store.data_sha256()
    if not rounds:
        raise StoreError(f"{folder.db}: no round of this run is whole, so there is none to repeat")
    recorded = recorded_experiment(info, folder.db)
    federation = replace(recorded.federation, rounds=len(rounds))
    experiment = replace(recorded, federation=federation)
    took_part = {(r.round, r.partition) for r in rows if r.task == "train" and r.status == "ok"}
    repeated = Choices({k: v for k, v in choices.items() if k in took_part}, all_rounds=True)
    notes = [("replay", f"repeats {folder.path}"), *changed_versions(info.versions, versions())]
    initial = None
    if folder.initial.is_file():
        model = experiment.build(f"{folder.db}: model")
        initial = initial_parameters(folder, model, experiment.seed)
    base = Path(info.base)
    with _session(experiment, base, isolate) as session:
        check_data(recorded_data, session.shares.sha256(), session.shares.source)
        with new_run(experiment, base, out, initial, repeated, tuple(notes)) as run:
            return _carry_out(run, session, observer, engine)


def _check(engine: EngineName, isolate: bool) -> None:
    if engine == "ray":
        if isolate:
            raise ConfigError("simulate: --isolate goes with --engine inline: ray isolates anyway")
        require_ray()


def _carry_out(
    run: Run,
    session: NodeSession,
    observer: Observer | None,
    engine: EngineName,
) -> Result:
    watching = observer or Observer()
    config = {"experiment": _text(run.experiment), "base": str(run.base)}
    names, held_out = session.shares.names, run.read_data(session.shares)
    if engine == "ray":
        federation = run.experiment.federation
        with simulation(len(names), config) as found:
            nodes = gather(found, federation, len(names), START_LIMIT_S, run.store, watching)
            return run.carry_out(nodes, held_out, watching)
    grid = InlineGrid(
        app,
        names,
        config,
        on_start=lambda node_id: watching.node_started(grid.names[node_id]),
    )
    nodes = Nodes(grid, grid.names, len(names), grid.contexts)
    return run.carry_out(nodes, held_out, watching)


@contextmanager
def _session(experiment: Experiment, base: Path, isolate: bool) -> Iterator[NodeSession]:
    """The session that the ClientApp of this process finds too.

    It ends with the run: another run in this process must decide for itself where to train.
    """
    session_of.cache_clear()
    if isolate:
        with _worker(), _session(experiment, base, isolate=False) as session:
            yield session
        return
    session = session_of(_text(experiment), str(base.resolve()))
    try:
        yield session
    finally:
        session.close()
        session_of.cache_clear()


@contextmanager
def _worker() -> Iterator[None]:
    """A device worker, of which this process's environment tells its ClientApp."""
    from client.worker.supervisor import hosted_worker

    with hosted_worker() as variables:
        os.environ.update(variables)
        try:
            yield
        finally:
            for name in variables:
                del os.environ[name]


def _text(experiment: Experiment) -> str:
    return json.dumps(experiment.to_dict())
