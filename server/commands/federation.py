"""Runs of a federation: simulated, served, joined, bundled, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from client.config import load_experiment
from client.errors import ConfigError
from server import console
from server.commands.options import (
    ExperimentFile,
    Explain,
    Init,
    Json,
    Resume,
    RunFolder,
    Settings,
    finish,
)


def simulate(
    experiment: ExperimentFile = None,
    settings: Settings = None,
    out: RunFolder = None,
    init: Init = None,
    resume: Resume = None,
    replay: Annotated[
        Path | None, typer.Option(help="Repeat this run with its recorded placements.")
    ] = None,
    engine: Annotated[
        Literal["inline", "ray"],
        typer.Option(help="inline: in this process, in turn; ray: Flower's simulation runtime."),
    ] = "inline",
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Train in a worker process that may crash or hang.")
    ] = False,
    explain: Explain = False,
    as_json: Json = False,
) -> None:
    """Run a federation on this machine."""
    from server import live
    from server import simulate as simulation

    given = [
        name
        for name, v in (("EXPERIMENT", experiment), ("--resume", resume), ("--replay", replay))
        if v
    ]
    if len(given) != 1:
        raise ConfigError(
            f"simulate: found {' and '.join(given) or 'none'}, "
            "needs one of: EXPERIMENT, --resume RUN, --replay RUN"
        )
    if experiment is None and (settings or init):
        raise ConfigError(f"simulate: --set and --init go with EXPERIMENT, not with {given[0]}")
    if resume is not None and out is not None:
        raise ConfigError("simulate: --out does not go with --resume: the run keeps its folder")
    with live.view() as observer:
        if experiment is not None:
            loaded = load_experiment(experiment, tuple(settings or ()))
            result = simulation.start(
                loaded, experiment.parent, out, observer, init, engine, isolate
            )
        elif resume is not None:
            result = simulation.resume(resume, observer, engine, isolate)
        else:
            assert replay is not None
            result = simulation.replay(replay, out, observer, engine, isolate)
    live.summary(result, explain)
    finish(result.to_json(), as_json)


def serve(
    experiment: ExperimentFile = None,
    settings: Settings = None,
    out: RunFolder = None,
    init: Init = None,
    host: Annotated[str, typer.Option(help="This machine alone, in this version.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where nodes connect.")] = 8000,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes to wait for; by default the experiment's.")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for missing nodes.")] = 600,
    resume: Resume = None,
    explain: Explain = False,
    as_json: Json = False,
) -> None:
    """Run a federation of real nodes, which connect by `pocketfed join`."""
    from server import live
    from server import serve as serving

    if (experiment is None) == (resume is None):
        found = "both" if experiment else "none"
        raise ConfigError(f"serve: found {found}, needs one of: EXPERIMENT, --resume RUN")
    if resume is not None and (settings or init or out):
        raise ConfigError("serve: --set, --init and --out go with EXPERIMENT, not with --resume")
    serving.check_host(host)
    serving.check_wait(wait)
    with live.view() as observer:
        if experiment is not None:
            loaded = load_experiment(experiment, tuple(settings or ()))
            result = serving.start(
                loaded, experiment.parent, port, observer, out, nodes, wait, init
            )
        else:
            assert resume is not None
            result = serving.resume(resume, port, observer, nodes, wait)
    live.summary(result, explain)
    finish(result.to_json(), as_json)


def join(
    server: Annotated[str, typer.Option(help="HOST:PORT of the server.")],
    data_file: Annotated[Path, typer.Option("--data", help="This node's examples (.npz).")],
    name: Annotated[str | None, typer.Option(help="By default the data file's name.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="Train on this backend, whatever the experiment says.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder of this node's own, kept over restarts.")
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option("--model", help="For a server that is not pocketfed's: what to train."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="With --model, as in train.lr=0.05.")
    ] = None,
) -> None:
    """Make this machine a node, until Ctrl-C."""
    from client.join import describe
    from client.join import join as stay

    node = describe(server, data_file, name, backend, state, own, tuple(settings or ()))
    stay(node, typer.echo)


def bundle(
    experiment: Annotated[Path, typer.Argument(help="The experiment's YAML file.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    settings: Settings = None,
) -> None:
    """Write a folder for `flwr run`, with the experiment and no code."""
    from server.engine.bundle import write_bundle

    write_bundle(load_experiment(experiment, tuple(settings or ())), experiment.parent, out)
    console.console().print(f"written: {out}", soft_wrap=True)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    by: Annotated[
        Literal["node", "device"], typer.Option(help="A row per node or device.")
    ] = "device",
    csv: Annotated[Path | None, typer.Option(help="Write a line per node and round.")] = None,
    explain: Explain = False,
    as_json: Json = False,
) -> None:
    """Show, device by device, where round time went."""
    from server import compare as comparison
    from server.explain import show

    rows = comparison.read_runs(runs)
    console.console().print(comparison.render(rows, by))
    if explain:
        show(rows)
    if csv is not None:
        comparison.write_csv(csv, rows)
    finish(comparison.as_json(rows), as_json)
