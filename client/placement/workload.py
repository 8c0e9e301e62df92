"""What a model's unit-blocks have to do in a training step, at the least. Pure facts of the model.

A product of matrices (m, k) x (k, n) has a ``size``: the edge of the cube with the same arithmetic
intensity, 3 / (1/m + 1/n + 1/k). Training's products are skinny, and a library's speed on them is
about that of a cube of this size, not of one with as many operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from client.backends.recipe import OPTIMIZER_STATES, Recipe
from client.model.graph import Model, Op
from client.model.layers import GRU, LSTM, Conv, Flatten, Linear, Shape
from client.placement.cost import FLOAT_NBYTES


@dataclass(frozen=True)
class Work:
    """Part of a training step of an operation, for a number of examples.

    ``nbytes``: to and from memory, each tensor once; ``size``: of its products of matrices, 0
    where it has none; ``launches``: calls one after the other, as a plain backend makes them.
    """

    flops: int
    nbytes: int
    size: float
    launches: int


NOTHING = Work(0, 0, 0.0, 0)


@dataclass(frozen=True)
class Product:
    """Products (m, k) x (k, n): ``count`` of them one after the other."""

    m: int
    n: int
    k: int
    count: int = 1

    @property
    def size(self) -> float:
        """See the module."""
        return 3 / (1 / self.m + 1 / self.n + 1 / self.k)


def product(op: Op, x: Shape, rows: int) -> Product | None:
    """The forward pass as products of matrices; None where it is none."""
    layer = op.layer
    match layer:
        case Linear():
            return Product(rows * prod(x[:-1]), layer.out_features, x[-1])
        case Conv():
            channels, taps = x[0] // layer.groups, prod(layer.both(layer.kernel_size))
            positions = prod(layer.output_shape(x)[1:])
            return Product(layer.out_channels // layer.groups, rows * positions, channels * taps)
        case LSTM() | GRU():
            hidden = layer.hidden_size
            return Product(rows, layer.gates * hidden, hidden, x[0] * layer.num_layers)
        case _:
            return None


class Workload:
    """A model's work, by operation and unit-block, for a recipe."""

    def __init__(self, model: Model, recipe: Recipe) -> None:
        self.model = model
        self.states = OPTIMIZER_STATES[recipe.optimizer]
        self._graded: set[int] = set()  # tensors whose gradient is computed
        for op in model.ops:
            if op.trained or self._passes_on(op):
                self._graded.add(op.output)

    def _passes_on(self, op: Op) -> bool:
        return any(i in self._graded for i in op.inputs)

    def ops(self, block: int) -> list[Op]:
        """Operations of a unit-block."""
        return [op for op in self.model.ops if op.block == block]

    def boundary(self, block: int) -> int:
        """Number of the tensor that a unit-block passes to the next one."""
        return self.ops(block)[-1].output

    def has_grad(self, tensor: int) -> bool:
        """Whether a tensor's gradient is computed."""
        return tensor in self._graded

    def forward(self, op: Op, rows: int) -> Work:
        """Inputs and parameters read, output written."""
        if isinstance(op.layer, Flatten):
            return NOTHING
        x = self.model.tensors[op.inputs[0]]
        numbers = rows * (self._read(op) + prod(self.model.tensors[op.output])) + _size(op)
        found = product(op, x, rows)
        return Work(
            flops=op.layer.flops(x) * rows,
            nbytes=FLOAT_NBYTES * numbers,
            size=found.size if found else 0.0,
            launches=found.count if found else 1,
        )

    def backward(self, op: Op, rows: int) -> Work:
        """As many operations for the parameters' gradients as forward, and for the inputs'."""
        passes = int(op.trained) + self._passes_on(op)
        if not passes or isinstance(op.layer, Flatten):
            return NOTHING
        x = self.model.tensors[op.inputs[0]]
        dx = self._read(op) if self._passes_on(op) else 0
        numbers = rows * (self._read(op) + prod(self.model.tensors[op.output]) + dx)
        found = product(op, x, rows)
        return Work(
            flops=op.layer.flops(x) * rows * (passes if op.params else 1),
            nbytes=FLOAT_NBYTES * (numbers + _size(op) * passes),
            size=found.size if found else 0.0,
            launches=(found.count if found else 1) * passes,
        )

    def update_nbytes(self, block: int) -> int:
        """Values and optimizer state read and written, gradients read."""
        return FLOAT_NBYTES * (3 + 2 * self.states) * self.num_trained(block)

    def num_trained(self, block: int) -> int:
        """Trained parameters of a unit-block."""
        return sum(_size(op) for op in self.ops(block) if op.trained)

    def num_values(self, block: int) -> int:
        """Parameters and buffers of a unit-block."""
        return sum(v.size for op in self.ops(block) for v in (*op.params, *op.buffers))

    def params_nbytes(self, block: int) -> int:
        """Values, and gradients and optimizer state of what is trained."""
        trained = (1 + self.states) * self.num_trained(block)
        return FLOAT_NBYTES * (self.num_values(block) + trained)

    def row_nbytes(self, block: int) -> int:
        """Activations of one example, which backward reads, and their gradients, if there are.

        Backends plan their memory by liveness and need less: this is a safe estimate.
        """
        outputs = [op.output for op in self.ops(block)]
        numbers = sum(prod(self.model.tensors[i]) * (1 + self.has_grad(i)) for i in outputs)
        return FLOAT_NBYTES * numbers

    def _read(self, op: Op) -> int:
        return sum(prod(self.model.tensors[i]) for i in op.inputs)


def _size(op: Op) -> int:
    return sum(param.size for param in op.params)
