"""Losses: which outputs and labels each takes, and what a batch weighs; backends do the arithmetic.

A loss is the mean over a batch's predictions, as PyTorch's with ``reduction="mean"``. Shapes are
those of one example. Options and their meaning are PyTorch's.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from client.errors import ConfigError, DataError, ModelError, did_you_mean
from client.fields import describe, join, parse
from client.model.layers import Shape

Labels = NDArray[Any]
"""(n, *labels of one example): int32 class numbers, or float32 targets."""


@dataclass(frozen=True)
class Loss(ABC):
    """Base of all losses.

    ``name`` is the one in YAML; ``has_accuracy``: a prediction is right or wrong.
    """

    name: ClassVar[str]
    label_dtype: ClassVar[type[np.int32] | type[np.float32]] = np.float32
    has_accuracy: ClassVar[bool] = True

    def check_output(self, output: Shape) -> None:
        """ModelError where a network with such an output cannot be trained by this loss."""
        if not output:
            raise ModelError(f"the loss {self.name} needs an output with at least one axis")

    def labels_shape(self, output: Shape) -> Shape:
        """Shape of the labels of one example."""
        return output

    def check_labels(self, output: Shape, labels: LabelsInfo) -> None:
        """DataError (beginning with "y: ") where labels do not fit a network's output."""
        needed = self.labels_shape(output)
        if labels.dtype != self.label_dtype or labels.shape != needed:
            raise DataError(
                f"y: found {labels.dtype} of shape {_of_n(labels.shape)}; for the model's output "
                f"of shape {output} the loss {self.name} needs {np.dtype(self.label_dtype)} of "
                f"shape {_of_n(needed)}"
            )

    def random_labels(self, output: Shape, n: int, g: np.random.Generator) -> Labels:
        """Labels (n, *shape) that fit, to try a program with."""
        return g.random((n, *self.labels_shape(output)), dtype=np.float32)

    def weight(self, labels: Labels) -> float:
        """What a batch with these labels weighs: its loss is a sum divided by this.

        The number of predictions; with class weights, the sum of those of the labels' classes.
        """
        return float(labels.size)


@dataclass(frozen=True)
class LabelsInfo:
    """What is known of a data set's labels: of one example's their shape; type; range over all."""

    shape: Shape
    dtype: np.dtype[Any]
    least: float
    largest: float

    @classmethod
    def of(cls, labels: Labels) -> LabelsInfo:
        """Of labels (n, *shape); a range of 0 where there are none."""
        least, largest = (labels.min(), labels.max()) if labels.size else (0, 0)
        return cls(labels.shape[1:], labels.dtype, float(least), float(largest))


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Softmax with cross-entropy: ``torch.nn.CrossEntropyLoss``.

    Output (K,), labels class numbers (n,); or output (K, T), labels (n, T): one prediction for
    each of T steps. With weights w and smoothing e, a prediction with label y loses
    (1-e)·w_y·(-log p_y) + e/K·Σ_k w_k·(-log p_k), and weighs w_y.
    """

    name: ClassVar[str] = "cross_entropy"
    label_dtype: ClassVar[type[np.int32] | type[np.float32]] = np.int32
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()  # one for each class; none: all 1

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing <= 1:
            raise ConfigError(
                f"label_smoothing: found {self.label_smoothing}, must be between 0 and 1"
            )
        if not all(isfinite(w) and w > 0 for w in self.class_weights):
            raise ConfigError(
                f"class_weights: found {list(self.class_weights)}, all must be positive"
            )

    def check_output(self, output: Shape) -> None:
        if len(output) not in (1, 2):
            raise ModelError(
                f"the last layer gives shape {output}, the loss {self.name} needs one score per "
                "class, (classes,), or (classes, steps): end with a linear layer"
            )
        if self.class_weights and len(self.class_weights) != output[0]:
            raise ModelError(
                f"the last layer gives {output[0]} classes, but train.loss.class_weights has "
                f"{len(self.class_weights)} values"
            )

    def labels_shape(self, output: Shape) -> Shape:
        return output[1:]

    def check_labels(self, output: Shape, labels: LabelsInfo) -> None:
        needed = self.labels_shape(output)
        if labels.dtype != np.int32 and labels.shape == needed:
            raise DataError(
                f"y: found {labels.dtype} labels, the loss {self.name} needs whole class numbers: "
                "use y.astype('int32')"
            )
        if not needed and len(labels.shape) == 1:
            hint = "y.reshape(-1)" if labels.shape[0] == 1 else "y.argmax(1) for one-hot"
            raise DataError(
                f"y: found shape (n, {labels.shape[0]}), the loss {self.name} needs one class "
                f"number each, (n,): use {hint}"
            )
        super().check_labels(output, labels)
        if labels.least < 0:
            raise DataError(
                f"y: found label {labels.least:.0f}, labels must be class numbers from 0"
            )
        if labels.largest >= output[0]:
            raise DataError(
                f"y: found label {labels.largest:.0f}, the model has {output[0]} classes "
                f"(labels 0 to {output[0] - 1})"
            )

    def random_labels(self, output: Shape, n: int, g: np.random.Generator) -> Labels:
        return g.integers(0, output[0], (n, *self.labels_shape(output))).astype(np.int32)

    def weight(self, labels: Labels) -> float:
        if not self.class_weights:
            return super().weight(labels)
        return float(np.asarray(self.class_weights)[labels].sum())


@dataclass(frozen=True)
class BCEWithLogits(Loss):
    """Sigmoid with binary cross-entropy: ``torch.nn.BCEWithLogitsLoss``.

    Labels of the output's shape, between 0 and 1; each element is a prediction, right where
    (output > 0) == (label > 0.5).
    """

    name: ClassVar[str] = "bce_with_logits"

    def check_labels(self, output: Shape, labels: LabelsInfo) -> None:
        super().check_labels(output, labels)
        if labels.least < 0 or labels.largest > 1:
            bad = labels.least if labels.least < 0 else labels.largest
            raise DataError(f"y: found label {bad:g}, the loss {self.name} needs 0 to 1")


@dataclass(frozen=True)
class MSE(Loss):
    """Squared error: ``torch.nn.MSELoss``. Labels of the output's shape; nothing is "right"."""

    name: ClassVar[str] = "mse"
    has_accuracy: ClassVar[bool] = False


def _of_n(shape: Shape) -> str:
    return f"({', '.join(['n', *map(str, shape)])})" if shape else "(n,)"


LOSSES: dict[str, type[Loss]] = {loss.name: loss for loss in (CrossEntropy, BCEWithLogits, MSE)}
"""Losses by the name that stands in YAML."""


def parse_loss(value: str | dict[str, Any], where: str) -> Loss:
    """The loss that ``train.loss`` names, alone or with its settings; ConfigError if it is none."""
    settings = {"name": value} if isinstance(value, str) else dict(value)
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in LOSSES:
        at = where if isinstance(value, str) else join(where, "name")
        raise ConfigError(
            f"{at}: found {describe(name)}, allowed: {', '.join(LOSSES)}"
            f"{did_you_mean(str(name), LOSSES)}"
        )
    return parse(LOSSES[name], settings, where)
