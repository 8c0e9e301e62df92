"""Batch norm (with what follows it: a sum, a ReLU), group norm and layer norm."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from client.backends.opencl.launch import Arg, Define, PerCount, Slot, Symbol
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import Lowering
from client.model.layers import BatchNorm, GroupNorm, LayerNorm


@dataclass(frozen=True)
class _Batch:
    """How the kernels go over a batch: planes of ``size`` values, examples in ``splits``."""

    channels: int
    size: int
    across: bool  # one value per channel: vectors go across channels
    width: int  # channels of a work-item
    parts: int  # work-items that share a plane
    split: int  # examples of a work-item
    splits: int

    @property
    def sizes(self) -> list[Arg]:
        """The last arguments of the kernels that go over a batch."""
        return [self.channels, self.size, self.parts, self.split, Symbol.COUNT]

    @property
    def stages(self) -> tuple[int, int]:
        """Work-items of a kernel that adds up."""
        return (-(-self.channels // self.width), self.splits)


def batch_forward(node: Node, low: Lowering) -> None:
    """y from the batch's statistics in training, from the running ones else.

    A frozen layer knows the running ones alone.
    """
    if node.op.frozen:
        _forward(node, low, [], running=True, mode="always")
        return
    batch, x = _batch(node, low), low.value(node.inputs[0])
    sums, stats = _sums(node, batch), _statistics(node, low, batch)
    low.launch(
        node,
        "batchnorm",
        "batch_moments",
        [x, sums, batch.channels, batch.size, batch.split, Symbol.COUNT],
        lambda count: batch.stages,
        _local(low, 2),
        backward=False,
        defines={"ACROSS": int(batch.across)},
        mode="training",
    )
    _forward(node, low, [sums, stats], running=False, mode="training")
    _forward(node, low, [], running=True, mode="evaluation")


def _forward(
    node: Node,
    low: Lowering,
    of_batch: list[Arg],
    *,
    running: bool,
    mode: Literal["always", "training", "evaluation"],
) -> None:
    layer, batch = node.op.layer, _batch(node, low)
    assert isinstance(layer, BatchNorm)
    added: list[Arg] = [low.value(t) for t in node.inputs[1:]]
    low.launch(
        node,
        "batchnorm",
        "batch_forward",
        [
            low.value(node.inputs[0]),
            *_affine(node, low),
            *added,
            *of_batch,
            low.param(node.op.buffers[0]),
            low.value(node.output),
            layer.eps,
            layer.momentum,
            *batch.sizes,
        ],
        lambda count: (batch.parts, *batch.stages),
        _local(low, 3),
        backward=False,
        defines={
            **_defines(node, batch),
            "RUNNING": int(running),
            "RELU": int(node.relu),
            "ADD": len(added),
        },
        mode=mode,
    )


def batch_backward(node: Node, low: Lowering) -> None:
    """dw and db; dx, in place where it may be; the gradient of a tensor that was added."""
    batch, layer = _batch(node, low), node.op.layer
    assert isinstance(layer, BatchNorm)
    x, dy = node.inputs[0], low.grad(node.output)
    relu = node.relu and not node.gated
    reads: list[Arg] = [low.value(x), dy, *([low.value(node.output)] if relu else [])]
    results: list[Arg] = []
    if node.op.frozen:
        statistics: list[Arg] = [low.param(node.op.buffers[0]), layer.eps]
    else:
        sums, stats = _sums(node, batch), _statistics(node, low, batch)
        statistics = [stats, sums]
        results = [low.param_grad(p) for p in node.op.params[:1]]
        low.launch(
            node,
            "batchnorm",
            "batch_products",
            [*reads, stats, sums, batch.channels, batch.size, batch.split, Symbol.COUNT],
            lambda count: batch.stages,
            _local(low, 2),
            backward=True,
            defines={"ACROSS": int(batch.across), "RELU": int(relu)},
        )
    passed, passing = _pass_on(node, low, relu)
    # over dy, unless that is now the gradient of a tensor that was added
    added = [t for t in node.inputs[1:] if t in low.graph.needs_grad]
    dx = low.input_grad(node, in_place=not any(low.grad(t) is dy for t in added))
    low.launch(
        node,
        "batchnorm",
        "batch_backward",
        [
            *reads,
            *_affine(node, low),
            *statistics,
            *results,
            *([passed] if passed else []),
            *([dx.slot] if dx else []),
            *batch.sizes,
        ],
        lambda count: (batch.parts, *batch.stages),
        _local(low, 3),
        backward=True,
        defines={
            **_defines(node, batch),
            "RUNNING": int(node.op.frozen),
            "RELU": int(relu),
            "PASS": passing,
            "DX": int(dx is not None),
            **(dx.defines if dx else {}),
        },
    )


def _pass_on(node: Node, low: Lowering, relu: bool) -> tuple[Slot | None, int]:
    """Where the gradient of an added tensor is written, and how (PASS in batchnorm.cl).

    Nothing is written where it may lie where dy does, unless the ReLU's gate is still to come.
    """
    for tensor in node.inputs[1:]:
        if tensor not in low.graph.needs_grad:
            continue
        if low.pass_grad(node.output, tensor):
            return (low.grad(node.output), 1) if relu else (None, 0)
        slot, there = low.add_to_grad(tensor)
        return slot, 2 if there else 1
    return None, 0


def _batch(node: Node, low: Lowering) -> _Batch:
    channels, *rest = low.graph.segment.model.tensors[node.op.output]
    size = prod(rest)
    vector = low.target.vector
    across = size == 1
    width = vector if across else 1
    parts = min(low.target.large_group, -(-size // vector))
    wanted = -(-low.target.busy // -(-channels // width))
    split = -(-low.capacity // min(low.capacity, wanted))
    return _Batch(channels, size, across, width, parts, split, -(-low.capacity // split))


def _sums(node: Node, batch: _Batch) -> Slot:
    return Slot(f"sums of {node.op.name}", 8 * batch.channels * batch.splits)


def _statistics(node: Node, low: Lowering, batch: _Batch) -> Slot:
    """Of the batch: mean and deviation of each channel."""
    return low.keep(node, "statistics", 2 * batch.channels)


def _affine(node: Node, low: Lowering) -> list[Arg]:
    """Weight, with the bias behind it."""
    return [low.param(p) for p in node.op.params[:1]]


def _defines(node: Node, batch: _Batch) -> dict[str, Define]:
    return {"ACROSS": int(batch.across), "AFFINE": int(bool(node.op.params))}


def _local(low: Lowering, dimensions: int) -> tuple[int, ...]:
    return (low.target.large_group, *[1] * (dimensions - 1))


# -- group norm, layer norm -------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """Rows of an example, the units that a row is made of, and whose weights are whose."""

    rows: int
    units: int
    unit: int
    cycle: int
    places: bool
    affine: int  # tensors: 0, 1 (weights), 2 (and biases)

    @property
    def weights(self) -> int:
        return self.cycle * self.units * (self.unit if self.places else 1)


def row_forward(node: Node, low: Lowering) -> None:
    """y, and the moments of each row for the backward pass."""
    rows = _rows(node, low)
    moments = _moments(node, low, rows)
    x, y = low.value(node.inputs[0]), low.value(node.output)
    args: list[Arg] = [x, *[low.param(p) for p in node.op.params], moments, y, _eps(node)]
    _launch_rows(node, low, "row_forward", args, rows, backward=False, defines={})


def row_backward(node: Node, low: Lowering) -> None:
    """dw and db, in partial sums; then dx, in place where it may be."""
    rows = _rows(node, low)
    moments = _moments(node, low, rows)
    x, dy = low.value(node.inputs[0]), low.grad(node.output)
    if node.op.trained:
        _row_affine(node, low, rows, [x, dy, moments])
    dx = low.input_grad(node, in_place=True)
    if dx is None:
        return
    weight: list[Arg] = [low.param(p) for p in node.op.params[:1]]
    args: list[Arg] = [x, dy, *weight, moments, dx.slot]
    _launch_rows(node, low, "row_backward", args, rows, backward=True, defines=dx.defines)


def _row_affine(node: Node, low: Lowering, rows: _Rows, reads: list[Arg]) -> None:
    per_row = -(-rows.unit // low.target.vector) if rows.places else rows.units
    items = rows.cycle * per_row
    wanted = min(low.capacity, -(-low.target.busy // items))
    examples = -(-low.capacity // wanted)  # a split takes whole examples: cycle divides rows
    splits = -(-low.capacity // examples)
    low.sum_over_splits(
        node,
        "rownorm",
        "row_affine",
        lambda partial: [
            *reads,
            partial,
            rows.units,
            rows.unit,
            rows.cycle,
            examples * rows.rows,
            PerCount(rows.rows),
        ],
        (items, splits),
        _local(low, 2),
        low.param_grad(node.op.params[0]),
        rows.weights * rows.affine,
        {"PLACES": int(rows.places), "AFFINE": rows.affine},
    )


def _launch_rows(
    node: Node,
    low: Lowering,
    kernel: str,
    args: list[Arg],
    rows: _Rows,
    *,
    backward: bool,
    defines: dict[str, Define],
) -> None:
    low.launch(
        node,
        "rownorm",
        kernel,
        [*args, rows.units, rows.unit, rows.cycle, PerCount(rows.rows)],
        lambda count: (count * rows.rows,),
        (low.target.middling_group,),
        backward=backward,
        defines={"PLACES": int(rows.places), "AFFINE": rows.affine, **defines},
    )


def _rows(node: Node, low: Lowering) -> _Rows:
    layer, shape = node.op.layer, low.graph.segment.model.tensors[node.op.output]
    affine = len(node.op.params)
    if isinstance(layer, LayerNorm):
        size = prod(layer.sizes)
        return _Rows(prod(shape) // size, 1, size, 1, places=True, affine=affine)
    assert isinstance(layer, GroupNorm)
    groups, of_group, size = layer.num_groups, shape[0] // layer.num_groups, prod(shape[1:])
    if size == 1:
        return _Rows(groups, 1, of_group, groups, places=True, affine=affine)
    return _Rows(groups, of_group, size, groups, places=False, affine=affine)


def _moments(node: Node, low: Lowering, rows: _Rows) -> Slot:
    """Mean and deviation of each row."""
    return low.keep(node, "moments", low.capacity * 2 * rows.rows)


def _eps(node: Node) -> float:
    layer = node.op.layer
    assert isinstance(layer, GroupNorm | LayerNorm)
    return layer.eps
