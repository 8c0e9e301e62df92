"""Activations where they bend, far out, and for what is no number: each device by the formulas."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, exp, pi, sqrt, tanh
from typing import Any

import numpy as np
import pytest

from client.backends.base import Device, Program
from client.model import Segment
from tests.backend.harness import network

X = (-90.0, -9.0, -6.0, -3.0, -2.9, -1.0, -1e-3, 0.0, 1e-3, 0.7, 1.0, 2.9, 3.0, 5.9, 6.0, 9.0, 90.0)


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def cdf(x: float) -> float:
    return (1 + erf(x / sqrt(2))) / 2


Function = Callable[[float], float]
FUNCTIONS: dict[str, tuple[dict[str, Any], Function, Function]] = {
    "relu6": ({}, lambda x: min(max(x, 0), 6), lambda x: float(0 < x < 6)),
    "leaky_relu": (
        {"negative_slope": 0.25},
        lambda x: x if x > 0 else x / 4,
        lambda x: 1.0 if x > 0 else 0.25,
    ),
    "gelu": ({}, lambda x: x * cdf(x), lambda x: cdf(x) + x * exp(-x * x / 2) / sqrt(2 * pi)),
    "silu": ({}, lambda x: x * sigmoid(x), lambda x: sigmoid(x) * (1 + x * sigmoid(-x))),
    "hardswish": (
        {},
        lambda x: x * min(max(x + 3, 0), 6) / 6,
        lambda x: x / 3 + 0.5 if -3 < x < 3 else float(x > 0),
    ),
    "sigmoid": ({}, sigmoid, lambda x: sigmoid(x) * sigmoid(-x)),
    "tanh": ({}, tanh, lambda x: 1 - tanh(x) ** 2),
}


def alone(device: Device, kind: str, settings: dict[str, Any]) -> Program:
    """The activation by itself, in mid-network, with room for two examples."""
    layers = ["relu", {"type": kind, **settings}, {"type": "linear", "out_features": 2}]
    return device.compile(Segment(network([len(X)], *layers), 1, 2), 2)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_value_and_slope(device: Device, kind: str) -> None:
    settings, value, slope = FUNCTIONS[kind]
    program = alone(device, kind, settings)
    program.poison()
    program.put_input(np.array([X], np.float32))
    program.forward(1)
    np.testing.assert_allclose(program.take_output(1)[0], [value(x) for x in X], 2e-6, 1e-6)
    program.put_output_grad(np.full((1, len(X)), 2, np.float32))
    program.backward(1)
    expected = [2 * slope(x) for x in X]
    np.testing.assert_allclose(program.take_input_grad(1)[0], expected, 4e-6, 2e-6)
    program.release()


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_not_a_number_goes_through(device: Device, kind: str) -> None:
    program = alone(device, kind, {})
    x = np.zeros((2, len(X)), np.float32)
    x[1, 3] = np.nan
    program.put_input(x)
    program.forward(2)
    np.testing.assert_array_equal(np.isnan(program.take_output(2)), np.isnan(x))
    program.release()
