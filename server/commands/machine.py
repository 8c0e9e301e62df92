"""This machine: is it sound, what do its processors and links do, which kernels are fast on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from server import console
from server.commands.options import Json, finish


def doctor(as_json: Json = False) -> None:
    """Check this machine, and say how to mend what is wrong."""
    from server import doctor as examination

    findings = examination.examine(Path("runs"))
    console.console().print(examination.render(findings))
    value = examination.as_json(findings)
    finish(value, as_json)
    if not value["healthy"]:
        raise typer.Exit(1)


def tune(
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="A shipped model or its YAML; mlp, lenet5, femnist_cnn."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="For batches of this size.")] = 32,
    budget: Annotated[str, typer.Option(help="Time for each device, as 30s or 2m.")] = "30s",
    as_json: Json = False,
) -> None:
    """Measure kernel variants on the devices here; what is faster is used from then on."""
    from server import tune as tuning

    say = console.console(stderr=True).print
    rows = tuning.tune(models or [], batch, tuning.seconds(budget), lambda text: say(text))
    cells = [[row["backend"], row["device"], row["tuning"]] for row in rows]
    columns = ["backend", "device", "found"]
    console.console().print(console.table("pocketfed tune", columns, cells, fold=("found",)))
    finish({"devices": rows}, as_json)


def probe(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the profile to this YAML file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the processors here and their links to the host; kept, and used from then on."""
    from client.placement.probe import keep
    from server import probe as probing

    profile = probing.measure(console.console(stderr=True).print)
    keep(profile)
    if output is not None:
        probing.write(profile, output)
    for table in probing.render(profile):
        console.console().print(table)
    finish(probing.as_json(profile), as_json)
