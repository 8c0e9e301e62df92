"""`pocketfed plan`: what a model costs on each processor, where it goes, and what else there is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from client import backends
from client.backends.recipe import DEFAULT_RECIPE
from client.errors import DeviceError
from client.model import Model
from client.placement import planner, probe
from client.placement.cost import Costs, ProcessorCost
from client.placement.estimate import estimate
from client.placement.layout import Layout
from client.placement.planner import Prediction, Ranking
from client.placement.profile import DeviceProfile
from client.placement.steps import edge
from client.placement.workload import Workload
from server import console, plan_measure
from server import probe as probing
from server.plan_measure import Measured

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

ROUND_STEPS = 10**6
"""Steps are compared: values, which pass up and down once a round, weigh nothing beside so many."""


@dataclass(frozen=True)
class Plan:
    """What was found for one model and batch. ``roofline``: from the profile alone; ``costs``:
    corrected by what was measured, where something was."""

    model: Model
    profile: DeviceProfile
    roofline: Costs
    costs: Costs
    ranking: Ranking
    measured: Measured | None

    @property
    def best(self) -> Prediction:
        """The first of the ranking: by measured times where there are any."""
        return self.ranking.predictions[0]


def profile_here(say: Callable[[str], None]) -> DeviceProfile:
    """What is kept of this machine's processors; measured now, and kept, where one is not known."""
    kept = []
    for name in backends.at_hand():
        try:
            infos = backends.get(name).devices()
        except DeviceError as e:
            say(f"left out: {name}: {e}")
            continue
        kept += [probe.saved(info) for info in infos]
    known = [p for p in kept if p is not None and p.complete]
    if kept and len(known) == len(kept):
        return probe.dated(known)
    say("no profile is kept of all processors here: measuring them, for some seconds")
    profile = probing.measure(say)
    probe.keep(profile)
    return profile


def plan(model: Model, profile: DeviceProfile, batch: int) -> Plan:
    """By the profile alone; DeviceError where no layout is possible."""
    costs = estimate(profile, model, batch, DEFAULT_RECIPE)
    return finish(Plan(model, profile, costs, costs, rank(costs), None))


def measure(found: Plan, say: Callable[[str], None]) -> Plan:
    """The same, with times that were measured here."""
    measured = plan_measure.measure(found.model, found.roofline, rank, say)
    ranking = rank(measured.costs)
    ranked = {p.layout for p in ranking.predictions}
    timed = [
        planner.predict(measured.costs, layout, ROUND_STEPS)
        for layout in measured.steps_s
        if layout not in ranked  # what was timed before the last corrections
    ]
    possible = [p for p in ranking.predictions if p.layout not in measured.failed]
    predictions = sorted([*possible, *timed], key=lambda p: p.round_s)
    ranking = replace(ranking, predictions=tuple(predictions))
    return finish(replace(found, costs=measured.costs, ranking=ranking, measured=measured))


def rank(costs: Costs) -> Ranking:
    """All layouts, for rounds of ``ROUND_STEPS``."""
    return planner.rank(costs, num_steps=ROUND_STEPS)


def finish(found: Plan) -> Plan:
    """The plan itself; DeviceError where it has no layout at all."""
    if not found.ranking.predictions:
        refused = [f"{r.what}: {r.message}" for r in found.ranking.refusals]
        refused += [f"{_describe(found, layout)}: {why}" for layout, why in _failed(found)]
        why = "; ".join(refused)
        raise DeviceError(f"model '{found.model.name}' can be placed nowhere: {why}")
    return found


# -- as JSON ----------------------------------------------------------------------------------


def as_json(found: Plan) -> dict[str, Any]:
    """The JSON object of `pocketfed plan`. Seconds are of a training step of a whole batch."""
    return {
        "model": found.model.name,
        "batch": found.costs.batch,
        "processors": [
            {"device": p.key, "backend": p.backend, "name": p.name} for p in found.costs.processors
        ],
        "blocks": _blocks(found),
        "alternatives": [_alternative(found, p) for p in found.ranking.predictions],
        "refused": [asdict(r) for r in found.ranking.refusals],
        "failed": [{"layout": _describe(found, k), "message": why} for k, why in _failed(found)],
        "exact": found.ranking.exact,
        "chosen": _describe(found, found.best.layout),
        "sentence": sentence(found),
    }


