"""A stock Flower node with a server of ours, and nodes of ours with a stock Flower server."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines import LIMIT_S, Machines, machines, quiet_port, wait_until
from test_deployment import EXPERIMENT, join, node_rounds, prepare, result

from client.config import load_experiment
from client.errors import ConfigError
from client.join import describe
from client.model import build_model, initialise
from server.store import Store

BIN = Path(sys.executable).parent


@pytest.fixture
def here(tmp_path: Path) -> Any:
    """Machines on a port of their own; all are ended at the end."""
    with machines(tmp_path) as found:
        yield found


def flower(here: Machines) -> dict[str, str]:
    """The environment of Flower's own programs."""
    return {
        "PATH": os.pathsep.join([str(BIN), os.defpath]),
        "FLWR_HOME": str(here.folder / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


PLAIN_PYTORCH = """
import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    model = torch.nn.Sequential()
    model.add_module("fc1", torch.nn.Linear(6, 8))
    model.add_module("relu", torch.nn.ReLU())
    model.add_module("fc2", torch.nn.Linear(8, 3))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = np.load(context.node_config["file"])
    x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"]).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(x), "train_loss": loss.item()})
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)
"""


@pytest.mark.slow
def test_a_stock_node_takes_part_if_the_experiment_allows_it(here: Machines) -> None:
    pytest.importorskip("torch")
    prepare(here.folder, data={"partition": {"nodes": 2}})
    (here.folder / "plain" / "client").mkdir(parents=True)
    (here.folder / "plain" / "client" / "__init__.py").touch()
    (here.folder / "plain" / "client" / "app.py").write_text(PLAIN_PYTORCH)
    allowed = ("--set", "federation.allow_foreign=true")
    server = here.serve("server", "small.yaml", "--out", "run", *allowed)
    join(here, 0)
    server.waits_for("node-0: joined")
    here.start(
        "stock",
        str(BIN / "flower-supernode"),
        "--insecure",
        *("--superlink", f"127.0.0.1:{here.port}"),
        *("--port", str(quiet_port())),
        *("--node-config", f"file='{here.folder / 'parts' / 'node-1.npz'}'"),
        **flower(here),
        PYTHONPATH=str(here.folder / "plain"),
    )
    assert server.ends() == 0, server.text()
    rows = node_rounds(here.folder / "run")
    (name,) = {r.partition for r in rows if r.partition.startswith("foreign-")}
    foreign = [r for r in rows if r.partition == name]
    assert [(r.round, r.status, r.record) for r in foreign] == [(n, "ok", None) for n in (1, 2, 3)]
    assert all(r.dispatch_to_reply_s and r.bytes_up for r in foreign)
    assert f"{name}: 3 rounds" in server.text()
    assert "phases unknown" in server.text()
    assert result(server)["final_accuracy"] > 0.8
    with Store.read(here.folder / "run" / "run.db") as store:
        assert all(r.replies == 2 and r.train_loss is None for r in store.rounds())


PROJECT = """
[project]
name = "stock"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "stock.server_app:app"
clientapp = "stock.client_app:app"
"""

STOCK_SERVER = """
import json

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    initial = ArrayRecord({{k: Array(v) for k, v in np.load({initial!r}).items()}})
    config = ConfigRecord({{"lr": 0.02}})
    result = FedAvg().start(grid, initial, num_rounds=2, train_config=config)
    metrics = {{n: dict(m) for n, m in result.train_metrics_clientapp.items()}}
    metrics["evaluated"] = {{n: dict(m) for n, m in result.evaluate_metrics_clientapp.items()}}
    np.savez({final!r}, **{{k: v.numpy() for k, v in result.arrays.items()}})
    open({metrics!r}, "w").write(json.dumps(metrics))
"""

STOCK_CLIENT = """
from pathlib import Path

from flwr.clientapp import ClientApp

Path({marker!r}).touch()
app = ClientApp()
"""

CONNECTION = """
[superlink]
default = "here"

[superlink.here]
address = "127.0.0.1:{port}"
insecure = true
"""


@pytest.mark.slow
def test_nodes_of_ours_train_for_a_stock_server(here: Machines) -> None:
    """With a model of their own; the code in the run's bundle is not run on them."""
    file = prepare(here.folder, data={"partition": {"nodes": 2}, "node_holdout": 0.2})
    paths = {name: str(here.folder / name) for name in ("final.npz", "metrics.json", "marker")}
    model = build_model(load_experiment(file).model, "small")
    before = model.views(initialise(model, 1))
    np.savez(here.folder / "initial.npz", **before)
    package = here.folder / "app" / "stock"
    package.mkdir(parents=True)
    (here.folder / "app" / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").touch()
    code = STOCK_SERVER.format(
        initial=str(here.folder / "initial.npz"),
        final=paths["final.npz"],
        metrics=paths["metrics.json"],
    )
    (package / "server_app.py").write_text(code)
    (package / "client_app.py").write_text(STOCK_CLIENT.format(marker=paths["marker"]))
    (here.folder / "flower").mkdir()
    (here.folder / "flower" / "config.toml").write_text(CONNECTION.format(port=here.port))
    where = ("--host", "127.0.0.1", "--port", str(here.port))
    link = str(BIN / "flower-superlink")
    server = here.start("superlink", link, "--insecure", *where, **flower(here))
    own = ("--model", "small.yaml")
    for i in range(2):
        here.join(f"node-{i}", here.folder / "parts" / f"node-{i}.npz", *own)
    server.waits_for("Uvicorn running")
    run = here.start("flwr", str(BIN / "flwr"), "run", str(here.folder / "app"), **flower(here))
    assert run.ends() == 0, run.text()
    metrics = here.folder / "metrics.json"
    wait_until(metrics.exists, LIMIT_S, lambda: "\n".join(p.text() for p in here.programs))
    wait_until(metrics.read_text, LIMIT_S, lambda: "empty")
    reported = json.loads(metrics.read_text())
    assert set(reported["1"]) == {"train_loss"}
    assert reported["2"]["train_loss"] < reported["1"]["train_loss"]
    assert set(reported["evaluated"]["2"]) == {"eval_loss", "eval_acc"}
    assert not Path(paths["marker"]).exists()
    after = np.load(here.folder / "final.npz")
    assert set(after.files) == set(before)
    assert any(not np.array_equal(after[name], before[name]) for name in before)


def test_a_model_alone_needs_a_learning_rate(tmp_path: Path) -> None:
    prepare(tmp_path)
    data = tmp_path / "parts" / "node-0.npz"
    model = tmp_path / "model.yaml"
    model.write_text(json.dumps(EXPERIMENT["model"]))
    with pytest.raises(ConfigError, match=r"says nothing of training: add --set train.lr=0.05"):
        describe("localhost:1", data, model=model)
    node = describe("localhost:1", data, model=model, settings=("train.lr=0.5",))
    assert node.experiment is not None
    assert node.experiment.train.lr == 0.5
    with pytest.raises(ConfigError, match="--set goes with --model"):
        describe("localhost:1", data, settings=("train.lr=0.5",))
