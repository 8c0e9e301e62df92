"""Models: their layers, and what trained ones make of data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client import data
from client.backends import REFERENCE
from client.backends import get as get_backend
from client.model import load_model
from server import console
from server.commands.options import BackendName, Json, finish


def model(
    path: Annotated[Path, typer.Argument(help="A model's YAML, or the name of a shipped one.")],
    as_json: Json = False,
) -> None:
    """Print shapes, parameters, operations and bytes of each layer."""
    from server import describe

    value = describe.describe(load_model(path))
    console.console().print(describe.render(value))
    finish(value, as_json)


def plan(
    path: Annotated[Path, typer.Argument(help="A model's YAML, or the name of a shipped one.")],
    profile: Annotated[
        Path | None, typer.Option(help="Plan for the processors of this profile, not for these.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Examples of a training step.")] = 32,
    measure: Annotated[
        bool, typer.Option("--measure", help="Train so for some seconds: predicted and measured.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say of each way to train why it is where it is.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What a model's blocks cost on each processor, and where they are best trained."""
    from client.placement.profile import load
    from server import plan as planning

    say = console.console(stderr=True).print
    model = load_model(path)
    found = planning.plan(model, load(profile) if profile else planning.profile_here(say), batch)
    if measure:
        found = planning.measure(found, say)
    for table in planning.render(found):
        console.console().print(table)
    for line in planning.explain(found) if explain else []:
        console.console().print(line)
    console.console().print(planning.sentence(found))
    finish(planning.as_json(found), as_json)


def evaluate(
    path: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file of a run.")],
    source: Annotated[
        str, typer.Option("--data", help="A packaged set (mnist, …) or a data file.")
    ],
    backend: BackendName = REFERENCE,
    as_json: Json = False,
) -> None:
    """Loss and accuracy of a trained model on labelled data."""
    from server import inference

    get_backend(backend)
    trained = inference.load_trained(path)
    cut = data.cut_for(trained.model, trained.loss)
    value = inference.evaluate(trained, data.load(source, None, cut), backend)
    figures = console.figures(value["accuracy"], value["loss"])
    title = f"{value['model']} on {value['data']}: {figures}"
    rows = [[c, str(v["examples"]), f"{v['accuracy']:.4f}"] for c, v in value["classes"].items()]
    table = console.table(title, ["class", "examples", "accuracy"], rows)
    console.console().print(table if rows else title)
    finish(value, as_json)


def predict(
    path: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file of a run.")],
    source: Annotated[
        str, typer.Option("--data", help="A packaged set (mnist, …) or a data file.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write all predictions to this CSV file.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Print this many.")] = 10,
    backend: BackendName = REFERENCE,
    as_json: Json = False,
) -> None:
    """The class of each example, with its probability, or the model's outputs by its loss."""
    from server import inference

    get_backend(backend)
    found = inference.predict(inference.load_trained(path), source, backend)
    shown = [
        [str(v) if isinstance(v, int) else f"{v:.4f}" for v in row] for row in found.rows[:limit]
    ]
    several = "examples" if len(found.columns) == 3 and "class" in found.columns else "predictions"
    title = f"{path.name} on {source}: {len(shown)} of {len(found.rows)} {several}"
    console.console().print(console.table(title, list(found.columns), shown))
    if out is not None:
        inference.write_predictions(out, found)
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    finish({"predictions": rows}, as_json)