def _blocks(found: Plan) -> list[dict[str, Any]]:
    work, n = Workload(found.model, DEFAULT_RECIPE), found.costs.batch
    rows = []
    for b, name in enumerate(found.costs.block_names):
        ops = work.ops(b)
        forward, backward = ([of(op, n) for op in ops] for of in (work.forward, work.backward))
        rows.append(
            {
                "block": name,
                "flops": sum(w.flops for w in (*forward, *backward)),
                "bytes": sum(w.nbytes for w in (*forward, *backward)) + work.update_nbytes(b),
                "seconds": {p.key: _block_seconds(p, b, n) for p in found.costs.processors},
                "edges": _edges(found.costs, b),
                "goes_to": [p.device for p in found.best.layout.parts if p.first <= b < p.stop],
            }
        )
    return rows


def _block_seconds(p: ProcessorCost, block: int, rows: int) -> dict[str, Any]:
    cost = p.blocks[block]
    return {
        "forward_s": cost.forward.at(rows),
        "backward_s": cost.backward.at(rows),
        "update_s": cost.update_s,
        "uncertainty": cost.uncertainty,
        "observed": cost.observed,
    }


def _edges(costs: Costs, block: int) -> list[dict[str, Any]]:
    """What passes behind a block, between any two processors; nothing behind the last."""
    if block == len(costs.boundaries):
        return []
    return [
        asdict(edge(costs, p, q, block))
        for p in costs.processors
        for q in costs.processors
        if p is not q
    ]


def _alternative(found: Plan, p: Prediction) -> dict[str, Any]:
    plain = planner.predict(found.roofline, p.layout)
    measured_s = found.measured.steps_s.get(p.layout) if found.measured else None
    corrected_s = _corrected_s(found, p.layout)
    return {
        "layout": _describe(found, p.layout),
        "kind": p.layout.kind,
        "parts": [asdict(part) for part in p.parts],
        "edges": [asdict(e) for e in p.edges],
        "predicted_s": plain.step_s,
        "uncertainty": plain.uncertainty,
        "corrected_s": corrected_s,
        "measured_s": measured_s,
        "error": _error(corrected_s if corrected_s is not None else plain.step_s, measured_s),
    }


def _corrected_s(found: Plan, layout: Layout) -> float | None:
    """By costs corrected by single processors' training; None where nothing was measured."""
    if found.measured is None:
        return None
    return planner.predict(found.measured.corrected, layout).step_s


def _error(predicted_s: float, measured_s: float | None) -> float | None:
    return None if measured_s is None else predicted_s / measured_s - 1


def _failed(found: Plan) -> list[tuple[Layout, str]]:
    """Layouts that could not run when they were to be measured, and why."""
    return list(found.measured.failed.items()) if found.measured else []


def _describe(found: Plan, layout: Layout) -> str:
    return layout.describe(found.costs.block_names)


# -- to read ----------------------------------------------------------------------------------


def render(found: Plan) -> list[Table]:
    """A table of the blocks, and one of the alternatives."""
    return [_block_table(found), _alternative_table(found)]


def _block_table(found: Plan) -> Table:
    names = _names(found.costs)
    rows = []
    for row in _blocks(found):
        cells = [row["block"], f"{row['flops'] * 1e-6:,.1f}", console.nbytes(row["bytes"])]
        for p in found.costs.processors:
            s = row["seconds"][p.key]
            cells.append(_ms(s["forward_s"] + s["backward_s"] + s["update_s"]))
        passing = [e["forward_s"] + e["back_s"] for e in row["edges"]]
        cells.append(_ms(min(passing)) if passing else "")
        cells.append(" + ".join(names[key] for key in row["goes_to"]))
        rows.append(cells)
    columns = ["block", "Mflop", "memory"]
    columns += [f"{names[p.key]} ms" for p in found.costs.processors]
    columns += ["to another ms", "goes to"]
    basis = "as measured" if found.measured else "predicted"
    title = f"{found.model.name}: a training step of {found.costs.batch} examples, {basis}"
    return console.table(title, columns, rows)


