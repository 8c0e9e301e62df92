"""Losses: which kernel computes value, gradient and metrics, and where its metrics go."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from client.backends.opencl.launch import Define, Launch, Memory, PerCount, Slot, Symbol
from client.backends.opencl.tiles import Target
from client.model.layers import Shape
from client.model.losses import MSE, BCEWithLogits, CrossEntropy, Loss

WEIGHT_PARTS = 64
"""Work-items that add up what a batch's labels weigh."""

CHUNK_VECTORS = 16
"""Vectors of a row that one work-item of an elementwise loss goes over."""


def metrics_places(loss: Loss, output: Shape, target: Target) -> int:
    """Places in the metrics for each row of the batch: a work-item of the loss has its own."""
    if isinstance(loss, CrossEntropy):
        return prod(output[1:])
    return -(-prod(output) // (CHUNK_VECTORS * target.vector))


def lower_loss(
    loss: Loss, output: Shape, capacity: int, target: Target, y: Slot, dy: Slot
) -> tuple[Launch, ...]:
    """The launches of a loss on the network's output ``y``; its gradient goes to ``dy``.

    What the sum is multiplied by follows the ``args`` of the last one: 1 / what the batch weighs.
    """
    return _LOWER[type(loss)](loss, output, capacity, target, y, dy)


def _cross_entropy(
    loss: Loss, output: Shape, capacity: int, target: Target, y: Slot, dy: Slot
) -> tuple[Launch, ...]:
    assert isinstance(loss, CrossEntropy)
    classes, steps = output[0], prod(output[1:])
    weighted = bool(loss.class_weights)
    smoothing = loss.label_smoothing / classes
    defines: tuple[tuple[str, Define], ...] = (
        ("SMOOTH", int(smoothing > 0)),
        ("VW", target.vector),
        ("WEIGHTED", int(weighted)),
    )
    launch = Launch(
        op="loss",
        source="loss",
        kernel="cross_entropy",
        args=(
            y,
            dy,
            Memory.LABELS,
            Memory.METRICS,
            Memory.CLASS_WEIGHTS,
            Memory.BATCH_WEIGHT,
            classes,
            steps,
            capacity * steps,
            1.0 - loss.label_smoothing,
            smoothing,
            smoothing * (sum(loss.class_weights) if weighted else classes),
            PerCount(steps),
        ),
        items=lambda count: (count * steps,),
        local=(target.middling_group,),
        defines=defines,
    )
    if not weighted:
        return (launch,)
    weigh = Launch(
        op="loss",
        source="loss",
        kernel="weigh_labels",
        args=(Memory.LABELS, Memory.CLASS_WEIGHTS, Memory.BATCH_WEIGHT, PerCount(steps)),
        items=lambda count: (WEIGHT_PARTS,),
        local=(min(16, target.group),),
        defines=defines,
    )
    return weigh, launch


def _elementwise(
    loss: Loss, output: Shape, capacity: int, target: Target, y: Slot, dy: Slot
) -> tuple[Launch, ...]:
    elements, parts = prod(output), metrics_places(loss, output, target)
    launch = Launch(
        op="loss",
        source="loss",
        kernel=loss.name,
        args=(
            y,
            dy,
            Memory.LABELS,
            Memory.METRICS,
            elements,
            parts,
            capacity * parts,
            Symbol.COUNT,
        ),
        items=lambda count: (parts, count),
        local=target.block(target.middling_group),
        defines=(("CHUNK", CHUNK_VECTORS), ("VW", target.vector)),
    )
    return (launch,)


_LOWER: dict[type[Loss], Callable[[Loss, Shape, int, Target, Slot, Slot], tuple[Launch, ...]]] = {
    CrossEntropy: _cross_entropy,
    BCEWithLogits: _elementwise,
    MSE: _elementwise,
}
