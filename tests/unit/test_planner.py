"""The planner against all placements there are, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.placement import planner, search
from client.placement.cost import Affine, BlockCost, Boundary, Costs, ProcessorCost
from client.placement.layout import Layout
from client.placement.limits import Limits
from client.placement.profile import Link
from client.placement.steps import predict

BATCH = 8
STEPS = 5


def processor(g: Random, number: int, blocks: int) -> ProcessorCost:
    """One with random costs; the updates of some are long."""
    longest = g.choice([0.1, 1.0, 10.0])

    def line() -> Affine:
        return Affine(g.random(), g.random() / BATCH)

    def block() -> BlockCost:
        return BlockCost(
            forward=line(),
            backward=line(),
            update_s=g.random() * longest,
            params_nbytes=g.randrange(100),
            row_nbytes=g.randrange(10),
            uncertainty=0.5,
        )

    latency_s, speed = g.random() * g.choice([0.1, 1.0]), g.choice([10.0, 1e3, 1e6])
    return ProcessorCost(
        key=f"b{number}|p|v|device-{number}|d",
        backend=f"b{number}",
        name=f"device-{number}",
        queued=g.random() < 0.7,
        memory_nbytes=g.choice([0, 100, 300, 1000]),
        blocks=tuple(block() for _ in range(blocks)),
        gather=line(),
        loss=line(),
        part_s=g.random() / 10,
        link=Link(latency_s, speed, latency_s, 2 * speed),
        power_w=g.choice([None, 1.0, 5.0, 2.0]),
    )


def costs_of(seed: int, blocks: int, count: int) -> Costs:
    g = Random(seed)
    found = tuple(processor(g, i, blocks) for i in range(count))
    pair = frozenset((found[0].key, found[1].key))
    return Costs(
        batch=BATCH,
        block_names=tuple(f"layer{i}" for i in range(blocks)),
        processors=found,
        boundaries=tuple(Boundary(g.randrange(20), g.random() < 0.8) for _ in range(blocks - 1)),
        num_trained=g.randrange(50),
        block_values=tuple(g.randrange(20) for _ in range(blocks)),
        clips=g.random() < 0.2,
        contention={pair: g.choice([0.0, 0.75])},
    )


def costs(*sizes: tuple[int, int]) -> st.SearchStrategy[Costs]:
    """Random ones for (blocks, processors) among ``sizes``."""
    return st.builds(
        lambda seed, size: costs_of(seed, *size), st.integers(0, 2**32), st.sampled_from(sizes)
    )


limits = st.builds(
    Limits,
    memory_nbytes=st.just({}),
    round_s=st.sampled_from([None, 10.0, 50.0]),
    energy_j=st.sampled_from([None, 20.0, 100.0]),
)


def every_cut(found: Costs) -> list[Layout]:
    """All of them: a processor for each block, at least two in use."""
    keys, blocks = [p.key for p in found.processors], len(found.block_names)
    layouts = []
    for devices in product(keys, repeat=blocks):
        stops = [i + 1 for i, (a, b) in enumerate(pairwise(devices)) if a != b]
        if stops:
            stops.append(blocks)
            layouts.append(Layout.cut([devices[s - 1] for s in stops], stops))
    return layouts


def allowed(found: Costs, bound: Limits, prediction: planner.Prediction) -> bool:
    held: dict[str, int] = {}
    for part in prediction.parts:
        held[part.device] = held.get(part.device, 0) + part.nbytes
    fits = all(n <= bound.room(found.processor(key)) for key, n in held.items())
    in_time = bound.round_s is None or prediction.round_s <= bound.round_s
    spares = bound.energy_j is None or (
        prediction.energy_j is not None and prediction.energy_j <= bound.energy_j
    )
    return fits and in_time and spares


@settings(max_examples=150, deadline=None)
@given(costs((2, 2), (5, 2), (7, 2), (3, 3), (4, 3), (3, 4)), limits)
def test_the_best_cut_is_the_best_of_all_there_are(found: Costs, bound: Limits) -> None:
    ranking = planner.rank(found, bound, STEPS)
    cuts = [p for p in ranking.predictions if p.layout.kind == "cut"]
    predicted = [planner.predict(found, layout, STEPS) for layout in every_cut(found)]
    possible = [p for p in predicted if allowed(found, bound, p)]
    for parts in (2, 3, None):
        of = [p.round_s for p in possible if parts in (None, len(p.layout.parts))]
        mine = [p.round_s for p in cuts if parts in (None, len(p.layout.parts))]
        if of and (parts is None or parts <= len(found.block_names)):
            assert mine, f"none of {len(of)} cuts was found"
            assert min(mine) == pytest.approx(min(of), rel=1e-9)
        elif parts is None:
            assert not mine


@settings(max_examples=60, deadline=None)
@given(costs((2, 2), (4, 2), (3, 3)), limits)
def test_predictions_keep_to_the_limits_and_come_in_order(found: Costs, bound: Limits) -> None:
    ranking = planner.rank(found, bound, STEPS)
    assert all(allowed(found, bound, p) for p in ranking.predictions)
    rounds_s = [p.round_s for p in ranking.predictions]
    assert rounds_s == sorted(rounds_s)
    singles = {p.layout.devices[0] for p in ranking.predictions if p.layout.kind == "whole"}
    refused = {r.what for r in ranking.refusals}
    for processor in found.processors:
        assert (processor.key in singles) != (processor.backend in refused)


@settings(max_examples=100, deadline=None)
@given(costs((2, 2), (3, 3)))
def test_level_shares_are_no_worse_than_any_others(found: Costs) -> None:
    """The closed form, in whole examples, where nothing is lost to the other."""
    free = replace(found, contention={})
    a, b = free.processors[:2]
    rows = search.level_rows(free, (a, b))
    assert sum(rows) == pytest.approx(BATCH)
    pair = list(search.splits(free, [a, b]))
    if min(rows) <= 0:
        return
    best_s = min(predict(free, x).step_s for x in pair)
    order = [free.processor(key) for key in pair[0].devices]
    for n in range(1, BATCH):
        shares = (n / BATCH, 1 - n / BATCH)
        other = Layout.split([p.key for p in order], shares, len(free.block_names))
        # by rounding to whole examples it may miss by less than one
        slack_s = max(sum(x.row_s for x in _lines(p)) for p in order)
        assert best_s <= predict(free, other).step_s + slack_s + 1e-9


def _lines(p: ProcessorCost) -> list[Affine]:
    return [p.gather, p.loss, *(x for b in p.blocks for x in (b.forward, b.backward))]


def test_where_memory_is_short_everywhere_a_deep_network_is_planned_all_the_same() -> None:
    """Too many partial placements are of use to keep all of them, and the ranking says so."""
    deep = costs_of(seed=1, blocks=24, count=3)
    rooms = [int(0.7 * sum(b.nbytes(BATCH) for b in p.blocks)) for p in deep.processors]
    deep = replace(
        deep,
        processors=tuple(
            replace(p, memory_nbytes=room, queued=False, part_s=0.0, link=Link(0.0, 1e6, 0.0, 1e6))
            for p, room in zip(deep.processors, rooms, strict=True)
        ),
    )
    ranking = planner.rank(deep, Limits(), STEPS)
    assert not ranking.exact
    assert {r.why for r in ranking.refusals} == {"memory"}
    assert {p.layout.kind for p in ranking.predictions} == {"cut"}
    assert all(allowed(deep, Limits(), p) for p in ranking.predictions)
    without = replace(deep, processors=tuple(replace(p, memory_nbytes=0) for p in deep.processors))
    assert planner.rank(without, Limits(), STEPS).exact


def test_refusals_name_the_layer_and_the_memory() -> None:
    found = replace(costs_of(2, blocks=3, count=2), batch_layers=("bn1", "bn2"))
    full, other = (
        replace(p, memory_nbytes=n) for p, n in zip(found.processors, (1, 0), strict=True)
    )
    ranking = planner.rank(replace(found, processors=(full, other)))
    assert [p.layout.kind for p in ranking.predictions] == ["whole"]
    memory, cut, both = ranking.refusals
    assert (memory.what, memory.why) == ("b0", "memory")
    assert memory.message.endswith("it may hold 0.0 MiB")
    assert (cut.what, cut.why) == ("cut", "memory")
    assert (both.why, both.layer) == ("batch statistics", "bn1")
    assert both.message == "bn1 needs the statistics of the whole batch (and so do 1 more)"


def test_an_energy_limit_needs_the_power_of_what_it_allows() -> None:
    found = costs_of(3, blocks=2, count=2)
    known, unknown = (
        replace(p, power_w=w, memory_nbytes=0)
        for p, w in zip(found.processors, (2.0, None), strict=True)
    )
    ranking = planner.rank(
        replace(found, processors=(known, unknown)), Limits(energy_j=1e6), num_steps=1
    )
    assert [p.layout.devices for p in ranking.predictions] == [(known.key,)]
    best = ranking.predictions[0]
    assert best.energy_j == pytest.approx(2 * best.step_s)
    assert {r.why for r in ranking.refusals} == {"energy"}
    assert any("state power_w" in r.message for r in ranking.refusals)


def test_a_split_over_the_same_cores_is_not_predicted_to_win() -> None:
    found = costs_of(4, blocks=3, count=2)
    keys = [p.key for p in found.processors]
    same = replace(
        found,
        contention={frozenset(keys): 1.0},
        processors=tuple(replace(p, memory_nbytes=0) for p in found.processors),
    )
    ranking = planner.rank(same)
    times = {
        kind: [p.step_s for p in ranking.predictions if p.layout.kind == kind]
        for kind in ("whole", "split")
    }
    assert min(times["whole"]) < min(times["split"])


def test_what_was_measured_of_a_layout_takes_the_place_of_its_prediction() -> None:
    found = costs_of(5, blocks=2, count=2)
    layout = Layout.whole(found.processors[0].key, 2)
    assert not planner.predict(found, layout).observed
    seen = planner.predict(replace(found, observed={layout: 0.125}), layout, num_steps=8)
    moves_s = found.round_moves_s(found.processors[0], 0, 2)
    assert (seen.step_s, seen.observed) == (0.125, True)
    assert seen.round_s == pytest.approx(1 + moves_s)
    assert seen.uncertainty < planner.predict(found, layout).uncertainty
