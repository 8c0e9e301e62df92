"""The commands, one function each: read arguments, call, print a table, print JSON."""

from __future__ import annotations

from typing import Annotated

import typer
import typer.core

from client import __version__
from server.commands import bench, data, federation, machine, models

# otherwise typer escapes for rich what click then prints: "\\[default: 10]"
typer.core.HAS_RICH = False

app = typer.Typer(
    help="Federated learning on devices: who trained where, and where each round's time went.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    suggest_commands=False,  # click does
)

for command in (
    federation.simulate,
    federation.serve,
    federation.join,
    federation.bundle,
    federation.compare,
    machine.doctor,
    machine.probe,
    machine.tune,
    models.model,
    models.plan,
    models.evaluate,
    models.predict,
):
    app.command()(command)

data_app = typer.Typer(help="Prepare data for nodes.", no_args_is_help=True)
data_app.command()(data.split)
app.add_typer(data_app, name="data")

bench_app = typer.Typer(help="Measure speed against named peers.", no_args_is_help=True)
bench_app.command()(bench.train)
bench_app.command()(bench.kernels)
bench_app.command()(bench.movement)
bench_app.command()(bench.placement)
app.add_typer(bench_app, name="bench")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"pocketfed {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the command itself; its help stands above."""
