"""The placement bench's pure parts: which layouts are timed, scores, what is kept."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from client.errors import ConfigError, StoreError
from client.fields import parse_yaml
from client.placement.layout import Layout
from server.bench.placement import candidates, grid
from server.bench.placement.grid import PAIRS, Cell
from server.bench.placement.results import Results
from server.bench.placement.scoring import Choice, Row, score, summarise

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


# -- scores ------------------------------------------------------------------------------------

ALONE_CPU, ALONE_GPU = Layout.whole(CPU, 3), Layout.whole(GPU, 3)
SPLIT = Layout.split(BOTH, (0.5, 0.5), 3)
NAMES = {ALONE_CPU: "cpu", ALONE_GPU: "gpu", SPLIT: "both"}


def row(chosen: Layout, cpu_s: float, gpu_s: float, split_s: float, **choice: float) -> Row:
    fresh_s = {ALONE_CPU: cpu_s, ALONE_GPU: gpu_s, SPLIT: split_s}
    oracle = min(fresh_s, key=lambda layout: fresh_s[layout])
    made = replace(Choice(chosen, 1.0, 0.0, 100), **choice)
    return score(("m", 8, "d"), NAMES, made, oracle, fresh_s, ALONE_CPU, ALONE_GPU)


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
