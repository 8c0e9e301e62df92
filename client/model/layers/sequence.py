"""Layers for sequences: (steps,) of tokens, or (steps, features), as PyTorch's batch_first."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from client.errors import ModelError
from client.model.layers.base import Layer, ParamSpec, Shape, require_positive


def sequence_shape(layer: Layer, x: Shape) -> tuple[int, int]:
    if len(x) != 2:
        raise ModelError(f"{layer.kind} needs an input of shape (steps, features), found {x}")
    return x[0], x[1]


@dataclass(frozen=True)
class Embedding(Layer):
    """(steps,) of tokens -> (steps, embedding_dim): for each token its row of the weights.

    The weights are (num_embeddings, embedding_dim); without ``num_embeddings`` there are as many
    rows as the input's vocabulary has tokens. They begin with the standard normal distribution.
    """

    kind: ClassVar[str] = "embedding"
    embedding_dim: int
    num_embeddings: int | None = None

    def __post_init__(self) -> None:
        require_positive(self, embedding_dim=self.embedding_dim, num_embeddings=self.num_embeddings)

    @property
    def rows(self) -> int:
        """Rows of the weights, once the layer stands in a model."""
        if self.num_embeddings is None:
            raise ValueError("an embedding has its number of rows from the model's input")
        return self.num_embeddings

    def output_shape(self, x: Shape) -> Shape:
        if len(x) != 1:
            raise ModelError(f"embedding needs an input of shape (steps,), found {x}")
        return (x[0], self.embedding_dim)

    def params(self, x: Shape) -> tuple[ParamSpec, ...]:
        return (ParamSpec("weight", (self.rows, self.embedding_dim), normal=True),)

    def flops(self, x: Shape) -> int:
        return 0


@dataclass(frozen=True)
class _Recurrent(Layer):
    """(steps, features) -> (steps, hidden_size), ``num_layers`` on top of each other.

    State begins at zero. Parameters, for each layer l: weight_ih_l, weight_hh_l and, with ``bias``,
    bias_ih_l, bias_hh_l, each with ``gates`` blocks of hidden_size rows in PyTorch's order.
    """

    gates: ClassVar[int] = 0
    hidden_size: int
    num_layers: int = 1
    bias: bool = True

    def __post_init__(self) -> None:
        require_positive(self, hidden_size=self.hidden_size, num_layers=self.num_layers)

    def output_shape(self, x: Shape) -> Shape:
        return (sequence_shape(self, x)[0], self.hidden_size)

    def params(self, x: Shape) -> tuple[ParamSpec, ...]:
        rows, hidden = self.gates * self.hidden_size, self.hidden_size
        specs = []
        for number in range(self.num_layers):
            inputs = x[1] if number == 0 else hidden
            shapes: list[tuple[str, Shape]] = [
                ("weight_ih", (rows, inputs)),
                ("weight_hh", (rows, hidden)),
            ]
            if self.bias:
                shapes += [("bias_ih", (rows,)), ("bias_hh", (rows,))]
            specs += [ParamSpec(f"{name}_l{number}", shape, hidden) for name, shape in shapes]
        return tuple(specs)

    def flops(self, x: Shape) -> int:
        weights = (p for p in self.params(x) if len(p.shape) == 2)
        return 2 * x[0] * sum(prod(p.shape) for p in weights)


@dataclass(frozen=True)
class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter & Schmidhuber, 1997) as ``torch.nn.LSTM``.

    i, f, o = σ(W x + b + U h + d), g = tanh(the same); c = f·c + i·g; h = o·tanh(c), with gates
    in the order i, f, g, o.
    """

    kind: ClassVar[str] = "lstm"
    gates: ClassVar[int] = 4


@dataclass(frozen=True)
class GRU(_Recurrent):
    """Gated recurrent unit (Cho et al., EMNLP 2014) as ``torch.nn.GRU``.

    r, z = σ(W x + b + U h + d); n = tanh(W x + b + r·(U h + d)); h = (1 - z)·n + z·h, with gates
    in the order r, z, n.
    """

    kind: ClassVar[str] = "gru"
    gates: ClassVar[int] = 3


@dataclass(frozen=True)
class LastStep(Layer):
    """(steps, features) -> (features,): the last step alone."""

    kind: ClassVar[str] = "last_step"

    def output_shape(self, x: Shape) -> Shape:
        return (sequence_shape(self, x)[1],)

    def flops(self, x: Shape) -> int:
        return 0


@dataclass(frozen=True)
class Transpose(Layer):
    """(a, b) -> (b, a): from (steps, features) to convolutions' (channels, steps), or back."""

    kind: ClassVar[str] = "transpose"

    def output_shape(self, x: Shape) -> Shape:
        if len(x) != 2:
            raise ModelError(f"transpose needs an input with two axes, found {x}")
        return (x[1], x[0])

    def flops(self, x: Shape) -> int:
        return 0
