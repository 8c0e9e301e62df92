"""Models from YAML: shapes, parameters, names, blocks, and what is said when one cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.errors import ConfigError, DataError, ModelError
from client.model import InputSpec, Model, Segment, build_model, initialise, load_model
from client.model.layers import (
    AvgPool1d,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Conv1d,
    Conv2d,
    GlobalMaxPool1d,
    GlobalMaxPool2d,
    GroupNorm,
    LayerNorm,
    Linear,
    MaxPool1d,
    MaxPool2d,
)

CONV = {"type": "conv2d", "out_channels": 4, "kernel_size": 3}
BODY = [{**CONV, "padding": 1}, "relu", {**CONV, "padding": 1, "name": "second"}]


def build(layers: list[Any], shape: list[int] | None = None, **spec: Any) -> Model:
    mapping = {"name": "net", "input": {"shape": shape or [4, 8, 8], **spec}, "layers": layers}
    return build_model(mapping, "net.yaml")


def ended(*layers: Any) -> list[Any]:
    """Layers on an image, with an end that every model needs."""
    return [*layers, "flatten", {"type": "linear", "out_features": 3}]


# -- shipped models ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "num_params", "flops"),
    [
        # 6·(25+1) + 16·(150+1) + 120·401 + 84·121 + 10·85
        ("lenet5", 61_706, 2 * (25 * 6 * 784 + 150 * 16 * 100 + 400 * 120 + 120 * 84 + 840)),
        # 200·785 + 200·201 + 10·201
        ("mlp", 199_210, 2 * (784 * 200 + 200 * 200 + 200 * 10)),
        # 32·26 + 64·801 + 2048·3137 + 62·2049
        (
            "femnist_cnn",
            6_603_710,
            2 * (25 * 32 * 784 + 800 * 64 * 196 + 3136 * 2048 + 2048 * 62),
        ),
        # convolutions with biases of 16, 32 and 64 channels, shortcuts, batch norms, linear; of
        # the operations the last but one are batch norm's, a multiply-add for each element
        (
            "resnet8",
            448 + 2 * 2320 + 4640 + 9248 + 544 + 18496 + 36928 + 2112 + 2 * 240 + 650,
            2
            * (
                (27 + 2 * 144) * 16 * 1024
                + (144 + 288 + 16) * 32 * 256
                + (288 + 576 + 32) * 64 * 64
                + (3 * 16 * 1024 + 2 * 32 * 256 + 2 * 64 * 64)
                + 640
            ),
        ),
        (
            "resnet20",
            (27 + 6 * 144) * 16
            + (144 + 5 * 288 + 16) * 32
            + (288 + 5 * 576 + 32) * 64
            + 2 * 7 * (16 + 32 + 64)
            + 650,
            2
            * (
                (27 + 6 * 144) * 16 * 1024
                + (144 + 5 * 288 + 16) * 32 * 256
                + (288 + 5 * 576 + 32) * 64 * 64
                + 7 * (16 * 1024 + 32 * 256 + 64 * 64)
                + 640
            ),
        ),
    ],
)
def test_shipped_model(name: str, num_params: int, flops: int) -> None:
    model = load_model(Path(name))
    assert model.name == name
    assert model.num_params == num_params == sum(p.size for p in model.params)
    layers = [op for op in model.ops if op.params]
    assert sum(op.layer.flops(model.tensors[op.inputs[0]]) for op in layers) == flops


@pytest.mark.parametrize(
    ("name", "num_params", "num_classes"),
    [
        ("har_cnn1d", 1_088_926, 6),
        ("tcn", 206_278, 6),
        ("mobilenet_v1_025", 215_642, 10),
        ("mobilenet_v2_cifar", 2_236_682, 10),  # as torchvision's mobilenet_v2(num_classes=10)
        ("squeezenet_cifar", 727_626, 10),  # as torchvision's squeezenet1_1(num_classes=10)
    ],
)
def test_size_of_shipped_model(name: str, num_params: int, num_classes: int) -> None:
    model = load_model(Path(name))
    assert (model.name, model.num_params, model.num_classes) == (name, num_params, num_classes)


def test_shapes_of_lenet5() -> None:
    model = load_model(Path("lenet5"))
    assert model.tensors == (
        (1, 28, 28),
        *[(6, 28, 28)] * 2,
        (6, 14, 14),
        *[(16, 10, 10)] * 2,
        (16, 5, 5),
        (400,),
        *[(120,)] * 2,
        *[(84,)] * 2,
        (10,),
    )
    assert [p.name for p in model.params[:3]] == ["conv1.weight", "conv1.bias", "conv2.weight"]
    assert model.params[2].shape == (16, 6, 5, 5)
    assert model.params[2].fan_in == 150
    assert model.num_classes == 10


# -- shapes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "x", "y"),
    [
        (Conv2d(5, 3), (2, 9, 7), (5, 7, 5)),
        (Conv2d(5, 3, padding=2), (2, 9, 7), (5, 11, 9)),
        (Conv2d(5, (3, 2), stride=(2, 3), padding=(1, 0)), (2, 9, 7), (5, 5, 2)),
        (Conv2d(5, 3, dilation=3), (2, 9, 7), (5, 3, 1)),
        (Conv2d(5, (4, 2), padding="same", dilation=(1, 3)), (2, 9, 7), (5, 9, 7)),
        (Conv2d(5, 9, padding="valid"), (2, 9, 9), (5, 1, 1)),
        (MaxPool2d(2), (3, 7, 8), (3, 3, 4)),
        (MaxPool2d(3, stride=2, padding=1), (3, 8, 7), (3, 4, 4)),
        (AvgPool2d((1, 3), stride=1), (3, 7, 8), (3, 7, 6)),
        (Conv2d(5, 3, padding=(0, 1, 2, 3)), (2, 9, 7), (5, 8, 10)),
        (Conv1d(5, 3), (2, 9), (5, 7)),
        (Conv1d(5, 501, padding="causal", dilation=2), (2, 9), (5, 9)),
        (Conv1d(5, 4, stride=3, padding="causal"), (2, 10), (5, 4)),
        (Conv1d(5, 4, padding=(0, 3)), (2, 9), (5, 9)),
        (MaxPool1d(3, stride=2, padding=1), (3, 8), (3, 4)),
        (AvgPool1d(2), (3, 9), (3, 4)),
        (GlobalMaxPool1d(), (3, 9), (3,)),
        (GlobalMaxPool2d(), (3, 9, 4), (3,)),
        (Linear(5), (7,), (5,)),
        (BatchNorm1d(), (7,), (7,)),
        (BatchNorm1d(), (7, 9), (7, 9)),
        (BatchNorm2d(), (7, 9, 8), (7, 9, 8)),
        (GroupNorm(2), (4, 9), (4, 9)),
        (LayerNorm((9, 8)), (7, 9, 8), (7, 9, 8)),
    ],
)
def test_output_shape(layer: Any, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    assert layer.output_shape(x) == y


@pytest.mark.parametrize(
    ("kernel", "dilation", "pads"),
    [(3, 1, (1, 1, 1, 1)), ((4, 2), 1, (1, 2, 0, 1)), ((2, 3), (3, 2), (1, 2, 2, 2))],
)
def test_same_padding_puts_the_odd_row_last(kernel: Any, dilation: Any, pads: Any) -> None:
    layer = Conv2d(1, kernel, padding="same", dilation=dilation)
    assert layer.window((1, 9, 9)).pads == pads


@pytest.mark.parametrize(
    ("layer", "pads"),
    [
        (Conv1d(1, 3, padding=2), (0, 0, 2, 2)),
        (Conv1d(1, 3, padding=(2, 1)), (0, 0, 2, 1)),
        (Conv1d(1, 4, padding="same"), (0, 0, 1, 2)),
        (Conv1d(1, 4, padding="causal", dilation=3), (0, 0, 9, 0)),
        (Conv1d(1, 4, padding="valid"), (0, 0, 0, 0)),
        (Conv2d(1, 3, padding=(2, 1)), (2, 2, 1, 1)),
        (Conv2d(1, 3, padding=(0, 1, 2, 3)), (0, 1, 2, 3)),
        (MaxPool1d(3, padding=1), (0, 0, 1, 1)),
    ],
)
def test_padding(layer: Any, pads: tuple[int, ...]) -> None:
    assert layer.window((1, 9) if layer.dims == 1 else (1, 9, 9)).pads == pads


def test_groups_divide_parameters_and_operations() -> None:
    """(6, 8, 8) -> (4, 6, 6) in two groups of 3 -> 2 channels."""
    model = build(ended({**CONV, "groups": 2}), [6, 8, 8])
    weight, bias = model.ops[0].params
    assert (weight.shape, weight.fan_in) == ((4, 3, 3, 3), 27)
    assert (bias.shape, bias.fan_in) == ((4,), 27)
    assert model.ops[0].layer.flops((6, 8, 8)) == 2 * 3 * 9 * 4 * 6 * 6


# -- graph, parameters, blocks ------------------------------------------------------------------


def test_residual_block() -> None:
    shortcut = [{**CONV, "kernel_size": 1, "bias": False}]
    layers = [{"type": "residual", "name": "b", "body": BODY, "shortcut": shortcut}, "relu"]
    model = build(ended(*layers))
    assert [op.layer.kind for op in model.ops[:5]] == ["conv2d", "relu", "conv2d", "conv2d", "add"]
    assert [p.name for p in model.params] == [
        "b.body.0.weight",
        "b.body.0.bias",
        "b.second.weight",
        "b.second.bias",
        "b.shortcut.0.weight",
        "3.weight",
        "3.bias",
    ]
    add = model.ops[4]
    assert (add.inputs, add.output) == ((3, 4), 5)
    assert model.ops[3].inputs == (0,)
    assert [op.block for op in model.ops] == [0, 0, 0, 0, 0, 1, 2, 3]
    assert model.block_names == ("b", "1", "2", "3")


def test_identity_shortcut_and_nesting() -> None:
    inner = {"type": "residual", "body": ["relu"]}
    model = build(ended({"type": "residual", "body": [{**CONV, "padding": 1}, inner]}))
    assert [op.name for op in model.ops[:4]] == ["0.body.0", "0.body.1.body.0", "0.body.1", "0"]
    assert model.ops[3].inputs == (model.ops[2].output, 0)


def test_concat() -> None:
    """Three branches on (4, 8, 8): two convolutions, the input itself, pooling and a residual."""
    branches = [
        [{**CONV, "padding": 1}, {**CONV, "name": "second", "padding": 1}],
        [],
        [
            {"type": "maxpool2d", "kernel_size": 3, "stride": 1, "padding": 1},
            {"type": "residual", "name": "r", "body": ["relu"]},
        ],
    ]
    model = build(ended({"type": "concat", "name": "c", "branches": branches}))
    assert [op.name for op in model.ops[:6]] == [
        "c.branches.0.0",
        "c.second",
        "c.branches.2.0",
        "c.r.body.0",
        "c.r",
        "c",
    ]
    concat = model.ops[5]
    assert concat.inputs == (2, 0, 5)
    assert model.tensors[concat.output] == (12, 8, 8)
    assert {op.block for op in model.ops[:6]} == {0}
    flat = [{"type": "linear", "out_features": 2}], [{"type": "linear", "out_features": 3}]
    assert build([{"type": "concat", "branches": [*flat]}], [7]).num_classes == 5


def test_segments_own_contiguous_parameters() -> None:
    model = load_model(Path("lenet5"))
    blocks = len(model.block_names)
    for cut in range(1, blocks):
        first, last = Segment(model, 0, cut), Segment(model, cut, blocks)
        assert first.num_params + last.num_params == model.num_params
        assert first.output == last.input
        flat = np.arange(model.num_params)
        parts = [flat[first.param_slice], flat[last.param_slice]]
        np.testing.assert_array_equal(np.concatenate(parts), flat)
        assert (first.is_first, first.is_last) == (True, False)
        assert (last.is_first, last.is_last) == (False, True)
    assert (model.whole.is_first, model.whole.is_last) == (True, True)
    for first_block, stop in ((0, 0), (-1, 2), (3, blocks + 1), (4, 3)):
        with pytest.raises(ValueError, match="no blocks"):
            Segment(model, first_block, stop)


NORMS = ({**CONV, "name": "conv"}, {"type": "batchnorm2d", "name": "bn"}, "relu", "batchnorm2d")


def test_buffers_lie_behind_all_parameters() -> None:
    model = build(ended(*NORMS))
    assert [(v.name, v.shape) for v in model.values[2:4]] == [
        ("bn.weight", (4,)),
        ("bn.bias", (4,)),
    ]
    assert [v.name for v in model.buffers] == [
        "bn.running_mean",
        "bn.running_var",
        "3.running_mean",
        "3.running_var",
    ]
    assert model.values == model.params + model.buffers
    assert (model.num_params, model.num_values) == (4 * 37 + 16 + 3 * 145, model.num_params + 16)
    end = 0
    for value in model.values:
        assert value.offset == end
        end += value.size
    views = model.views(initialise(model, 1))
    for name, value in {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}.items():
        np.testing.assert_array_equal(views[f"bn.{name}"], np.full(4, value, np.float32))
    assert list(model.views(np.zeros(model.num_params))) == [p.name for p in model.params]
    with pytest.raises(ValueError, match="found shape"):
        model.views(np.zeros(model.num_params + 1))


def test_segments_own_their_parameters_and_buffers() -> None:
    """A segment's values are its parameters, then its buffers; together they are all."""
    model = build(ended(*NORMS))
    flat = np.arange(model.num_values, dtype=np.float32)
    found: dict[str, Any] = {}
    for first, stop in ((0, 2), (2, 4), (4, 6)):
        segment = Segment(model, first, stop)
        own = segment.values_of(flat)
        assert own.shape == (segment.num_values,)
        for op in segment.ops:
            for v in (*op.params, *op.buffers):
                found[v.name] = own[segment.place(v) :][: v.size].reshape(v.shape)
    views = model.views(flat)
    assert set(found) == set(views)
    for name, value in views.items():
        np.testing.assert_array_equal(found[name], value)
    assert Segment(model, 2, 3).num_values == 0


