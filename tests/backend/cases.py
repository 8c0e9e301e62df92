"""Small networks whose results in PyTorch are frozen, chosen to straddle tiles and vectors.

Sizes lie at and around 1, 2, 5, 32 and 64 in features, channels and batch; the number of examples
is never a multiple of the batch, so that the last batch of an epoch is a smaller one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.backends.recipe import Hyper, OptimizerName, Recipe
from client.model import Model, build_model, initialise, load_model
from client.model.losses import MSE, BCEWithLogits, CrossEntropy, Labels, Loss
from client.random import generator

FROZEN = Path(__file__).parent / "frozen"
STEPS = 10

HYPERS = {
    "sgd": Hyper(lr=0.05),
    "momentum": Hyper(lr=0.05, momentum=0.9),
    "nesterov": Hyper(lr=0.05, momentum=0.9, nesterov=True),
    "decay": Hyper(lr=0.05, momentum=0.9, weight_decay=0.01),
    "proximal": Hyper(lr=0.05, momentum=0.9, proximal_mu=0.5),
    "all": Hyper(lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01, proximal_mu=0.1),
    "clip": Hyper(lr=0.05, momentum=0.9, clip_norm=0.5),
    "adam": Hyper(lr=0.01),
    "adam_all": Hyper(
        lr=0.02, weight_decay=0.1, betas=(0.7, 0.9), eps=1e-3, proximal_mu=0.5, clip_norm=0.3
    ),
    "clip_all": Hyper(lr=0.1, momentum=0.8, weight_decay=0.01, proximal_mu=0.5, clip_norm=0.2),
}


@dataclass(frozen=True)
class Case:
    """A network, its batch, the type of its data, and how it is trained."""

    name: str
    input: dict[str, Any]
    layers: tuple[Any, ...]
    batch: int
    dtype: str = "float32"
    hypers: tuple[str, ...] = ("momentum",)
    loss: Loss = field(default_factory=CrossEntropy)
    optimizer: OptimizerName = "sgd"
    frozen: tuple[str, ...] = ()

    @property
    def model(self) -> Model:
        mapping = {"name": self.name, "input": self.input, "layers": list(self.layers)}
        return build_model(mapping, self.name, self.loss, self.frozen)

    def recipe(self, hyper: Hyper | None = None) -> Recipe:
        """What training with ``hyper`` needs."""
        proximal = hyper is not None and hyper.proximal_mu != 0
        return Recipe(self.loss, self.optimizer, proximal=proximal)

    @property
    def path(self) -> Path:
        return FROZEN / f"{self.name}.npz"

    def data(self) -> tuple[NDArray[Any], Labels, NDArray[np.int32]]:
        """(x, y, orders): examples for two and a half batches, and the orders of STEPS steps."""
        g = generator("frozen", self.name)
        n = 2 * self.batch + (self.batch + 1) // 2
        shape = (n, *self.model.input.shape)
        if self.model.input.vocabulary is not None:
            x: NDArray[Any] = self.model.input.draw(g, n).astype(self.dtype)
        elif self.dtype == "uint8":
            x = g.integers(0, 256, shape, np.uint8)
        else:
            x = g.normal(size=shape).astype(np.float32)
        y = self.loss.random_labels(self.model.output_shape, n, g)
        epochs = -(-STEPS // steps_per_epoch(n, self.batch))
        return x, y, np.stack([g.permutation(n) for _ in range(epochs)]).astype(np.int32)


def steps_per_epoch(n: int, batch: int) -> int:
    """Batches in an epoch, the last, smaller one included."""
    return -(-n // batch)


def digest(params: NDArray[np.float32]) -> str:
    """Hex digest of a buffer's bytes."""
    return hashlib.blake2b(params.tobytes(), digest_size=16).hexdigest()


def flat(features: int) -> dict[str, Any]:
    return {"shape": [features]}


def image(channels: int, height: int, width: int) -> dict[str, Any]:
    return {"shape": [channels, height, width]}


def linear(out_features: int, **more: Any) -> dict[str, Any]:
    return {"type": "linear", "out_features": out_features, **more}


def conv(out_channels: int, kernel_size: Any, **more: Any) -> dict[str, Any]:
    return {"type": "conv2d", "out_channels": out_channels, "kernel_size": kernel_size, **more}


