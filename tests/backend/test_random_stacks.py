"""Small networks put together at random, on every device, against the float64 reference."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client.backends.base import Device
from client.backends.recipe import Recipe
from client.errors import ModelError
from client.model import Model
from client.model.losses import MSE, BCEWithLogits, CrossEntropy, Loss
from tests.backend.harness import Subject, examples, network, numpy_device
from tests.tolerance import assert_close

SIZES = st.sampled_from([1, 2, 3, 5, 8, 17, 32, 33])
PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3)).map(list)
CONV = st.fixed_dictionaries(
    {
        "type": st.just("conv2d"),
        "out_channels": SIZES,
        "kernel_size": PAIR,
        "stride": PAIR,
        "padding": st.integers(0, 2),
        "dilation": st.integers(1, 2),
        "groups": st.sampled_from([1, 1, 2, 3, 8]),
        "bias": st.booleans(),
    }
)
POOL = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["maxpool2d", "avgpool2d"]),
        "kernel_size": st.integers(2, 3),
        "stride": st.integers(1, 3),
        "padding": st.integers(0, 1),
    }
)
CONCAT = st.builds(
    lambda a, b: {"type": "concat", "branches": [[a, "relu"], [], [b]]},
    st.fixed_dictionaries(
        {
            "type": st.just("conv2d"),
            "out_channels": SIZES,
            "kernel_size": st.sampled_from([1, 3]),
            "padding": st.just("same"),
        }
    ),
    st.sampled_from([{"type": "dropout", "p": 0.5}, "tanh"]),
)
RESIDUAL = st.just({"type": "residual", "body": ["relu", {"type": "dropout", "p": 0.5}]})
ACTIVATION = st.sampled_from(["relu", "leaky_relu", "gelu", "hardswish"])
# A large eps: of a batch of two values, or of a dead channel, little more than rounding is left.
BATCH_NORM = st.fixed_dictionaries(
    {"type": st.just("batchnorm2d"), "eps": st.just(0.1), "affine": st.booleans()}
)
GROUP_NORM = st.fixed_dictionaries(
    {
        "type": st.just("groupnorm"),
        "eps": st.just(0.1),
        "num_groups": st.sampled_from([1, 2, 3, 8]),
        "affine": st.booleans(),
    }
)
NORM_RESIDUAL = st.fixed_dictionaries(
    {
        "type": st.just("residual"),
        "body": st.tuples(st.sampled_from(["relu", "tanh"]), BATCH_NORM).map(list),
        "shortcut": st.lists(st.one_of(BATCH_NORM, st.just("relu")), max_size=2),
    }
)
IMAGE_LAYERS = st.one_of(
    CONV, POOL, CONCAT, RESIDUAL, ACTIVATION, BATCH_NORM, GROUP_NORM, NORM_RESIDUAL
)
CONV1D = st.fixed_dictionaries(
    {
        "type": st.just("conv1d"),
        "out_channels": SIZES,
        "kernel_size": st.sampled_from([1, 2, 5, 19, 40]),
        "stride": st.sampled_from([1, 1, 2, 3]),
        "padding": st.sampled_from([0, 2, "causal", [3, 1]]),
        "dilation": st.integers(1, 2),
        "groups": st.sampled_from([1, 1, 2, 8]),
        "bias": st.booleans(),
    }
)
POOL1D = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["maxpool1d", "avgpool1d"]),
        "kernel_size": st.integers(2, 3),
        "stride": st.integers(1, 3),
        "padding": st.integers(0, 1),
    }
)
SEQUENCE_LAYERS = st.one_of(CONV1D, CONV1D, POOL1D, RESIDUAL, ACTIVATION)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Layers on images or sequences, then linear ones; one that does not fit is left out."""
    dims = draw(st.sampled_from([2, 2, 1]))
    shape = [draw(st.integers(1, 3)), *(draw(st.integers(3, 11)) for _ in range(dims))]
    kind = IMAGE_LAYERS
    if dims == 1:
        shape[1] *= 5
        kind = SEQUENCE_LAYERS
    ends = ["flatten", f"global_avgpool{dims}d", f"global_maxpool{dims}d"]
    end: list[Any] = [draw(st.sampled_from(ends))]
    if draw(st.booleans()):
        end += [{"type": "linear", "out_features": draw(SIZES)}, "relu"]
    end.append({"type": "linear", "out_features": draw(SIZES)})
    layers: list[Any] = []
    for layer in draw(st.lists(kind, min_size=1, max_size=4)):
        try:
            network(shape, *layers, layer, *end)
        except ModelError:
            continue
        layers.append(layer)
    return network(shape, *layers, *end)


