"""A segment's program before there is a device: launches, memory, cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from client.backends.opencl.launch import At, Launch, Memory, Slot, Symbol
from client.backends.opencl.lower import lower
from client.backends.opencl.lower.loss import WEIGHT_PARTS, lower_loss, metrics_places
from client.backends.opencl.lower.optimizer import (
    SLACK,
    clip_elements,
    flat_elements,
    lower_accumulate,
    lower_clip,
    lower_receive,
    lower_update,
)
from client.backends.opencl.memory import Arena, Gradients, live_ranges, plan_arena
from client.backends.opencl.tiles import Cover, Target
from client.backends.recipe import DEFAULT_RECIPE, OPTIMIZER_STATES, Recipe
from client.model.graph import Segment
from client.model.losses import CrossEntropy

MOST_NBYTES = 4 * (2**31 - 1)
"""Kernels number the elements of a buffer in 32 bits."""

_DTYPES = (np.dtype(np.uint8), np.dtype(np.float32))
"""Of data sets: what examples are gathered from."""


@dataclass(frozen=True)
class SegmentPlan:
    """Everything a program enqueues, and where its tensors lie."""

    segment: Segment
    capacity: int
    target: Target
    recipe: Recipe
    forward: tuple[Launch, ...]
    loss: tuple[Launch, ...]
    backward: tuple[Launch, ...]
    clip: tuple[Launch, ...]
    accumulate: tuple[Launch, ...]
    update: tuple[Launch, ...]
    arena: Arena
    input: Slot
    output: Slot
    input_grad: Slot | None
    output_grad: Slot | None
    zeros: int
    choices: Mapping[str, Cover]  # of tiles, by name: what can be tuned

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Of a step, but for ``gather``, which depends on the data, ``clip`` and ``accumulate``."""
        return (*self.forward, *self.loss, *self.backward, *self.update)

    @property
    def all_launches(self) -> tuple[Launch, ...]:
        """All that a program may enqueue."""
        gathers = [launch for dtype in _DTYPES for launch in gather_launches(self, dtype)]
        receive = lower_receive(self.segment, self.recipe, self.target)
        return (*gathers, *self.launches, *self.clip, *self.accumulate, *receive)

    @property
    def step_launches(self) -> int:
        """Launches of a training step, its gather included."""
        gathers = 1 + self.gathers_labels
        return gathers + sum(launch.mode != "evaluation" for launch in self.launches)

    @property
    def label_elements(self) -> int:
        """Labels of one example, and predictions: one for each."""
        return prod(self.recipe.loss.labels_shape(self.segment.model.output_shape))

    @property
    def gathers_labels(self) -> bool:
        """Whether labels are gathered by a launch of their own."""
        return self.segment.is_last and self.label_elements > 1

    @property
    def metrics_places(self) -> int:
        """Places in a row of the metrics."""
        loss, output = self.recipe.loss, self.segment.model.output_shape
        return self.capacity * metrics_places(loss, output, self.target)

    @property
    def variants(self) -> tuple[tuple[str, str], ...]:
        """(operation, kernel variant), and first what all kernels are generated for."""
        chosen = [(launch.op, launch.variant) for launch in self.launches if launch.variant]
        return (("all", str(self.target)), *chosen)

    @property
    def squares(self) -> int:
        """Partial sums of squares of the gradients, in the memory for clipping."""
        return clip_elements(self.segment, self.target) - 1 - SLACK

    @property
    def nbytes(self) -> dict[Memory, int]:
        """Size of each buffer but the arena's; parameters have slack for loads over their end."""
        flat = 4 * flat_elements(self.segment)
        return {
            Memory.PARAMS: 4 * (self.segment.num_values + SLACK),
            Memory.GRADS: flat,
            Memory.OPT_STATE: OPTIMIZER_STATES[self.recipe.optimizer] * flat,
            **({Memory.ROUND_START: flat} if self.recipe.proximal else {}),
            **({Memory.HELD: flat} if self.recipe.accumulates else {}),
            Memory.CLIP: 4 * clip_elements(self.segment, self.target),
            Memory.EXAMPLES: 4 * self.capacity,
            Memory.LABELS: 4 * (self.capacity * self.label_elements + SLACK),
            Memory.CLASS_WEIGHTS: 4 * max(len(self.class_weights), 1),
            Memory.BATCH_WEIGHT: 4 * WEIGHT_PARTS,
            Memory.METRICS: 3 * 4 * self.metrics_places,
            Memory.DROPOUT_KEY: 8,
            Memory.ZEROS: 4 * max(self.zeros, 1),
        }

    @property
    def class_weights(self) -> tuple[float, ...]:
        """Of the loss; empty where it has none."""
        loss = self.recipe.loss
        return loss.class_weights if isinstance(loss, CrossEntropy) else ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of all buffers: what a program allocates."""
        return (*self.nbytes.values(), *self.arena.sizes)


def plan_segment(
    segment: Segment,
    capacity: int,
    target: Target,
    recipe: Recipe = DEFAULT_RECIPE,
    most_nbytes: int = MOST_NBYTES,
) -> SegmentPlan:
    """The plan for batches of up to ``capacity`` examples.

    The arena is split where it would be larger than ``most_nbytes``, the device's largest buffer.
    """
    low = lower(segment, capacity, target)
    graph = low.graph
    input_slot, output_slot = low.value(graph.input), low.value(graph.output)
    output_grad = low.grad(graph.output) if graph.output in graph.needs_grad else None
    loss: tuple[Launch, ...] = ()
    between: list[Slot] = [output_grad] if output_grad is not None else []
    if segment.is_last:
        dlogits = output_grad or low.grad(graph.output)
        shape = segment.model.output_shape
        loss = lower_loss(recipe.loss, shape, capacity, target, output_slot, dlogits)
        between = [output_slot, dlogits]
    input_grad = low.grad(graph.input) if segment.needs_input_grad else None
    pinned = [slot for slot in (input_slot, output_slot, input_grad) if slot is not None]
    uses: Iterable[Iterable[Slot]] = [
        *(launch.slots for launch in low.forward),
        between,
        *(launch.slots for launch in low.backward),
    ]
    gradients = _gradients(segment, low.backward, len(low.forward) + 1)
    return SegmentPlan(
        segment=segment,
        capacity=capacity,
        target=target,
        recipe=recipe,
        forward=tuple(low.forward),
        loss=loss,
        backward=tuple(low.backward),
        clip=lower_clip(segment, recipe, target),
        accumulate=lower_accumulate(segment, recipe, target) if recipe.accumulates else (),
        update=lower_update(segment, recipe, target),
        arena=plan_arena(live_ranges(uses, pinned), min(most_nbytes, MOST_NBYTES), gradients),
        input=input_slot,
        output=output_slot,
        input_grad=input_grad,
        output_grad=output_grad,
        zeros=low.zeros,
        choices=low.choices,
    )


def _gradients(segment: Segment, backward: Sequence[Launch], begin: int) -> list[Gradients]:
    """Of each trained operation, from the first launch on that is given a place in them.

    Launches are numbered as in ``live_ranges``, those of the backward pass from ``begin`` on.
    """
    found = []
    for op in segment.ops:
        if op.trained:
            at = segment.grad_place(op.params[0])
            places = range(at, at + sum(p.size for p in op.params))
            first = next(
                begin + i
                for i, launch in enumerate(backward)
                if any(
                    isinstance(arg, At) and arg.memory is Memory.GRADS and arg.offset in places
                    for arg in launch.args
                )
            )
            found.append(Gradients(4 * places.start, 4 * places.stop, first))
    return found


def gather_launches(plan: SegmentPlan, dtype: np.dtype[np.generic]) -> tuple[Launch, ...]:
    """Bring a batch in; the arguments that depend on data and step follow ``args``."""
    gather = _gather(plan, dtype) if plan.segment.is_first else _gather_rows(plan)
    return (gather, _gather_labels(plan)) if plan.gathers_labels else (gather,)


def _gather(plan: SegmentPlan, dtype: np.dtype[np.generic]) -> Launch:
    target = plan.target
    spec = plan.segment.model.input
    channels = len(spec.affine(dtype)[0])
    spatial = prod(spec.shape) // channels
    vectors = -(-spatial // target.vector)
    raw = "uchar" if dtype == np.uint8 else "float"
    return Launch(
        op="gather",
        source="gather",
        kernel="gather",
        args=(plan.input, Memory.EXAMPLES, Memory.LABELS, Symbol.COUNT),
        items=lambda count: (vectors, channels, count),
        local=(target.group, 1, 1),
        defines=(
            ("CHANNELS", channels),
            ("LABELS", int(plan.label_elements == 1)),
            ("RAW", raw),
            ("SPATIAL", spatial),
            ("VW", target.vector),
        ),
        busy="copy",
    )


def _gather_rows(plan: SegmentPlan) -> Launch:
    return Launch(
        op="gather",
        source="gather",
        kernel="gather_rows",
        args=(Memory.EXAMPLES, Memory.LABELS, Symbol.COUNT),
        items=lambda count: (count,),
        local=(plan.target.group,),
        defines=(("LABELS", int(plan.label_elements == 1)), ("VW", plan.target.vector)),
        busy="copy",
    )


def _gather_labels(plan: SegmentPlan) -> Launch:
    size = plan.label_elements
    return Launch(
        op="gather",
        source="gather",
        kernel="gather_labels",
        args=(Memory.LABELS, size, Symbol.COUNT),
        items=lambda count: (size, count),
        local=(plan.target.group, 1),
        defines=(("VW", plan.target.vector),),
        busy="copy",
    )