def _alternative_table(found: Plan) -> Table:
    rows = []
    for p in found.ranking.predictions:
        value = _alternative(found, p)
        cells = [_words(p), value["layout"], _ms(value["predicted_s"])]
        if found.measured is None:
            cells.append(f"{100 * p.uncertainty:.0f} %")
        else:
            error = value["error"]
            cells.append(_ms(value["corrected_s"]))
            cells.append("" if value["measured_s"] is None else _ms(value["measured_s"]))
            cells.append("" if error is None else f"{100 * error:+.0f} %")
        cells.append(f"{p.step_s / found.best.step_s:.2f}")
        rows.append(cells)
    columns = ["kind", "placement", "predicted ms"]
    columns += ["corrected ms", "measured ms", "error"] if found.measured else ["give or take"]
    columns.append("times the best")
    return console.table("ways to train it", columns, rows, fold=("placement",), keys=2)


def _words(p: Prediction) -> str:
    kinds = {
        "whole": "one processor",
        "cut": f"cut in {len(p.layout.parts)}",
        "split": "both at once",
    }
    return kinds[p.layout.kind]


def _names(costs: Costs) -> dict[str, str]:
    """Backends' names, with the device's where a backend has several."""
    several = [p.backend for p in costs.processors]
    return {
        p.key: p.backend if several.count(p.backend) == 1 else console.short(p.name)
        for p in costs.processors
    }


def _ms(value: float) -> str:
    return f"{value * 1e3:.3f}" if value < 0.0995 else f"{value * 1e3:,.1f}"


def explain(found: Plan) -> list[str]:
    """A line for each way to train: what its time consists of; and what was refused, and why."""
    lines = [f"{_describe(found, p.layout)}: {_spent(found, p)}" for p in found.ranking.predictions]
    lines += [f"not {r.what}: {r.message}" for r in found.ranking.refusals]
    lines += [f"not {_describe(found, layout)}: {why}" for layout, why in _failed(found)]
    if not found.ranking.exact:
        lines.append("memory is so short that not all cuts were compared: a better one may exist")
    return lines


def _spent(found: Plan, p: Prediction) -> str:
    names = _names(found.costs)
    told = []
    for part in p.parts:
        share = "" if p.layout.kind != "split" else f"{part.rows} of {found.costs.batch} examples, "
        figures = f"forward {_ms(part.forward_s)}, backward {_ms(part.backward_s)}"
        if part.update_s:
            figures += f", update {_ms(part.update_s)}"
        if part.hidden_s >= 5e-7:  # shows in the figure
            figures += f" ({_ms(part.hidden_s)} beside other work)"
        told.append(f"{names[part.device]} {share}{figures}")
    if p.edges:
        nbytes = sum(e.forward_nbytes + e.back_nbytes for e in p.edges)
        passing_s = sum(e.seconds for e in p.edges)
        told.append(f"passing {console.nbytes(nbytes)} takes {_ms(passing_s)}")
    return "; ".join(told) + " ms"


def sentence(found: Plan) -> str:
    """What to take from it all."""
    best, others = found.best, found.ranking.predictions[1:]
    how = "measured" if best.observed else "predicted"
    told = (
        f"{found.model.name} at batch {found.costs.batch} trains fastest on "
        f"{_describe(found, best.layout)}: {console.seconds(best.step_s)} a step, {how}"
    )
    singles = [p for p in others if p.layout.kind == "whole"]
    if singles and best.layout.kind != "whole":
        factor = singles[0].step_s / best.step_s
        return f"{told}; {factor:.2f} times as fast as {_describe(found, singles[0].layout)} alone."
    if others:
        factor = others[0].step_s / best.step_s
        next_best = _describe(found, others[0].layout)
        return f"{told}; the next best, {next_best}, takes {factor:.2f} times as long."
    return f"{told}; there is no other way."
