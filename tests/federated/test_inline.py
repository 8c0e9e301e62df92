"""The inline engine keeps Flower's contract: its strategies run on it as in Flower's runtimes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Strategy

from client.errors import DeviceError
from server.engine.inline import SERVER_NODE_ID, InlineGrid

HERE = Path(__file__).parent
NAMES = ["a", "b", "c"]
EXAMPLES = [2, 2, 4]  # shares of a quarter and a half: means are exact in whatever order

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Weights move by steps of 1/8 that depend on the node and on the round.

    Not on the node's state: Flower's Ray runtime, on a slow machine, may hand a node its next
    message before it has stored the state of the last.
    """
    part = int(context.node_config["partition-id"])
    rounds = int(context.state.get("seen", MetricRecord({"rounds": 0}))["rounds"]) + 1
    context.state["seen"] = MetricRecord({"rounds": rounds})
    number = int(message.content["config"].get("server-round", 1))
    w = message.content["arrays"]["w"].numpy() + np.float32((part + 1) * number / 8)
    metrics = MetricRecord({"num-examples": EXAMPLES[part], "loss": 0.5})
    content = {"arrays": ArrayRecord({"w": Array(w)}), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """A number that the weights decide."""
    total = float(message.content["arrays"]["w"].numpy().sum())
    metrics = MetricRecord({"num-examples": 4, "total": total})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def start(grid: Any, strategy: Strategy, rounds: int = 3) -> Any:
    initial = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
    return strategy.start(grid, initial, num_rounds=rounds)


def test_flowers_own_loop_runs_on_it() -> None:
    """The expected number by hand: (part + 1) / 8 a round, in shares of 1/4, 1/4, 1/2."""
    result = start(InlineGrid(app, NAMES, {}), FedAvg())
    mean = (1 / 4 + 2 / 4 + 3 / 2) / 8
    expected = np.full(4, mean * (1 + 2 + 3), np.float32)
    np.testing.assert_array_equal(result.arrays["w"].numpy(), expected)
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2, 3]


def test_strategies_that_take_replies_apart_find_fresh_ones() -> None:
    """FedMedian empties the replies that it is given: neither nodes nor later rounds may suffer."""
    result = start(InlineGrid(app, NAMES, {}), FedMedian())
    np.testing.assert_array_equal(result.arrays["w"].numpy(), np.float32(2 / 8 * (1 + 2 + 3)))


def _push(grid: InlineGrid, ttl: float | None = None) -> list[str]:
    record = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
    content = RecordDict({"arrays": record, "config": ConfigRecord({"x": 1})})
    messages = [Message(content, node_id, "train", ttl=ttl) for node_id in grid.get_node_ids()]
    return grid.push_messages(messages)


def test_each_pull_lets_one_node_work() -> None:
    started: list[int] = []
    grid = InlineGrid(app, NAMES, {"k": 1}, on_start=started.append)
    ids = _push(grid)
    assert started == []
    for i, message_id in enumerate(ids):
        (reply,) = grid.pull_messages(ids)
        assert reply.metadata.reply_to_message_id == message_id
        assert reply.metadata.src_node_id == grid.get_node_ids()[i]
        assert len(started) == i + 1
    assert grid.pull_messages(ids) == []


def test_a_node_knows_its_name_and_keeps_its_state() -> None:
    grid = InlineGrid(app, NAMES, {"k": 1})
    for _ in range(2):
        grid.send_and_receive([])
        ids = _push(grid)
        while grid.pull_messages(ids):
            pass
    for i, context in enumerate(grid.contexts.values()):
        assert context.node_config == {"partition-id": i, "num-partitions": 3, "name": NAMES[i]}
        assert context.run_config == {"k": 1}
        assert context.state["seen"]["rounds"] == 2


