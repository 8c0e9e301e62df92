"""LSTM and GRU: for each layer one launch for all inputs, one for each step, both ways."""

from __future__ import annotations

from dataclasses import dataclass

from client.backends.opencl.launch import Define, PerCount, Slot, Symbol
from client.backends.opencl.lower.graph import Node
from client.backends.opencl.lower.lowering import InputGrad, Lowering
from client.backends.opencl.lower.partial import MOST_TERMS
from client.backends.opencl.tiles import Cover, Tile
from client.model.graph import Param
from client.model.layers import GRU, LSTM

MOST_COLUMNS = 4
"""Vectors in a tile's row: wider ones run through more lines of the weights at once."""

ROW_SLACK = 16
"""As in recurrent.cl: numbers that a row of gates has more than its four blocks."""

CACHED_NBYTES = 1 << 20
"""So much of the inputs should be in a core's cache while gradients of weights are computed."""


@dataclass(frozen=True)
class _Level:
    """One of the layers that lie on top of each other: sizes, parameters, what it keeps."""

    steps: int
    inputs: int
    hidden: int
    gates: int
    params: tuple[Param, ...]  # weight_ih, weight_hh, and perhaps bias_ih, bias_hh
    x: Slot
    y: Slot
    saved: Slot  # the gates, for the backward pass
    cells: Slot | None  # LSTM

    @property
    def weight_ih(self) -> Param:
        return self.params[0]

    @property
    def weight_hh(self) -> Param:
        return self.params[1]

    @property
    def biases(self) -> tuple[Param, ...]:
        return self.params[2:]


def forward(node: Node, low: Lowering) -> None:
    """y from x, layer by layer; what the backward pass reads is kept."""
    for level in _levels(node, low):
        _forward(node, low, level)


def backward(node: Node, low: Lowering) -> None:
    """Gradients from dy down to dx, layer by layer."""
    levels = _levels(node, low)
    dy = low.grad(node.output)
    for number, level in reversed(list(enumerate(levels))):
        carry = low.workspace(f"carry of {node.op.name} {number}", level.hidden)
        _steps_backward(node, low, level, dy, carry)
        if node.op.trained:
            _weight_grads(node, low, level)
        if number > 0:
            dx = low.workspace(f"gradient of {node.op.name} {number}", level.steps * level.inputs)
            _input_grad(node, low, level, InputGrad(dx))
            dy = dx
        elif (grad := low.input_grad(node)) is not None:
            _input_grad(node, low, level, grad)


def _levels(node: Node, low: Lowering) -> list[_Level]:
    layer = node.op.layer
    assert isinstance(layer, LSTM | GRU)
    steps, inputs = low.graph.segment.model.tensors[node.op.inputs[0]]
    hidden, each = layer.hidden_size, len(node.op.params) // layer.num_layers
    x, rows = low.value(node.inputs[0]), low.capacity * steps
    levels = []
    for number in range(layer.num_layers):
        last = number == layer.num_layers - 1
        y = low.value(node.output) if last else low.keep(node, f"output {number}", rows * hidden)
        levels.append(
            _Level(
                steps=steps,
                inputs=inputs,
                hidden=hidden,
                gates=layer.gates,
                params=node.op.params[number * each : (number + 1) * each],
                x=x,
                y=y,
                saved=low.keep(node, f"gates {number}", rows * (4 * hidden + ROW_SLACK)),
                cells=(
                    low.keep(node, f"cells {number}", rows * hidden)
                    if isinstance(layer, LSTM)
                    else None
                ),
            )
        )
        x, inputs = y, hidden
    return levels


