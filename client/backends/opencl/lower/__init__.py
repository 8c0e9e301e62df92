"""From operations to kernel launches: one module for each family of kernels, found by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from client.backends.base import require_layers
from client.backends.opencl.lower import conv, linear, nonlinear, pointwise, pool
from client.backends.opencl.lower.graph import Fusable, Node, build_graph
from client.backends.opencl.lower.lowering import Lowering
from client.backends.opencl.tiles import Target
from client.model.graph import Segment
from client.model.layers import (
    Add,
    AvgPool2d,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool2d,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
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
    Conv2d: Family(conv.forward, conv.backward, Fusable(relu=True, gate=True)),
    MaxPool2d: Family(pool.max_forward, pool.max_backward, Fusable(gate=True)),
    AvgPool2d: Family(pool.mean_forward, pool.mean_backward, Fusable(gate=True)),
    GlobalAvgPool2d: Family(pool.mean_forward, pool.mean_backward, Fusable(gate=True)),
    ReLU: Family(pointwise.relu_forward, pointwise.relu_backward, Fusable()),
    Dropout: Family(pointwise.dropout_forward, pointwise.dropout_backward, Fusable(gate=True)),
    Add: Family(pointwise.add_forward, pointwise.add_backward, Fusable(relu=True)),
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
        if node.relu and not node.gated:
            pointwise.joined_relu_backward(node, low)
        FAMILIES[type(node.op.layer)].backward(node, low)
    return low
