"""`pocketfed bench kernels`: its arithmetic on invented times, and a whole run on a tiny model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from client.backends.device_info import DeviceInfo
from client.backends.figures import Command, Peaks
from client.model import build_model
from server.bench import kernels
from server.bench.torch_parts import median_s
from tests import fakes

INFO = DeviceInfo("opencl", "a device", "gpu")
PEAKS = Peaks(1e9, ((1000, 4e6), (10_000, 1e6)), "invented")

CONV = Command("conv", "forward", "conv_forward", "4x4", "compute", 2000, 500, 4e-6)


def model() -> kernels.Model:
    layers = [
        {"type": "conv2d", "name": "conv", "out_channels": 2, "kernel_size": 3},
        "flatten",
        {"type": "linear", "name": "fc", "out_features": 3},
    ]
    return build_model({"name": "m", "input": {"shape": [1, 6, 6]}, "layers": layers}, "m")


def test_a_copy_of_the_kernels_own_size_is_the_roof() -> None:
    assert [PEAKS.nbytes_per_s(n) for n in (1, 1000, 1001, 10**9)] == [4e6, 4e6, 1e6, 1e6]


def test_share_of_the_roofline() -> None:
    slow = replace(CONV, kernel="copy", flops=0, nbytes=5000, seconds=1e-2)
    row, copy = kernels.make_rows(model(), 8, INFO, PEAKS, [CONV, slow], {}, {})
    # 2000 operations take 2 us at the least, 500 bytes at 4 MB/s take 125 us
    assert (row.bound, copy.bound) == ("memory", "memory")
    assert row.roofline_share == pytest.approx(125e-6 / 4e-6)
    assert copy.roofline_share == pytest.approx(0.5)  # 5 ms by the large copy, took 10
    assert row.gflops == pytest.approx(2000 / 4e-6 / 1e9)
    assert copy.gflops is None
    assert copy.gbytes_per_s == pytest.approx(5000 / 1e-2 / 1e9)
    fast = replace(CONV, nbytes=1)
    (arithmetic,) = kernels.make_rows(model(), 8, INFO, PEAKS, [fast], {}, {})
    assert arithmetic.bound == "arithmetic"
    assert arithmetic.roofline_share == pytest.approx(0.5)


def test_parts_of_an_operation_stand_beside_numpys_and_pytorchs() -> None:
    backward = replace(CONV, part="backward", seconds=1e-6)
    loss = Command("loss", "loss", "cross_entropy", "", "compute", 0, 10, 3e-6)
    update = replace(loss, op="clip", part="update")
    numpy_s: dict[tuple[str, kernels.Part], float] = {("conv", "backward"): 0.25}
    torch_s: dict[tuple[str, kernels.Part], float] = {("loss", "loss"): 0.5}
    other = replace(backward, kernel="sum_partials")
    commands = [CONV, backward, other, loss, update, replace(update, op="update")]
    rows = kernels.make_rows(model(), 8, INFO, PEAKS, commands, numpy_s, torch_s)
    assert [round(r.op_ms, 6) for r in rows] == [0.004, 0.002, 0.002, 0.003, 0.006, 0.006]
    assert [r.numpy_ms for r in rows] == [None, 250, 250, None, None, None]
    assert [r.torch_ms for r in rows] == [None, None, None, 500, None, None]
    assert (rows[0].layer, rows[0].shape) == ("conv2d", "1x6x6 to 2x4x4")
    assert (rows[3].layer, rows[3].shape) == ("", "")


def test_launches_of_one_kernel_are_put_together() -> None:
    step = replace(CONV, kernel="step", variant="", flops=0)
    last = replace(step, variant="4x4", flops=7, seconds=2e-6)
    other = replace(step, variant="", op="fc")
    (conv, steps, alone) = kernels.put_together([CONV, step, other, step, last, step])
    assert (conv.launches, conv.command) == (1, CONV)
    assert (steps.launches, steps.command.variant, steps.command.flops) == (4, "4x4", 7)
    assert steps.command.seconds == pytest.approx(3 * 4e-6 + 2e-6)
    assert steps.command.nbytes == 4 * 500
    assert alone.launches == 1
    variants = [replace(CONV, variant=v) for v in ("a", "b")]
    assert [k.launches for k in kernels.put_together(variants)] == [1, 1]


def test_medians_of_steps_command_by_command() -> None:
    other = replace(CONV, op="fc")
    steps = [command for s in (3e-6, 1e-6, 2e-6) for command in (replace(CONV, seconds=s), other)]
    assert kernels.medians(steps, 3) == [replace(CONV, seconds=2e-6), other]
    with pytest.raises(ValueError, match="5 commands are not 3 equal steps"):
        kernels.medians(steps[:5], 3)


def test_calls_are_bounded() -> None:
    calls: list[int] = []
    assert median_s(lambda: calls.append(1)) > 0
    assert len(calls) == 51  # the first is not timed


def test_a_whole_run_beside_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the peer is PyTorch: pip install 'pocketfed[peer]'")
    monkeypatch.setattr(kernels, "PAUSE_S", 0.0)
    monkeypatch.setattr(kernels, "STEPS", 3)
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(fakes.MODEL))
    lines: list[str] = []
    report = kernels.bench_kernels([str(path)], [4], ["numpy"], progress=lines.append)
    assert lines == ["small, batch 4"]
    (peak,) = report.peaks
    assert peak.gflops > 0
    assert peak.cached_gbytes_per_s >= peak.gbytes_per_s > 0
    assert {r.part for r in report.rows} == {"gather", "forward", "loss", "backward", "update"}
    for row in report.rows:
        assert row.backend == "numpy"
        assert row.op_ms == row.numpy_ms
        assert row.torch_ms is not None, f"{row.op} {row.part}"
    assert kernels.render(report).row_count == len(report.rows)
