"""Losses: their gradients in float64, what they refuse, and the schedule of the learning rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client.backends.figures import Metrics
from client.backends.numpy.ops import LOSS_FUNCTIONS
from client.config import ScheduleConfig
from client.errors import ConfigError, ModelError
from client.model.losses import LOSSES, MSE, BCEWithLogits, CrossEntropy, Loss, parse_loss

CASES: tuple[tuple[Loss, tuple[int, ...]], ...] = (
    (CrossEntropy(), (4,)),
    (CrossEntropy(0.3), (4,)),
    (CrossEntropy(0.0, (0.5, 2.0, 1.0, 0.1)), (4,)),
    (CrossEntropy(0.2, (0.5, 2.0, 1.0, 0.1)), (4, 3)),
    (CrossEntropy(1.0), (4, 3)),
    (BCEWithLogits(), (5,)),
    (BCEWithLogits(), (2, 3)),
    (MSE(), (1,)),
    (MSE(), (2, 2, 3)),
)


def compute(
    loss: Loss, z: NDArray[np.float64], labels: NDArray[Any], total: float | None = None
) -> tuple[Metrics, NDArray[np.float64]]:
    """Metrics and gradient; the batch is the last axis of both."""
    dz = np.full_like(z, np.nan)
    return LOSS_FUNCTIONS[type(loss)](loss, z.copy(), np.moveaxis(labels, 0, -1), total, dz), dz


@pytest.mark.parametrize(("loss", "output"), CASES)
@pytest.mark.parametrize("total", [None, 17.0])
def test_gradient_of_the_mean(loss: Loss, output: tuple[int, ...], total: float | None) -> None:
    g = np.random.default_rng(len(output))
    z, labels = g.normal(size=(*output, 3)), loss.random_labels(output, 3, g)
    metrics, dz = compute(loss, z, labels, total)
    h = 1e-6
    expected = np.empty_like(z)
    for i in np.ndindex(z.shape):
        up, down = z.copy(), z.copy()
        up[i] += h
        down[i] -= h
        rise = compute(loss, up, labels)[0].loss_sum - compute(loss, down, labels)[0].loss_sum
        expected[i] = rise / (2 * h) / (metrics.weight if total is None else total)
    np.testing.assert_allclose(dz, expected, rtol=1e-6, atol=1e-9)
    assert metrics.weight == pytest.approx(loss.weight(labels))
    assert metrics.count == labels.size


def test_every_loss_is_known_and_checked() -> None:
    assert set(LOSS_FUNCTIONS) == set(LOSSES.values()) == {type(loss) for loss, _ in CASES}


def test_large_scores_neither_overflow_nor_vanish() -> None:
    z = np.array([[800.0, -800.0]])
    metrics, dz = compute(BCEWithLogits(), z, np.array([[0.0], [1.0]], np.float32))
    assert metrics.loss == 800
    np.testing.assert_array_equal(dz, [[0.5, -0.5]])
    scores = np.array([[800.0], [-800.0]])
    metrics, _ = compute(CrossEntropy(), scores, np.array([1], np.int32))
    assert metrics.loss == 1600


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("cross_entropy", CrossEntropy()),
        ({"name": "cross_entropy", "label_smoothing": 0.1}, CrossEntropy(0.1)),
        (
            {"name": "cross_entropy", "class_weights": [1, 2.5]},
            CrossEntropy(class_weights=(1.0, 2.5)),
        ),
        ("bce_with_logits", BCEWithLogits()),
        ({"name": "mse"}, MSE()),
    ],
)
def test_losses_from_yaml(value: str | dict[str, Any], expected: Loss) -> None:
    assert parse_loss(value, "x.yaml: train.loss") == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cros_entropy", r"train\.loss: found 'cros_entropy', .* did you mean 'cross_entropy'"),
        ({"name": "bce"}, r"train\.loss\.name: found 'bce', allowed: cross_entropy"),
        ({}, r"train\.loss\.name: found nothing"),
        ({"name": "mse", "label_smoothing": 0.1}, r"label_smoothing: .* allowed: none$"),
        ({"name": "cross_entropy", "label_smoothing": 2}, r"train\.loss\.label_smoothing: .* 2"),
        ({"name": "cross_entropy", "class_weights": [1, 0]}, r"class_weights: .* positive"),
        ({"name": "cross_entropy", "class_weights": 3}, r"train\.loss\.class_weights: found 3"),
    ],
)
def test_unfit_losses(value: str | dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_loss(value, "x.yaml: train.loss")
    assert "\n" not in str(caught.value)


def test_outputs_that_do_not_fit() -> None:
    with pytest.raises(ModelError, match=r"\(3, 4, 5\), the loss cross_entropy needs one score"):
        CrossEntropy().check_output((3, 4, 5))
    with pytest.raises(ModelError, match=r"5 classes, but train\.loss\.class_weights has 2"):
        CrossEntropy(class_weights=(1.0, 2.0)).check_output((5, 7))
    MSE().check_output((3, 4, 5))


# -- the learning rate -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ScheduleConfig(), [0.4] * 6),
        (ScheduleConfig(warmup_rounds=2), [0.2, 0.4, 0.4, 0.4, 0.4, 0.4]),
        (
            ScheduleConfig("step", step_rounds=2, factor=0.5),
            [0.4, 0.4, 0.2, 0.2, 0.1, 0.1],
        ),
        (
            ScheduleConfig("step", warmup_rounds=1, step_rounds=2, factor=0.5),
            [0.4, 0.4, 0.4, 0.2, 0.2, 0.1],
        ),
        (
            ScheduleConfig("cosine", warmup_rounds=2),
            [0.2, 0.4, 0.4, 0.2 + 0.2 * 2**-0.5, 0.2, 0.2 - 0.2 * 2**-0.5],
        ),
        (
            ScheduleConfig("cosine", min_lr=0.1, warmup_rounds=4),
            [0.1, 0.2, 0.3, 0.4, 0.4, 0.25],
        ),
    ],
)
def test_schedules(schedule: ScheduleConfig, expected: list[float]) -> None:
    found = [schedule.lr(0.4, number, 6) for number in range(1, 7)]
    assert found == pytest.approx(expected)
