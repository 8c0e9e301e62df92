"""Sharing examples out to nodes: pure, and equal for equal labels, settings and seed.

- ``iid``: an even random deal.
- ``contiguous``: even runs of the examples in their order, as chapters of a text.
- ``dirichlet``: for each class, its share at each node is drawn from Dir(alpha), the label skew
  of Hsu et al. (arXiv:1909.06335) in the per-class form of Yurochkin et al. (arXiv:1905.12022)
  and Li et al. (arXiv:2102.02079). The whole draw is repeated, each attempt with its own key,
  until every node has ``min_examples``; after ``MAX_DRAWS`` attempts that is an error.
- ``shards``: examples sorted by class and cut into nodes * shards_per_node shards of equal size
  (to one example), dealt at random (McMahan et al., arXiv:1602.05629).
- ``column``: a node for each value of a column, such as the person an example came from; where
  ``nodes`` is smaller, whole values are grouped, the largest first, each to the group with the
  fewest examples so far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.config import PartitionConfig
from client.errors import ConfigError, did_you_mean
from client.fields import describe
from client.model.losses import Labels
from client.random import generator

MAX_DRAWS = 1000
MAX_NAME = 80  # characters; file systems allow 255 bytes, and a suffix follows

Index = NDArray[np.intp]
Part = tuple[str, Index]


def partition(
    labels: Labels,
    columns: Mapping[str, NDArray[Any]],
    config: PartitionConfig,
    seed: int,
) -> list[Part]:
    """Nodes and the indices of their examples, each example at exactly one node.

    ``labels``: (n, *labels), of which ``dirichlet`` and ``shards`` need class numbers (n,);
    ``columns``: (n,) each. Nodes are named ``node-0`` … with as
    many digits as the last needs, or by their value (``speaker-3``); names are unique, also where
    case does not count, and safe as file names. The order inside a part is a random one, keyed by
    seed and name. Raises ConfigError, naming the keys to change, where the data cannot give every
    node ``min_examples`` or has no such column.
    """
    n = len(labels)
    if config.kind in ("dirichlet", "shards") and (labels.ndim > 1 or labels.dtype != np.int32):
        raise ConfigError(
            f"data.partition.kind: found '{config.kind}', which shares out classes, but y has "
            f"shape {labels.shape} of {labels.dtype}, not one class number each: use iid or column"
        )
    if config.kind == "column":
        parts = _by_column(columns, config, seed)
    else:
        nodes = config.nodes or 0  # PartitionConfig has seen to it that it is given
        if nodes * config.min_examples > n:
            raise ConfigError(
                f"data.partition.nodes: found {nodes}, but {n} examples give at most "
                f"{n // config.min_examples} nodes with data.partition.min_examples "
                f"{config.min_examples}: lower either"
            )
        if config.kind == "dirichlet":
            groups = _dirichlet(labels, nodes, config, seed)
        elif config.kind == "shards":
            groups = _shards(labels, nodes, config.shards_per_node, seed)
        elif config.kind == "contiguous":
            groups = np.array_split(np.arange(n), nodes)
        else:
            groups = np.array_split(generator("partition", "iid", seed).permutation(n), nodes)
        parts = list(zip(_numbered(nodes), groups, strict=True))
    for name, index in parts:
        if len(index) < config.min_examples:
            raise ConfigError(
                f"data.partition.min_examples: found {config.min_examples}, but node '{name}' "
                f"gets {len(index)} examples: lower it, or set fewer data.partition.nodes"
            )
    return [
        (name, generator("partition order", seed, name).permutation(np.sort(index)))
        for name, index in parts
    ]


def _numbered(nodes: int) -> list[str]:
    width = len(str(nodes - 1))
    return [f"node-{i:0{width}d}" for i in range(nodes)]


def _dirichlet(
    labels: NDArray[np.int32], nodes: int, config: PartitionConfig, seed: int
) -> list[Index]:
    classes, counts = np.unique(labels, return_counts=True)
    # Beyond 1e12 shares are equal to the last example, and sums of larger numbers overflow.
    alpha = np.full(nodes, min(config.alpha, 1e12))
    for attempt in range(MAX_DRAWS):
        g = generator("partition", "dirichlet", seed, attempt)
        shares = g.dirichlet(alpha, size=len(classes))
        cuts = np.rint(np.cumsum(shares, axis=1)[:, :-1] * counts[:, None]).astype(np.intp)
        sizes = np.diff(cuts, axis=1, prepend=0, append=counts[:, None]).sum(axis=0)
        if sizes.min() >= config.min_examples:
            break
    else:
        raise ConfigError(
            f"data.partition: in {MAX_DRAWS} draws of Dirichlet({config.alpha:g}) no one gave each "
            f"of {nodes} nodes min_examples ({config.min_examples}) of {len(labels)} examples: "
            "raise data.partition.alpha, or lower data.partition.nodes or min_examples"
        )
    groups: list[list[Index]] = [[] for _ in range(nodes)]
    for label, cut in zip(classes, cuts, strict=True):
        members = g.permutation(np.flatnonzero(labels == label))
        for group, piece in zip(groups, np.split(members, cut), strict=True):
            group.append(piece)
    return [np.concatenate(group) for group in groups]


def _shards(labels: NDArray[np.int32], nodes: int, shards_per_node: int, seed: int) -> list[Index]:
    count = nodes * shards_per_node
    if count > len(labels):
        raise ConfigError(
            f"data.partition.shards_per_node: found {shards_per_node}, so {nodes} nodes need "
            f"{count} shards of {len(labels)} examples: lower it or data.partition.nodes"
        )
    g = generator("partition", "shards", seed)
    order = g.permutation(len(labels))
    shards = np.array_split(order[np.argsort(labels[order], kind="stable")], count)
    dealt = g.permutation(count).reshape(nodes, shards_per_node)
    return [np.concatenate([shards[i] for i in own]) for own in dealt]


def _by_column(
    columns: Mapping[str, NDArray[Any]], config: PartitionConfig, seed: int
) -> list[Part]:
    column = config.column or ""  # PartitionConfig has seen to it that it is given
    if column not in columns:
        raise ConfigError(
            f"data.partition.column: found {describe(column)}, allowed: "
            f"{', '.join(columns) or 'none, for this data has no columns'}"
            f"{did_you_mean(column, columns)}"
        )
    values, inverse, counts = np.unique(columns[column], return_inverse=True, return_counts=True)
    members = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
    nodes = len(values) if config.nodes is None else config.nodes
    if nodes > len(values):
        raise ConfigError(
            f"data.partition.nodes: found {nodes}, but the column {describe(column)} has "
            f"{len(values)} values; allowed: 1 to {len(values)}"
        )
    if nodes == len(values):
        return list(zip(_named(column, values), members, strict=True))
    shuffled = generator("partition", "column", seed).permutation(len(values))
    groups: list[list[Index]] = [[] for _ in range(nodes)]
    sizes = np.zeros(nodes, np.intp)
    for value in shuffled[np.argsort(-counts[shuffled], kind="stable")]:
        smallest = int(sizes.argmin())
        groups[smallest].append(members[value])
        sizes[smallest] += counts[value]
    return [
        (name, np.concatenate(group)) for name, group in zip(_numbered(nodes), groups, strict=True)
    ]


def _named(column: str, values: NDArray[Any]) -> list[str]:
    """``column-value``, safe as a file name; what would be equal then is numbered."""
    names: list[str] = []
    used: set[str] = set()
    for value in values:
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", f"{column}-{value}")[:MAX_NAME]
        stem = re.sub(r"^[.-]", "_", plain)  # neither hidden nor an option
        name, number = stem, 1
        while name.casefold() in used:
            number += 1
            name = f"{stem}~{number}"  # '~' is in no stem, so that no later name is taken
        used.add(name.casefold())
        names.append(name)
    return names
