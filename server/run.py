"""A run about to begin: folder, record, and where to start from; everything but the nodes.

``new_run`` and ``resumed_run`` hold the folder's lock while they are open. Which engine brings the
nodes is the caller's matter: server/simulate.py, server/serve.py, server/app.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from client import backends, trainer
from client.backends.recipe import Recipe
from client.config import Experiment
from client.data import Dataset
from client.data.shares import Shares
from client.errors import ConfigError, DataError, PocketfedError, StoreError
from client.fields import parse
from client.model import Model, initialise
from server.engine.checkpoint import Checkpoints, State, restore_strategy
from server.engine.choices import Choices
from server.engine.nodes import Nodes
from server.engine.rounds import Arrays, Evaluation, Rounds
from server.engine.strategies import strategy_of
from server.folder import RunFolder, versions
from server.model_file import load_arrays, save_model
from server.observer import Observer, Result
from server.store import RunInfo, Store, now

EVALUATION_BATCH = 256

log = logging.getLogger(__name__)


@dataclass
class Run:
    """See the module. ``state``: after the last whole round, None if there is none.

    ``notes``: (kind, message) of what was found on the way here, told when the run begins.
    """

    folder: RunFolder
    experiment: Experiment
    base: Path
    model: Model
    store: Store
    initial: Arrays
    state: State | None = None
    choices: Choices = field(default_factory=Choices)
    notes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def first_round(self) -> int:
        """The first round that is not whole yet."""
        return self.state.round + 1 if self.state else 1

    def carry_out(self, nodes: Nodes, held_out: Dataset | None, observer: Observer) -> Result:
        """All rounds that are left, then the model file. ``held_out``: the central examples."""
        began_s = time.monotonic()
        strategy = strategy_of(self.experiment, nodes.wanted)
        self.store.add_nodes(dict(nodes.names))
        observer.run_started(
            self.folder.path,
            self.experiment.name,
            self.experiment.federation.rounds,
            sorted(nodes.names.values()),
            self.first_round,
        )
        for kind, message in (*self.notes, *self._batch_norm_notes(nodes)):
            self.store.add_event(kind, message)
            observer.note(kind, message)
            log.warning("%s: %s", kind, message)
        if self.state is not None:
            restore_strategy(strategy, self.state.strategy)
            nodes.restore(self.state.nodes)
        rounds = Rounds(
            experiment=self.experiment,
            model=self.model,
            nodes=nodes,
            strategy=strategy,
            store=self.store,
            checkpoints=Checkpoints(self.folder.checkpoints),
            evaluate=None
            if held_out is None
            else central_evaluation(self.model, self.experiment.train.recipe, held_out),
            observer=observer,
            choices=self.choices,
        )
        arrays = rounds.run(self.state.arrays if self.state else self.initial, self.first_round)
        result = self._finish(arrays, time.monotonic() - began_s)
        observer.run_finished(result)
        return result

    def _batch_norm_notes(self, nodes: Nodes) -> Iterator[tuple[str, str]]:
        """What the figures and the model file are of, where nodes keep batch norm to themselves."""
        if self.experiment.federation.batch_norm == "averaged":
            return
        text = "each node keeps its own; central figures and the model file are of their mean"
        yield "batch norm", text
        if self.state is not None and not nodes.contexts:
            text = (
                "nodes begin again from the mean: this engine keeps nothing of theirs for a resume"
            )
            yield "batch norm", text

    def read_data(self, shares: Shares) -> Dataset | None:
        """The central examples. The data set is recorded; DataError if it changed since the run
        began."""
        found = shares.sha256()
        check_data(self.store.data_sha256(), found, shares.source)
        self.store.add_data(shares.source, found)
        return shares.held_out

    @contextmanager
    def failure_noted(self) -> Iterator[None]:
        """What ends the run inside becomes its last event."""
        try:
            yield
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                self.store.add_event("interrupted", "by Ctrl-C or a signal")
            elif not isinstance(e, StoreError):  # what cannot be written cannot be noted either
                text = str(e) if isinstance(e, PocketfedError) else f"{type(e).__name__}: {e}"
                self.store.add_event("failed", text)
            raise

    def _finish(self, arrays: Arrays, wall_s: float) -> Result:
        last = self.store.rounds()[-1]
        metadata = {
            "loss": self.experiment.train.loss,
            "experiment": self.experiment.name,
            "rounds": str(last.round),
            "accuracy": "" if last.accuracy is None else f"{last.accuracy:.6f}",
        }
        save_model(self.folder.model, self.experiment.model, arrays, metadata, resumable=True)
        return Result(
            run=self.folder.path,
            rounds=last.round,
            final_accuracy=last.accuracy,
            final_loss=last.loss,
            wall_s=wall_s,
            model_file=self.folder.model,
            resumed_from_round=self.store.sessions()[-1].resumed_from_round,
        )


@contextmanager
def new_run(
    experiment: Experiment,
    base: Path,
    out: Path | None,
    initial: Arrays | None = None,
    choices: Choices | None = None,
    notes: tuple[tuple[str, str], ...] = (),
) -> Iterator[Run]:
    """A run in a folder of its own, from given parameters or from the seed's."""
    model = experiment.build()
    try:
        str(base.resolve()).encode()
    except UnicodeEncodeError:  # the record names it, and a resumed run looks for its data there
        raise ConfigError(
            f"{base.resolve()}: the experiment lies in a folder whose name is not Unicode (UTF-8): "
            "move or rename it"
        ) from None
    folder = RunFolder.create(out, experiment.name)
    found = versions()
    with folder.locked(), folder.logging():
        folder.describe(experiment, found)
        if initial is not None:
            save_model(folder.initial, experiment.model, initial, {})
        info = RunInfo(
            experiment.name,
            experiment.to_dict(),
            str(base.resolve()),
            experiment.seed,
            found,
            now(),
        )
        with Store.create(folder.db, info) as store:
            run = Run(
                folder=folder,
                experiment=experiment,
                base=base.resolve(),
                model=model,
                store=store,
                initial=initial or seeded_parameters(model, experiment.seed),
                choices=choices or Choices(),
                notes=list(notes),
            )
            with run.failure_noted():
                yield run