def test_values_written_by_pytorch_may_count_batches() -> None:
    model = build(ended(*NORMS))
    flat = np.random.default_rng(0).random(model.num_values, np.float32)
    named = {**model.views(flat), "bn.num_batches_tracked": np.array(3)}
    np.testing.assert_array_equal(model.flatten(named, "test"), flat)
    with pytest.raises(ModelError, match=r"not in the model \['conv.num_batches_tracked'\]"):
        model.flatten({**named, "conv.num_batches_tracked": np.array(3)}, "test")
    del named["3.running_var"]
    with pytest.raises(ModelError, match=r"missing \['3.running_var'\]"):
        model.flatten(named, "test")


def test_views_and_flatten_are_inverse() -> None:
    model = load_model(Path("mlp"))
    flat = np.random.default_rng(0).normal(size=model.num_params).astype(np.float32)
    views = model.views(flat)
    assert views["fc1.weight"].shape == (200, 784)
    assert np.shares_memory(views["fc1.weight"], flat)
    np.testing.assert_array_equal(model.flatten(views, "test"), flat)


def test_foreign_parameters_are_refused() -> None:
    model = build(ended())
    good = model.views(np.zeros(model.num_params, np.float32))
    with pytest.raises(ModelError, match=r"m\.safetensors: .*missing \['1.bias'\].*\['bias'\]"):
        model.flatten({"1.weight": good["1.weight"], "bias": good["1.bias"]}, "m.safetensors")
    with pytest.raises(ModelError, match=r"1\.bias: found shape \(4,\).* has \(3,\)"):
        model.flatten({**good, "1.bias": np.zeros(4, np.float32)}, "m.safetensors")


