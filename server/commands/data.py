"""Data for nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client import data
from client.config import DataConfig, PartitionConfig
from server import console
from server.commands.options import Json, finish


def split(
    source: Annotated[str, typer.Argument(help="A packaged set (mnist, …) or a data file.")],
    out: Annotated[Path, typer.Option(help="Folder for one .npz per node.")],
    nodes: Annotated[int | None, typer.Option(help="Number of nodes.")] = None,
    kind: Annotated[str, typer.Option(help="iid, contiguous, dirichlet, shards, column.")] = "iid",
    alpha: Annotated[float, typer.Option(help="dirichlet: small is uneven.")] = 0.5,
    shards_per_node: Annotated[int, typer.Option(help="shards: how many each.")] = 2,
    column: Annotated[str | None, typer.Option(help="column: its name.")] = None,
    min_examples: Annotated[int, typer.Option(help="Least examples of a node.")] = 1,
    holdout: Annotated[int, typer.Option(help="Examples kept in holdout.npz.")] = 0,
    seed: Annotated[int, typer.Option(help="Equal seeds, equal parts.")] = 0,
    as_json: Json = False,
) -> None:
    """Share a data set out to one file per node."""
    from client.fields import parse

    settings = {
        "kind": kind,
        "nodes": nodes,
        "alpha": alpha,
        "shards_per_node": shards_per_node,
        "column": column,
        "min_examples": min_examples,
    }
    config = parse(PartitionConfig, settings, "data split")
    rest, held_out = data.load(source), None
    DataConfig(source, config, holdout)
    if holdout:
        rest, held_out = data.split_holdout(rest, holdout, seed)
    parts = data.partition(rest.y, rest.columns, config, seed)
    written = data.write_parts([(n, rest.subset(i)) for n, i in parts], out, held_out)
    rows = [
        [w.path.name, str(w.num_examples), " ".join(f"{c}:{k}" for c, k in w.class_counts.items())]
        for w in written
    ]
    console.console().print(console.table(str(out), ["file", "examples", "class:count"], rows))
    files = [
        {"file": str(w.path), "examples": w.num_examples, "classes": w.class_counts}
        for w in written
    ]
    finish({"files": files}, as_json)
