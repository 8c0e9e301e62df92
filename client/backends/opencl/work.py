"""What a launch has to do at the least: arithmetic, and bytes to and from memory.

Both are held against the time that the launch took, never used to predict it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from client.backends.figures import Command, Part
from client.backends.opencl.launch import At, Launch, Memory, Slot

if TYPE_CHECKING:
    from client.backends.opencl.plan import SegmentPlan


def describe(
    launch: Launch, part: Part, count: int, plan: SegmentPlan, raw_itemsize: int
) -> Command:
    """The launch for a batch of ``count`` as a command that took no time yet.

    ``raw_itemsize``: bytes of a number in the data set, which a gather reads.
    """
    nbytes = least_nbytes(launch, count, plan)
    if part == "gather" and plan.input in launch.slots:
        nbytes += count * prod(plan.segment.model.input.shape) * raw_itemsize
    return Command(
        op=launch.op,
        part=part,
        kernel=launch.kernel,
        variant=launch.variant,
        busy=launch.busy,
        flops=launch.flops * count,
        nbytes=nbytes,
        seconds=0.0,
    )


def least_nbytes(launch: Launch, count: int, plan: SegmentPlan) -> int:
    """Bytes that pass if each tensor that the kernel is given is read or written once.

    A tensor of activations counts by the rows of the batch. What is read again because no cache
    held it is above the least, and so is what is added to and written back.
    """
    if launch.flat_nbytes:
        return launch.flat_nbytes
    segment = plan.segment
    sizes = {
        At(Memory.PARAMS, segment.place(p)): p.size
        for op in segment.ops
        for p in (*op.params, *op.buffers)
    }
    trained = [p for op in segment.ops if op.trained for p in op.params]
    sizes |= {At(Memory.GRADS, segment.grad_place(p)): p.size for p in trained}
    total, parts = 0, dict(launch.parts)
    for arg in launch.args:
        if isinstance(arg, Slot):
            total += arg.nbytes * count // (plan.capacity * parts.get(arg, 1))
        elif isinstance(arg, At):
            total += 4 * sizes.get(arg, 0)
    return total