def test_numbers_that_cannot_be_used_are_refused() -> None:
    model = build(ended(*NORMS))
    good = dict(model.views(np.full(model.num_values, -2.0, np.float32)))
    for name in ("bn.running_var", "3.running_var"):
        with pytest.raises(DataError, match=rf"^m: {name} holds a negative variance \(-2\)$"):
            model.flatten(good, "m")
        good[name] = np.zeros_like(good[name])
    assert model.flatten(good, "m").min() == -2
    for bad in (np.float32("nan"), np.float32("inf"), np.float64(-1e300)):
        value = good["bn.running_mean"].astype(bad.dtype)
        value[-1] = bad
        with pytest.raises(DataError, match=r"^m: bn\.running_mean holds values that are"):
            model.flatten({**good, "bn.running_mean": value}, "m")


def test_digest_tells_models_apart() -> None:
    def digests(*changes: dict[str, Any]) -> set[str]:
        return {build(ended({**CONV, **change})).digest for change in changes}

    assert len(digests({}, {"padding": 1}, {"bias": False}, {"dilation": 2}, {"name": "c"})) == 5
    assert len(digests({}, {"groups": 2})) == 2
    assert len(digests({}, {})) == 1
    assert build(ended(CONV), mean=[0.5]).digest != build(ended(CONV)).digest


