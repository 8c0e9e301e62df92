"""`pocketfed bench placement`: the grid's cells, each pair of processors in its own process."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

from client import backends
from client.children import environment
from client.errors import ConfigError, DeviceError
from client.fields import parse
from server import console
from server.bench.load import Load
from server.bench.placement.grid import PAIRS, Cell, Pair
from server.bench.placement.results import Results
from server.bench.placement.scoring import Row, Summary

if TYPE_CHECKING:
    from rich.table import Table

CELL_LIMIT_S = 1800.0
"""A cell that takes longer is given up, and its process ended."""

MODULE = "server.bench.placement.child"

log = logging.getLogger(__name__)


def pairs_here() -> list[Pair]:
    """Those of the grid, and each discrete GPU of this machine beside its host."""
    try:
        infos = backends.get("opencl").devices()
    except DeviceError as e:
        raise DeviceError(f"the processors beside numpy are PoCL's or a GPU's: {e}") from None
    gpus = [Pair(info.name, gpu=info.name) for info in infos if info.kind == "gpu"]
    return [*PAIRS, *gpus]


def bench_placement(
    cells: Sequence[Cell], pairs: Sequence[Pair], out: Path, progress: Callable[[str], None]
) -> list[Row]:
    """Measure the cells that ``out`` has no row of; rows of all that there are now.

    ConfigError where this machine has no second core; a cell that fails is logged and left out;
    DeviceError where none is left.
    """
    results = Results.open(out)
    for pair in pairs:
        left = [c for c in cells if c.device == pair.name and c not in results.rows]
        load = Load()
        while left:
            done = _measure(pair, left, results, progress)
            left = left[done:]
            if left:
                log.warning("%s: left out", left[0])
                left = left[1:]
        load.warn(pair.name)
    rows = [results.rows[cell] for cell in cells if cell in results.rows]
    if not rows:
        raise DeviceError("no cell could be measured: the warnings above say why")
    return rows


def _measure(
    pair: Pair, cells: Sequence[Cell], results: Results, progress: Callable[[str], None]
) -> int:
    """A process for the cells, in order; how many of them it measured."""
    done = 0
    with TemporaryDirectory(prefix="pocketfed-bench-") as folder:
        extra = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        if pair.gpu is not None:
            extra = {}
        elif not pair.sub_device:
            extra["POCL_MAX_PTHREAD_COUNT"] = "1"
        if pair.emulated:
            file = Path(folder, "emulated.yaml")
            file.write_text(pair.to_yaml(), encoding="utf-8")
            extra[backends.EMULATED_VARIABLE] = str(file)
        asked = {
            "pair": asdict(pair),
            "cells": [asdict(cell) for cell in cells],
            "cores": None if pair.gpu is not None else _two_cores(),
            "folder": folder,
        }
        progress(f"{cells[0]} …")
        for line in _answers([json.dumps(asked)], {**environment(), **extra}):
            row = parse(Row, line["row"], "row")
            results.add(row, line["timed"])
            done += 1
            progress(_told(row))
            if done < len(cells):
                progress(f"{cells[done]} …")
    return done


def _two_cores() -> tuple[int, int]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise ConfigError("bench placement: needs two cores, one for each processor of a pair")
    return cores[0], cores[1]


def _told(row: Row) -> str:
    return (
        f"  {row.chosen}: {row.chosen_s * 1e3:.2f} ms a step; best {row.oracle}: "
        f"{row.oracle_s * 1e3:.2f} ms; regret {row.regret:.1%}"
    )


def _answers(arguments: list[str], env: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The lines of a child's standard output; what it says on the other is logged."""
    child = subprocess.Popen(
        [sys.executable, "-m", MODULE, *arguments],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    reader = threading.Thread(target=_relay, args=(child.stderr,), daemon=True)
    reader.start()
    try:
        while True:
            with _limited(child):
                line = child.stdout.readline()
            if not line:
                break
            yield json.loads(line)
        with _limited(child):
            code = child.wait()
    finally:
        child.kill()
        child.wait()
        reader.join()
        child.stdout.close()
        child.stderr.close()
    if code != 0:
        log.warning("the process that measured ended with exit code %d", code)


def _relay(lines: IO[str]) -> None:
    for line in lines:
        log.warning("%s", line.strip())


@contextmanager
def _limited(child: subprocess.Popen[str]) -> Iterator[None]:
    timer = threading.Timer(CELL_LIMIT_S, child.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def render(rows: Sequence[Row]) -> Table:
    """A line for each cell."""
    columns = ["model", "batch", "device", "chosen", "best", "chosen ms", "best ms", "CPU ms"]
    columns += ["GPU ms", "regret", "right", "planning", "predicted off by"]
    cells = [
        [
            row.model,
            str(row.batch),
            row.device,
            row.chosen,
            row.oracle,
            *(
                f"{seconds * 1e3:.2f}"
                for seconds in (row.chosen_s, row.oracle_s, row.always_cpu_s, row.always_gpu_s)
            ),
            f"{row.regret:.1%}",
            ("yes" if row.right_processor else "no") + (" (near)" if row.near_crossover else ""),
            f"{row.planning_share:.1%}",
            "" if row.prediction_error is None else f"{row.prediction_error:.0%}",
        ]
        for row in rows
    ]
    return console.table(
        "pocketfed bench placement", columns, cells, fold=("chosen", "best"), keys=3
    )


def as_json(rows: Sequence[Row], summary: Summary) -> dict[str, Any]:
    """The JSON object."""
    return {"rows": [row.to_json() for row in rows], "summary": summary.to_json()}
