"""Every layer's gradient in float64 numpy against central differences of its own forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client.backends import get
from client.backends.base import Program
from client.backends.numpy.device import NumpyDevice
from client.backends.numpy.ops import FUNCTIONS, convolution, windows
from client.backends.recipe import Hyper, Recipe
from client.model import Model, Segment, build_model
from client.model.layers import LAYERS, Add, Concat

H = 1e-6
COUNT = 3
Float64 = NDArray[np.float64]

CASES: dict[str, tuple[list[int], Any]] = {
    "linear": ([5], {"type": "linear", "out_features": 4}),
    "linear_no_bias": ([5], {"type": "linear", "out_features": 1, "bias": False}),
    "conv2d": ([2, 5, 6], {"type": "conv2d", "out_channels": 3, "kernel_size": 3}),
    "conv2d_pad": (
        [2, 4, 5],
        {"type": "conv2d", "out_channels": 3, "kernel_size": 3, "padding": 2},
    ),
    "conv2d_same": (
        [1, 5, 4],
        {"type": "conv2d", "out_channels": 2, "kernel_size": [4, 2], "padding": "same"},
    ),
    "conv2d_stride_dilation": (
        [2, 9, 8],
        {
            "type": "conv2d",
            "out_channels": 2,
            "kernel_size": [2, 3],
            "stride": [2, 3],
            "padding": [1, 2],
            "dilation": [3, 2],
            "bias": False,
        },
    ),
    "conv2d_groups": (
        [6, 5, 4],
        {"type": "conv2d", "out_channels": 9, "kernel_size": [3, 2], "padding": 1, "groups": 3},
    ),
    "conv2d_depthwise": (
        [3, 5, 4],
        {"type": "conv2d", "out_channels": 6, "kernel_size": 3, "padding": "same", "groups": 3},
    ),
    "conv2d_1x1_stride": (
        [2, 5, 5],
        {"type": "conv2d", "out_channels": 2, "kernel_size": 1, "stride": 2},
    ),
    "conv2d_depthwise_same": (
        [3, 5, 4],
        {"type": "conv2d", "out_channels": 3, "kernel_size": [3, 2], "padding": 1, "groups": 3},
    ),
    "conv2d_depthwise_stride": (
        [3, 6, 5],
        {
            "type": "conv2d",
            "out_channels": 3,
            "kernel_size": 3,
            "stride": [2, 1],
            "padding": 1,
            "groups": 3,
            "bias": False,
        },
    ),
    "conv2d_1x1": ([4, 3, 5], {"type": "conv2d", "out_channels": 6, "kernel_size": 1, "groups": 2}),
    "conv2d_four_pads": (
        [2, 4, 5],
        {"type": "conv2d", "out_channels": 2, "kernel_size": 3, "padding": [2, 0, 1, 3]},
    ),
    "conv2d_many_taps": (
        [4, 5, 6],
        {"type": "conv2d", "out_channels": 2, "kernel_size": 5, "padding": 2, "groups": 2},
    ),
    "conv1d": ([2, 9], {"type": "conv1d", "out_channels": 3, "kernel_size": 4, "padding": 1}),
    "conv1d_stride": (
        [2, 11],
        {"type": "conv1d", "out_channels": 3, "kernel_size": 3, "stride": 2, "padding": [2, 1]},
    ),
    "conv1d_causal": (
        [2, 9],
        {"type": "conv1d", "out_channels": 2, "kernel_size": 3, "dilation": 2, "padding": "causal"},
    ),
    "conv1d_causal_long": (
        [2, 19],
        {"type": "conv1d", "out_channels": 3, "kernel_size": 18, "padding": "causal"},
    ),
    "conv1d_depthwise": (
        [3, 9],
        {"type": "conv1d", "out_channels": 3, "kernel_size": 4, "groups": 3, "padding": "same"},
    ),
    "maxpool1d": ([2, 9], {"type": "maxpool1d", "kernel_size": 3, "stride": 2, "padding": 1}),
    "avgpool1d": ([2, 9], {"type": "avgpool1d", "kernel_size": 3, "padding": 1}),
    "global_avgpool1d": ([3, 5], "global_avgpool1d"),
    "global_maxpool1d": ([3, 5], "global_maxpool1d"),
    "global_maxpool2d": ([3, 4, 5], "global_maxpool2d"),
    "maxpool2d": ([2, 4, 6], {"type": "maxpool2d", "kernel_size": 2}),
    "maxpool2d_rest": ([2, 5, 7], {"type": "maxpool2d", "kernel_size": [2, 3]}),
    "maxpool2d_overlap": (
        [2, 6, 5],
        {"type": "maxpool2d", "kernel_size": 3, "stride": 2, "padding": 1},
    ),
    "maxpool2d_overlap_columns": (
        [1, 4, 6],
        {"type": "maxpool2d", "kernel_size": [2, 3], "stride": [2, 1]},
    ),
    "maxpool2d_gaps": (
        [1, 8, 8],
        {"type": "maxpool2d", "kernel_size": 2, "stride": 3, "padding": 1},
    ),
    "avgpool2d": ([2, 4, 6], {"type": "avgpool2d", "kernel_size": 2}),
    "avgpool2d_overlap": (
        [2, 6, 5],
        {"type": "avgpool2d", "kernel_size": 3, "stride": [1, 2], "padding": 1},
    ),
    "global_avgpool2d": ([3, 4, 5], "global_avgpool2d"),
    "batchnorm1d": ([4], "batchnorm1d"),
    "batchnorm1d_steps": ([3, 5], {"type": "batchnorm1d", "eps": 0.1, "momentum": 0.3}),
    "batchnorm2d": ([2, 3, 4], "batchnorm2d"),
    "batchnorm2d_plain": ([2, 3, 4], {"type": "batchnorm2d", "affine": False}),
    "groupnorm": ([6, 3, 2], {"type": "groupnorm", "num_groups": 2}),
    "groupnorm_steps": ([4, 3], {"type": "groupnorm", "num_groups": 2, "eps": 0.1}),
    "groupnorm_plain": ([4], {"type": "groupnorm", "num_groups": 2, "affine": False}),
    "layernorm": ([5], {"type": "layernorm", "normalized_shape": 5}),
    "layernorm_steps": ([4, 5], {"type": "layernorm", "normalized_shape": [5], "bias": False}),
    "layernorm_two_axes": ([2, 3, 4], {"type": "layernorm", "normalized_shape": [3, 4]}),
    "layernorm_plain": (
        [2, 3],
        {"type": "layernorm", "normalized_shape": [2, 3], "elementwise_affine": False},
    ),
    "relu": ([3, 4], "relu"),
    "relu6": ([3, 4], "relu6"),
    "leaky_relu": ([3, 4], {"type": "leaky_relu", "negative_slope": 0.3}),
    "gelu": ([3, 4], "gelu"),
    "silu": ([3, 4], "silu"),
    "hardswish": ([3, 4], "hardswish"),
    "sigmoid": ([3, 4], "sigmoid"),
    "tanh": ([3, 4], "tanh"),
    "flatten": ([2, 3, 4], "flatten"),
    "dropout": ([2, 3, 4], {"type": "dropout", "p": 0.4}),
    "concat": (
        [2, 5, 4],
        {
            "type": "concat",
            "branches": [
                [{"type": "conv2d", "out_channels": 3, "kernel_size": 1}, "relu"],
                [],
                [{"type": "maxpool2d", "kernel_size": 3, "stride": 1, "padding": 1}],
                [],
            ],
        },
    ),
    "concat_flat": (
        [5],
        {"type": "concat", "branches": [[{"type": "linear", "out_features": 4}], ["tanh"]]},
    ),
    "linear_steps": ([4, 5], {"type": "linear", "out_features": 3}),
    "lstm": ([4, 3], {"type": "lstm", "hidden_size": 2}),
    "lstm_two": ([3, 2], {"type": "lstm", "hidden_size": 3, "num_layers": 2}),
    "lstm_no_bias": ([1, 2], {"type": "lstm", "hidden_size": 2, "bias": False}),
    "gru": ([4, 3], {"type": "gru", "hidden_size": 2}),
    "gru_two": ([3, 2], {"type": "gru", "hidden_size": 3, "num_layers": 2}),
    "gru_no_bias": ([1, 2], {"type": "gru", "hidden_size": 2, "bias": False}),
    "last_step": ([4, 3], "last_step"),
    "transpose": ([4, 3], "transpose"),
    "residual": (
        [2, 4, 4],
        {
            "type": "residual",
            "body": [
                {"type": "conv2d", "out_channels": 2, "kernel_size": 3, "padding": 1},
                "relu",
                {"type": "conv2d", "out_channels": 2, "kernel_size": 3, "padding": 1},
            ],
        },
    ),
    "residual_shortcut": (
        [2, 5, 5],
        {
            "type": "residual",
            "body": [
                {"type": "conv2d", "out_channels": 3, "kernel_size": 3, "stride": 2, "padding": 1},
                "relu",
                {"type": "residual", "body": ["relu", {"type": "dropout", "p": 0.3}]},
            ],
            "shortcut": [{"type": "conv2d", "out_channels": 3, "kernel_size": 1, "stride": 2}],
        },
    ),
}


def device() -> NumpyDevice:
    return NumpyDevice(get("numpy").devices()[0], np.float64)


def differences(f: Callable[[Float64], float], at: Float64) -> Float64:
    """(f(at + H e) - f(at - H e)) / 2H for every unit vector e."""
    gradient = np.empty_like(at)
    for i in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[i] += H
        down[i] -= H
        gradient[i] = (f(up) - f(down)) / (2 * H)
    return gradient


def prepared(program: Program, model: Model) -> None:
    """An epoch over examples of which only the numbers matter, for dropout."""
    data = device().load(np.zeros((5, *model.input.shape), np.float32), np.zeros(5, np.int32))
    program.begin_epoch(data, np.array([4, 0, 2], np.int32), COUNT, dropout_key=3)
    program.gather(0, COUNT)


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_layer(name: str) -> None:
    """f = Σ dy·y(x, w) for a fixed random dy: df/dx and df/dw."""
    shape, layer = CASES[name]
    flatten = [] if len(shape) == 1 else ["flatten"]
    end = [*flatten, {"type": "linear", "out_features": 2}]
    mapping = {"name": name, "input": {"shape": shape}, "layers": ["relu", layer, *end]}
    model = build_model(mapping, name)
    segment = Segment(model, 1, 2)
    program = device().compile(segment, COUNT + 1)
    g = np.random.default_rng(len(name))
    x = g.normal(size=(COUNT, *model.tensors[segment.input]))
    w = g.normal(size=segment.num_values)
    dy = g.normal(size=(COUNT, *model.tensors[segment.output]))
    program.upload(w)
    prepared(program, model)

    def f(x: Float64, w: Float64) -> float:
        program.upload(w)
        program.put_input(x)
        program.forward(COUNT)
        return float(np.sum(dy * program.take_output(COUNT)))

    f(x, w)
    program.put_output_grad(dy)
    program.backward(COUNT)
    dx, dw = program.take_input_grad(COUNT), program.read_grads()
    assert dx.dtype == dw.dtype == np.float64
    np.testing.assert_allclose(dx, differences(lambda v: f(v, w), x), rtol=1e-6, atol=1e-7)
    along_w = differences(lambda v: f(x, v), w)
    np.testing.assert_allclose(dw, along_w[: len(dw)], rtol=1e-6, atol=1e-7)
    assert not along_w[len(dw) :].any(), "training does not see the buffers"


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("conv")])
def test_gradient_of_a_convolution_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of large images, whose columns are made and multiplied a few at a time."""
    monkeypatch.setattr(windows, "COLUMNS", 150)
    monkeypatch.setattr(convolution, "BLOCK", 150)
    test_gradient_of_layer(name)


