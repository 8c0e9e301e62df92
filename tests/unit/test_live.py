"""What a person sees of a run: plain lines, the live view, the summary."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from client.errors import RoundError
from client.record import NodeRecord
from client.timing import RoundClock, on_phase
from server import console, live
from server.live import LiveView, PlainLines
from server.observer import Observer, Result
from server.store import NodeRound, RoundInfo, RunInfo, Store
from tests.fakes import placement

NODES = ["node-0", "node-1"]


def record(node: str, wall_s: float = 2.0) -> NodeRecord:
    return NodeRecord(
        partition=node,
        device={"backend": "opencl", "name": "A GPU with a rather long name, made by somebody"},
        placement=placement("opencl", "opencl|gpu", 2),
        layout="opencl",
        reason="measured a round: numpy 2.000 s, opencl 1.000 s",
        num_examples=30,
        loss=0.5,
        accuracy=0.75,
        wall_s=wall_s,
        phases={"decode": 0.1, "upload": 0.2, "train": wall_s - 0.6, "download": 0.2},
        unattributed_s=0.1,
    )


def row(node: str, number: int = 1, wall_s: float = 2.0) -> NodeRound:
    return NodeRound(
        round=number,
        partition=node,
        node_id=2,
        task="train",
        status="ok",
        bytes_down=100,
        bytes_up=120,
        dispatch_to_reply_s=wall_s + 0.1,
        record=record(node, wall_s),
    )


FAILED = replace(
    row("node-1"), status="failed", record=None, error="node-1: the loss became nan: lower train.lr"
)


def info(number: int, accuracy: float | None = 0.75) -> RoundInfo:
    loss = None if accuracy is None else 0.8
    return RoundInfo(number, loss, accuracy, 1.1, None, None, 2.5, 2, 0.1, f"r{number}", "00")


def tell(observer: Observer, folder: Path = Path("runs/tiny")) -> None:
    """A run of two rounds: in the second one node fails."""
    observer.run_started(folder, "tiny", 2, NODES, 1)
    observer.round_started(1, 2, NODES)
    for node in NODES:
        observer.node_dispatched(1, node, "train")
    for node in NODES:
        observer.node_started(node)
        observer.node_finished(row(node))
    observer.note("fallback", "opencl is not used: pip install 'pocketfed[pocl]'", "node-0")
    observer.round_finished(info(1))
    observer.round_started(2, 2, NODES)
    observer.node_failed(replace(FAILED, round=2))
    observer.round_finished(info(2, None))


LINES = [
    "tiny: 2 rounds, 2 nodes; runs/tiny",
    "node-0: fallback: opencl is not used: pip install 'pocketfed[pocl]'",
    "round 1/2: train loss 1.1000, accuracy 0.7500, loss 0.8000; 2 nodes, 2.50 s",
    "round 2: node-1: failed: node-1: the loss became nan: lower train.lr",
    "round 2/2: train loss 1.1000; 2 nodes, 2.50 s",
]


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with live.view() as observer:
        assert type(observer) is PlainLines
        tell(observer)
    assert capsys.readouterr().out.splitlines() == LINES


def test_nodes_that_fail_alike_are_told_in_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """The first at once, the others together; another error, or the next round, anew."""
    lines = PlainLines()
    for name in ("node-0", "node-1", "node-2"):
        lines.node_failed(replace(FAILED, partition=name, error="the loss became nan"))
    lines.node_failed(replace(FAILED, partition="node-3", error="the device is lost"))
    assert len(capsys.readouterr().out.splitlines()) == 2
    lines.round_finished(info(1))
    assert capsys.readouterr().out.splitlines()[:-1] == ["node-1, node-2: failed in the same way"]
    lines.node_failed(replace(FAILED, error="the loss became nan"))
    assert capsys.readouterr().out == "round 1: node-1: failed: the loss became nan\n"


def test_many_nodes_that_fail_alike_are_counted_when_the_run_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing() -> None:
        with live.view() as observer:
            for i in range(13):
                observer.node_failed(replace(FAILED, partition=f"n{i}", error="no memory"))
            raise RoundError("too few")

    with pytest.raises(RoundError):
        failing()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "n1, n2, n3, n4, n5, n6, n7, n8, n9, n10 and 2 more: failed in the same way"


def test_a_long_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("/".join(["a folder with a long name"] * 20))
    PlainLines().run_started(folder, "tiny", 2, NODES, 1)
    assert capsys.readouterr().out.splitlines() == [f"tiny: 2 rounds, 2 nodes; {folder}"]


def test_a_resumed_run_says_where_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    PlainLines().run_started(Path("runs/tiny"), "tiny", 9, NODES, 4)
    assert capsys.readouterr().out == "tiny: 9 rounds, 2 nodes, from round 4; runs/tiny\n"


def test_accuracy_on_the_nodes_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    PlainLines().round_finished(replace(info(1, None), node_accuracy=0.625, node_loss=0.5))
    assert "accuracy on the nodes 0.6250" in capsys.readouterr().out


# -- the live view ---------------------------------------------------------------------------


@contextmanager
def screen() -> Iterator[tuple[LiveView, Console]]:
    """A view on a terminal that is not there; nothing is refreshed by itself."""
    terminal = Console(
        record=True, force_terminal=True, width=120, file=io.StringIO(), markup=False
    )
    with Live(console=terminal, auto_refresh=False, transient=True) as shown:
        yield LiveView(shown), terminal


def drawn(view: LiveView) -> list[str]:
    """What the view shows now."""
    out = Console(width=120, file=io.StringIO(), record=True, markup=False)
    out.print(view._screen.get_renderable())
    return [line for line in out.export_text().splitlines() if line.strip()]


def state(view: LiveView, node: str) -> list[str]:
    [line] = [line for line in drawn(view) if line.split()[0] == node]
    return line.split()[1:]


def test_each_nodes_state_device_and_phase_are_shown() -> None:
    with screen() as (view, _):
        view.run_started(Path("runs/tiny"), "tiny", 2, NODES, 1)
        view.round_started(1, 2, NODES)
        assert drawn(view)[0].strip() == "round 1 of 2"
        assert state(view, "node-0") == ["not", "in", "this", "round"]
        view.node_dispatched(1, "node-0", "train")
        assert state(view, "node-0") == ["waits", "to", "train"]
        view.node_started("node-0")
        view.phase_began("upload")
        assert state(view, "node-0") == ["works", "upload"]
        assert state(view, "node-1") == ["not", "in", "this", "round"]
        view.node_finished(row("node-0"))
        assert state(view, "node-0") == [
            *("done", "opencl:", "A", "GPU", "with", "a", "rather", "long", "na…"),
            *("2.00", "s,", "loss", "0.5000"),
        ]
        view.node_failed(FAILED)
        assert state(view, "node-1") == ["failed"]
        assert drawn(view)[-1] == "accuracy so far: –"
        for number in (1, 2):
            view.round_finished(info(number, 0.5 + number / 8))
        view.round_started(2, 2, NODES)
        assert drawn(view)[-1] == "accuracy so far: 0.625 0.750"
        assert state(view, "node-1") == ["not", "in", "this", "round"]


def test_in_80_columns_nothing_but_the_device_is_cut() -> None:
    narrow = Console(force_terminal=True, width=80, file=io.StringIO(), record=True, markup=False)
    with Live(console=narrow, auto_refresh=False, transient=True) as shown:
        view = LiveView(shown)
        view.run_started(Path("runs/tiny"), "tiny", 2, NODES, 1)
        view.round_started(1, 2, NODES)
        view.node_started("node-0")
        view.phase_began("upload")
        view.node_finished(row("node-1"))
        out = Console(width=80, file=io.StringIO(), record=True, markup=False)
        out.print(shown.get_renderable())
    lines = out.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    [first] = [line for line in lines if line.startswith("node-0")]
    [second] = [line for line in lines if line.startswith("node-1")]
    assert first.split() == ["node-0", "works", "upload"]
    assert "opencl: A GPU" in second
    assert second.rstrip().endswith("2.00 s, loss 0.5000")


def test_more_nodes_than_lines_are_counted() -> None:
    low = Console(
        force_terminal=True, width=120, height=12, file=io.StringIO(), record=True, markup=False
    )
    nodes = [f"node-{i}" for i in range(20)]
    with Live(console=low, auto_refresh=False, transient=True) as shown:
        view = LiveView(shown)
        view.run_started(Path("runs/tiny"), "tiny", 2, nodes, 1)
        view.round_started(1, 2, nodes)
        view.node_started("node-15")
        lines = drawn(view)
    assert state(view, "node-15") == ["works"]
    assert len(lines) <= 11
    assert lines[-2:] == ["and 15 more: 15 not in this round", "accuracy so far: –"]


def test_after_an_interruption_it_is_said_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        with live.view() as observer:
            observer.run_started(Path("runs/a b"), "tiny", 2, NODES, 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capsys.readouterr().out.splitlines()[-1] == (
        "to go on: pocketfed simulate --resume 'runs/a b'"
    )


def test_a_served_run_goes_on_at_the_port_where_its_nodes_look(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also after a failure, as where too few nodes were left."""

    def fails() -> None:
        with live.view() as observer:
            observer.serving("127.0.0.1:8123")
            observer.run_started(Path("runs/a"), "tiny", 2, NODES, 1)
            raise RoundError("0 of 1 nodes gave a usable reply")

    with pytest.raises(RoundError):
        fails()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "to go on: pocketfed serve --port 8123 --resume runs/a"