RECURRENT = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["lstm", "gru"]),
        "hidden_size": SIZES,
        "num_layers": st.integers(1, 2),
        "bias": st.booleans(),
    }
)
STEP_LAYERS = st.one_of(
    RECURRENT,
    RECURRENT,
    st.fixed_dictionaries({"type": st.just("linear"), "out_features": SIZES}),
    st.sampled_from(["relu", "tanh", "transpose", {"type": "dropout", "p": 0.5}]),
    st.builds(
        lambda layer: {"type": "residual", "body": [layer], "shortcut": [layer, "relu"]}, RECURRENT
    ),
)


@st.composite
def readers(draw: st.DrawFn) -> Model:
    """Tokens, an embedding, layers on their sequence, and its last step or all of them."""
    embedding = {"type": "embedding", "embedding_dim": draw(SIZES)}
    layers = draw(st.lists(STEP_LAYERS, min_size=1, max_size=4))
    end = [draw(st.sampled_from(["last_step", "flatten"])), {"type": "linear", "out_features": 3}]
    spec = {"vocabulary": draw(st.sampled_from([1, 2, 33, 300]))}
    return network([draw(st.integers(1, 6))], embedding, *layers, *end, **spec)


@st.composite
def recipes(draw: st.DrawFn) -> tuple[Loss, int]:
    """A loss, and how many operations at the beginning are frozen."""
    losses = [CrossEntropy(), CrossEntropy(0.2), BCEWithLogits(), MSE()]
    return draw(st.sampled_from(losses)), draw(st.sampled_from([0, 0, 1, 2, 5]))


def agrees(device: Device, model: Model, how: tuple[Loss, int], count: int) -> None:
    """Logits and every gradient of one batch are those of the reference."""
    loss, frozen = how
    last = len(model.ops) - 1  # stays trained
    ops = tuple(replace(op, frozen=i < min(frozen, last)) for i, op in enumerate(model.ops))
    model = replace(model, ops=ops)
    x, _ = examples(model, 7)
    y = loss.random_labels(model.output_shape, 7, np.random.default_rng(1))
    results = []
    for d in (device, numpy_device(np.float64), numpy_device(np.float32)):
        subject = Subject(d, model, 7, x, y, recipe=Recipe(loss))
        grads = subject.gradients(count)
        results.append((subject.program.take_output(count), grads))
        subject.release()
    found, reference, peer = results
    assert_close("logits", found[0], reference[0], peer[0])
    largest = float(np.abs(reference[1]).max())
    # roundings of independent operations add up as a random walk, and the peer's may by luck cancel
    walk = sqrt(len(model.ops))
    for param in model.params:
        grads = [g[param.slice] for g in (found[1], reference[1], peer[1])]
        # few elements may by luck be exact in the peer, or what is left of sums that cancel
        size = largest if param.size < 8 else float(np.abs(grads[1]).max())
        assert_close(f"gradient of {param.name}", *grads, walk * size)


# The same examples in every run: a device may take seconds to compile each for the first time.
SETTINGS = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@settings(SETTINGS, max_examples=5)
@given(model=models(), how=recipes(), count=st.sampled_from([1, 2, 5, 7]))
def test_random_stack(device: Device, model: Model, how: tuple[Loss, int], count: int) -> None:
    agrees(device, model, how, count)


@settings(SETTINGS, max_examples=4)
@given(model=readers(), how=recipes(), count=st.sampled_from([1, 2, 5, 7]))
def test_random_reader(device: Device, model: Model, how: tuple[Loss, int], count: int) -> None:
    agrees(device, model, how, count)


@pytest.mark.slow
@settings(SETTINGS, max_examples=40)
@given(model=readers(), how=recipes(), count=st.sampled_from([1, 2, 5, 7]))
def test_many_random_readers(
    device: Device, model: Model, how: tuple[Loss, int], count: int
) -> None:
    agrees(device, model, how, count)


@pytest.mark.slow
@settings(SETTINGS, max_examples=40)
@given(model=models(), how=recipes(), count=st.sampled_from([1, 2, 5, 7]))
def test_many_random_stacks(
    device: Device, model: Model, how: tuple[Loss, int], count: int
) -> None:
    agrees(device, model, how, count)