def test_no_node_can_change_what_another_sees() -> None:
    seen = []

    def greedy(message: Message, context: Context) -> Message:
        seen.append((dict(message.content["config"]), message.content["arrays"]["w"].numpy()))
        message.content["arrays"]["w"].data = b"gone"
        message.content["config"]["x"] = 2
        del message.content["arrays"]["w"]
        return Message(RecordDict(), reply_to=message)

    grid = InlineGrid(greedy, NAMES, {})
    ids = _push(grid)
    while grid.pull_messages(ids):
        pass
    assert len(seen) == 3
    for config, w in seen:
        assert config == {"x": 1}
        np.testing.assert_array_equal(w, np.zeros(4))


def test_what_a_node_keeps_is_its_own_though_it_sent_it() -> None:
    """FedMedian empties the reply, not what the node remembers of it."""

    def keeper(message: Message, context: Context) -> Message:
        answer = train(message, context)
        context.state["sent"] = answer.content["arrays"]
        return answer

    grid = InlineGrid(keeper, NAMES, {})
    FedMedian(fraction_evaluate=0.0).start(
        grid, ArrayRecord({"w": Array(np.zeros(4, np.float32))}), num_rounds=1
    )
    assert [list(c.state["sent"]) for c in grid.contexts.values()] == [["w"]] * 3


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DeviceError("cpu: lost"), "cpu: lost"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
)
def test_a_nodes_exception_is_an_error_reply(error: Exception, reason: str) -> None:
    def broken(message: Message, context: Context) -> Message:
        raise error

    grid = InlineGrid(broken, NAMES, {})
    reply = grid.pull_messages(_push(grid))[0]
    assert (reply.error.code, reply.error.reason) == (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
    assert reply.metadata.src_node_id == grid.get_node_ids()[0]


def test_ctrl_c_passes_through() -> None:
    def stopped(message: Message, context: Context) -> Message:
        raise KeyboardInterrupt

    grid = InlineGrid(stopped, NAMES, {})
    ids = _push(grid)
    with pytest.raises(KeyboardInterrupt):
        grid.pull_messages(ids)


def test_a_message_that_outlived_its_time_is_answered_as_flower_does() -> None:
    def unreachable(message: Message, context: Context) -> Message:
        raise AssertionError("an expired message must not reach its node")

    grid = InlineGrid(unreachable, NAMES, {})
    ids = _push(grid, ttl=1e-9)
    reply = grid.pull_messages(ids)[0]
    assert reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert reply.metadata.src_node_id == SERVER_NODE_ID
    assert reply.metadata.reply_to_message_id == ids[0]


def run_strategies(grid: Any) -> dict[str, list[float]]:
    """Weights after rounds of three strategies, one after the other on the same nodes."""
    # Flower's runtime brings nodes one by one, and a strategy decides how many to sample before it
    # waits for those that are missing: a fraction alone would sample two of three.
    everyone: dict[str, Any] = dict.fromkeys(
        ("min_available_nodes", "min_train_nodes", "min_evaluate_nodes"), len(NAMES)
    )
    results = {
        "fedavg": start(grid, FedAvg(**everyone), 3),
        "fedmedian": start(grid, FedMedian(**everyone), 3),
        "fedadam": start(grid, FedAdam(**everyone), 1),
    }
    return {name: result.arrays["w"].numpy().tolist() for name, result in results.items()}


_RAY = """
import json, sys
sys.path.insert(0, sys.argv[1])
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from test_inline import NAMES, app, run_strategies
server = ServerApp()
@server.main()
def main(grid, context):
    print("RESULT", json.dumps(run_strategies(grid)), flush=True)
resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}
run_simulation(server, app, num_supernodes=len(NAMES), backend_config=resources)
"""


@pytest.mark.slow
def test_flowers_ray_runtime_gives_equal_weights(tmp_path: Path) -> None:
    """The same app, the same strategies, in Flower's simulation runtime."""
    pytest.importorskip("ray")
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(tmp_path / "flwr")}
    done = subprocess.run(
        [sys.executable, "-c", _RAY, str(HERE)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HERE), **quiet},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    assert json.loads(lines[0].removeprefix("RESULT ")) == run_strategies(
        InlineGrid(app, NAMES, {})
    )
