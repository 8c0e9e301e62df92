"""The table of a model: shapes, parameters, operations, bytes, counted by hand."""

from __future__ import annotations

import pytest

from client.model import build_model
from server import console, describe

MODEL = {
    "name": "counted",
    "input": {"shape": [2, 8, 8]},
    "layers": [
        {"type": "conv2d", "name": "conv", "out_channels": 4, "kernel_size": 3, "padding": 1},
        "relu",
        {
            "type": "residual",
            "name": "block",
            "body": [{"type": "conv2d", "out_channels": 4, "kernel_size": 1, "bias": False}],
        },
        {"type": "maxpool2d", "kernel_size": 2},
        "flatten",
        {"type": "linear", "name": "fc", "out_features": 3},
    ],
}


@pytest.fixture
def value() -> dict[str, object]:
    return describe.describe(build_model(MODEL, "counted"))


def test_each_layer_is_counted(value: dict[str, object]) -> None:
    rows = {r["name"]: r for r in value["layers"]}  # type: ignore[attr-defined]
    assert list(rows) == ["conv", "1", "block.body.0", "block", "3", "4", "fc"]
    conv, body, add, pool, fc = (rows[n] for n in ("conv", "block.body.0", "block", "3", "fc"))
    assert conv == {
        "block": "conv",
        "name": "conv",
        "type": "conv2d",
        "output_shape": [4, 8, 8],
        "params": 4 * 2 * 9 + 4,
        "flops": 2 * (4 * 64) * (2 * 9),
        "params_bytes": 4 * 76,
        "output_bytes": 4 * 256,
    }
    assert (body["block"], body["params"], body["flops"]) == ("block", 16, 2 * 256 * 4)
    assert (add["type"], add["params"], add["flops"]) == ("add", 0, 256)
    assert (pool["output_shape"], pool["flops"]) == ([4, 4, 4], 4 * 64)
    assert (rows["4"]["output_shape"], rows["4"]["flops"]) == ([64], 0)
    assert (fc["params"], fc["flops"]) == (64 * 3 + 3, 2 * 64 * 3)


def test_sums_are_of_all_layers(value: dict[str, object]) -> None:
    rows = value["layers"]
    assert value["params"] == 76 + 16 + 195 == sum(r["params"] for r in rows)  # type: ignore[attr-defined]
    assert value["flops"] == sum(r["flops"] for r in rows)  # type: ignore[attr-defined]
    assert value["params_bytes"] == 4 * 287
    assert (value["input_shape"], value["classes"]) == ([2, 8, 8], 3)


def test_the_table_ends_with_the_sums(
    value: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    console.console().print(describe.render(value))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0][:4] == ["counted:", "input", "2x8x8,", "3"]
    assert lines[3] == ["conv", "conv2d", "4x8x8", "76", "9,216", "304", "B", "1.0", "KiB"]
    assert lines[-1][:2] == ["total", "287"]
