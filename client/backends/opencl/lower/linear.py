"""Linear layers: three matrix products, with bias, ReLU and sums of rows in their epilogues."""

from __future__ import annotations

from client.backends.opencl.launch import Define, PerCount
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import Lowering

K_BLOCK = 128
"""Terms that a work-item adds up for all rows before it goes on, where it takes all rows."""

MANY = 1000
"""Tiles are chosen as for large layers, so that all layers of a model share their programs."""


def forward(node: Node, low: Lowering) -> None:
    """Y = X·Wᵀ + b, perhaps with a ReLU; of a sequence each step is a row."""
    weight, *bias = node.op.params
    outputs, inputs = weight.shape
    steps = low.graph.elements(node.output) // outputs
    rows = low.capacity * steps
    t = low.tile(f"gemm dot {rows}", rows, MANY, low.target.accumulators, row_load=1.0)
    low.launch(
        node,
        "gemm",
        "gemm",
        [
            low.value(node.inputs[0]),
            low.param(weight),
            int(node.relu),
            *(low.param(b) for b in bias),
            low.value(node.output),
            PerCount(steps),
            outputs,
            inputs,
        ],
        lambda count: (-(-count * steps // t.rows), -(-outputs // t.columns)),
        low.target.block(low.target.large_group),
        backward=False,
        defines={
            "TM": t.rows,
            "TN": t.columns,
            "B_TRANS": 1,
            "ROWS_FIRST": 1,
            "BIAS": len(bias),
        },
        variant=f"dot {t}",
        choice=t.choice,
    )


def backward(node: Node, low: Lowering) -> None:
    """dW = dYᵀ·X with db = sums of dY; dX = dY·W."""
    if node.op.trained:
        _weight_grad(node, low)
    if node.inputs[0] in low.graph.needs_grad:
        _input_grad(node, low)


def _weight_grad(node: Node, low: Lowering) -> None:
    weight, *bias = node.op.params
    outputs, inputs = weight.shape
    steps = low.graph.elements(node.output) // outputs
    vectors = -(-inputs // low.target.vector)
    t = low.tile("gemm outer", MANY, MANY, low.target.accumulators, row_load=0.5)
    low.launch(
        node,
        "gemm",
        "gemm",
        [
            low.grad(node.output),
            low.value(node.inputs[0]),
            *(low.param_grad(b) for b in bias),
            low.param_grad(weight),
            outputs,
            inputs,
            PerCount(steps),
        ],
        lambda count: (-(-vectors // t.columns), -(-outputs // t.rows)),
        (low.target.large_group, 1),
        backward=True,
        defines={"TM": t.rows, "TN": t.columns, "A_TRANS": 1, "ROW_SUM": len(bias)},
        variant=f"outer {t}",
        choice=t.choice,
    )


def _input_grad(node: Node, low: Lowering) -> None:
    weight, *_ = node.op.params
    outputs, inputs = weight.shape
    steps = low.graph.elements(node.output) // outputs
    vectors = -(-inputs // low.target.vector)
    rows = low.capacity * steps
    t = low.tile(f"gemm outer {rows}", rows, MANY, low.target.accumulators, row_load=1.0)
    rows_first = low.target.rows_first
    strips = -(-vectors // t.columns)
    blocked = rows_first and outputs > K_BLOCK and strips >= low.target.busy
    dx = low.input_grad(node, over_gate=not blocked)  # where blocks' sums wait in dx itself
    assert dx is not None
    blocked = blocked and not dx.accumulate
    defines: dict[str, Define] = {
        "ROWS_FIRST": int(rows_first),
        "TM": t.rows,
        "TN": t.columns,
        **dx.defines,
        "K_BLOCK": K_BLOCK if blocked else 0,
    }
    low.launch(
        node,
        "gemm",
        "gemm",
        [
            low.grad(node.output),
            low.param(weight),
            *dx.gate,
            dx.slot,
            PerCount(steps),
            inputs,
            outputs,
        ],
        lambda count: _order(strips, 1 if blocked else -(-count * steps // t.rows), rows_first),
        (low.target.large_group, 1),
        backward=True,
        defines=defines,
        variant=f"outer {t}",
        choice=t.choice,
    )


def _order(columns: int, rows: int, rows_first: bool) -> tuple[int, int]:
    return (rows, columns) if rows_first else (columns, rows)