def sequence(channels: int, length: int) -> dict[str, Any]:
    return {"shape": [channels, length]}


def conv1d(out_channels: int, kernel_size: int, **more: Any) -> dict[str, Any]:
    return {"type": "conv1d", "out_channels": out_channels, "kernel_size": kernel_size, **more}


def depthwise(channels: int, kernel_size: Any, **more: Any) -> dict[str, Any]:
    return conv(channels, kernel_size, groups=channels, **more)


def concat(*branches: list[Any], **more: Any) -> dict[str, Any]:
    return {"type": "concat", "branches": list(branches), **more}


def maxpool(kernel_size: Any, **more: Any) -> dict[str, Any]:
    return {"type": "maxpool2d", "kernel_size": kernel_size, **more}


def avgpool(kernel_size: Any, **more: Any) -> dict[str, Any]:
    return {"type": "avgpool2d", "kernel_size": kernel_size, **more}


END = ("global_avgpool2d", linear(5))
END_1D = ("global_avgpool1d", linear(5))

CASES = (
    Case("linear_1_2_5", flat(1), (linear(2), "relu", linear(5)), 2, hypers=tuple(HYPERS)),
    Case("linear_5_1_2", flat(5), (linear(1), "relu", linear(2)), 1),
    Case("linear_31_32_33", flat(31), (linear(32), "relu", linear(33)), 33),
    Case("linear_33_31_2", flat(33), (linear(31, bias=False), "relu", linear(2)), 31),
    Case("linear_63_64_65", flat(63), (linear(64), "relu", linear(65)), 65),
    Case("linear_65_63_32", flat(65), (linear(63), "relu", linear(32)), 63),
    Case("linear_wide", flat(5), (linear(65), "relu", linear(132), "relu", linear(5)), 33),
    Case("linear_64_5", flat(64), (linear(5),), 64),
    Case("conv_1x1", image(33, 5, 5), (conv(31, 1), "relu", *END), 5),
    Case("conv_3x3", image(1, 8, 7), (conv(2, 3, padding=1), "relu", conv(5, 3), *END), 32),
    Case("conv_31_33", image(3, 7, 6), (conv(31, 3, padding="same"), "relu", conv(33, 2), *END), 5),
    Case("conv_32_64", image(2, 6, 6), (conv(32, 3), "relu", conv(64, 3, padding=1), *END), 2),
    Case("conv_63_65", image(1, 5, 4), (conv(63, 2), "relu", conv(65, 1), *END), 33),
    Case(
        "conv_stride_dilation",
        image(2, 17, 16),
        (
            conv(5, [3, 2], stride=[2, 1], padding=[2, 1], dilation=[1, 2], bias=False),
            "relu",
            conv(6, 3, stride=2, dilation=2, padding=3),
            *END,
        ),
        5,
    ),
    Case(
        "conv_same_even",
        image(3, 9, 8),
        (
            conv(5, [4, 2], padding="same"),
            "relu",
            conv(4, [3, 4], padding="same", dilation=2),
            *END,
        ),
        31,
    ),
    Case(
        "conv_groups",
        image(3, 8, 9),
        (
            conv(6, 3, padding=1, groups=3),
            "relu",
            conv(33, [2, 3], stride=[2, 1], dilation=[1, 2], groups=3, padding=1, bias=False),
            "relu",
            conv(22, 1, groups=11),
            *END,
        ),
        31,
        hypers=("momentum", "clip"),
    ),
    Case(
        "conv_depthwise",
        image(3, 9, 7),
        (
            conv(17, 3, stride=2, padding=1),
            "relu6",
            conv(17, 3, padding="same", groups=17),
            {
                "type": "residual",
                "body": [conv(17, 3, padding=1, groups=17), "relu", conv(17, 1)],
            },
            "relu",
            conv(34, [3, 2], groups=17),
            "hardswish",
            conv(31, 1),
            *END,
        ),
        5,
    ),
    Case(
        "conv_1x1_small",
        image(3, 4, 4),
        (
            conv(33, 1),
            "relu",
            conv(17, 1, bias=False),
            {"type": "residual", "body": [conv(17, 1), "relu"]},
            maxpool(2),
            conv(65, 1),
            "relu",
            conv(31, 1),
            "relu",
            maxpool(2),
            conv(34, 1),
            "relu",
            "flatten",
            linear(5),
        ),
        33,
    ),
    Case(
        "conv_1x1_rest",
        image(5, 8, 9),
        (
            conv(17, 1),
            "relu",
            conv(6, 1, groups=1, bias=False),
            maxpool(3, stride=2),
            "relu",
            conv(9, 1, stride=2),
            "relu",
            conv(8, 1),
            *END,
        ),
        5,
    ),
    Case(
        "conv_four_pads",
        image(2, 5, 6),
        (conv(3, 3, padding=[2, 0, 1, 3]), "relu", conv(5, [1, 4], padding=[0, 1, 0, 2]), *END),
        5,
    ),
    Case(
        "conv_flat",
        image(3, 8, 8),
        (
            conv(7, 3, padding=1),
            "relu",
            {"type": "residual", "body": [conv(7, 3, padding=2, dilation=2, bias=False), "relu"]},
            conv(6, 5, padding=2, groups=1),
            "relu",
            conv(10, 3, padding=1, groups=2),
            "relu",
            maxpool(2, stride=1),  # 7x7
            conv(13, [3, 1], padding=[1, 0]),
            "relu",
            conv(5, 3, padding=1),
            *END,
        ),
        5,
        hypers=("momentum", "clip"),
    ),
    Case(
        "conv_halved",
        image(2, 16, 16),
        (
            conv(5, 3, padding=1),
            "relu",
            {
                "type": "residual",
                "body": [conv(9, 3, stride=2, padding=1), "relu", conv(9, 3, padding=1)],
                "shortcut": [conv(9, 1, stride=2, bias=False)],
            },
            "relu",
            conv(6, 2, stride=2, groups=3),  # 4x4
            "relu",
            depthwise(6, 5, stride=2, padding=2),
            "relu",
            conv(7, 3, stride=2, padding=1),  # 1x1
            *END,
        ),
        5,
        hypers=("momentum", "clip"),
    ),
    Case(
        "conv_halved_odd",
        image(3, 15, 13),
        (
            conv(4, 1),
            "relu",
            conv(6, 3, stride=2, padding=1),  # 8x7
            "relu",
            conv(7, [4, 3], stride=2, padding=[1, 1, 1, 1]),  # 4x4
            "relu",
            conv(6, [1, 3], stride=2, padding=[0, 0, 0, 1]),  # 2x1 of even width
            *END,
        ),
        5,
    ),
    Case(
        "depthwise_small",
        image(3, 8, 8),
        (
            conv(17, 3, padding=1),
            "relu",
            depthwise(17, 3, padding=1),
            "relu",
            depthwise(17, 3, stride=2, padding=1, bias=False),
            "relu",
            depthwise(17, 3, padding=1, bias=False),
            {"type": "residual", "body": [depthwise(17, 5, padding="same"), "relu"]},
            depthwise(17, 3, stride=2, padding=1),
            depthwise(17, 3, padding=1),
            {"type": "residual", "body": [depthwise(17, 3, padding=1)]},
            "relu",
            depthwise(17, 2, padding="same"),
            *END,
        ),
        31,
        hypers=("momentum", "decay"),
    ),
    Case(
        "depthwise_rest",
        image(2, 9, 11),
        (
            conv(5, 1),
            "relu",
            depthwise(5, [3, 5], padding="same", dilation=[2, 1]),
            "relu",
            depthwise(5, 3, padding=[2, 0, 0, 2]),
            {"type": "residual", "body": ["relu", depthwise(5, 3, padding=1)]},
            depthwise(5, 3, stride=[2, 3], padding=1),
            "relu",
            depthwise(5, [2, 3]),
            *END,
        ),
        5,
    ),
    Case(
        "conv1d_plain",
        sequence(9, 65),
        (
            conv1d(31, 5, padding=2),
            "relu",
            {"type": "maxpool1d", "kernel_size": 3, "stride": 2, "padding": 1},
            conv1d(33, 4, stride=2, padding=[2, 1]),
            "relu",
            {"type": "avgpool1d", "kernel_size": 2},
            conv1d(5, 1),
            "global_maxpool1d",
            linear(5),
        ),
        5,
    ),
    Case(
        "conv1d_causal_long",
        sequence(1, 67),
        (
            conv1d(5, 64, padding="causal"),
            "relu",
            conv1d(6, 31, padding="causal", dilation=2, bias=False),
            {"type": "residual", "body": [conv1d(6, 101, padding="causal"), "relu"]},
            "relu",
            conv1d(3, 33, padding=[3, 40], dilation=1),
            *END_1D,
        ),
        5,
    ),
    Case(
        "conv1d_stride_long",
        sequence(2, 63),
        (
            conv1d(5, 33, padding=16, stride=2),
            "relu",
            conv1d(7, 9, padding="causal", stride=3, dilation=2),
            "relu",
            conv1d(4, 17, padding="same"),
            *END_1D,
        ),
        33,
    ),
    Case(
        "conv_batch",
        sequence(17, 10),
        (
            conv1d(33, 9, padding="same"),
            "relu",
            {"type": "residual", "body": [conv1d(33, 5, padding=4, dilation=2), "relu"]},
            conv1d(28, 3, padding=1),
            "relu",
            conv1d(18, 6, padding=3, stride=2, groups=2),
            *END_1D,
        ),
        13,
    ),
    Case(
        "conv_channels",
        image(5, 6, 5),
        (
            conv(50, 1),
            "relu",
            conv(40, [3, 2], padding=[2, 1], stride=[1, 2]),
            "relu",
            conv(50, 2, padding=1, stride=2, dilation=[2, 1], bias=False),
            "relu",
            conv(7, 1),
            "flatten",
            linear(5),
        ),
        5,
    ),
    Case(
        "conv1d_groups",
        sequence(4, 37),
        (
            conv1d(8, 3, padding="same", groups=2),
            "relu",
            conv1d(8, 21, padding="causal", groups=8),
            "relu",
            conv1d(16, 4, groups=8, stride=2),
            "relu",
            conv1d(16, 3, padding=[3, 3], groups=16),
            *END_1D,
        ),
        5,
    ),
    Case(
        "concat",
        image(3, 6, 7),
        (
            conv(5, 3, padding=1),
            concat([conv(4, 1), "relu"], [conv(7, 3, padding=1), "relu"], []),
            "relu",
            maxpool(2),
            concat(
                [maxpool(3, stride=1, padding=1), conv(5, 1)],
                [concat([depthwise(16, 3, padding=1)], ["relu"]), conv(6, 1)],
            ),
            {"type": "residual", "body": ["relu", concat([conv(5, 1)], [conv(6, 1)])]},
            "relu",
            "global_maxpool2d",
            concat([linear(3)], [linear(2)]),
        ),
        5,
    ),
    Case(
        "maxpool_plain",
        image(2, 11, 8),
        (conv(5, 3, padding=1), maxpool(2), "relu", conv(33, 2), maxpool([2, 1]), *END),
        5,
    ),
    Case(
        "maxpool_overlap",
        image(2, 10, 9),
        (
            conv(5, 3),
            "relu",
            maxpool(3, stride=2, padding=1),
            conv(6, 1),
            maxpool([3, 2], stride=1),
            *END,
        ),
        32,
    ),
    Case(
        "maxpool_gaps",
        image(1, 13, 13),
        (
            conv(3, 2),
            maxpool(2, stride=[3, 4], padding=[1, 0]),
            conv(4, 1),
            maxpool([2, 3], stride=[2, 1], padding=[0, 1]),
            "flatten",
            linear(5),
        ),
        5,
    ),
    Case(
        "avgpool",
        image(2, 11, 9),
        (
            conv(5, 3),
            avgpool([3, 2], stride=[2, 1], padding=1),
            "relu",
            conv(6, 1),
            avgpool(2),
            *END,
        ),
        31,
    ),
    Case(
        "residual",
        image(2, 8, 8),
        (
            conv(4, 3, padding=1),
            {"type": "residual", "body": ["relu", conv(4, 3, padding=1)]},
            {"type": "residual", "body": [conv(4, 3, padding=1), "relu", conv(4, 3, padding=1)]},
            "relu",
            {
                "type": "residual",
                "body": [conv(6, 3, stride=2, padding=1), "relu", conv(6, 3, padding=1)],
                "shortcut": [conv(6, 1, stride=2, bias=False)],
            },
            "relu",
            *END,
        ),
        5,
    ),
    Case(
        "batchnorm_image",
        image(2, 9, 7),
        (
            conv(5, 3, padding=1, bias=False),
            {"type": "batchnorm2d", "momentum": 0.3},
            "relu",
            {
                "type": "residual",
                "body": [
                    conv(5, 3, padding=1, bias=False),
                    "batchnorm2d",
                    "relu",
                    conv(5, 3, padding=1, bias=False),
                    {"type": "batchnorm2d", "eps": 0.01},
                ],
            },
            "relu",
            {
                "type": "residual",
                "body": [conv(17, 3, stride=2, padding=1, bias=False), "batchnorm2d"],
                "shortcut": [conv(17, 1, stride=2, bias=False), "batchnorm2d"],
            },
            "relu",
            {"type": "batchnorm2d", "affine": False},
            *END,
        ),
        5,
        hypers=("momentum", "clip_all"),
    ),
    Case(
        "batchnorm_flat",
        flat(33),
        (
            linear(31, bias=False),
            "batchnorm1d",
            "relu",
            linear(33),
            {"type": "batchnorm1d", "affine": False, "momentum": 1.0},
            "tanh",
            linear(5),
        ),
        31,
    ),
    Case(
        "batchnorm_steps",
        {"shape": [3, 37], "mean": [-100.0]},
        (
            "batchnorm1d",
            {"type": "residual", "body": ["relu", "batchnorm1d"]},
            "flatten",
            linear(5),
        ),
        5,
    ),
    Case(
        "groupnorm_image",
        image(2, 9, 7),
        (
            conv(6, 3, padding=1),
            "relu",
            {"type": "groupnorm", "num_groups": 3},
            {
                "type": "residual",
                "body": ["gelu", {"type": "groupnorm", "num_groups": 1, "eps": 0.01}],
            },
            {"type": "groupnorm", "num_groups": 2, "affine": False},
            "global_avgpool2d",
            linear(33),
            {"type": "groupnorm", "num_groups": 3},
            linear(5),
        ),
        5,
    ),
    Case(
        "layernorm",
        {"shape": [3, 5, 17], "mean": [-100.0]},
        (
            {"type": "layernorm", "normalized_shape": 17},
            {
                "type": "residual",
                "body": ["tanh", {"type": "layernorm", "normalized_shape": [5, 17]}],
            },
            {"type": "layernorm", "normalized_shape": [17], "elementwise_affine": False},
            "flatten",
            linear(33),
            "relu",
            {"type": "layernorm", "normalized_shape": 33, "bias": False, "eps": 0.001},
            linear(5),
        ),
        9,
    ),
    Case(
        "activations_flat",
        {"shape": [33], "std": [0.1]},
        (
            linear(31),
            "gelu",
            linear(33),
            "silu",
            linear(17),
            "tanh",
            linear(32),
            "sigmoid",
            linear(5),
        ),
        5,
        hypers=("momentum", "clip_all"),
    ),
    Case(
        "activations_image",
        {"shape": [2, 7, 9], "std": [0.1]},
        (
            conv(5, 3, padding=1),
            "relu6",
            conv(6, 3),
            "hardswish",
            conv(7, [3, 2]),
            {"type": "leaky_relu", "negative_slope": 0.2},
            "flatten",
            linear(5),
        ),
        31,
    ),
    Case(
        "activations_residual",
        image(2, 5, 7),
        (
            "tanh",
            conv(3, 3, padding=1),
            {"type": "residual", "body": ["gelu", conv(3, 3, padding=1)], "shortcut": ["relu6"]},
            {"type": "residual", "body": ["leaky_relu"]},
            "relu",
            "silu",
            "hardswish",
            "relu",
            *END,
        ),
        33,
    ),
    Case(
        "embedding_floats",
        {"shape": [7], "vocabulary": 33},
        (
            {"type": "embedding", "embedding_dim": 5},
            linear(17),
            "relu",
            "last_step",
            linear(5),
        ),
        5,
        hypers=("momentum", "clip"),
    ),
    Case(
        "embedding_bytes",
        {"shape": [9], "vocabulary": 65},
        (
            {"type": "embedding", "embedding_dim": 33, "num_embeddings": 70},
            "tanh",
            "transpose",
            linear(2, bias=False),
            "relu",
            "transpose",
            "flatten",
            linear(5),
        ),
        31,
        dtype="uint8",
    ),
    Case(
        "lstm",
        {"shape": [7], "vocabulary": 33},
        (
            {"type": "embedding", "embedding_dim": 5},
            {"type": "lstm", "hidden_size": 33, "num_layers": 2},
            linear(2),
            "relu",
            {"type": "lstm", "hidden_size": 17, "bias": False},
            "relu",
            "last_step",
            linear(5),
        ),
        5,
    ),
    Case(
        "lstm_64",
        {"shape": [3], "vocabulary": 9},
        (
            {"type": "embedding", "embedding_dim": 2},
            {"type": "lstm", "hidden_size": 65},
            "transpose",
            "flatten",
            linear(5),
        ),
        33,
    ),
    Case(
        "gru",
        {"shape": [7], "vocabulary": 33},
        (
            {"type": "embedding", "embedding_dim": 5},
            {"type": "gru", "hidden_size": 33, "num_layers": 2},
            linear(2),
            "relu",
            {"type": "gru", "hidden_size": 17, "bias": False},
            "relu",
            "last_step",
            linear(5),
        ),
        5,
    ),
    Case(
        "gru_64",
        {"shape": [1], "vocabulary": 9},
        (
            {"type": "embedding", "embedding_dim": 2},
            {"type": "gru", "hidden_size": 65},
            "last_step",
            linear(5),
        ),
        33,
    ),
    Case(
        "bytes_one_channel",
        {"shape": [1, 9, 9], "mean": [0.1307], "std": [0.3081]},
        (conv(6, 5, padding=2), "relu", maxpool(2), conv(8, 3), "relu", "flatten", linear(10)),
        32,
        dtype="uint8",
    ),
    Case(
        "bytes_channels",
        {"shape": [3, 8, 8], "mean": [0.49, 0.48, 0.45], "std": [0.25, 0.24, 0.26]},
        (conv(5, 3, padding=1), "relu", maxpool(2), "flatten", linear(33), "relu", linear(10)),
        33,
        dtype="uint8",
        hypers=("all",),
    ),
    Case(
        "floats_channels",
        {"shape": [3, 6, 5], "mean": [0.1, -0.2, 0.3], "std": [0.5, 1.5, 2.0]},
        ("flatten", linear(31), "relu", linear(64), "relu", linear(5)),
        5,
        hypers=("nesterov",),
    ),
)