def test_input_normalisation() -> None:
    spec = InputSpec((2, 3, 3), mean=(0.5, 0.25), std=(0.5, 2.0))
    factor, shift = spec.affine(np.dtype(np.uint8))
    np.testing.assert_allclose(255 * factor + shift, [1.0, 0.375], rtol=1e-6)
    factor, shift = spec.affine(np.dtype(np.float32))
    np.testing.assert_allclose(0.5 * factor + shift, [0.0, 0.125], rtol=1e-6, atol=1e-7)
    assert [len(v) for v in InputSpec((4,)).affine(np.dtype(np.float32))] == [4, 4]


def test_initial_parameters() -> None:
    """Uniform within 1/sqrt(fan_in), from a stream for each name, equal for equal seeds."""
    model = load_model(Path("mlp"))
    flat = initialise(model, 3)
    assert flat.dtype == np.float32
    views = model.views(flat)
    weight, bound = views["fc1.weight"], 1 / 28
    assert np.abs(weight).max() <= np.float32(bound)
    assert abs(weight.mean()) < 0.01 * bound
    assert weight.std() == pytest.approx(bound / np.sqrt(3), rel=0.01)
    np.testing.assert_array_equal(flat, initialise(model, 3))
    assert (flat != initialise(model, 4)).mean() > 0.99
    longer = build([{"type": "linear", "name": "more", "out_features": 2}], [3])
    both = [{"type": "linear", "name": "first", "out_features": 3}]
    both += [{"type": "linear", "name": "more", "out_features": 2}]
    np.testing.assert_array_equal(
        longer.views(initialise(longer, 0))["more.weight"],
        build(both, [3]).views(initialise(build(both, [3]), 0))["more.weight"],
    )


