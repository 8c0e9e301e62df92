"""Losses with their gradients, and what the metrics count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from client.backends.figures import Metrics
from client.backends.numpy.ops.function import Array
from client.model.losses import MSE, BCEWithLogits, CrossEntropy, Labels, Loss


def cross_entropy(
    loss: CrossEntropy, z: Array, labels: Labels, total: float | None, dz: Array
) -> Metrics:
    """-Σ_k q_k·log softmax(z)_k for each prediction, with the targets q of its label y:
    q_k = (1-e)·w_y·[k = y] + e/K·w_k;  dz = (softmax(z)·Σ_k q_k - q) / total.

    ``z``, ``dz``: (K, N) or (K, T, N); ``labels``: (N,) or (T, N). A prediction is right where its
    largest score is that of its label, and weighs w_y.
    """
    classes, smoothing = len(z), loss.label_smoothing
    z, dz, flat = z.reshape(classes, -1), dz.reshape(classes, -1), labels.reshape(-1)
    at = (flat, np.arange(len(flat)))
    w = np.array(loss.class_weights or [1.0] * classes, z.dtype)
    weights = w[flat]
    weight = float(weights.sum(dtype=np.float64))
    scale = 1 / (weight if total is None else total)
    smooth = (w * (smoothing / classes))[:, None]  # of q, what all predictions have
    shifted = z - z.max(axis=0)
    np.exp(shifted, out=dz)
    sums = dz.sum(axis=0)
    logs = np.log(sums)
    mass = (1 - smoothing) * weights + smooth.sum()
    losses = mass * logs - (1 - smoothing) * weights * shifted[at]
    if smoothing:
        losses -= (smooth * shifted).sum(axis=0)
    np.multiply(dz, mass * scale / sums, out=dz)
    if smoothing:
        np.subtract(dz, smooth * scale, out=dz)
    dz[at] -= (1 - smoothing) * scale * weights
    correct = int(np.count_nonzero(z.argmax(axis=0) == flat))
    return Metrics(float(losses.sum(dtype=np.float64)), correct, len(flat), weight)


def bce_with_logits(
    loss: BCEWithLogits, z: Array, labels: Labels, total: float | None, dz: Array
) -> Metrics:
    """max(z, 0) - z·y + log(1 + exp(-|z|)) for each element;  dz = (sigmoid(z) - y) / total."""
    scale = 1 / (z.size if total is None else total)
    e = np.exp(-np.abs(z))
    losses = np.maximum(z, 0) - z * labels + np.log1p(e)
    np.divide(np.where(z >= 0, 1, e), 1 + e, out=dz)
    np.multiply(np.subtract(dz, labels, out=dz), scale, out=dz)
    correct = int(np.count_nonzero((z > 0) == (labels > 0.5)))
    return Metrics(float(losses.sum(dtype=np.float64)), correct, z.size, float(z.size))


def mse(loss: MSE, z: Array, labels: Labels, total: float | None, dz: Array) -> Metrics:
    """(z - y)² for each element;  dz = 2·(z - y) / total."""
    scale = 1 / (z.size if total is None else total)
    np.subtract(z, labels, out=dz)
    squares = float(np.square(dz).sum(dtype=np.float64))
    np.multiply(dz, 2 * scale, out=dz)
    return Metrics(squares, None, z.size, float(z.size))


LossFunction = Callable[[Any, Array, Labels, float | None, Array], Metrics]
"""(loss, output (*shape, N), labels (*labels, N), total, where to write the output's gradient)."""

LOSS_FUNCTIONS: dict[type[Loss], LossFunction] = {
    CrossEntropy: cross_entropy,
    BCEWithLogits: bce_with_logits,
    MSE: mse,
}
