"""The placement bench's pure parts: which layouts are timed, scores, what is kept."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from client.data.shares import Shares
from client.errors import ConfigError, DeviceError, StoreError
from client.fields import parse_yaml
from client.model import load_model
from client.placement.layout import Layout
from server.bench import measure
from server.bench.placement import candidates, grid, product, scan
from server.bench.placement import run as bench
from server.bench.placement.cell import Chosen
from server.bench.placement.cell import measure as measure_cell
from server.bench.placement.grid import PAIRS, Cell
from server.bench.placement.results import Results
from server.bench.placement.scan import Scan, Steps
from server.bench.placement.scoring import Choice, Row, score, summarise
from server.cli import run
from tests import fakes
from tests.json_doc import assert_documented

CPU, GPU = "numpy|||CPU|1", "emulated|||GPU|1"
BOTH = (CPU, GPU)


# -- the grid ----------------------------------------------------------------------------------


def test_the_grid_is_as_large_as_promised() -> None:
    cells = grid.grid(grid.MODELS, grid.BATCHES, PAIRS)
    assert len(set(cells)) == len(cells)
    assert len({c.model for c in cells}) >= 8
    assert {c.batch for c in cells} == {8, 32, 128}
    assert len({c.device for c in cells}) >= 8
    emulated = [pair for pair in PAIRS if pair.emulated]
    assert {pair.link_gb_s for pair in emulated} == {0.3, 1, 4, 12}
    assert {pair.factor for pair in emulated} == {1, 2, 4, 16}


def test_the_sample_is_forty_cells_of_the_grid() -> None:
    cells = grid.sample()
    assert len(cells) == len(set(cells)) == 40
    assert set(cells) <= set(grid.grid(grid.MODELS, grid.BATCHES, PAIRS))


def test_an_emulated_pair_is_written_as_the_backend_reads_it() -> None:
    (pair,) = grid.find(["x4@0.3GB/s"])
    value = parse_yaml(pair.to_yaml(), "pair")
    assert value["compute_factor"] == 4
    assert value["link"]["download"] == {"latency_s": 2e-5, "bytes_per_s": 3e8}


def test_an_unknown_pair_is_named_with_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match=r"--device: found 'pokl', allowed: pocl.*'pocl'"):
        grid.find(["pokl"])


# -- candidates --------------------------------------------------------------------------------


def test_of_few_blocks_every_placement_is_a_candidate() -> None:
    found = [*candidates.singles(BOTH, 4), *candidates.cuts(BOTH, 4)]
    assert len(found) == len(set(found)) == 2**4
    assert max(len(layout.parts) for layout in found) == 4
    for layout in found:
        assert all(
            a.device != b.device for a, b in zip(layout.parts, layout.parts[1:], strict=False)
        )


def test_of_many_blocks_every_single_cut_both_ways() -> None:
    found = candidates.cuts(BOTH, 12)
    assert len(found) == len(set(found)) == 2 * 11
    assert {layout.parts[0].stop for layout in found} == set(range(1, 12))
    assert {layout.parts[0].device for layout in found} == set(BOTH)


def test_splits_go_by_tenths() -> None:
    found = candidates.splits(GPU, CPU, 5)
    assert [layout.shares for layout in found][::4] == [(0.1, 0.9), (0.5, 0.5), (0.9, 0.1)]
    assert len(found) == 9
    assert {layout.parts[0].device for layout in found} == {GPU}


def test_a_device_for_each_block_becomes_runs() -> None:
    assert candidates.placed([CPU, CPU, GPU, CPU]) == Layout.cut((CPU, GPU, CPU), (2, 3, 4))
    assert candidates.placed([GPU, GPU]) == Layout.whole(GPU, 2)


def test_what_the_planner_also_names_is_timed_once() -> None:
    single = Layout.whole(CPU, 3)
    assert candidates.distinct([single, Layout.whole(GPU, 3), single]) == [
        single,
        Layout.whole(GPU, 3),
    ]


# -- scan --------------------------------------------------------------------------------------


class Lab:
    """Layouts whose steps take stated times, on a clock that only they move."""

    def __init__(self, **step_s: float) -> None:
        self.now_s, self.built, self.alive = 0.0, list[Layout](), 0
        self.step_s = {Layout.whole(name, 3): s for name, s in step_s.items()}
        self.steps: dict[Layout, int] = {}

    def make(self, layout: Layout) -> Steps:
        if layout not in self.step_s:
            raise DeviceError("does not fit")
        self.built.append(layout)
        self.alive += 1
        lab = self

        class Taken:
            def run(self, steps: int) -> None:
                lab.now_s += steps * lab.step_s[layout]
                lab.steps[layout] = lab.steps.get(layout, 0) + steps

            def release(self) -> None:
                lab.alive -= 1

        return Taken()

    def scan(self) -> Scan:
        return Scan(self.make, lambda: self.now_s)


def test_a_scan_finds_the_shortest_step_and_times_each_layout_once() -> None:
    lab = Lab(a=0.004, b=0.002, c=0.003)
    found = lab.scan()
    found.time(lab.step_s)
    found.time(lab.step_s)
    assert found.step_s == pytest.approx(lab.step_s)
    assert found.best(2) == [Layout.whole("b", 3), Layout.whole("c", 3)]
    assert len(lab.built) == 3
    assert lab.alive == 0


def test_what_is_hopeless_takes_two_steps() -> None:
    lab = Lab(fast=0.001, slow=1.0)
    lab.scan().time(lab.step_s)
    assert lab.steps[Layout.whole("slow", 3)] == 2
    assert lab.steps[Layout.whole("fast", 3)] > 30


def test_a_layout_that_cannot_be_trained_is_left_out_loudly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = Lab(a=0.004).scan()
    with pytest.raises(DeviceError, match="no layout could be trained"):
        found.best(1)
    found.time([Layout.whole("huge", 3), Layout.whole("a", 3)])
    assert list(found.step_s) == [Layout.whole("a", 3)]
    assert "left out: does not fit" in caplog.text


def test_fresh_runs_are_built_anew_and_take_turns() -> None:
    lab = Lab(a=0.004, b=0.002)
    found = lab.scan()
    found.time(lab.step_s)
    built = len(lab.built)
    assert found.fresh(list(lab.step_s)) == pytest.approx(lab.step_s)
    assert len(lab.built) == built + 2
    assert lab.alive == 0


# -- scores ------------------------------------------------------------------------------------

ALONE_CPU, ALONE_GPU = Layout.whole(CPU, 3), Layout.whole(GPU, 3)
SPLIT = Layout.split(BOTH, (0.5, 0.5), 3)
NAMES = {ALONE_CPU: "cpu", ALONE_GPU: "gpu", SPLIT: "both"}


def row(chosen: Layout, cpu_s: float, gpu_s: float, split_s: float, **choice: float) -> Row:
    fresh_s = {ALONE_CPU: cpu_s, ALONE_GPU: gpu_s, SPLIT: split_s}
    made = replace(Choice(chosen, 1.0, 0.0, 100), **choice)
    return score(Cell("m", 8, "d"), NAMES, made, fresh_s, ALONE_CPU, ALONE_GPU)


def test_regret_is_what_was_taken_beyond_the_oracle() -> None:
    found = row(ALONE_CPU, cpu_s=1.1, gpu_s=1.0, split_s=2.0)
    assert found.regret == pytest.approx(0.1)
    assert (found.chosen, found.oracle) == ("cpu", "gpu")
    assert not found.right_processor
    assert found.near_crossover


def test_the_oracle_chosen_has_no_regret() -> None:
    found = row(ALONE_GPU, cpu_s=2.0, gpu_s=1.0, split_s=3.0)
    assert found.regret == 0
    assert found.right_processor
    assert not found.near_crossover


@pytest.mark.parametrize(("split_s", "right"), [(0.9, True), (1.05, False)])
def test_several_are_right_where_they_are_no_slower_than_the_faster_one(
    split_s: float, right: bool
) -> None:
    assert row(SPLIT, cpu_s=2.0, gpu_s=1.0, split_s=split_s).right_processor is right


def test_planning_is_held_against_the_whole_run() -> None:
    found = row(ALONE_GPU, 2.0, 1.0, 3.0, planning_s=4.0, run_steps=200, predicted_s=1.5)
    assert found.planning_share == pytest.approx(0.02)
    assert found.prediction_error == pytest.approx(0.5)


def test_a_summary_counts_cells_near_the_crossover_apart() -> None:
    rows = [
        row(ALONE_CPU, cpu_s=1.1, gpu_s=1.0, split_s=2.0),  # wrong, near
        row(ALONE_GPU, cpu_s=1.1, gpu_s=1.0, split_s=2.0),  # right, near
        row(ALONE_GPU, cpu_s=4.0, gpu_s=1.0, split_s=2.0),
        row(SPLIT, cpu_s=2.0, gpu_s=1.0, split_s=0.5, planning_s=10.0),
        row(ALONE_GPU, cpu_s=2.0, gpu_s=1.0, split_s=0.8),  # a clear gain that was not seen
    ]
    found = summarise(rows)
    assert (found.cells, found.near_crossover) == (5, 2)
    assert found.right_processor == pytest.approx(0.8)
    assert found.right_near_crossover == pytest.approx(0.5)
    assert found.median_regret == pytest.approx(0.0)
    assert found.worst_regret == pytest.approx(0.25)
    assert found.total_always_cpu_s == pytest.approx(10.2)
    assert found.total_chosen_s == pytest.approx(1.1 + 1 + 1 + 0.5 * 1.2 + 1)
    assert (found.several_won, found.several_chosen) == (2, 1)
    assert any("80% of 5 cells, 50% of the 2 near crossover" in line for line in found.lines())


def test_a_summary_without_cells_near_the_crossover_says_so() -> None:
    found = summarise([row(ALONE_GPU, cpu_s=4.0, gpu_s=1.0, split_s=2.0)])
    assert found.right_near_crossover is None
    assert any("none of the 0 near crossover" in line for line in found.lines())


# -- what is kept ------------------------------------------------------------------------------

ROW = row(ALONE_GPU, 2.0, 1.0, 3.0)
CELL = Cell("m", 8, "d")


def test_rows_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    first = Results.open(path)
    assert not first.rows
    first.add(ROW, {"gpu": 1.0})
    assert first.rows == {CELL: ROW}
    assert Results.open(path).rows == {CELL: ROW}


def test_a_line_that_was_cut_off_is_left_out_and_written_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rows.jsonl"
    results = Results.open(path)
    results.add(ROW, {})
    results.add(replace(ROW, batch=32), {})
    path.write_bytes(path.read_bytes()[:-9])
    with caplog.at_level(logging.WARNING):
        again = Results.open(path)
    assert list(again.rows) == [CELL]
    assert "its last line is not whole" in caplog.text
    again.add(replace(ROW, batch=128), {})
    assert [cell.batch for cell in Results.open(path).rows] == [8, 128]


@pytest.mark.parametrize("text", ["", "hello\n", '{"bench": "placement", "pocketfed": "0"}\n'])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"no rows of `bench placement` by pocketfed .*--out"):
        Results.open(path)


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    Results.open(path).add(ROW, {})
    with path.open("a") as f:
        f.write('{"row": {"model": "m"}}\n')
    with pytest.raises(StoreError, match="line 3 is no row: row: the key 'batch' is missing"):
        Results.open(path)


# -- a cell --------------------------------------------------------------------------------------


def test_a_cell_times_every_layout_and_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "GROUP_S", 1e-5)
    monkeypatch.setattr(scan, "FRESH_GROUPS", 2)
    monkeypatch.setattr(measure, "MIN_GROUP_S", 1e-4)
    model = tmp_path / "small.yaml"
    model.write_text(yaml.safe_dump(fakes.MODEL))
    gpu = fakes.Fake("gpu")
    devices = fakes.numpy_device(), gpu.open(gpu.devices()[0])
    keys = [device.info.key for device in devices]
    chosen = Layout.split(keys, (0.25, 0.75), 4)
    asked: list[Cell] = []

    def choose(cell: Cell) -> Chosen:
        asked.append(cell)
        return Chosen(Choice(chosen, None, 1.0, 100), (Layout.whole(keys[0], 4),))

    cell = Cell(str(model), 8, "a pair")
    found, timed = measure_cell(cell, *devices, choose)
    assert asked == [cell]
    assert len(timed) == 2**4 + 9 + 1  # placements of four blocks, splits by tenths, the chosen one
    assert found.chosen == "numpy 0.25 + gpu 0.75"
    assert found.oracle in timed
    assert found.regret >= 0
    assert (found.model, found.batch, found.device) == (str(model), 8, "a pair")
    assert found.prediction_error is None


@pytest.mark.parametrize("name", grid.MODELS)
def test_a_run_has_examples_for_every_model_of_the_grid(name: str, tmp_path: Path) -> None:
    model = load_model(Path(name))
    experiment = product.experiment(Cell(name, 2, "a pair"), model, tmp_path)
    examples = Shares(experiment, model, tmp_path).of(product.NODE).train
    assert examples.x.shape == (2 * product.ROUND_STEPS, *model.input.shape)


# -- the processes that measure ------------------------------------------------------------------

CHILD = """
import json, os, sys