@contextmanager
def resumed_run(path: Path) -> Iterator[Run]:
    """A run that goes on after its last whole round, with its recorded choices."""
    folder = RunFolder.existing(path)
    with folder.locked(), folder.logging():
        with Store.read(folder.db) as store:
            info, rounds, choices = store.run(), store.rounds(), store.choices()
        experiment = recorded_experiment(info, folder.db)
        model = experiment.build(f"{folder.db}: model")
        state, complaints = Checkpoints(folder.checkpoints).load_last(rounds)
        notes = [("checkpoint", f"{text}: the one before is used") for text in complaints]
        if folder.was_edited(info.experiment):
            text = (
                f"{folder.experiment} was changed since the run began, which changes nothing: the "
                "run goes on with the experiment in run.db; start a new run for another one"
            )
            notes.append(("experiment", text))
        found = versions()
        notes += changed_versions(info.versions, found)
        with Store.append(folder.db, found, state.round if state else 0) as store:
            run = Run(
                folder=folder,
                experiment=experiment,
                base=Path(info.base),
                model=model,
                store=store,
                initial=initial_parameters(folder, model, experiment.seed),
                state=state,
                choices=Choices(choices),
                notes=notes,
            )
            with run.failure_noted():
                yield run


def check_data(recorded: str | None, found: str, source: str) -> None:
    """DataError if a run's data set is not what it was; digests are those of ``Shares.sha256``."""
    if recorded not in (None, found):
        raise DataError(
            f"{source}: changed since the run began: its arrays' SHA-256 was {recorded}, "
            f"now it is {found}: put the former data back, or start a new run"
        )


def recorded_experiment(info: RunInfo, db: Path) -> Experiment:
    """The experiment of a recorded run."""
    return parse(Experiment, info.experiment, f"{db}: experiment")


def initial_parameters(folder: RunFolder, model: Model, seed: int) -> Arrays:
    """What a recorded run started from: the parameters it was given, or the seed's."""
    if folder.initial.is_file():
        return given_parameters(folder.initial, model)
    return seeded_parameters(model, seed)


def seeded_parameters(model: Model, seed: int) -> Arrays:
    """Named initial parameters drawn from the seed."""
    return {
        name: np.asarray(v, np.float32) for name, v in model.views(initialise(model, seed)).items()
    }


def given_parameters(path: Path, model: Model) -> Arrays:
    """Named parameters from a safetensors file; an error names what does not fit the model."""
    flat = model.flatten(load_arrays(path), str(path))
    return {name: np.asarray(v, np.float32) for name, v in model.views(flat).items()}


def changed_versions(recorded: dict[str, str], found: dict[str, str]) -> list[tuple[str, str]]:
    """A note for each version that is another one than the recorded run's."""
    return [
        (
            "versions",
            f"{name}: the run was begun with {recorded.get(name, 'none')}, "
            f"here is {found.get(name, 'none')}: equal weights are not promised",
        )
        for name in sorted({*recorded, *found})
        if recorded.get(name) != found.get(name)
    ]


def central_evaluation(model: Model, recipe: Recipe, held_out: Dataset) -> Evaluation:
    """(loss, accuracy or None) of global parameters on the central examples, by numpy.

    Not on whatever device is fastest: the figure must not depend on the machine's devices.
    """
    backend = backends.get(backends.REFERENCE)
    device = backend.open(backend.devices()[0])
    program = device.compile(model.whole, EVALUATION_BATCH, recipe)
    data = device.load(held_out.x, held_out.y)

    def evaluate(arrays: Arrays) -> tuple[float, float | None]:
        program.upload(model.flatten(arrays, "the global model"))
        metrics = trainer.evaluate(program, data, EVALUATION_BATCH)
        return metrics.loss, metrics.accuracy

    return evaluate
