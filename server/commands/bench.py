"""Speed against named peers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client.errors import ConfigError
from client.fields import shipped_names
from server import console
from server.commands.options import Json, finish

ModelNames = Annotated[
    list[str] | None,
    typer.Option("--model", help="Model files or shipped ones, as in mlp,lenet5. All shipped."),
]
BatchSizes = Annotated[
    list[str] | None, typer.Option("--batch", help="As in 1,32. train: 1,8,32,128; else 32.")
]
WithPeer = Annotated[bool, typer.Option(help="PyTorch beside it (extra: peer).")]
BackendNames = Annotated[
    list[str] | None, typer.Option("--backend", help="As in numpy,opencl; all that work here.")
]


def listed(values: list[str] | None) -> list[str]:
    """Parts of an option that may be given several times and may hold commas."""
    return [part.strip() for value in values or [] for part in value.split(",") if part.strip()]


def batch_sizes(values: list[str] | None) -> list[int]:
    """The same as whole numbers; ConfigError where they are none."""
    sizes = listed(values)
    for size in sizes:
        if not (size.isascii() and size.isdecimal() and int(size) > 0):
            raise ConfigError(f"--batch: found '{size}', needs whole numbers from 1, as in 1,32")
    return [int(size) for size in sizes]


def train(
    models: ModelNames = None,
    batches: BatchSizes = None,
    backends: BackendNames = None,
    groups: Annotated[int, typer.Option(min=1, help="Interleaved timings per figure.")] = 15,
    peer: WithPeer = True,
    as_json: Json = False,
) -> None:
    """Time a training step of each model and backend against PyTorch on the CPU."""
    from server.bench import figures
    from server.bench.train import Settings, bench_train

    rows = bench_train(
        listed(models) or shipped_names("models"),
        batch_sizes(batches) or [1, 8, 32, 128],
        Settings(tuple(listed(backends)) or None, groups, peer),
        console.console(stderr=True).print,
    )
    summaries = figures.summarise(rows)
    out = console.console()
    out.print(figures.render(rows))
    for summary in summaries:
        out.print(str(summary), soft_wrap=True)
    value = {
        "rows": [row.to_json() for row in rows],
        "summary": [summary.to_json() for summary in summaries],
    }
    finish(value, as_json)


def kernels(
    models: ModelNames = None,
    batches: BatchSizes = None,
    backends: BackendNames = None,
    peer: WithPeer = True,
    as_json: Json = False,
) -> None:
    """Time each kernel of each model's training step against what the device can do."""
    from server.bench.kernels import bench_kernels, render

    report = bench_kernels(
        listed(models) or shipped_names("models"),
        batch_sizes(batches) or [32],
        listed(backends) or None,
        peer,
        console.console(stderr=True).print,
    )
    console.console().print(render(report))
    finish(report.to_json(), as_json)


def movement(
    models: ModelNames = None,
    batches: BatchSizes = None,
    groups: Annotated[int, typer.Option(min=1, help="Interleaved timings per figure.")] = 15,
    as_json: Json = False,
) -> None:
    """Train with every tensor moved around every block, and as pocketfed does it."""
    from server.bench.movement import MODELS, bench_movement, render

    rows = bench_movement(
        listed(models) or MODELS,
        batch_sizes(batches) or [32],
        groups,
        console.console(stderr=True).print,
    )
    console.console().print(render(rows))
    finish({"rows": [row.to_json() for row in rows]}, as_json)


def placement(
    models: ModelNames = None,
    batches: Annotated[list[str] | None, typer.Option("--batch", help="As in 8,32.")] = None,
    devices: Annotated[
        list[str] | None, typer.Option("--device", help="Pairs of processors, as in pocl; all.")
    ] = None,
    sample: Annotated[bool, typer.Option(help="Forty cells, always the same, instead.")] = False,
    out: Annotated[
        Path, typer.Option(help="Rows are kept there; a further call measures what is missing.")
    ] = Path("runs/placement.jsonl"),
    as_json: Json = False,
) -> None:
    """Is the layout that is chosen the best one? Hours; --sample: ten minutes."""
    from server.bench.placement import grid, run, scoring

    pairs = run.pairs_here()
    if sample:
        if models or batches or devices:
            raise ConfigError("--sample: is a fixed set of cells: leave out --model, --batch, …")
        cells = grid.sample()
    else:
        pairs = grid.find(listed(devices), pairs)
        cells = grid.grid(
            listed(models) or grid.MODELS, batch_sizes(batches) or grid.BATCHES, pairs
        )
    rows = run.bench_placement(cells, pairs, out, console.console(stderr=True).print)
    summary = scoring.summarise(rows)
    console.console().print(run.render(rows))
    for line in summary.lines():
        console.console().print(line, soft_wrap=True)
    finish(run.as_json(rows, summary), as_json)