RECIPES = (
    Case(
        "cross_entropy_weighted",
        flat(17),
        (linear(33), "relu", linear(5)),
        33,
        loss=CrossEntropy(0.2, (0.5, 3.0, 1.0, 0.1, 1.7)),
        optimizer="adam",
        hypers=("adam", "adam_all"),
    ),
    Case(
        "cross_entropy_smoothed",
        image(2, 5, 4),
        (conv(3, 3), "relu", "flatten", linear(31)),
        2,
        loss=CrossEntropy(0.1),
    ),
    Case(
        "cross_entropy_of_steps",
        {"shape": [2, 33]},
        (conv1d(5, 3, padding=1), "relu", conv1d(7, 2)),
        5,
        optimizer="adamw",
        hypers=("adam", "adam_all"),
    ),
    Case(
        "cross_entropy_of_steps_weighted",
        {"shape": [3, 17]},
        (conv1d(5, 3, padding=1), "relu", conv1d(2, 1)),
        31,
        loss=CrossEntropy(0.3, (0.25, 2.0)),
        hypers=("clip_all",),
    ),
    Case(
        "bce_one_output",
        flat(5),
        (linear(32), "relu", linear(1)),
        64,
        loss=BCEWithLogits(),
        hypers=("nesterov",),
    ),
    Case(
        "bce_many_outputs",
        flat(31),
        (linear(5), "relu", linear(517)),
        5,
        loss=BCEWithLogits(),
        optimizer="adamw",
        hypers=("adam", "adam_all"),
    ),
    Case(
        "mse_image",
        image(2, 9, 7),
        (conv(5, 3, padding=1), "relu", conv(5, 3, padding=1)),
        3,
        loss=MSE(),
        optimizer="adam",
        hypers=("adam", "adam_all"),
    ),
    Case("mse_flat", flat(33), (linear(31), "relu", linear(65)), 32, loss=MSE(), hypers=("all",)),
    Case(
        "frozen_first",
        image(2, 9, 8),
        (
            conv(5, 3, name="conv1"),
            "relu",
            maxpool(2),
            conv(31, 2, groups=1, name="conv2"),
            "relu",
            "flatten",
            linear(33, name="fc1"),
            "relu",
            linear(5),
        ),
        31,
        frozen=("conv1", "conv2"),
        hypers=("momentum", "clip_all"),
    ),
    Case(
        "frozen_between",
        image(2, 7, 5),
        (
            conv(5, 3, padding=1),
            {
                "type": "residual",
                "name": "block",
                "body": [conv(5, 3, padding=1), "relu", conv(5, 1, groups=5)],
            },
            "relu",
            "flatten",
            linear(33, name="fc1"),
            "relu",
            linear(17),
            linear(31, name="fc2"),
            linear(5),
        ),
        5,
        optimizer="adam",
        frozen=("block", "fc1", "fc2"),
        hypers=("adam", "adam_all"),
    ),
)
"""Every loss, optimizer and kind of freezing."""


