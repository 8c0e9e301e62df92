"""Examples kept apart to evaluate: centrally, and by each node.

Where examples are of one class each, both draws are stratified: each class gives in proportion to
its size, whole examples by the largest remainder. What is kept and what stays is each in the data
set's order.
"""

from __future__ import annotations

import numpy as np

from client.data.dataset import Dataset
from client.errors import DataError
from client.random import generator


def split_holdout(dataset: Dataset, n: int, seed: int) -> tuple[Dataset, Dataset]:
    """(the rest, ``n`` held-out examples); DataError unless examples remain to train on."""
    if n >= len(dataset):
        raise DataError(
            f"{dataset.source}: data.holdout: found {n}, but there are {len(dataset)} examples; "
            f"allowed: 0 to {len(dataset) - 1}"
        )
    return _split(dataset, n, ("holdout", seed))


def split_share(dataset: Dataset, share: float, seed: int, name: str) -> tuple[Dataset, Dataset]:
    """(to train on, ``share`` of the examples to evaluate on) for the node called ``name``.

    0 keeps nothing apart; any other share below 1 is rounded such that both parts have at least
    one example, and DataError where a node has only one.
    """
    if share == 0:
        return _split(dataset, 0, ("node holdout", seed, name))
    if len(dataset) < 2:
        raise DataError(
            f"{dataset.source}: node '{name}' has {len(dataset)} example, too few to keep some "
            "apart: set data.node_holdout to 0 or data.partition.min_examples to at least 2"
        )
    n = min(max(round(share * len(dataset)), 1), len(dataset) - 1)
    return _split(dataset, n, ("node holdout", seed, name))


def _split(dataset: Dataset, n: int, key: tuple[str | int, ...]) -> tuple[Dataset, Dataset]:
    strata = dataset.y if dataset.has_classes else np.zeros(len(dataset), np.int32)
    classes, counts = np.unique(strata, return_counts=True)
    quota = n * counts.astype(np.int64)
    take = quota // len(dataset)
    remainder = quota % len(dataset)
    largest = np.argsort(-remainder, kind="stable")
    take[largest[: n - take.sum()]] += 1
    held = np.zeros(len(dataset), bool)
    for label, k in zip(classes, take, strict=True):
        members = np.flatnonzero(strata == label)
        held[generator(*key, int(label)).permutation(members)[:k]] = True
    return dataset.subset(np.flatnonzero(~held)), dataset.subset(np.flatnonzero(held))
