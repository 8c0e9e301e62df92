"""Who holds which examples in an experiment: the centre's held-out part, and each node's."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from client.config import Experiment
from client.data.dataset import Dataset
from client.data.holdout import split_holdout, split_share
from client.data.partition import partition
from client.data.sources import cut_for, fit_to, load
from client.errors import DataError
from client.model.graph import Model


@dataclass(frozen=True)
class NodeData:
    """One node's examples: to train on, and (if the experiment says so) to evaluate on."""

    name: str
    train: Dataset
    held_out: Dataset | None


class Shares:
    """The experiment's data set, read once and shared out; pure in its seed."""

    def __init__(self, experiment: Experiment, model: Model, base: Path) -> None:
        self._config = experiment.data
        self._seed = experiment.seed
        self._loss = experiment.train.recipe.loss
        self._model = model
        self._base = base

    @cached_property
    def _split(self) -> tuple[Dataset, Dataset | None]:
        dataset = self._fitted(self._config.source, self._base)
        if self._config.holdout == 0:
            return dataset, None
        return split_holdout(dataset, self._config.holdout, self._seed)

    @cached_property
    def _parts(self) -> dict[str, Dataset]:
        rest = self._split[0]
        parts = partition(rest.y, rest.columns, self._config.partition, self._seed)
        return {name: rest.subset(index) for name, index in parts}

    @property
    def names(self) -> list[str]:
        """Names of the nodes, in order."""
        return list(self._parts)

    @property
    def held_out(self) -> Dataset | None:
        """What the centre keeps to evaluate the global model."""
        return self._split[1]

    @property
    def source(self) -> str:
        """The file or data set that all examples come from."""
        return self._split[0].source

    def sha256(self) -> str:
        """Hex digest of all examples, as they are shared out."""
        parts = [part.sha256() for part in self._split if part is not None]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def of(self, name: str) -> NodeData:
        """The examples of a node of a simulated federation."""
        if name not in self._parts:
            raise DataError(f"no node '{name}' in this experiment; nodes: {', '.join(self.names)}")
        return self._node(name, self._parts[name])

    def of_file(self, name: str, path: Path) -> NodeData:
        """The examples in the file of the node called ``name``."""
        return self._node(name, self._fitted(str(path), None))

    def _fitted(self, source: str, base: Path | None) -> Dataset:
        cut = cut_for(self._model, self._loss, self._config.stride)
        return fit_to(load(source, base, cut), self._model, self._loss)

    def _node(self, name: str, dataset: Dataset) -> NodeData:
        if self._config.node_holdout == 0:
            return NodeData(name, dataset, None)
        train, held_out = split_share(dataset, self._config.node_holdout, self._seed, name)
        return NodeData(name, train, held_out)