@dataclass(frozen=True)
class Trajectory:
    """A shipped network trained for some epochs: losses, logits and some values after it.

    ``calmed``: for a network of many batch norms. From the usual initial weights, the gradients of
    its first layers are a hundred times those of its last ones (Yang et al., arXiv 1902.08129),
    and every step multiplies a difference by ten or more: PyTorch's own float32 tells nothing of
    its float64 after three steps, nor does its float64 of itself where the weights begin 1e-12
    apart, after seven. Batch norm takes any scale away from what lies before it, while the
    gradient falls as the scale grows: so the first layers begin 512 times larger, the last ones 32
    times. It is the same function of the input, and for fifty steps it can be followed.
    """

    name: str
    batch: int = 24
    examples: int = 64
    epochs: int = 8
    hyper: Hyper = HYPERS["momentum"]
    calmed: bool = False

    @property
    def model(self) -> Model:
        return load_model(Path(self.name))

    @property
    def path(self) -> Path:
        return FROZEN / f"trajectory_{self.name}.npz"

    def params(self) -> NDArray[np.float32]:
        params = initialise(self.model, seed=7)
        if self.calmed:
            # not the last batch norm and the linear layer: they set the size of the logits
            *inner, _, _ = [op for op in self.model.ops if op.params]
            for i, op in enumerate(inner):
                for p in op.params:
                    params[p.slice] *= np.float32(2 ** (9 - 5 * i // len(inner)))
        return params

    def sampled(self, values: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Of each tensor at most some 64 elements, evenly spaced: all would be large files."""
        views = self.model.views(values)
        return {name: v.ravel()[:: max(1, v.size // 64)] for name, v in views.items()}

    def data(self) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]:
        """(x, y, orders): noisy images, each class around a picture of its own."""
        g = generator("trajectory", self.name)
        shape, classes = self.model.input.shape, self.model.num_classes
        blocks = g.random((classes, 1, shape[1] // 4, shape[2] // 4)) < 0.3
        pictures = blocks.repeat(4, axis=2).repeat(4, axis=3)
        y = g.integers(0, classes, self.examples).astype(np.int32)
        x = 160.0 * pictures[y] + g.integers(0, 96, (self.examples, *shape))
        orders = [g.permutation(self.examples) for _ in range(self.epochs)]
        return x.astype(np.uint8), y, np.stack(orders).astype(np.int32)


TRAJECTORIES = (
    Trajectory("lenet5"),
    Trajectory("mlp"),
    Trajectory("resnet8", epochs=17, hyper=Hyper(lr=0.02, momentum=0.9)),  # 51 steps
    Trajectory("mobilenet_v1_025", epochs=17, hyper=Hyper(lr=0.02, momentum=0.9), calmed=True),
)