def test_an_interruption_before_the_run_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), live.view():
        raise KeyboardInterrupt
    assert capsys.readouterr().out == ""


def test_lines_scroll_above_the_view() -> None:
    with screen() as (view, terminal):
        tell(view)
        shown = terminal.export_text().splitlines()
    for line in LINES:
        assert line in [s.strip() for s in shown]


def test_a_reply_that_names_no_device_is_shown_all_the_same() -> None:
    with screen() as (view, _):
        view.run_started(Path("runs/tiny"), "tiny", 2, NODES, 1)
        bare = replace(row("node-0"), record=replace(record("node-0"), device={}, layout=""))
        view.node_finished(bare)
        assert state(view, "node-0")[:3] == ["done", "unknown:", "unknown"]


def test_on_a_terminal_the_view_hears_of_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(force_terminal=True, width=120, file=io.StringIO())
    monkeypatch.setattr(console, "console", lambda: terminal)
    with live.view() as view:
        assert isinstance(view, LiveView)
        view.run_started(Path("runs/tiny"), "tiny", 2, NODES, 1)
        view.node_started("node-1")
        with RoundClock().phase("train"):
            assert state(view, "node-1") == ["works", "train"]
    assert on_phase.get() is None


# -- the summary -----------------------------------------------------------------------------