# -- what is said when a model cannot be ----------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "parts"),
    [
        (["rellu"], ["layers[0].type", "'rellu'", "did you mean 'relu'"]),
        ([{"type": "conv2"}], ["layers[0].type", "'conv2'", "did you mean 'conv2d'"]),
        ([{"out_features": 3}], ["layers[0].type", "found nothing", "linear"]),
        (["relu", 3], ["layers[1]", "found 3", "name of a layer"]),
        ([{**CONV, "kernal_size": 3}], ["layers[0].kernal_size", "mean 'kernel_size'"]),
        ([{"type": "conv2d", "kernel_size": 3}], ["layers[0]", "'out_channels' is missing"]),
        ([{**CONV, "kernel_size": "3"}], ["layers[0].kernel_size", "'3'", "whole number"]),
        ([{**CONV, "kernel_size": [3]}], ["layers[0].kernel_size", "[3]", "list of 2"]),
        ([{**CONV, "kernel_size": 0}], ["layers[0]", "kernel_size", "at least 1", "0"]),
        ([{**CONV, "stride": [1, 0]}], ["layers[0]", "stride", "at least 1"]),
        ([{**CONV, "out_channels": True}], ["layers[0].out_channels", "True"]),
        ([{**CONV, "groups": 0}], ["layers[0]", "groups", "at least 1", "0"]),
        ([{**CONV, "groups": 3}], ["layers[0]", "groups", "out_channels (4)", "found 3"]),
        (["relu", {**CONV, "out_channels": 9, "groups": 3}], ["layers[1]", "channels (4)", "3"]),
        ([{**CONV, "padding": "sane"}], ["layers[0]", "padding", "did you mean 'same'"]),
        ([{**CONV, "padding": -1}], ["layers[0]", "padding", "negative"]),
        ([{**CONV, "padding": "same", "stride": 2}], ["layers[0]", "'same' needs stride 1"]),
        (["relu", {**CONV, "kernel_size": 9}], ["layers[1]", "9x9", "(4, 8, 8)"]),
        ([{**CONV, "padding": "causal"}], ["layers[0]", "'causal'", "a list of 4, same, valid"]),
        ([{**CONV, "padding": [1, 1, 1]}], ["layers[0].padding", "[1, 1, 1]", "a list of 4"]),
        ([{**CONV, "padding": [0, 0, 0, -1]}], ["layers[0]", "padding", "negative"]),
        ([{**CONV, "type": "conv1d"}], ["layers[0]", "(channels, length)", "(4, 8, 8)"]),
        ([{**CONV, "type": "conv1d", "stride": [1, 2]}], ["layers[0].stride", "whole number"]),
        (
            [{**CONV, "type": "conv1d", "padding": "casual"}],
            ["a pair, same, valid, causal", "did you mean 'causal'"],
        ),
        (["concat"], ["layers[0].branches", "found nothing", "two lists of layers or more"]),
        ([{"type": "concat", "branches": [[CONV]]}], ["layers[0].branches", "two lists"]),
        ([{"type": "concat", "branches": [[], []]}], ["layers[0].branches", "needs a layer"]),
        ([{"type": "concat", "branches": [[], "relu"]}], ["layers[0].branches[1]", "a list"]),
        ([{"type": "concat", "branches": [[], ["relo"]]}], ["branches[1][0].type", "'relu'"]),
        ([{"type": "concat", "branches": [[], []], "x": 1}], ["layers[0].x", "unknown key"]),
        (
            [{"type": "concat", "branches": [[], [CONV]]}],
            ["layers[0].branches", "(4, 8, 8), (4, 6, 6)", "all but the channels"],
        ),
        ([{"type": "maxpool2d", "kernel_size": 9}], ["layers[0]", "9x9", "larger"]),
        ([{"type": "maxpool2d", "kernel_size": 2, "padding": 2}], ["layers[0]", "padding", "half"]),
        ([{"type": "dropout", "p": 1}], ["layers[0]", "p", "[0, 1)"]),
        ([{"type": "dropout", "p": "x"}], ["layers[0].p", "'x'", "a number"]),
        (["last_step"], ["layers[0]", "(steps, features)", "(4, 8, 8)"]),
        (["transpose"], ["layers[0]", "two axes", "(4, 8, 8)"]),
        ([{"type": "embedding", "embedding_dim": 3}], ["layers[0]", "input.vocabulary"]),
        (["leakyrelu"], ["layers[0].type", "did you mean 'leaky_relu'"]),
        (["batchnorm1d"], ["layers[0]", "(channels,) or (channels, steps)", "(4, 8, 8)"]),
        (["flatten", "batchnorm2d"], ["layers[1]", "(channels, height, width)", "(256,)"]),
        ([{"type": "batchnorm2d", "momentum": 1.5}], ["layers[0]", "momentum", "[0, 1]", "1.5"]),
        ([{"type": "batchnorm2d", "eps": 0}], ["layers[0]", "eps", "1e-30", "found 0"]),
        (["groupnorm"], ["layers[0]", "'num_groups' is missing"]),
        ([{"type": "groupnorm", "num_groups": 3}], ["layers[0]", "num_groups", "channels (4)"]),
        ([{"type": "groupnorm", "num_groups": 0}], ["layers[0]", "num_groups", "at least 1"]),
        ([{"type": "layernorm", "normalized_shape": 4}], ["layers[0]", "(4, 8, 8)", "found 4"]),
        ([{"type": "layernorm", "normalized_shape": []}], ["layers[0]", "last sizes", "found ()"]),
        ([{"type": "leaky_relu", "negative_slope": "x"}], ["layers[0].negative_slope", "'x'"]),
        ([{"type": "gelu", "approximate": "tanh"}], ["layers[0].approximate", "unknown key"]),
        ([{"type": "linear", "out_features": 3}], ["layers[0]", "flat", "put a flatten before"]),
        (["flatten", CONV], ["layers[1]", "(channels, height, width)", "(256,)"]),
        ([{**CONV, "name": "a.b"}], ["layers[0].name", "'a.b'", "without dots"]),
        ([{**CONV, "name": 3}], ["layers[0].name", "found 3"]),
        ([{**CONV, "name": "a"}, {**CONV, "name": "a"}], ["layers[1].name", "'a' stands twice"]),
        (["relu"], ["no parameters"]),
        (["flatten"], ["no parameters"]),
        ([], ["no parameters"]),
        (["residual"], ["layers[0]", "'body'"]),
        ([{"type": "residual", "body": []}], ["layers[0].body", "at least one"]),
        ([{"type": "residual", "body": "relu"}], ["layers[0].body", "'relu'", "a list"]),
        ([{"type": "residual", "body": ["relu", "relo"]}], ["layers[0].body[1].type", "'relu'"]),
        ([{"type": "residual", "boby": ["relu"]}], ["layers[0]", "'body'"]),
        ([{"type": "residual", "body": ["relu"], "x": 1}], ["layers[0].x", "unknown key"]),
        ([{"type": "residual", "body": [CONV]}], ["layers[0]", "(4, 6, 6)", "(4, 8, 8)", "equal"]),
    ],
)
def test_unfit_layers(layers: list[Any], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build(layers)
    message = str(caught.value)
    assert message.startswith("net.yaml")
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ({"shape": []}, ["input.shape", "at least 1"]),
        ({"shape": [3, 0, 2]}, ["input.shape", "at least 1"]),
        ({"shape": [3, 2.5]}, ["input.shape[1]", "2.5", "whole number"]),
        ({"shape": [3], "mean": [0.1, 0.2]}, ["input.mean", "one per channel (3)", "found 2"]),
        ({"shape": [3], "std": [0.0]}, ["input.std", "positive"]),
        ({"shape": [3], "std": []}, ["input.std", "found 0"]),
        ({"shape": [3], "std": [1e-320]}, ["input.std", "float32 cannot normalise by"]),
        ({"shape": [3], "mean": [1e300]}, ["input.std", "with mean [1e+300]"]),
        ({"shape": [3], "mean": [float("nan")]}, ["input.mean[0]", "finite"]),
        ({"shape": [3], "sdt": [1.0]}, ["input.sdt", "did you mean 'std'"]),
        ({}, ["input", "'shape' is missing"]),
        (3, ["input", "found 3", "mapping"]),
    ],
)
def test_unfit_input(spec: Any, parts: list[str]) -> None:
    mapping = {"name": "net", "input": spec, "layers": [{"type": "linear", "out_features": 2}]}
    with pytest.raises(ConfigError) as caught:
        build_model(mapping, "net.yaml")
    message = str(caught.value)
    assert message.startswith("net.yaml: input")
    for part in parts:
        assert part in message


