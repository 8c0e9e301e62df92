"""What a cell's times say of the choice made there, and what all cells say together. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from client.placement.layout import Layout
from server.bench.placement.grid import Cell

NEAR_CROSSOVER = 1.5
"""A cell is near the crossover where one processor takes at most so many times the other's time."""

CLEAR_GAIN = 1.2
"""So many times shorter than either processor alone, several processors clearly win."""


@dataclass(frozen=True)
class Choice:
    """What the product chose: its layout, what it had predicted, what choosing took.

    ``predicted_s``: of a step, before the layout was seen; None where nothing was predicted.
    ``planning_s``: of the whole run; ``run_steps``: training steps of the whole run.
    """

    layout: Layout
    predicted_s: float | None
    planning_s: float
    run_steps: int


@dataclass(frozen=True)
class Row:
    """One cell; the fields of the JSON row. Times are of one training step, all in fresh runs."""

    model: str
    batch: int
    device: str
    chosen: str
    oracle: str
    regret: float  # chosen_s ÷ oracle_s − 1
    right_processor: bool
    near_crossover: bool
    always_cpu_s: float
    always_gpu_s: float
    chosen_s: float
    oracle_s: float
    planning_share: float  # of the run's training time
    prediction_error: float | None  # of the chosen layout's step, relative

    def to_json(self) -> dict[str, Any]:
        """The JSON row."""
        return asdict(self)


def score(
    cell: Cell,
    names: dict[Layout, str],
    choice: Choice,
    fresh_s: dict[Layout, float],
    cpu: Layout,
    gpu: Layout,
) -> Row:
    """A row from fresh times: of the chosen layout, both processors alone, the best of a scan.

    The shortest of them is the oracle.
    """
    oracle = min(fresh_s, key=lambda layout: fresh_s[layout])
    chosen_s, oracle_s = fresh_s[choice.layout], fresh_s[oracle]
    cpu_s, gpu_s = fresh_s[cpu], fresh_s[gpu]
    error = None
    if choice.predicted_s is not None:
        error = abs(choice.predicted_s - chosen_s) / chosen_s
    return Row(
        model=cell.model,
        batch=cell.batch,
        device=cell.device,
        chosen=names[choice.layout],
        oracle=names[oracle],
        regret=chosen_s / oracle_s - 1,
        right_processor=_right(choice.layout, chosen_s, {cpu: cpu_s, gpu: gpu_s}),
        near_crossover=max(cpu_s, gpu_s) <= NEAR_CROSSOVER * min(cpu_s, gpu_s),
        always_cpu_s=cpu_s,
        always_gpu_s=gpu_s,
        chosen_s=chosen_s,
        oracle_s=oracle_s,
        planning_share=choice.planning_s / (choice.run_steps * chosen_s),
        prediction_error=error,
    )


def _right(chosen: Layout, chosen_s: float, singles_s: dict[Layout, float]) -> bool:
    """One processor: the faster one. Several: no slower than the faster one alone."""
    if chosen in singles_s:
        return singles_s[chosen] == min(singles_s.values())
    return chosen_s <= min(singles_s.values())


@dataclass(frozen=True)
class Summary:
    """All cells together. Shares are 0 to 1, None where there is no such cell.

    Totals are of as many steps in each cell, the chosen one's with what planning took.
    ``several_won``: cells in which several processors took less than 1 / CLEAR_GAIN of either one's
    time; ``several_chosen``: of these, those in which several were chosen and won as clearly.
    """

    cells: int
    near_crossover: int
    median_regret: float
    worst_regret: float
    worst_cell: str
    right_processor: float
    right_near_crossover: float | None
    total_chosen_s: float
    total_always_cpu_s: float
    total_always_gpu_s: float
    median_planning_share: float
    worst_planning_share: float
    median_prediction_error: float | None
    several_won: int
    several_chosen: int

    def to_json(self) -> dict[str, Any]:
        """The JSON object."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        near = "none" if self.right_near_crossover is None else f"{self.right_near_crossover:.0%}"
        error = self.median_prediction_error
        return [
            f"regret: median {self.median_regret:.1%}, worst {self.worst_regret:.1%} "
            f"({self.worst_cell})",
            f"right processor: {self.right_processor:.0%} of {self.cells} cells, "
            f"{near} of the {self.near_crossover} near crossover",
            f"total: {self.total_chosen_s:.3f} s as chosen, {self.total_always_cpu_s:.3f} s always "
            f"on the CPU, {self.total_always_gpu_s:.3f} s always on the GPU (a step of each cell)",
            f"planning: median {self.median_planning_share:.1%} of a run, "
            f"worst {self.worst_planning_share:.1%}",
            "prediction error: " + ("none" if error is None else f"median {error:.0%}"),
            f"several processors win by {CLEAR_GAIN} in {self.several_won} cells, "
            f"chosen in {self.several_chosen} of them",
        ]


def summarise(rows: Sequence[Row]) -> Summary:
    """Of at least one row."""
    near = [row for row in rows if row.near_crossover]
    worst = max(rows, key=lambda row: row.regret)
    errors = [row.prediction_error for row in rows if row.prediction_error is not None]
    shares = [row.planning_share for row in rows]
    won = [row for row in rows if _clear(row, row.oracle_s)]
    return Summary(
        cells=len(rows),
        near_crossover=len(near),
        median_regret=statistics.median(row.regret for row in rows),
        worst_regret=worst.regret,
        worst_cell=f"{worst.model}, batch {worst.batch}, {worst.device}",
        right_processor=_share(rows),
        right_near_crossover=_share(near) if near else None,
        total_chosen_s=sum(row.chosen_s * (1 + row.planning_share) for row in rows),
        total_always_cpu_s=sum(row.always_cpu_s for row in rows),
        total_always_gpu_s=sum(row.always_gpu_s for row in rows),
        median_planning_share=statistics.median(shares),
        worst_planning_share=max(shares),
        median_prediction_error=statistics.median(errors) if errors else None,
        several_won=len(won),
        several_chosen=sum(_clear(row, row.chosen_s) for row in won),
    )


def _clear(row: Row, seconds: float) -> bool:
    return CLEAR_GAIN * seconds <= min(row.always_cpu_s, row.always_gpu_s)


def _share(rows: Sequence[Row]) -> float:
    return sum(row.right_processor for row in rows) / len(rows)
