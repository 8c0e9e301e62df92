"""The readable reference, and the fallback where no other backend works: plain numpy.

Forward and backward of a layer stand side by side in ``ops/``, one class per layer. Arrays are
feature-major with the batch as the last axis, ``(channels, height, width, batch)``: see
``ops/function.py`` for why.
"""

from client.backends.numpy.device import NumpyBackend

BACKEND = NumpyBackend()

__all__ = ["BACKEND"]
