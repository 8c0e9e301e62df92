"""From operations to kernel launches: one module for each family of kernels, found by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from client.backends.checks import require_layers
from client.backends.opencl.lower import (
    concat,
    conv,
    linear,
    nonlinear,
    norm,
    pointwise,
    pool,
    recurrent,
    sequence,
)
from client.backends.opencl.lower.graph import Fusable, Node, build_graph
from client.backends.opencl.lower.lowering import Lowering
from client.backends.opencl.tiles import Target
from client.model.graph import Segment
from client.model.layers import (
    GRU,
    LSTM,
    Add,
    AvgPool1d,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Concat,
    Conv1d,
    Conv2d,
    Dropout,
    Embedding,
    Flatten,
    GlobalAvgPool1d,
    GlobalAvgPool2d,
    GlobalMaxPool1d,
    GlobalMaxPool2d,
    GroupNorm,
    LastStep,
    Layer,
    LayerNorm,
    Linear,
    MaxPool1d,
    MaxPool2d,
    ReLU,
    Transpose,
)

Lower = Callable[[Node, Lowering], None]


@dataclass(frozen=True)
class Family:
    """How a layer is lowered, and which neighbours its kernels can take in."""

    forward: Lower
    backward: Lower
    fusable: Fusable


FAMILIES: dict[type[Layer], Family] = {
    Linear: Family(linear.forward, linear.backward, Fusable(relu=True, gate=True)),
    **{
        layer: Family(conv.forward, conv.backward, Fusable(relu=True, gate=True))
        for layer in (Conv1d, Conv2d)
    },
    **{
        layer: Family(pool.max_forward, pool.max_backward, Fusable(gate=True))
        for layer in (MaxPool1d, MaxPool2d, GlobalMaxPool1d, GlobalMaxPool2d)
    },
    **{
        layer: Family(pool.mean_forward, pool.mean_backward, Fusable(gate=True))
        for layer in (AvgPool1d, AvgPool2d, GlobalAvgPool1d, GlobalAvgPool2d)
    },
    **{
        layer: Family(
            norm.batch_forward,
            norm.batch_backward,
            Fusable(relu=True, gate=True, add=True, own_gate=True),
        )
        for layer in (BatchNorm1d, BatchNorm2d)
    },
    GroupNorm: Family(norm.row_forward, norm.row_backward, Fusable(gate=True)),
    LayerNorm: Family(norm.row_forward, norm.row_backward, Fusable(gate=True)),
    ReLU: Family(pointwise.relu_forward, pointwise.relu_backward, Fusable()),
    Dropout: Family(pointwise.dropout_forward, pointwise.dropout_backward, Fusable(gate=True)),
    Add: Family(pointwise.add_forward, pointwise.add_backward, Fusable(relu=True)),
    Concat: Family(concat.forward, concat.backward, Fusable(relu=True)),
    **{
        layer: Family(recurrent.forward, recurrent.backward, Fusable(gate=True, reads_output=True))
        for layer in (LSTM, GRU)
    },
    Embedding: Family(sequence.embedding_forward, sequence.embedding_backward, Fusable()),
    LastStep: Family(sequence.last_step_forward, sequence.last_step_backward, Fusable()),
    Transpose: Family(sequence.transpose_forward, sequence.transpose_backward, Fusable()),
    **{
        layer: Family(nonlinear.forward, nonlinear.backward, Fusable(gate=True))
        for layer in nonlinear.LAYERS
    },
}


def lower(segment: Segment, capacity: int, target: Target) -> Lowering:
    """Forward and backward of a segment as launches, in order."""
    require_layers(segment, {*FAMILIES, Flatten}, "opencl")  # flatten needs no kernel
    graph = build_graph(segment, {layer: family.fusable for layer, family in FAMILIES.items()})
    low = Lowering(graph, capacity, target)
    for node in graph.nodes:
        FAMILIES[type(node.op.layer)].forward(node, low)
    for node in reversed(graph.nodes):
        if node.output not in graph.needs_grad:
            continue
        family = FAMILIES[type(node.op.layer)]
        if node.relu and not node.gated and not family.fusable.own_gate:
            pointwise.joined_relu_backward(node, low)
        family.backward(node, low)
    return low
