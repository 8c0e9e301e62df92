"""A pair's cells, in a process of its own: `python -m server.bench.placement.child` with one JSON
argument; prints a line of JSON for each cell.

The caller has set how many threads PoCL and OpenBLAS start. Here they are confined: this thread,
in which numpy computes, to one core; all others, in which PoCL or an emulated device computes, to
another. So two processors of one machine are as apart as those of a device would be.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from client import backends
from client.backends.base import Device
from client.errors import DeviceError, PocketfedError
from client.placement import probe
from server.bench.placement import product
from server.bench.placement.cell import measure
from server.bench.placement.grid import Cell, Pair

CONFINE_EVERY_S = 0.05
"""Threads that a device starts later are found within that time."""


def confine(own: int, others: int, stop: threading.Event) -> None:
    """This thread to the core ``own``; all other threads to ``others``, until ``stop`` is set."""
    main = threading.get_native_id()
    os.sched_setaffinity(main, {own})

    def watch() -> None:
        while not stop.wait(CONFINE_EVERY_S):
            _confine_others(main, others)

    _confine_others(main, others)
    threading.Thread(target=watch, daemon=True).start()


def _confine_others(main: int, core: int) -> None:
    for thread in map(int, os.listdir("/proc/self/task")):
        if thread != main:
            try:
                os.sched_setaffinity(thread, {core})
            except ProcessLookupError:
                continue  # it has ended meanwhile


def open_pair(pair: Pair) -> tuple[Device, Device]:
    """numpy, and the processor beside it; DeviceError where it is not here."""
    reference = backends.get(backends.REFERENCE)
    cpu = reference.open(reference.devices()[0])
    backend = backends.get(pair.backend)
    wanted = [i for i in backend.devices() if pair.gpu is None or i.name == pair.gpu]
    if not wanted:
        raise DeviceError(f"{pair.name}: no such device is here")
    return cpu, backend.open(wanted[0])


def run(pair: Pair, cells: Sequence[Cell], cores: tuple[int, int] | None, folder: Path) -> None:
    """Measure the cells, one after the other; a line for each. Data goes into ``folder``."""
    stop = threading.Event()
    if cores is not None:
        confine(*cores, stop)
    cpu, other = open_pair(pair)
    try:
        infos = (cpu.info, other.info)
        probe.keep(probe.dated([probe.measure_fully(cpu), probe.measure_fully(other)]))
        for cell in cells:
            row, timed = measure(cell, cpu, other, partial(product.choose, infos, folder))
            print(json.dumps({"row": row.to_json(), "timed": timed}), flush=True)  # noqa: T201
    finally:
        cpu.close()
        other.close()
        stop.set()


def main(argument: str) -> int:
    """``pair``, ``cells``, ``cores``, ``folder`` as JSON; the exit code."""
    asked = json.loads(argument)
    cores = None if asked["cores"] is None else tuple(asked["cores"])
    try:
        cells = [Cell(**cell) for cell in asked["cells"]]
        run(Pair(**asked["pair"]), cells, cores, Path(asked["folder"]))
    except PocketfedError as e:
        print(e, file=sys.stderr)  # noqa: T201
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
