"""The arena of the OpenCL backend: no two regions that are live at once overlap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.backends.opencl.launch import At, Memory, Slot
from client.backends.opencl.memory import (
    ALIGNMENT_NBYTES,
    SLACK_NBYTES,
    Arena,
    Gradients,
    live_ranges,
    plan_arena,
)
from client.backends.opencl.plan import MOST_NBYTES, SegmentPlan, plan_segment
from client.backends.opencl.tiles import target_of
from client.model import Segment, load_model
from tests.backend.cases import CASES

CPU = target_of("cpu", 16)
MODELS = {name: load_model(Path(name)) for name in ("mlp", "lenet5", "femnist_cnn")}
MODELS |= {case.name: case.model for case in CASES}

Range = tuple[int, int]


def check(ranges: Mapping[Slot, Range], arena: Arena, gradients: Sequence[Gradients] = ()) -> None:
    """Pair by pair: disjoint in time or in space; aligned; within the arena and its slack."""
    slots = list(ranges)
    for slot in slots:
        place = arena.places[slot]
        begin = 4 * place.offset
        assert begin % ALIGNMENT_NBYTES == 0
        assert begin >= SLACK_NBYTES
        if place.buffer > 0:
            assert begin + slot.nbytes + SLACK_NBYTES <= arena.sizes[place.buffer - 1]
        for part in gradients if place.buffer == 0 else ():
            # beside them, or before they are written
            assert (
                begin >= part.end
                or begin + slot.nbytes <= part.begin
                or part.first > ranges[slot][1]
            )
            assert begin + slot.nbytes <= max(g.end for g in gradients)
    for i, one in enumerate(slots):
        for other in slots[:i]:
            in_time = ranges[one][0] <= ranges[other][1] and ranges[other][0] <= ranges[one][1]
            if arena.places[one].buffer != arena.places[other].buffer:
                continue
            begins = 4 * arena.places[one].offset, 4 * arena.places[other].offset
            in_space = begins[0] < begins[1] + other.nbytes and begins[1] < begins[0] + one.nbytes
            assert not (in_time and in_space), f"{one.name} and {other.name} overlap"


@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.integers(0, 20), st.integers(0, 20)),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from([6000, 12_000, MOST_NBYTES]),
)
def test_live_regions_never_overlap(drawn: list[tuple[int, int, int]], most_nbytes: int) -> None:
    """Nor is a buffer larger than it may be, nor a second one begun without need."""
    ranges = {
        Slot(str(i), nbytes): (min(a, b), max(a, b)) for i, (nbytes, a, b) in enumerate(drawn)
    }
    arena = plan_arena(ranges, most_nbytes)
    check(ranges, arena)
    assert max(arena.sizes) <= most_nbytes
    if len(arena.sizes) == 1:
        assert arena == plan_arena(ranges, MOST_NBYTES)
    else:
        assert plan_arena(ranges, MOST_NBYTES).nbytes > most_nbytes
    padded = sum(-(-slot.nbytes // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES for slot in ranges)
    assert arena.nbytes <= padded + 2 * SLACK_NBYTES * len(arena.sizes)


def test_gradients_lend_their_place_until_they_are_written() -> None:
    """To what fits there and dies before; not to what lives longer, nor beyond their end."""
    parts = [Gradients(0, 1000, 7), Gradients(1000, 2000, 4)]
    early, long, large = Slot("early", 1200), Slot("long", 640), Slot("large", 4000)
    late, tail = Slot("late", 600), Slot("tail", 256)
    ranges = {early: (0, 3), long: (2, 9), large: (0, 1), late: (4, 6), tail: (6, 7)}
    arena = plan_arena(ranges, MOST_NBYTES, parts)
    check(ranges, arena, parts)
    assert {slot.name for slot, place in arena.places.items() if place.buffer == 0} == {
        "early",
        "late",
    }
    assert {place.buffer for place in plan_arena(ranges, MOST_NBYTES).places.values()} == {1}


def test_memory_is_used_again() -> None:
    """A chain in which each region lives for two steps needs two regions' memory."""
    ranges = {Slot(str(i), 6400): (i, i + 1) for i in range(10)}
    arena = plan_arena(ranges, MOST_NBYTES)
    check(ranges, arena)
    assert arena.nbytes == 2 * 6400 + 2 * SLACK_NBYTES


def test_ranges_reach_from_first_to_last_use() -> None:
    a, b, c = (Slot(name, 4) for name in "abc")
    ranges = live_ranges([[a], [b], [a, b], []], pinned=[c])
    assert ranges == {a: (0, 2), b: (1, 2), c: (0, 3)}


def uses(plan: SegmentPlan) -> Iterator[Sequence[Slot]]:
    """Which regions each command of a step reads or writes, in order, found without the planner."""
    yield [plan.input]
    for launch in plan.forward:
        yield launch.slots
    yield [plan.output]
    for launch in plan.loss:
        yield launch.slots
    if plan.output_grad is not None:
        yield [plan.output_grad]
    for launch in plan.backward:
        yield launch.slots
    yield [slot for slot in (plan.output, plan.input_grad) if slot is not None]


def gradients(plan: SegmentPlan, begin: int) -> list[Gradients]:
    """Of each operation, and which command of a step writes them first, found likewise."""
    found, segment = [], plan.segment
    for op in segment.ops:
        if op.trained:
            start = segment.grad_place(op.params[0])
            stop = segment.grad_place(op.params[-1]) + op.params[-1].size
            writers = [
                begin + i
                for i, launch in enumerate(plan.backward)
                for arg in launch.args
                if isinstance(arg, At) and arg.memory is Memory.GRADS and start <= arg.offset < stop
            ]
            found.append(Gradients(4 * start, 4 * stop, min(writers)))
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_steps_of_models_keep_what_they_need(name: str, kind: str) -> None:
    """The whole model, and every pair of segments: what is written is there until its last use."""
    model = MODELS[name]
    blocks = len(model.block_names)
    cuts = [(0, blocks)] + [pair for cut in range(1, blocks) for pair in ((0, cut), (cut, blocks))]
    for first, stop in cuts:
        plan = plan_segment(Segment(model, first, stop), 5, target_of(kind, 4))
        ranges: dict[Slot, Range] = {}
        for time, slots in enumerate(uses(plan)):
            for slot in slots:
                ranges[slot] = (ranges.get(slot, (time, time))[0], time)
        check(ranges, plan.arena, gradients(plan, time - len(plan.backward)))


@pytest.mark.parametrize("name", ["lenet5", "femnist_cnn"])
def test_arena_is_hardly_larger_than_what_the_forward_pass_leaves(name: str) -> None:
    """Activations must all outlast it; their gradients lie over them, or share memory."""
    model = MODELS[name]
    plan = plan_segment(model.whole, 32, CPU)
    slots = {slot for launch in plan.forward for slot in launch.slots}
    assert plan.arena.nbytes < 1.01 * sum(slot.nbytes for slot in slots)
