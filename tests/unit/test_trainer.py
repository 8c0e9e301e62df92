"""A node's round on one device: what is counted, when it stops, what it refuses to return."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from client import random, trainer
from client.backends.base import DeviceData
from client.backends.numpy.device import NumpyDevice
from client.backends.numpy.program import NumpyProgram
from client.backends.recipe import DEFAULT_RECIPE, Hyper
from client.errors import TrainingError
from client.model import initialise
from client.placed import Placed, Site, place
from client.placement.course import Fixed
from client.placement.layout import Layout
from client.timing import RoundClock
from client.trainer import Task, batches
from tests import fakes

TASK = Task(
    round=4, seed=9, partition="node-1", local_epochs=2, batch=8, hyper=Hyper(lr=0.1, momentum=0.9)
)


class Recorder(NumpyProgram):
    """Notes what is asked of it, in order."""

    said: list[str]
    sampled: list[tuple[int, int]]  # (epoch, start)

    def begin_epoch(self, data, order, batch, dropout_key):  # type: ignore[no-untyped-def]
        self.said.append("epoch")
        super().begin_epoch(data, order, batch, dropout_key)

    def step(self, start: int, count: int, hyper: Hyper) -> None:
        self.said.append(f"step {start} {count}")
        if self._sample_next:
            self.sampled.append((self.said.count("epoch") - 1, start))
        super().step(start, count, hyper)

    def read_metrics(self):  # type: ignore[no-untyped-def]
        self.said.append("read")
        return super().read_metrics()


@pytest.fixture
def device() -> NumpyDevice:
    return fakes.numpy_device()


@pytest.fixture
def program(device: NumpyDevice) -> Recorder:
    made = Recorder(fakes.model().whole, 8, DEFAULT_RECIPE, device.dtype, device.traffic)
    made.said, made.sampled = [], []
    return made


def load(device: NumpyDevice, n: int) -> DeviceData:
    return device.load(*fakes.examples(n))


def placed(device: NumpyDevice, program: NumpyProgram, n: int) -> Placed:
    layout = Layout.whole(device.info.key, program.segment.stop)
    return place(layout, [Site(device, program, load(device, n))])


START = initialise(fakes.model(), seed=1)


def train(
    device: NumpyDevice, program: Recorder, n: int = 20, task: Task = TASK, stop=lambda: False
):  # type: ignore[no-untyped-def]
    clock = RoundClock()
    course = Fixed(placed(device, program, n), len(batches(n, task.batch)))
    return trainer.train(course, START, task, clock, stop), clock


def test_batches_cover_each_example_once_and_the_last_may_be_smaller() -> None:
    assert batches(20, 8) == [(0, 8), (8, 8), (16, 4)]
    assert batches(16, 8) == [(0, 8), (8, 8)]
    assert batches(3, 8) == [(0, 3)]


def test_examples_are_counted_not_batches(device: NumpyDevice, program: Recorder) -> None:
    outcome, _ = train(device, program, n=20)
    assert outcome.num_examples == 20  # not 3 batches, nor 40 examples of two epochs
    assert outcome.metrics.count == 20  # those of the last epoch alone


def test_a_round_learns_and_gives_back_other_parameters(
    device: NumpyDevice, program: Recorder
) -> None:
    first, _ = train(device, program, n=60, task=replace(TASK, local_epochs=1))
    longer, _ = train(device, program, n=60, task=replace(TASK, local_epochs=6))
    assert not np.array_equal(first.params, START)
    assert longer.metrics.loss_sum < first.metrics.loss_sum / 2
    assert longer.metrics.correct > first.metrics.correct


def test_order_is_keyed_by_seed_round_partition_and_epoch(
    device: NumpyDevice, program: Recorder
) -> None:
    again = train(device, program)[0].params
    np.testing.assert_array_equal(train(device, program)[0].params, again)
    for other in ({"seed": 8}, {"round": 5}, {"partition": "node-2"}):
        assert not np.array_equal(
            train(device, program, task=replace(TASK, **other))[0].params, again
        )
    assert not np.array_equal(
        random.order(9, 4, "node-1", 0, 20), random.order(9, 4, "node-1", 1, 20)
    )


def test_metrics_are_read_once_an_epoch_and_never_between_batches(
    device: NumpyDevice, program: Recorder
) -> None:
    train(device, program)
    epoch = ["epoch", "step 0 8", "step 8 8", "step 16 4", "read"]
    assert program.said == ["read", *epoch, *epoch]


def test_phases_are_those_of_training_and_account_for_the_wall(
    device: NumpyDevice, program: Recorder
) -> None:
    _, clock = train(device, program)
    timing = clock.stop()
    assert list(timing.phases) == ["plan", "upload", "train", "download"]
    assert all(s >= 0 for s in timing.phases.values())
    assert sum(timing.phases.values()) <= timing.wall_s


@pytest.mark.parametrize(("n", "starts"), [(96, [24, 56]), (24, [0, 8]), (5, [0])])
def test_sampled_steps_are_few_and_of_the_first_epoch(
    device: NumpyDevice, program: Recorder, n: int, starts: list[int]
) -> None:
    train(device, program, n=n)
    assert program.sampled == [(0, start) for start in starts]
    assert device.traffic.sampled_steps == len(starts)
    assert device.traffic.compute_s > 0


def test_stop_takes_effect_at_the_next_batch_boundary(
    device: NumpyDevice, program: Recorder
) -> None:
    asked = iter([False, True])
    with pytest.raises(TrainingError, match=r"^node-1: stopped in round 4$"):
        train(device, program, stop=lambda: next(asked))
    assert program.said == ["read", "epoch", "step 0 8", "step 8 8"]


def test_a_stopped_round_leaves_nothing_to_the_next_one(
    device: NumpyDevice, program: Recorder
) -> None:
    clean, _ = train(device, program)
    with pytest.raises(TrainingError):
        train(device, program, stop=lambda: True)
    after, _ = train(device, program)
    assert after.metrics == clean.metrics
    np.testing.assert_array_equal(after.params, clean.params)


def test_a_loss_that_explodes_names_node_round_epoch_and_remedy(
    device: NumpyDevice, program: Recorder
) -> None:
    wild = replace(TASK, hyper=Hyper(lr=1e30))
    with pytest.raises(TrainingError, match="node-1: the loss became") as e:
        train(device, program, task=wild)
    assert "in round 4, epoch 1: lower train.lr (now 1e+30)" in str(e.value)
    assert "\n" not in str(e.value)


def test_parameters_that_are_not_finite_are_refused_though_the_loss_was(
    device: NumpyDevice, program: Recorder
) -> None:
    # one batch: the loss is that of the parameters before the step which ruins them
    wild = replace(TASK, local_epochs=1, hyper=Hyper(lr=3e38, weight_decay=1e3))
    with pytest.raises(TrainingError, match=r"node-1: parameters are no longer finite .* 4: lower"):
        train(device, program, n=8, task=wild)


def test_evaluation_is_in_order_without_training(device: NumpyDevice, program: Recorder) -> None:
    program.upload(START)
    x, y = fakes.examples(20)
    found = trainer.evaluate(program, device.load(x, y), 8)
    logits = fakes.logits(START, x)
    assert found.count == 20
    assert found.correct == (logits.argmax(1) == y).sum()
    e = np.exp(logits - logits.max(1, keepdims=True))
    expected = -np.log(e[np.arange(20), y] / e.sum(1))
    assert found.loss_sum == pytest.approx(expected.sum(), rel=1e-5)
    np.testing.assert_array_equal(program.download(), START)


def test_evaluation_forgets_the_sums_before_it(device: NumpyDevice, program: Recorder) -> None:
    data = load(device, 20)
    program.upload(START)
    program.begin_epoch(data, np.arange(20, dtype=np.int32), 8, 0)
    program.step(0, 8, TASK.hyper)
    program.upload(START)
    assert trainer.evaluate(program, data, 8).count == 20
