"""server/app.py and client/app.py in Flower's own simulation runtime end as the inline engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.app import Context, Message
from flwr.serverapp import ServerApp
from test_deployment import assert_close
from test_simulate import base, experiment, weights

from client.app import app as client_app
from server import simulate

__all__ = ["base"]

HERE = Path(__file__).parent


_RAY = """
import sys
sys.path.insert(0, sys.argv[1])
from test_flower_app import run_in_flower
run_in_flower(*sys.argv[2:])
"""


def run_in_flower(folder: str, out: str) -> None:
    """Both apps under ``flwr.simulation``, with the run's config that ``flwr run`` would bring."""
    from flwr.clientapp import ClientApp
    from flwr.simulation import run_simulation

    from server.app import app as server_app

    config = {"experiment": json.dumps(experiment().to_dict()), "base": folder}
    server, node = ServerApp(), ClientApp()

    @server.main()
    def main(grid: object, context: Context) -> None:
        c = context
        own = Context(c.run_id, c.node_id, c.node_config, c.state, {**config, "out": out})
        server_app(grid, own)  # type: ignore[arg-type]

    def with_config(message: Message, context: Context) -> Message:
        c = context
        return client_app(message, Context(c.run_id, c.node_id, c.node_config, c.state, config))

    node.train()(with_config)
    node.query("who")(with_config)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}
    run_simulation(server, node, num_supernodes=4, backend_config=resources)


@pytest.mark.slow
def test_the_apps_run_in_flowers_simulation(base: Path) -> None:
    pytest.importorskip("ray")
    out = base / "flower"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(base / "flwr-home")}
    done = subprocess.run(
        [sys.executable, "-c", _RAY, str(HERE), str(base), str(out)],
        capture_output=True,
        text=True,
        cwd=base,
        env={**os.environ, "PYTHONPATH": str(HERE), **quiet},
    )
    assert (out / "model.safetensors").exists(), done.stdout[-1000:] + done.stderr[-3000:]
    simulate.start(experiment(), base, base / "inline")
    assert_close(weights(out), weights(base / "inline"))  # Ray gives a node one thread
