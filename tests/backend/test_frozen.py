"""Every backend against results frozen from PyTorch (tests/peers/freeze_pytorch.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client.backends.base import Device
from client.backends.recipe import Recipe
from client.model.losses import BCEWithLogits, CrossEntropy
from tests.backend.cases import (
    CASES,
    HYPERS,
    RECIPES,
    STEPS,
    TRAJECTORIES,
    Case,
    Trajectory,
    digest,
)
from tests.backend.harness import (
    Subject,
    assert_tensors_close,
    found_devices,
    numpy_device,
    open_found,
)
from tests.tolerance import assert_close

Frozen = dict[str, NDArray[Any]]
Subjects = Callable[[Case, Recipe], tuple[Subject, Frozen]]


def read(case: Case | Trajectory) -> Frozen:
    with np.load(case.path) as file:
        return {key: file[key] for key in file.files}


ALL = (*CASES, *RECIPES)
FLOAT64 = "numpy in float64"


@pytest.fixture(scope="module", params=[*found_devices(), FLOAT64])
def any_device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Each device, and numpy in float64, which the gradient checks rest on."""
    if request.param == FLOAT64:
        yield numpy_device(np.float64)
        return
    opened = open_found(request.param)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def subjects(any_device: Device) -> Iterator[Subjects]:
    """Each case's network, compiled once a recipe; its capacity is more than the case's batch."""
    made: dict[tuple[str, Recipe], tuple[Subject, Frozen]] = {}

    def subject_of(case: Case, recipe: Recipe) -> tuple[Subject, Frozen]:
        key = case.name, recipe
        if key not in made:
            frozen = read(case)
            data = frozen["x"], frozen["y"], frozen["params"]
            subject = Subject(any_device, case.model, case.batch + 3, *data, recipe)
            made[key] = subject, frozen
        return made[key]

    yield subject_of
    for subject, _ in made.values():
        subject.release()


def right(case: Case, output: NDArray[Any], labels: NDArray[Any]) -> int | None:
    """How many predictions are, by the loss."""
    if isinstance(case.loss, CrossEntropy):
        return np.count_nonzero(output.argmax(axis=1) == labels)
    if isinstance(case.loss, BCEWithLogits):
        return np.count_nonzero((output > 0) == (labels > 0.5))
    return None


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_first_batch(subjects: Subjects, case: Case) -> None:
    subject, frozen = subjects(case, case.recipe())
    subject.reset(frozen["orders"][0], case.batch)
    grads = subject.gradients(case.batch)
    logits = subject.program.take_output(case.batch)
    metrics = subject.program.read_metrics()
    assert_close("logits", logits, frozen["logits64"], frozen["logits32"])
    largest = float(np.abs(frozen["logits64"]).max())
    loss = np.asarray(metrics.loss, logits.dtype)
    assert_close("loss", loss, frozen["loss64"], frozen["loss32"], largest)
    labels = frozen["y"][frozen["orders"][0][: case.batch]]
    assert metrics.correct == right(case, frozen["logits64"], labels)
    rows = frozen["y"][frozen["orders"][0][: case.batch]]
    assert metrics.weight == pytest.approx(case.loss.weight(rows), rel=1e-6)
    assert subject.program.weight(0, case.batch) == case.loss.weight(rows)
    assert_tensors_close(case.model, "gradient", grads, frozen["grads64"], frozen["grads32"])


@pytest.mark.parametrize(
    ("case", "hyper"),
    [pytest.param(c, h, id=f"{c.name}-{h}") for c in ALL for h in c.hypers],
)
def test_ten_steps(subjects: Subjects, case: Case, hyper: str) -> None:
    """Losses of ten steps and the parameters after them; epochs end with a smaller batch."""
    subject, frozen = subjects(case, case.recipe(HYPERS[hyper]))
    subject.reset()
    losses: list[float] = []
    for order in frozen["orders"]:
        subject.begin(order[: (STEPS - len(losses)) * case.batch], case.batch)
        losses += subject.epoch(HYPERS[hyper])
    assert len(losses) == STEPS
    params = subject.program.download()
    assert_close(
        "losses",
        np.array(losses, params.dtype),
        frozen[f"{hyper}_losses64"],
        frozen[f"{hyper}_losses32"],
        float(np.abs(frozen["logits64"]).max()),
    )
    assert_tensors_close(
        case.model, "parameters", params, frozen[f"{hyper}_params64"], frozen[f"{hyper}_params32"]
    )


@pytest.mark.parametrize(
    "trajectory",
    [
        pytest.param(t, id=t.name, marks=[pytest.mark.slow] if t.epochs > 8 else [])
        for t in TRAJECTORIES
    ],
)
def test_trajectory(any_device: Device, trajectory: Trajectory) -> None:
    """A shipped network over more than twenty steps; its logits and values after them."""
    frozen, params = read(trajectory), trajectory.params()
    assert digest(params) == frozen["digest"], "the seed gives other parameters than it did"
    n = len(frozen["y"])
    subject = Subject(any_device, trajectory.model, n, frozen["x"], frozen["y"], params)
    losses: list[float] = []
    for order in frozen["orders"]:
        subject.begin(order, trajectory.batch)
        losses += subject.epoch(trajectory.hyper)
    assert len(losses) > 20
    values = trajectory.sampled(subject.program.download())
    subject.begin(np.arange(n, dtype=np.int32))
    subject.program.gather(0, n)
    subject.program.forward(n, training=False)
    logits = subject.program.take_output(n)
    largest = float(np.abs(frozen["logits64"]).max())
    found = np.array(losses, logits.dtype)
    assert_close("losses", found, frozen["losses64"], frozen["losses32"], largest)
    assert_close("logits", logits, frozen["logits64"], frozen["logits32"])
    stop = 0
    for name, value in values.items():
        at = slice(stop, stop := stop + len(value))
        assert_close(name, value, frozen["values64"][at], frozen["values32"][at])
    assert stop == len(frozen["values64"])
    assert np.mean(losses[-3:]) < 0.75 * losses[0]
    subject.release()