asked = json.loads(sys.argv[1])
for cell in asked["cells"]:
    if cell["batch"] == 32:
        print("the device is lost", file=sys.stderr)
        sys.exit(1)
    row = {**json.loads(os.environ["ROW"]), **cell, "device": cell["device"]}
    threads = os.environ["POCL_MAX_PTHREAD_COUNT"]
    row["chosen"] = f"{asked['pair']['name']} {asked['cores']} {threads}"
    print(json.dumps({"row": row, "timed": {}}), flush=True)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """Cells, and a child that answers with a row for each, but is lost in those of batch 32."""
    (tmp_path / "stand_in.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("ROW", json.dumps(ROW.to_json()))
    monkeypatch.setattr(bench, "MODULE", "stand_in")
    monkeypatch.setattr(bench.os, "sched_getaffinity", lambda pid: {3, 5, 7})
    return grid.grid(["m"], [8, 32, 128], grid.find(["pocl"]))


def test_a_cell_that_takes_its_process_down_is_left_out_and_the_others_measured(
    stand_in: list[Cell], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out, said = tmp_path / "rows.jsonl", list[str]()
    rows = bench.bench_placement(stand_in, grid.find(["pocl"]), out, said.append)
    assert [row.batch for row in rows] == [8, 128]
    assert rows[0].chosen == "pocl [3, 5] 1"
    assert "the device is lost" in caplog.text
    assert "m, batch 32, pocl: left out" in caplog.text
    assert list(Results.open(out).rows) == [stand_in[0], stand_in[2]]


def test_what_was_measured_is_not_measured_again(
    stand_in: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, said = tmp_path / "rows.jsonl", list[str]()
    cells = [stand_in[0], stand_in[2]]
    first = bench.bench_placement(cells, grid.find(["pocl"]), out, said.append)
    monkeypatch.setattr(bench, "MODULE", "no_such_module")
    assert bench.bench_placement(cells, grid.find(["pocl"]), out, said.append) == first


def test_one_core_is_too_few(
    stand_in: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.os, "sched_getaffinity", lambda pid: {0})
    with pytest.raises(ConfigError, match="needs two cores"):
        bench.bench_placement(stand_in, grid.find(["pocl"]), tmp_path / "rows", print)


def test_nothing_measured_is_an_error(stand_in: list[Cell], tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no cell could be measured"):
        bench.bench_placement([stand_in[1]], grid.find(["pocl"]), tmp_path / "rows", print)


def test_the_command_prints_rows_and_their_summary(
    stand_in: list[Cell],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bench, "pairs_here", lambda: list(PAIRS))
    arguments = ["bench", "placement", "--model", "m", "--batch", "8,128", "--device", "pocl"]
    assert run([*arguments, "--out", str(tmp_path / "rows.jsonl"), "--json"]) == 0
    out = capsys.readouterr().out
    value = json.loads(out.splitlines()[-1])
    assert_documented("bench placement", value)
    assert set(value["rows"][0]) == {
        "model", "batch", "device", "chosen", "oracle", "regret", "right_processor",
        "near_crossover", "always_cpu_s", "always_gpu_s", "chosen_s", "oracle_s",
        "planning_share", "prediction_error",
    }  # fmt: skip
    assert "right processor: 100% of 2 cells" in out
    assert run(["bench", "placement", "--sample", "--model", "m"]) == 2
    assert "--sample: is a fixed set of cells" in capsys.readouterr().err
