"""The commands, one function each: read arguments, call, print a table, print JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import typer.core

from client import __version__, data
from client.backends import get as get_backend
from client.config import DataConfig, PartitionConfig, load_experiment
from client.errors import ConfigError
from client.fields import shipped_names
from client.model import load_model
from server import console

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
data_app = typer.Typer(help="Prepare data for nodes.", no_args_is_help=True)
bench_app = typer.Typer(help="Measure speed against named peers.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
ExperimentFile = Annotated[Path | None, typer.Argument(help="The experiment's YAML file.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Override, as in train.lr=0.05.")]
RunFolder = Annotated[Path | None, typer.Option("--out", help="The run's folder.")]
Init = Annotated[Path | None, typer.Option(help="Start from this model file.")]
Resume = Annotated[Path | None, typer.Option(help="Go on with this run.")]
BackendName = Annotated[str, typer.Option("--backend", help="numpy or opencl.")]


ModelNames = Annotated[
    list[str] | None,
    typer.Option("--model", help="Model files or shipped ones, as in mlp,lenet5. All shipped."),
]
BatchSizes = Annotated[
    list[str] | None, typer.Option("--batch", help="As in 1,32. train: 1,8,32,128; kernels: 32.")
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


def _finish(value: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(console.json_line(value))


@app.command()
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
    live.summary(result)
    _finish(result.to_json(), as_json)


@app.command()
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
    live.summary(result)
    _finish(result.to_json(), as_json)


@app.command()
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


@app.command()
def bundle(
    experiment: Annotated[Path, typer.Argument(help="The experiment's YAML file.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    settings: Settings = None,
) -> None:
    """Write a folder for `flwr run`, with the experiment and no code."""
    from server.engine.bundle import write_bundle

    write_bundle(load_experiment(experiment, tuple(settings or ())), experiment.parent, out)
    console.console().print(f"written: {out}", soft_wrap=True)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    by: Annotated[
        Literal["node", "device"], typer.Option(help="A row per node or device.")
    ] = "device",
    csv: Annotated[Path | None, typer.Option(help="Write a line per node and round.")] = None,
    as_json: Json = False,
) -> None:
    """Show, device by device, where round time went."""
    from server import compare as comparison

    rows = comparison.read_runs(runs)
    console.console().print(comparison.render(rows, by))
    if csv is not None:
        comparison.write_csv(csv, rows)
    _finish(comparison.as_json(rows), as_json)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check this machine, and say how to mend what is wrong."""
    from server import doctor as examination

    findings = examination.examine(Path("runs"))
    console.console().print(examination.render(findings))
    value = examination.as_json(findings)
    _finish(value, as_json)
    if not value["healthy"]:
        raise typer.Exit(1)


@app.command()
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
    _finish({"devices": rows}, as_json)


@app.command()
def model(
    path: Annotated[Path, typer.Argument(help="A model's YAML, or the name of a shipped one.")],
    as_json: Json = False,
) -> None:
    """Print shapes, parameters, operations and bytes of each layer."""
    from server import describe

    value = describe.describe(load_model(path))
    console.console().print(describe.render(value))
    _finish(value, as_json)


@app.command()
def evaluate(
    path: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file of a run.")],
    source: Annotated[
        str, typer.Option("--data", help="A packaged set (mnist, …) or a data file.")
    ],
    backend: BackendName = "numpy",
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
    _finish(value, as_json)


@app.command()
def predict(
    path: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file of a run.")],
    source: Annotated[
        str, typer.Option("--data", help="A packaged set (mnist, …) or a data file.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write all predictions to this CSV file.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Print this many.")] = 10,
    backend: BackendName = "numpy",
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
    _finish({"predictions": rows}, as_json)


@data_app.command("split")
def data_split(
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
    _finish({"files": files}, as_json)


@bench_app.command("train")
def bench_train(
    models: ModelNames = None,
    batches: BatchSizes = None,
    backends: BackendNames = None,
    groups: Annotated[int, typer.Option(min=1, help="Interleaved timings per figure.")] = 15,
    peer: WithPeer = True,
    as_json: Json = False,
) -> None:
    """Time a training step of each model and backend against PyTorch on the CPU."""
    from server.bench import figures, train

    rows = train.bench_train(
        listed(models) or shipped_names("models"),
        batch_sizes(batches) or [1, 8, 32, 128],
        train.Settings(tuple(listed(backends)) or None, groups, peer),
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
    _finish(value, as_json)


@bench_app.command("kernels")
def bench_kernels(
    models: ModelNames = None,
    batches: BatchSizes = None,
    backends: BackendNames = None,
    peer: WithPeer = True,
    as_json: Json = False,
) -> None:
    """Time each kernel of each model's training step against what the device can do."""
    from server.bench import kernels

    report = kernels.bench_kernels(
        listed(models) or shipped_names("models"),
        batch_sizes(batches) or [32],
        listed(backends) or None,
        peer,
        console.console(stderr=True).print,
    )
    console.console().print(kernels.render(report))
    _finish(report.to_json(), as_json)
