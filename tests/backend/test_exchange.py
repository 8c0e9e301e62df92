"""What programs that train one network exchange: gradients, norms, values, optimizer state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from client.backends.base import Device
from client.backends.recipe import Hyper, OptimizerName, Recipe
from client.backends.state import State, join_states
from client.model import Model, Segment
from tests.backend.harness import Subject, examples, network, numpy_device
from tests.backend.test_program import small_net

BATCH = 6
HYPERS: dict[OptimizerName, Hyper] = {
    "sgd": Hyper(lr=0.05, momentum=0.9, proximal_mu=0.3),
    "adam": Hyper(lr=0.01, eps=0.05, proximal_mu=0.3),
    "adamw": Hyper(lr=0.01, eps=0.05, weight_decay=0.1, proximal_mu=0.3),
}


def partly_frozen() -> Model:
    """The second of four linear layers is frozen: trained parameters lie in two runs."""
    layers = [{"type": "linear", "out_features": n} for n in (33, 9, 17, 5)]
    model = network([7], layers[0], "relu", layers[1], "relu", *layers[2:])
    names = [op.name for op in model.ops if op.params]
    ops = tuple(replace(op, frozen=op.name == names[1]) for op in model.ops)
    return replace(model, ops=ops)


@pytest.fixture(scope="module", params=["all trained", "partly frozen"])
def subject(request: pytest.FixtureRequest, device: Device) -> Iterator[Subject]:
    model = small_net() if request.param == "all trained" else partly_frozen()
    recipe = Recipe(proximal=True)
    subject = Subject(device, model, BATCH, *examples(model, 2 * BATCH + 3), recipe=recipe)
    yield subject
    subject.release()


def trained(subject: Subject, flat: np.ndarray) -> np.ndarray:
    """Of values or gradients, those of the trained parameters."""
    return np.concatenate([flat[run] for run in subject.program.segment.trained_runs])


def test_gradients_are_taken_of_what_is_trained(subject: Subject) -> None:
    subject.reset()
    grads = subject.gradients(BATCH)
    taken = subject.program.take_grads()
    assert taken.shape == (subject.program.segment.num_trained,)
    np.testing.assert_array_equal(taken, trained(subject, grads))
    taken[...] = 0
    np.testing.assert_array_equal(subject.program.read_grads(), grads)


def test_gradients_add_up_and_are_replaced(subject: Subject) -> None:
    """What another program had of a batch, and the step from the sum."""
    subject.reset()
    subject.gradients(BATCH)
    own = subject.program.take_grads()
    g = np.random.default_rng(0)
    others = [g.normal(size=own.shape).astype(np.float32) for _ in range(2)]
    for other in others:
        subject.program.add_grads(other)
    np.testing.assert_allclose(subject.program.take_grads(), own + sum(others), atol=1e-6)
    subject.program.poison()  # whatever was there is no longer looked at
    subject.program.add_grads(others[0], replace=True)
    np.testing.assert_array_equal(subject.program.take_grads(), others[0])
    subject.program.add_grads(others[1])
    subject.program.update(Hyper(lr=0.5))
    step = (subject.params - subject.program.download()) / 0.5
    total = others[0].astype(np.float64) + others[1]
    np.testing.assert_allclose(trained(subject, step), total, atol=1e-5)
    still = np.ones(len(step), bool)
    for run in subject.program.segment.trained_runs:
        still[run] = False
    assert not step[still].any()


def test_what_does_not_fit_is_refused(subject: Subject) -> None:
    program, model = subject.program, subject.model
    subject.reset()
    for given in (program.put_values, program.add_grads):
        with pytest.raises(ValueError, match="the segment has"):
            given(np.zeros(model.num_values - 1, np.float32))
    state = program.read_state()
    with pytest.raises(ValueError, match="the program needs"):
        program.write_state(State(state.values, np.concatenate([state.slots] * 2), 1))
    with pytest.raises(ValueError, match="the program needs"):
        program.write_state(State(state.values[1:], state.slots, 1))
    np.testing.assert_array_equal(program.download(), subject.params)


def test_values_are_put_without_a_new_start(subject: Subject) -> None:
    """Momentum goes on and the proximal term still pulls to the last upload."""
    hyper = HYPERS["sgd"]
    ends = []
    for puts in (False, True):
        subject.reset()
        for start in (0, BATCH):
            subject.program.step(start, BATCH, hyper)
            if puts:
                values = subject.program.download()
                subject.program.put_values(np.zeros_like(values))
                assert not subject.program.download().any()
                subject.program.put_values(values)
        ends.append(subject.program.download())
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("optimizer", HYPERS)
def test_a_state_goes_on_where_it_was_read(device: Device, optimizer: OptimizerName) -> None:
    """On the same program bit by bit, on the reference within tolerance; upload forgets it."""
    model, hyper = partly_frozen(), HYPERS[optimizer]
    subject = Subject(
        device,
        model,
        BATCH,
        *examples(model, 15),
        recipe=Recipe(optimizer=optimizer, proximal=True),
    )
    subject.program.step(0, BATCH, hyper)
    state = subject.program.read_state()
    kept = State(state.values.copy(), state.slots.copy(), state.updates)
    assert state.updates == 1
    assert state.slots.shape == (1 + (optimizer != "sgd"), subject.program.segment.num_trained)
    assert (state.slots != 0).mean(axis=1).min() > 0.5  # the rest: behind a dead ReLU
    for start in (BATCH, 0):
        subject.program.step(start, BATCH, hyper)
    end = subject.program.download()
    np.testing.assert_array_equal(state.slots, kept.slots)
    other = Subject(
        numpy_device(np.float32), model, BATCH, *examples(model, 15), recipe=subject.program.recipe
    )
    for each in (subject, other):
        each.program.upload(subject.params)
        fresh = each.program.read_state()
        assert fresh.updates == 0
        assert not fresh.slots.any()
        each.program.write_state(state)
        for start in (BATCH, 0):
            each.program.step(start, BATCH, hyper)
    np.testing.assert_array_equal(subject.program.download(), end)
    np.testing.assert_allclose(other.program.download(), end, rtol=1e-4, atol=1e-5)
    assert np.abs(end - subject.params).max() > 1e-3
    for each in (subject, other):
        each.release()


def test_a_state_is_cut_and_joined(subject: Subject) -> None:
    subject.reset()
    subject.program.step(0, BATCH, HYPERS["sgd"])
    state = subject.program.read_state()
    blocks = len(subject.model.block_names)
    segments = [Segment(subject.model, *run) for run in ((0, 1), (1, 4), (4, blocks))]
    parts = state.cut(segments)
    assert [p.slots.shape[1] for p in parts] == [s.num_trained for s in segments]
    joined = join_states(segments, parts)
    np.testing.assert_array_equal(joined.values, state.values)
    np.testing.assert_array_equal(joined.slots, state.slots)
    assert joined.updates == 1


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_squares_are_those_of_what_is_clipped(subject: Subject, mu: float) -> None:
    """With the proximal term, of trained parameters, and nothing is changed by asking."""
    hyper = Hyper(lr=0.5, proximal_mu=mu, clip_norm=1.0)
    subject.reset()
    subject.program.step(0, BATCH, Hyper(lr=0.5))
    moved = subject.program.download()
    grads = subject.gradients(BATCH, BATCH).astype(np.float64)
    whole = grads + mu * (moved - subject.params.astype(np.float64))[: len(grads)]
    wanted = float((trained(subject, whole) ** 2).sum())
    for _ in range(2):
        assert subject.program.grad_squares(hyper) == pytest.approx(wanted, rel=1e-5)
    np.testing.assert_array_equal(subject.program.download(), moved)


@pytest.mark.parametrize(("norm", "factor"), [(4.0, 0.5), (1.0, 1.0), (0.0, 1.0)])
def test_a_norm_that_is_given_is_clipped_by(subject: Subject, norm: float, factor: float) -> None:
    """Whatever the program's own norm is; and the step after it by its own again."""
    hyper = Hyper(lr=1.0, clip_norm=2.0)
    subject.reset()
    grads = subject.gradients(BATCH).astype(np.float64)
    subject.program.update(hyper, norm=norm)
    step = (subject.params.astype(np.float64) - subject.program.download())[: len(grads)]
    np.testing.assert_allclose(step, factor * grads, rtol=1e-5, atol=1e-6)
    own = Hyper(lr=1.0, clip_norm=0.5 * float(np.linalg.norm(grads)))
    subject.program.update(own)
    again = (subject.params.astype(np.float64) - subject.program.download())[: len(grads)]
    np.testing.assert_allclose(again - step, 0.5 * grads, rtol=1e-4, atol=1e-6)


