"""Speed against named peers."""

from __future__ import annotations

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
