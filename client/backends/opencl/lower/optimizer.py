"""The update: the gradients' norm where it is limited, and the optimizer's step.

Gradients, round start and optimizer state hold the trained runs of the segment's parameters one
after the other; an update is one launch for each run: one, unless layers in between are frozen.
"""

from __future__ import annotations

from client.backends.opencl.launch import Arg, At, Define, Items, Launch, Memory
from client.backends.opencl.tiles import Target
from client.backends.recipe import OPTIMIZER_STATES, Recipe
from client.model.graph import Segment

SLACK = 64
"""Elements after a flat buffer's last: vector loads may reach over its end."""

MOST_SQUARES = 1024
"""Vectors of squares that one work-item adds up: longer sums round more."""


def flat_elements(segment: Segment) -> int:
    """Elements of a buffer that holds one number for each trained parameter."""
    return segment.num_trained + SLACK


def clip_elements(segment: Segment, target: Target) -> int:
    """Elements of the buffer for the factor and the partial sums of squares."""
    return 1 + sum(_parts(run, target) for run in segment.trained_runs) + SLACK


def lower_clip(segment: Segment, recipe: Recipe, target: Target) -> tuple[Launch, ...]:
    """What the gradients are multiplied by, so that their norm is no more than the limit."""
    launches, at = [], 0
    for run, offset in segment.trained_places:
        parts, sums = _parts(run, target), At(Memory.CLIP, 1 + at)
        launches.append(
            Launch(
                op="clip",
                source="optimizer",
                kernel="clip_squares",
                args=(
                    At(Memory.PARAMS, run.start),
                    At(Memory.GRADS, offset),
                    *_round_start(recipe, offset),
                    sums,
                    run.stop - run.start,
                    parts,
                ),
                items=_always(parts),
                local=(target.group,),
                defines=_defines(recipe, target),
                flat_nbytes=4 * (3 if recipe.proximal else 1) * (run.stop - run.start),
            )
        )
        at += parts
    if launches:
        launches.append(
            Launch(
                op="clip",
                source="optimizer",
                kernel="clip_factor",
                args=(At(Memory.CLIP, 1), Memory.CLIP, at),
                items=_always(1),
                local=(1,),
                defines=_defines(recipe, target),
            )
        )
    return tuple(launches)


def lower_update(segment: Segment, recipe: Recipe, target: Target) -> tuple[Launch, ...]:
    """One step of the optimizer; what changes from step to step follows ``args``."""
    launches, optimizer = [], recipe.optimizer
    for run, offset in segment.trained_places:
        n = run.stop - run.start
        vectors = -(-n // target.vector)
        states = [
            At(Memory.OPT_STATE, i * flat_elements(segment) + offset)
            for i in range(OPTIMIZER_STATES[optimizer])
        ]
        launches.append(
            Launch(
                op="update",
                source="optimizer",
                kernel="sgd" if optimizer == "sgd" else "adam",
                args=(
                    At(Memory.PARAMS, run.start),
                    At(Memory.GRADS, offset),
                    *states,
                    *_round_start(recipe, offset),
                    Memory.CLIP,
                    n,
                ),
                items=_always(vectors),
                local=(target.group,),
                defines=_defines(recipe, target),
                # parameters and state both ways, gradients, the round's start
                flat_nbytes=4 * n * (3 + 2 * OPTIMIZER_STATES[optimizer] + recipe.proximal),
            )
        )
    return tuple(launches)


def lower_accumulate(segment: Segment, recipe: Recipe, target: Target) -> tuple[Launch, ...]:
    """Gradients to what is held, and what is held to the gradients; "add" follows ``args``."""
    pairs = ((Memory.GRADS, Memory.HELD), (Memory.HELD, Memory.GRADS))
    return _sums(segment, recipe, target, pairs)


def lower_receive(segment: Segment, recipe: Recipe, target: Target) -> tuple[Launch, ...]:
    """What was received to the gradients; "add" follows ``args``."""
    return _sums(segment, recipe, target, ((Memory.RECEIVED, Memory.GRADS),))


def _sums(
    segment: Segment, recipe: Recipe, target: Target, pairs: tuple[tuple[Memory, Memory], ...]
) -> tuple[Launch, ...]:
    """From one flat buffer to another; none where nothing is trained."""
    n = segment.num_trained
    vectors = -(-n // target.vector)
    return tuple(
        Launch(
            op="accumulate",
            source="optimizer",
            kernel="accumulate",
            args=(At(source, 0), At(destination, 0), n),
            items=_always(vectors),
            local=(target.group,),
            defines=_defines(recipe, target),
            flat_nbytes=4 * 3 * n,
        )
        for source, destination in pairs
        if n
    )


def _round_start(recipe: Recipe, offset: int) -> list[Arg]:
    return [At(Memory.ROUND_START, offset)] if recipe.proximal else []


def _defines(recipe: Recipe, target: Target) -> tuple[tuple[str, Define], ...]:
    """One program for all kernels of optimizer.cl."""
    return ("PROXIMAL", int(recipe.proximal)), ("VW", target.vector)


def _always(items: int) -> Items:
    """So many work-items, whatever the batch."""
    return lambda count: (items,)


def _parts(run: slice, target: Target) -> int:
    """Work-items that add up the squares of a run's gradients."""
    n: int = run.stop - run.start
    vectors = -(-n // target.vector)
    return max(1, min(target.busy, vectors), -(-vectors // MOST_SQUARES))
