"""`pocketfed bench train`: the arithmetic of its figures, on invented clocks and tiny models."""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.backends.figures import Traffic
from client.errors import ConfigError, MissingExtraError
from client.model import build_model, load_model
from server import console
from server.bench import figures, load, measure, peak, train, workloads
from server.bench.start import Start

TINY = """
name: tiny
input: {shape: [1, 6, 6]}
layers:
  - {type: conv2d, name: conv, out_channels: 2, kernel_size: 3}
  - relu
  - flatten
  - {type: linear, name: fc, out_features: 3}
"""

ALONE = train.Settings(("numpy",), groups=2, peer=False)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return str(path)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of a few steps without rests: what is measured then means nothing."""
    monkeypatch.setattr(measure, "MIN_GROUP_S", 1e-4)
    monkeypatch.setattr(measure, "LEAD_IN_S", 1e-5)
    monkeypatch.setattr(measure, "PAUSE_S", 0.0)
    monkeypatch.setattr(train, "measure_start", lambda *_: Start(cold_s=2.0, warm_s=1.0))


class FakeMachine:
    """A clock that only work moves, and rivals whose work takes a given time a step."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.log: list[tuple[str, int]] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.log.append(("rest", 0))
        self.now_s += seconds

    def rival(self, name: str, step_s: float) -> measure.Run:
        def run(steps: int) -> None:
            self.log.append((name, steps))
            self.now_s += steps * step_s

        return run


def test_groups_grow_until_they_last_and_are_bounded() -> None:
    machine = FakeMachine()
    slow, fast = machine.rival("slow", 0.02), machine.rival("fast", 1e-9)
    assert measure.steps_per_group(slow, machine.clock) == 4  # 2 steps last 0.04 s
    assert measure.steps_per_group(fast, machine.clock) == measure.MAX_STEPS


def test_one_interruption_does_not_end_the_growth() -> None:
    machine = FakeMachine()
    steady = machine.rival("steady", 0.01)

    def interrupted(steps: int) -> None:
        if not machine.log:
            machine.now_s += 1.0
        steady(steps)

    assert measure.steps_per_group(interrupted, machine.clock) == 8


def test_groups_alternate_each_after_a_rest() -> None:
    machine = FakeMachine()
    runs = [machine.rival("a", 0.01), machine.rival("b", 0.1)]
    times = measure.interleaved(runs, 3, machine.clock, machine.sleep)
    assert np.allclose(times, [[0.01] * 3, [0.1] * 3])
    turn = [("rest", 0), ("a", 3), ("a", 8), ("rest", 0), ("b", 1), ("b", 1)]
    assert machine.log[-4 * len(turn) :] == turn * 4  # the first turn is warm-up


def test_ratios_are_formed_turn_by_turn() -> None:
    """A machine that slows down by the same factor for both leaves the ratio as it is."""
    slowing = np.array([1.0, 1.5, 3.0, 9.0])
    assert np.allclose(measure.ratios(list(2e-3 * slowing), list(1e-3 * slowing)), 2.0)


def test_quartiles() -> None:
    assert measure.quartiles([5.0]) == (5.0, 5.0, 5.0)
    assert measure.quartiles([4.0, 1.0, 3.0, 2.0, 5.0]) == (2.0, 3.0, 4.0)


def test_shares_are_of_busy_time_and_milliseconds_of_one_step() -> None:
    busy = figures.busy_time(
        Traffic(compute_s=0.06, transfer_s=0.01, copy_s=0.03, sampled_steps=10)
    )
    assert busy is not None
    assert busy.transfer_share == pytest.approx(0.1)
    assert busy.movement_share == pytest.approx(0.4)
    assert busy.transfer_ms == pytest.approx(1.0)
    assert busy.movement_ms == pytest.approx(4.0)


def test_no_transfers_are_a_share_of_zero_and_no_samples_none() -> None:
    busy = figures.busy_time(Traffic(compute_s=0.06, sampled_steps=10))
    assert busy is not None
    assert (busy.transfer_share, busy.movement_ms) == (0.0, 0.0)
    assert figures.busy_time(Traffic()) is None


def test_training_flops_leave_out_the_gradient_of_the_networks_input() -> None:
    # 784-200-200-10: three products a layer, two in the first, although a flatten stands before it
    mlp = 2 * (2 * 784 * 200 + 3 * 200 * 200 + 3 * 200 * 10)
    assert figures.training_flops(load_model(Path("mlp"))) == mlp
    conv = {"type": "conv2d", "out_channels": 2, "kernel_size": 1, "bias": False}
    residual = {"type": "residual", "name": "r", "body": [conv], "shortcut": [conv]}
    layers = [residual, "global_avgpool2d", {"type": "linear", "out_features": 3}]
    model = build_model({"name": "m", "input": {"shape": [1, 4, 4]}, "layers": layers}, "m")
    both_read_the_input = 2 * 2 * (2 * 1 * 2 * 16)
    assert figures.training_flops(model) == both_read_the_input + 3 * (2 * 2 * 3)


