"""A segment's program before there is a device: launches, memory, cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from client.backends.opencl.launch import At, Launch, Memory, Slot, Symbol
from client.backends.opencl.lower import lower
from client.backends.opencl.memory import Arena, live_ranges, plan_arena
from client.backends.opencl.tiles import Target
from client.model.graph import Segment

MOST_NBYTES = 4 * (2**31 - 1)
"""Kernels number the elements of a buffer in 32 bits."""


@dataclass(frozen=True)
class SegmentPlan:
    """Everything a program enqueues, and where its tensors lie."""

    segment: Segment
    capacity: int
    target: Target
    forward: tuple[Launch, ...]
    loss: Launch | None
    backward: tuple[Launch, ...]
    clip: tuple[Launch, ...]
    update: Launch | None
    arena: Arena
    input: Slot
    output: Slot
    input_grad: Slot | None
    output_grad: Slot | None
    zeros: int

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All but those of ``gather``, which depend on the data's type, and of ``clip``."""
        ends = [launch for launch in (self.loss, self.update) if launch is not None]
        return (*self.forward, *self.backward, *ends)

    @property
    def step_launches(self) -> int:
        """Launches of a training step, its gather included."""
        return 1 + sum(launch.mode != "evaluation" for launch in self.launches)

    @property
    def variants(self) -> tuple[tuple[str, str], ...]:
        return tuple((launch.op, launch.variant) for launch in self.launches if launch.variant)

    @property
    def nbytes(self) -> dict[Memory, int]:
        """Size of each buffer but the arena's; parameters have slack for loads over their end."""
        flat = 4 * (self.segment.num_params + 64)
        return {
            Memory.PARAMS: 4 * (self.segment.num_values + 64),
            Memory.GRADS: flat,
            Memory.VELOCITY: flat,
            Memory.ROUND_START: flat,
            Memory.CLIP: 4 * (1 + _clip_parts(self.segment.num_params, self.target) + 64),
            Memory.EXAMPLES: 4 * self.capacity,
            Memory.LABELS: 4 * self.capacity,
            Memory.METRICS: 3 * 4 * self.capacity,
            Memory.DROPOUT_KEY: 8,
            Memory.ZEROS: 4 * max(self.zeros, 1),
        }

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of all buffers: what a program allocates."""
        return (*self.nbytes.values(), *self.arena.sizes)


def plan_segment(
    segment: Segment, capacity: int, target: Target, most_nbytes: int = MOST_NBYTES
) -> SegmentPlan:
    """The plan for batches of up to ``capacity`` examples.

    The arena is split where it would be larger than ``most_nbytes``, the device's largest buffer.
    """
    low = lower(segment, capacity, target)
    graph = low.graph
    input_slot, output_slot = low.value(graph.input), low.value(graph.output)
    output_grad = low.grad(graph.output) if graph.output in graph.needs_grad else None
    loss = None
    between: list[Slot] = [output_grad] if output_grad is not None else []
    if segment.is_last:
        dlogits = output_grad or low.grad(graph.output)
        loss = _loss(segment, capacity, target, output_slot, dlogits)
        between = list(loss.slots)
    input_grad = None
    if not segment.is_first:
        input_grad = low.grad(graph.input)
    pinned = [slot for slot in (input_slot, output_slot, input_grad) if slot is not None]
    uses: Iterable[Iterable[Slot]] = [
        *(launch.slots for launch in low.forward),
        between,
        *(launch.slots for launch in low.backward),
    ]
    return SegmentPlan(
        segment=segment,
        capacity=capacity,
        target=target,
        forward=tuple(low.forward),
        loss=loss,
        backward=tuple(low.backward),
        clip=_clip(segment, target) if segment.num_params else (),
        update=_update(segment, target) if segment.num_params else None,
        arena=plan_arena(live_ranges(uses, pinned), min(most_nbytes, MOST_NBYTES)),
        input=input_slot,
        output=output_slot,
        input_grad=input_grad,
        output_grad=output_grad,
        zeros=low.zeros,
    )


def gather_launch(plan: SegmentPlan, dtype: np.dtype[np.generic]) -> Launch:
    """Brings a batch in; the arguments that depend on data and step follow ``args``."""
    segment, target = plan.segment, plan.target
    if not segment.is_first:
        return Launch(
            op="gather",
            source="gather",
            kernel="gather_rows",
            args=(Memory.EXAMPLES, Memory.LABELS, Symbol.COUNT),
            items=lambda count: (count,),
            local=(target.group,),
            defines=(("VW", target.vector),),
            busy="copy",
        )
    channels, *rest = segment.model.input.shape
    spatial = int(np.prod(rest, dtype=np.int64))
    vectors = -(-spatial // target.vector)
    raw = "uchar" if dtype == np.uint8 else "float"
    return Launch(
        op="gather",
        source="gather",
        kernel="gather",
        args=(plan.input, Memory.EXAMPLES, Memory.LABELS, Symbol.COUNT),
        items=lambda count: (vectors, channels, count),
        local=(target.group, 1, 1),
        defines=(("CHANNELS", channels), ("RAW", raw), ("SPATIAL", spatial), ("VW", target.vector)),
        busy="copy",
    )


def _loss(segment: Segment, capacity: int, target: Target, logits: Slot, dlogits: Slot) -> Launch:
    return Launch(
        op="loss",
        source="loss",
        kernel="cross_entropy",
        args=(
            logits,
            dlogits,
            Memory.LABELS,
            Memory.METRICS,
            segment.model.num_classes,
            capacity,
            Symbol.LOSS_SCALE,
            Symbol.COUNT,
        ),
        items=lambda count: (count,),
        local=(min(4, target.group),) if target.kind == "cpu" else (target.group,),
        defines=(("VW", target.vector),),
    )


MOST_SQUARES = 1024
"""Vectors of squares that one work-item adds up: longer sums round more."""


def _clip_parts(n: int, target: Target) -> int:
    """Work-items that add up the squares of ``n`` gradients."""
    vectors = -(-n // target.vector)
    return max(1, min(target.busy, vectors), -(-vectors // MOST_SQUARES))


def _clip(segment: Segment, target: Target) -> tuple[Launch, Launch]:
    """What the gradients are multiplied by, so that their norm is no more than the limit."""
    n = segment.num_params
    parts = _clip_parts(n, target)
    sums = At(Memory.CLIP, 1)
    squares = Launch(
        op="clip",
        source="optimizer",
        kernel="clip_squares",
        args=(Memory.PARAMS, Memory.GRADS, Memory.ROUND_START, sums, n, parts),
        items=lambda count: (parts,),
        local=(target.group,),
        defines=(("VW", target.vector),),
    )
    factor = Launch(
        op="clip",
        source="optimizer",
        kernel="clip_factor",
        args=(sums, Memory.CLIP, parts),
        items=lambda count: (1,),
        local=(1,),
        defines=(("VW", target.vector),),
    )
    return squares, factor


def _update(segment: Segment, target: Target) -> Launch:
    n = segment.num_params
    return Launch(
        op="update",
        source="optimizer",
        kernel="sgd",
        args=(Memory.PARAMS, Memory.GRADS, Memory.VELOCITY, Memory.ROUND_START, Memory.CLIP, n),
        items=lambda count: (-(-n // target.vector),),
        local=(target.group,),
        defines=(("VW", target.vector),),
    )
