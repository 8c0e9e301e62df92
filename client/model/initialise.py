"""Initial values, as PyTorch's layers begin, from a seed of ours."""

from __future__ import annotations

import numpy as np

from client.model.graph import Float32Array, Model
from client.random import generator


def initialise(model: Model, seed: int) -> Float32Array:
    """Flat float32 values: uniform in ±1/sqrt(fan_in), or one number where a tensor begins so.

    The first is PyTorch's default for the weights (``kaiming_uniform_`` with a = sqrt(5)) and
    biases of Linear and convolutions; an embedding's weights are standard normal. Each tensor has
    a stream of its own, keyed by its name: adding a layer leaves the others' values.
    """
    flat = np.empty(model.num_values, np.float32)
    for p in model.values:
        if p.value is not None:
            flat[p.slice] = p.value
            continue
        g = generator("init", seed, p.name)
        if p.normal:
            flat[p.slice] = g.standard_normal(p.size)
            continue
        bound = 1.0 / np.sqrt(p.fan_in)
        flat[p.slice] = g.uniform(-bound, bound, p.size)
    return flat