def test_unfit_top_level() -> None:
    good = {
        "name": "net",
        "input": {"shape": [3]},
        "layers": [{"type": "linear", "out_features": 2}],
    }
    for key in good:
        without = {k: v for k, v in good.items() if k != key}
        with pytest.raises(ConfigError, match=f"net.yaml: the key '{key}' is missing"):
            build_model(without, "net.yaml")
    with pytest.raises(ConfigError, match=r"net.yaml: layer: unknown key; .* mean 'layers'"):
        build_model({**good, "layer": []}, "net.yaml")
    with pytest.raises(ConfigError, match=r"net.yaml: name: found 3, needs text"):
        build_model({**good, "name": 3}, "net.yaml")


def test_unknown_model_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^lenet: no file .*femnist_cnn.*did you mean 'lenet5'"):
        load_model(Path("lenet"))
    (tmp_path / "mlp").mkdir()
    assert load_model(Path("mlp")).name == "mlp"


# -- tokens ---------------------------------------------------------------------------------------

EMBEDDING = {"type": "embedding", "embedding_dim": 3}


def tokens(*layers: Any, **spec: Any) -> Model:
    mapping = {"name": "m", "input": {"shape": [7], "vocabulary": 5, **spec}}
    return build_model({**mapping, "layers": [*layers, "flatten", LINEAR]}, "m.yaml")


