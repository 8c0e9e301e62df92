"""Initial parameters, as PyTorch's Linear and Conv2d draw them, from a seed of ours."""

from __future__ import annotations

import numpy as np

from client.model.graph import Float32Array, Model
from client.random import generator


def initialise(model: Model, seed: int) -> Float32Array:
    """Flat float32 parameters, each uniform in ±1/sqrt(fan_in).

    That is PyTorch's default for weights (``kaiming_uniform_`` with a = sqrt(5)) and biases. Each
    tensor has a stream of its own, keyed by its name: adding a layer leaves the others' values.
    """
    flat = np.empty(model.num_params, np.float32)
    for p in model.params:
        bound = 1.0 / np.sqrt(p.fan_in)
        flat[p.slice] = generator("init", seed, p.name).uniform(-bound, bound, p.size)
    return flat