def _forward(node: Node, low: Lowering, level: _Level) -> None:
    vector = low.target.vector
    blocks = -(-level.hidden // vector)
    biases = [low.param(b) for b in level.biases]
    rows = _rows(low, low.capacity * level.steps, level.gates, blocks)
    packed = _pack(node, low, level, level.weight_ih)
    defines: dict[str, Define] = {"GATES": level.gates, "BIAS": len(biases) // 2}
    low.launch(
        node,
        "recurrent",
        "project",
        [
            level.x,
            packed,
            *biases[:1],
            level.saved,
            PerCount(level.steps),
            level.hidden,
            level.inputs,
        ],
        lambda count: (-(-count * level.steps // rows), blocks),
        _local(low),
        backward=False,
        defines={**defines, "TM": rows},
        variant=f"packed {rows}x{level.gates}",
        flops=2 * level.steps * level.weight_ih.size,
    )
    step_rows = _rows(low, low.capacity, level.gates, blocks)
    packed = _pack(node, low, level, level.weight_hh)
    sequences = [s for s in (level.cells, level.saved, level.y) if s is not None]
    for t in range(level.steps):
        low.launch(
            node,
            "recurrent",
            "step_forward",
            [
                packed,
                *biases[1:],
                *([level.cells] if level.cells is not None else []),
                level.saved,
                level.y,
                t,
                level.steps,
                level.hidden,
                Symbol.COUNT,
            ],
            lambda count: (-(-count // step_rows), blocks),
            _local(low),
            backward=False,
            defines={**defines, "TM": step_rows},
            variant=f"step {step_rows}x{level.gates}" if t == 0 else "",
            flops=2 * level.weight_hh.size if t > 0 else 0,
            parts=dict.fromkeys(sequences, level.steps),
        )


def _pack(node: Node, low: Lowering, level: _Level, weight: Param) -> Slot:
    inputs = weight.shape[1]
    blocks = -(-level.hidden // low.target.vector)
    size = blocks * low.target.vector * level.gates * inputs
    packed = Slot(f"packed {weight.name}", size * 4)
    low.launch(
        node,
        "recurrent",
        "pack",
        [low.param(weight), packed, level.hidden, inputs],
        lambda count: (inputs, blocks),
        (low.target.group, 1),
        backward=False,
        defines={"GATES": level.gates},
        busy="copy",
    )
    return packed


def _steps_backward(node: Node, low: Lowering, level: _Level, dy: Slot, carry: Slot) -> None:
    vectors = -(-level.hidden // low.target.vector)
    tile = _tile(low, low.capacity, vectors)
    seen = level.cells if level.cells is not None else level.y
    for t in reversed(range(level.steps)):
        low.launch(
            node,
            "recurrent",
            "step_backward",
            [
                low.param(level.weight_hh),
                dy,
                seen,
                level.saved,
                carry,
                t,
                level.steps,
                level.hidden,
                Symbol.COUNT,
            ],
            lambda count: (-(-count // tile.rows), -(-vectors // tile.columns)),
            _local(low),
            backward=True,
            defines={"GATES": level.gates, "TM": tile.rows, "TN": tile.columns},
            variant=f"step {tile}" if t == 0 else "",
            flops=2 * level.weight_hh.size if t < level.steps - 1 else 0,
            parts=dict.fromkeys([dy, seen, level.saved], level.steps),
        )


def _input_grad(node: Node, low: Lowering, level: _Level, dx: InputGrad) -> None:
    vectors = -(-level.inputs // low.target.vector)
    t = _tile(low, low.capacity * level.steps, vectors)
    low.launch(
        node,
        "recurrent",
        "input_grad",
        [
            level.saved,
            low.param(level.weight_ih),
            *dx.gate,
            dx.slot,
            PerCount(level.steps),
            level.hidden,
            level.inputs,
        ],
        lambda count: (-(-count * level.steps // t.rows), -(-vectors // t.columns)),
        _local(low),
        backward=True,
        defines={
            "GATES": level.gates,
            "TM": t.rows,
            "TN": t.columns,
            **dx.defines,
        },
        variant=f"outer {t}",
        flops=2 * level.steps * level.weight_ih.size,
    )


def _weight_grads(node: Node, low: Lowering, level: _Level) -> None:
    _weight_grad(node, low, level, level.weight_ih, level.x, shift=0)
    _weight_grad(node, low, level, level.weight_hh, level.y, shift=1)
    if level.biases:
        blocks = -(-level.hidden // low.target.vector)
        rows = low.capacity * level.steps
        splits = min(-(-rows // MOST_TERMS * 8), max(1, low.target.busy // (4 * blocks)))
        split_rows = -(-rows // splits)
        low.sum_over_splits(
            node,
            "recurrent",
            "bias_grad",
            lambda partial: [level.saved, partial, PerCount(level.steps), level.hidden, split_rows],
            (blocks, 4, splits),
            (low.target.group, 1, 1),
            low.param_grad(level.biases[0]),
            sum(b.size for b in level.biases),
            {"GATES": level.gates},
            flops=level.steps * 4 * level.hidden,
        )


def _weight_grad(
    node: Node, low: Lowering, level: _Level, weight: Param, x: Slot, *, shift: int
) -> None:
    rows, inputs = weight.shape
    vectors = -(-inputs // low.target.vector)
    t = _tile(low, rows, vectors)
    tiles = (-(-vectors // t.columns), -(-rows // t.rows))
    most = max(1, min(MOST_TERMS, CACHED_NBYTES // (4 * inputs)) // level.steps)
    split_rows = min(most, max(1, low.capacity * tiles[0] * tiles[1] // low.target.busy))
    splits = -(-low.capacity // split_rows)
    low.sum_over_splits(
        node,
        "recurrent",
        "weight_grad",
        lambda partial: [
            level.saved,
            x,
            partial,
            level.steps,
            level.hidden,
            inputs,
            Symbol.COUNT,
            split_rows,
        ],
        (*tiles, splits),
        (low.target.large_group, 1, 1),
        low.param_grad(weight),
        weight.size,
        {"GATES": level.gates, "TM": t.rows, "TN": t.columns, "SHIFT": shift},
        variant=f"outer {t}, {splits} splits",
        flops=2 * (level.steps - shift) * weight.size,
    )


def _rows(low: Lowering, rows: int, gates: int, blocks: int) -> int:
    """Rows of a tile that has a vector for each gate: the least work that keeps the device busy."""
    most = max(1, low.target.accumulators // gates)
    fits = [r for r in range(1, most + 1) if -(-rows // r) * blocks >= low.target.busy_large] or [1]
    return min(fits, key=lambda r: -(-rows // r) * (r * gates + r + gates))


def _tile(low: Lowering, rows: int, columns: int) -> Tile:
    """The best tile that leaves enough of them to keep the device busy."""
    for sums in range(low.target.accumulators, 1, -1):
        t = Cover(rows, min(columns, MOST_COLUMNS), sums, row_load=1.0).best
        if -(-rows // t.rows) * -(-columns // t.columns) >= low.target.busy_large:
            return t
    return Tile(1, 1)


def _local(low: Lowering) -> tuple[int, int]:
    """Neighbours go down the rows: they read the same weights."""
    return low.target.block(low.target.large_group)