LINEAR = {"type": "linear", "out_features": 2}


def test_an_embedding_has_a_row_for_each_token() -> None:
    model = tokens(EMBEDDING, LINEAR, "last_step")
    assert [(p.name, p.shape) for p in model.params[:3]] == [
        ("0.weight", (5, 3)), ("1.weight", (2, 3)), ("1.bias", (2,))
    ]  # fmt: skip
    assert model.tensors[:4] == ((7,), (7, 3), (7, 2), (2,))
    assert tokens({**EMBEDDING, "num_embeddings": 9}).params[0].shape == (9, 3)
    weights = initialise(tokens({**EMBEDDING, "embedding_dim": 1000}), 0)[:5000]
    assert abs(weights.std() - 1) < 0.05  # as PyTorch's, not as a linear layer's


@pytest.mark.parametrize(
    ("layers", "spec", "parts"),
    [
        ([LINEAR], {}, ["layers[0]", "input.vocabulary", "embedding", "found linear"]),
        ([EMBEDDING, EMBEDDING], {}, ["layers[1]", "reads the model's input"]),
        ([{**EMBEDDING, "num_embeddings": 4}], {}, ["layers[0]", "found 4", "vocabulary (5)"]),
        ([EMBEDDING], {"vocabulary": 0}, ["input.vocabulary", "found 0", "16777216"]),
        ([EMBEDDING], {"shape": [7, 2]}, ["input.shape", "one axis", "[7, 2]"]),
        ([EMBEDDING], {"mean": [0.5]}, ["input.vocabulary", "leave mean and std out"]),
    ],
)
def test_what_is_said_of_tokens(layers: list[Any], spec: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ModelError) as e:
        tokens(*layers, **spec)
    message = str(e.value)
    assert message.startswith("m.yaml: ")
    assert "\n" not in message
    for part in parts:
        assert part in message
