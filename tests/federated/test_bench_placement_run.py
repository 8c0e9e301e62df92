"""The placement bench with real processes, devices and choices: one small cell of two pairs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from client import backends
from client.errors import DeviceError
from server.cli import run
from tests import fakes


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a pair of processors needs two cores")
def test_a_cell_of_each_kind_of_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = backends.get("opencl").devices()
    except DeviceError:
        found = []
    if not any(info.kind == "cpu" for info in found):
        pytest.skip("the processors beside numpy are PoCL's")
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))
    model, out = tmp_path / "small.yaml", tmp_path / "rows.jsonl"
    model.write_text(yaml.safe_dump(fakes.MODEL))
    arguments = ["bench", "placement", "--model", str(model), "--batch", "8"]
    arguments += ["--device", "pocl,x2@1GB/s", "--out", str(out), "--json"]
    assert run(arguments) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [row["device"] for row in rows] == ["pocl", "x2@1GB/s"]
    for row in rows:
        assert row["regret"] >= 0
        assert row["planning_share"] > 0
        assert row["oracle_s"] <= min(row["always_cpu_s"], row["always_gpu_s"], row["chosen_s"])
    lines = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    assert len(lines) == 2
    for line in lines:
        assert len(line["timed"]) >= 2**4 + 9
    assert any(name.startswith("emulated") for name in lines[1]["timed"])
