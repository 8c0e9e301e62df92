"""Softmax with cross-entropy, and what the metrics count."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client.backends.numpy.ops.function import Array


def softmax_cross_entropy(
    logits: Array, labels: NDArray[np.int32], total: int, dlogits: Array
) -> tuple[float, int]:
    """Loss of each example -log softmax(z)[label]; dz = (softmax(z) - onehot(label)) / total.

    ``logits``, ``dlogits``: (classes, N); ``labels``: (N,). Returns the sum of the losses (added
    up in float64) and the number of examples whose largest score is that of their label.
    """
    examples = np.arange(len(labels))
    shifted = logits - logits.max(axis=0)
    np.exp(shifted, out=dlogits)
    sums = dlogits.sum(axis=0)
    losses = np.log(sums) - shifted[labels, examples]
    np.multiply(dlogits, 1 / (sums * total), out=dlogits)
    dlogits[labels, examples] -= 1 / total
    correct = np.count_nonzero(logits.argmax(axis=0) == labels)
    return float(losses.sum(dtype=np.float64)), int(correct)