def test_gradient_of_embedding() -> None:
    """It reads tokens, which have no gradient: df/dw for f = Σ dy·y(w), tokens that come twice."""
    embedding = {"type": "embedding", "embedding_dim": 3, "num_embeddings": 6}
    mapping = {
        "name": "embedding",
        "input": {"shape": [4], "vocabulary": 5},
        "layers": [embedding, "flatten", {"type": "linear", "out_features": 2}],
    }
    model = build_model(mapping, "embedding")
    segment = Segment(model, 0, 1)
    program = device().compile(segment, COUNT)
    g = np.random.default_rng(0)
    w, dy = g.normal(size=segment.num_params), g.normal(size=(COUNT, 4, 3))
    program.put_input(np.array([[0.0, 4, 4, 1], [1, 1, 1, 1], [4, 0, 2, 2]]))

    def f(w: Float64) -> float:
        program.upload(w)
        program.forward(COUNT)
        return float(np.sum(dy * program.take_output(COUNT)))

    f(w)
    program.put_output_grad(dy)
    program.backward(COUNT)
    grads = program.read_grads()
    np.testing.assert_allclose(grads, differences(f, w), rtol=1e-6, atol=1e-7)
    assert not grads.reshape(6, 3)[[3, 5]].any()


def test_gradient_of_the_loss() -> None:
    """Softmax with cross-entropy through a small network, from pixels to the mean loss."""
    conv = {"type": "conv2d", "out_channels": 3, "kernel_size": 3}
    layers = [conv, "relu", {"type": "maxpool2d", "kernel_size": 2}, "flatten"]
    mapping = {
        "name": "net",
        "input": {"shape": [1, 6, 6], "mean": [0.3], "std": [0.5]},
        "layers": [*layers, {"type": "linear", "out_features": 4}],
    }
    model = build_model(mapping, "net")
    g = np.random.default_rng(0)
    x = g.integers(0, 256, (5, 1, 6, 6), np.uint8)
    program = device().compile(model.whole, 5)
    data = device().load(x, np.array([0, 3, 1, 1, 2], np.int32))
    program.begin_epoch(data, np.arange(5, dtype=np.int32), 5, dropout_key=0)
    w = g.normal(size=model.num_params)

    def loss(w: Float64) -> float:
        program.upload(w)
        program.gather(0, 5)
        program.forward(5)
        program.loss(5)
        return program.read_metrics().loss_sum / 5

    loss(w)
    program.backward(5)
    grads = program.read_grads()
    np.testing.assert_allclose(grads, differences(loss, w), rtol=1e-6, atol=1e-8)