def test_a_norm_that_is_no_number_is_seen(subject: Subject) -> None:
    subject.reset()
    subject.gradients(BATCH)
    subject.program.update(Hyper(lr=0.1, clip_norm=1.0), norm=float("nan"))
    assert np.isnan(trained(subject, subject.program.download())).all()
    subject.reset()


def test_a_norm_without_clipping_changes_nothing(subject: Subject) -> None:
    ends = []
    for norm in (None, 1e9):
        subject.reset()
        subject.gradients(BATCH)
        subject.program.update(Hyper(lr=0.1), norm)
        ends.append(subject.program.download())
    np.testing.assert_array_equal(*ends)


def test_where_nothing_is_trained_nothing_passes(device: Device) -> None:
    model = network([5], "relu", {"type": "linear", "out_features": 3})
    program = device.compile(Segment(model, 0, 1), 4)
    program.upload(np.empty(0, np.float32))
    program.add_grads(program.take_grads())
    assert program.take_grads().size == 0
    assert program.grad_squares(Hyper(lr=0.1, clip_norm=1.0)) == 0
    program.update(Hyper(lr=0.1, clip_norm=1.0), norm=2.0)
    program.write_state(program.read_state())
    assert program.read_state().slots.shape == (1, 0)
    program.release()


def test_a_sampled_step_ends_where_values_are_put(device: Device, subject: Subject) -> None:
    """A program that has no update of its own: the step is counted, and the next is not timed."""
    subject.reset()
    device.finish()
    before = replace(device.traffic)
    subject.program.sample_next_step()
    for _ in range(2):
        subject.gradients(BATCH)
        subject.program.put_values(subject.params)
    device.finish()
    spent = device.traffic.since(before)
    assert spent.sampled_steps == 1
    assert spent.compute_s > 0


def test_what_is_enqueued_is_begun_on_a_flush(device: Device, subject: Subject) -> None:
    subject.reset()
    subject.program.step(0, BATCH, Hyper(lr=0.1))
    device.flush()
    device.finish()
    assert np.isfinite(subject.program.download()).all()
    assert isinstance(device.has_queue, bool)
