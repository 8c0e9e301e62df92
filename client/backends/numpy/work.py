"""What a call had to do at the least, held against the time that it took."""

from __future__ import annotations

from typing import Literal

from client.backends.figures import Command, Part
from client.backends.numpy.ops import Function


def command_of(
    function: Function, part: Literal["forward", "backward"], count: int, seconds: float
) -> Command:
    """One function's call: its layer's arithmetic, and each of its tensors touched once."""
    t = function.t
    flops = function.op.layer.flops(tuple(t.x[0].shape[:-1])) * count
    if part == "forward":
        arrays = [*t.x, t.y, *t.params.values()]
    else:
        dx = [g for g in t.dx if g is not None]
        arrays = [*t.x, t.dy, *dx, *t.grads.values(), *(t.params.values() if dx else ())]
        if t.params and dx:
            flops *= 2  # gradients of the parameters and of the input
    nbytes = sum(array.nbytes for array in arrays)
    return Command(
        function.op.name, part, type(function).__name__, "", "compute", flops, nbytes, seconds
    )


def single(part: Part, busy: Literal["compute", "copy"], nbytes: int, seconds: float) -> Command:
    """A part of the step that is one call."""
    return Command(part, part, part, "", busy, 0, nbytes, seconds)