def test_first_of_equal_values_gets_the_gradient() -> None:
    layer = {"type": "maxpool2d", "kernel_size": 2, "stride": 1}
    end = ["flatten", {"type": "linear", "out_features": 2}]
    mapping = {"name": "net", "input": {"shape": [1, 2, 3]}, "layers": ["relu", layer, *end]}
    model = build_model(mapping, "net")
    program = device().compile(Segment(model, 1, 2), 1)
    program.put_input(np.array([[[[1.0, 2.0, 2.0], [2.0, 2.0, 0.0]]]]))
    program.forward(1)
    program.put_output_grad(np.array([[[[10.0, 7.0]]]]))
    program.backward(1)
    np.testing.assert_array_equal(
        program.take_input_grad(1), [[[[0.0, 17.0, 0.0], [0.0, 0.0, 0.0]]]]
    )


def test_every_layer_has_a_function_and_a_gradient_check() -> None:
    assert set(FUNCTIONS) == {*LAYERS.values(), Add, Concat}
    checked = {name.split("_stride")[0] for name in CASES} | {"embedding"}
    assert {kind for kind in LAYERS if kind not in checked} == set()


def test_update_follows_its_formula() -> None:
    """Two steps of SGD with everything on, longer than one block of the update."""
    limit = 1e-3
    layer = {"type": "linear", "out_features": 300, "bias": False}
    model = build_model({"name": "n", "input": {"shape": [300]}, "layers": [layer]}, "n")
    program = device().compile(model.whole, 2, Recipe(proximal=True))
    g = np.random.default_rng(0)
    w0 = g.normal(size=model.num_params)
    hyper = Hyper(
        lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.01, proximal_mu=0.3, clip_norm=limit
    )
    data = device().load(g.normal(size=(2, 300)).astype(np.float32), np.array([1, 2], np.int32))
    program.begin_epoch(data, np.arange(2, dtype=np.int32), 2, dropout_key=0)
    program.upload(w0)
    w, v = w0.copy(), np.zeros_like(w0)
    for _ in range(2):
        program.step(0, 2, hyper)
        gradient = program.read_grads() + 0.3 * (w - w0)
        norm = np.linalg.norm(gradient)
        assert norm > limit
        gradient = gradient * limit / (norm + 1e-6) + 0.01 * w
        v = 0.8 * v + gradient
        w = w - 0.1 * (gradient + 0.8 * v)
    np.testing.assert_allclose(program.download(), w, rtol=1e-12, atol=1e-12)