def test_batches_are_whole_and_come_round_again() -> None:
    examples = workloads.random_examples(load_model(Path("mlp")), batch=1000)
    assert [examples.batch(i, 1000) for i in range(3)] == [(0, 1000), (1000, 1000), (0, 1000)]
    assert len(workloads.random_examples(load_model(Path("mlp")), batch=5000).x) == 5000


def test_examples_are_tokens_and_labels_of_each_step_where_the_model_has_them() -> None:
    layers = [{"type": "embedding", "embedding_dim": 3}, "last_step"]
    value = {"name": "m", "input": {"shape": [5], "vocabulary": 7}, "layers": layers}
    model = build_model(value, "m")
    assert workloads.random_examples(model, batch=4).y.shape == (workloads.NUM_EXAMPLES,)
    each_step = replace(model, tensors=(*model.tensors[:-1], (3, 5)))
    examples = workloads.random_examples(each_step, batch=4)
    assert examples.x.shape == (workloads.NUM_EXAMPLES, 5)
    assert set(np.unique(examples.x)) == set(range(7))
    assert examples.y.shape == (workloads.NUM_EXAMPLES, 5)
    assert set(np.unique(examples.y)) == set(range(3))


@pytest.mark.usefixtures("quick")
def test_rows_have_the_documented_keys(tiny: str) -> None:
    lines: list[str] = []
    rows = train.bench_train([tiny], [4, 7], ALONE, progress=lines.append)
    assert [(r.model, r.batch, r.backend) for r in rows] == [
        ("tiny", 4, "numpy"),
        ("tiny", 7, "numpy"),
    ]
    row = json.loads(console.json_line(rows[0].to_json()))
    documented = {"model", "batch", "backend", "device", "step_ms", "torch_ms", "ratio_to_torch"}
    documented |= {"transfer_share", "movement_share", "launches", "peak_bytes"}
    assert documented <= set(row)
    assert row["torch_ms"] is None
    assert row["ratio_to_torch"] is None
    assert row["transfer_share"] == 0.0  # host and device are one
    assert 0 < row["movement_share"] < 1  # the gather
    assert row["step_ms"] > 0
    assert row["examples_per_s"] == pytest.approx(4 / (row["step_ms"] / 1e3))
    assert row["peak_bytes"] > workloads.NUM_EXAMPLES * 36
    assert row["peak_bytes"] <= row["real_peak_bytes"] < row["peak_bytes"] + 2**20
    assert (row["cold_start_s"], row["warm_start_s"]) == (2.0, 1.0)
    assert len(lines) == 4
    assert "PyTorch" not in "".join(lines)


