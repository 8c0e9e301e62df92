"""What several commands share: options, and the JSON that ends them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from server import console

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
ExperimentFile = Annotated[Path | None, typer.Argument(help="The experiment's YAML file.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Override, as in train.lr=0.05.")]
RunFolder = Annotated[Path | None, typer.Option("--out", help="The run's folder.")]
Init = Annotated[Path | None, typer.Option(help="Start from this model file.")]
Resume = Annotated[Path | None, typer.Option(help="Go on with this run.")]
Explain = Annotated[
    bool,
    typer.Option("--explain", help="Say why nodes trained where they did."),
]
BackendName = Annotated[str, typer.Option("--backend", help="numpy or opencl.")]


def finish(value: dict[str, Any], as_json: bool) -> None:
    """Print the result as one JSON object, where it was asked for."""
    if as_json:
        typer.echo(console.json_line(value))