@pytest.fixture
def result(tmp_path: Path) -> Result:
    folder = tmp_path / "tiny"
    folder.mkdir()
    with Store.create(folder / "run.db", RunInfo("tiny", {}, "/", 7, {}, "2026")) as store:
        for number in (1, 2):
            store.add_node_round(row("node-0", number, wall_s=2.0))
            store.add_node_round(row("node-1", number, wall_s=4.0))
            store.add_round(info(number))
    return Result(folder, 2, 0.75, 0.8, 13.0, folder / "model.safetensors", None)


def test_the_summary_adds_up(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    live.summary(result)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    one = next(line for line in lines if line.startswith("node-1"))
    assert "opencl: A GPU with a rather long na…" in one
    assert "measured a round: numpy 2.000 s" in one
    figures = one.partition("na…")[2].split()[:5]  # compute, transfer, other, total, loss
    assert figures == ["6.800", "0.800", "0.400", "8.000", "0.5000"]
    assert lines[-3:] == [
        "slowest node: node-1, 8.000 s in all: "
        "train 6.800 s (85%), upload 0.400 s (5%), download 0.400 s (5%)",
        "accuracy 0.7500, loss 0.8000 after 2 rounds in 13.00 s",
        f"run: {result.run}",
    ]


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (None, "2 rounds in 13.00 s"),
        (1, "2 rounds, the last 1 of them in 13.00 s"),
        (2, "2 rounds, all done before"),
    ],
)
def test_what_was_done_before_is_not_claimed_for_this_session(
    result: Result, capsys: pytest.CaptureFixture[str], before: int | None, told: str
) -> None:
    live.summary(replace(result, resumed_from_round=before))
    assert f"after {told}\n" in capsys.readouterr().out


def test_without_central_examples_no_accuracy_is_claimed(
    result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    live.summary(replace(result, final_accuracy=None, final_loss=None))
    assert "accuracy" not in capsys.readouterr().out