@pytest.mark.usefixtures("quick")
def test_rows_beside_pytorch(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the peer is PyTorch: pip install 'pocketfed[peer]'")
    # on a busy machine, threads that wait for each other take a thousand times as long
    monkeypatch.setattr(workloads.os, "sched_getaffinity", lambda _: {0})
    (row,) = train.bench_train([tiny], [4], train.Settings(("numpy",), groups=3))
    assert row.torch_ms is not None
    assert row.torch_ms > 0
    assert row.ratio_quartiles is not None
    assert row.ratio_to_torch is not None
    assert row.ratio_quartiles[0] <= row.ratio_to_torch <= row.ratio_quartiles[1]
    assert row.torch_peak_bytes is not None
    # data, parameters, and at least the images as float
    assert row.torch_peak_bytes > workloads.NUM_EXAMPLES * 36 + 2 * 4 * 71 + 4 * 4 * 36
    assert figures.render([row]).row_count == 1
    assert f"numpy ÷ PyTorch at batch 4: {row.ratio_to_torch:.2f}" in str(
        figures.summarise([row])[0]
    )


def made_row(model: str, batch: int, ratio: float | None) -> figures.Row:
    return figures.Row(
        model=model, batch=batch, backend="opencl", device="d", step_ms=1.0,
        step_ms_quartiles=(1.0, 1.0), examples_per_s=1.0, gflops=1.0, torch_ms=None,
        torch_threads=None, ratio_to_torch=ratio, ratio_quartiles=None, transfer_share=None,
        movement_share=None, transfer_ms=None, movement_ms=None, upload_bytes=0.0, launches=1,
        peak_bytes=1, real_peak_bytes=1, real_peak_by="allocator", torch_peak_bytes=None,
        cold_start_s=1.0, warm_start_s=1.0, others_cpu_share=None,
    )  # fmt: skip


def test_the_summary_has_the_geometric_mean_and_the_worst_of_each_batch() -> None:
    rows = [made_row("a", 8, 0.5), made_row("a", 32, 3.0), made_row("b", 8, 2.0)]
    small, large = figures.summarise(rows)
    assert (small.batch, small.models, small.worst_model, small.worst_ratio) == (8, 2, "b", 2.0)
    assert small.ratio_to_torch == pytest.approx(1.0)
    assert (large.batch, large.ratio_to_torch) == (32, pytest.approx(3.0))
    assert str(small) == (
        "opencl ÷ PyTorch at batch 8: 1.00 in the geometric mean of 2 models, worst b 2.00"
    )
    (alone,) = figures.summarise([made_row("a", 8, None)])
    assert (alone.ratio_to_torch, alone.worst_model) == (None, None)


def test_memory_at_its_highest_is_what_is_alive_together() -> None:
    mib = 2**20

    def build() -> Callable[[], None]:
        np.zeros(8 * mib, np.uint8)  # gone when it counts
        kept = np.zeros(mib, np.uint8)

        def work() -> None:
            for _ in range(3):
                np.zeros(mib, np.uint8)  # one after the other
            three = [np.zeros(mib // 2, np.uint8) for _ in range(3)]
            assert len(kept) + len(three) > 3

        return work

    assert 2.5 * mib <= peak.traced_peak(build) < 2.6 * mib


def test_both_sides_do_the_same_steps(tiny: str) -> None:
    """Ten steps of what is timed lead ours and PyTorch to the same parameters."""
    pytest.importorskip("torch", reason="the peer is PyTorch: pip install 'pocketfed[peer]'")
    from client.backends import get

    model = load_model(Path(tiny))
    examples = workloads.random_examples(model, 300)
    backend = get("numpy")
    device = backend.open(backend.devices()[0])
    ours = workloads.OurSteps(device, device.compile(model.whole, 300), model, examples, 300)
    peer = workloads.TorchSteps(model, examples, 300)
    ours.run(10)
    peer.run(10)
    named = {name: value.numpy() for name, value in peer.net.state_dict().items()}
    got, want = ours.program.download(), model.flatten(named, "PyTorch")
    moved = np.abs(want - workloads.initialise(model, workloads.SEED)).max()
    assert np.abs(got - want).max() < 1e-3 * moved


def test_without_pytorch_the_extra_is_named(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_torch(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torch":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(MissingExtraError, match=r"torch.*pocketfed\[peer\]"):
        train.bench_train([tiny], [4])


@pytest.mark.parametrize(("batches", "groups"), [([0], 1), ([4], 0)])
def test_impossible_sizes_are_refused(tiny: str, batches: list[int], groups: int) -> None:
    with pytest.raises(ConfigError, match="must be at least 1"):
        train.bench_train([tiny], batches, replace(ALONE, groups=groups))


def test_what_bends_the_figures_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENBLAS_CORETYPE", *train.THREAD_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    assert train.notes() == []
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert [note.split(":")[0] for note in train.notes()] == [
        "OPENBLAS_CORETYPE=Haswell",
        "OMP_NUM_THREADS=1",
    ]


def test_processor_time_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 s on two processors others took 4 s and we 6 s; a third one is not ours to use."""
    tick = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"

    def write(busy_s: int) -> None:
        fields = [busy_s * tick // 2, 0, 0, 777, 777, 0, 0, 0, 0, 0]
        mine = "".join(f"cpu{n} {' '.join(map(str, fields))}\n" for n in (0, 1))
        stat.write_text(f"cpu 9 9 9 9 9 9 9 9 9 9\n{mine}cpu2 {busy_s * 99} 0 0 0 0 0 0 0 0 0\n")

    own_s, now_s = [1.0], [0.0]
    monkeypatch.setattr(load, "_own_s", lambda: own_s[0])
    monkeypatch.setattr(load.time, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(load.os, "sched_getaffinity", lambda _: {0, 1})
    write(100)
    measured = load.Load(stat)
    write(110)
    own_s[0], now_s[0] = 7.0, 10.0
    assert measured.others_share() == pytest.approx(4 / 20)


def test_processor_time_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert load.Load(tmp_path / "missing").others_share() is None
