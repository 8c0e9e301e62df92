"""What a node decides for itself: which device trains, what is refused, what is kept."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from client.backends import get, on_backend
from client.backends.numpy.device import NumpyDevice
from client.backends.recipe import Hyper
from client.errors import ConfigError, DeviceError, MismatchError, TrainingError
from client.model import Model, initialise
from client.model.graph import Float32Array
from client.record import NodeRecord, PlacedLayout, Placement
from client.timing import RoundClock
from client.trainer import Outcome, Task
from client.worker.session import Session
from tests import fakes
from tests.fakes import Fake

NUMPY = get("numpy").devices()[0]
START = initialise(fakes.model(), seed=1)
TASK = Task(
    round=1, seed=3, partition="node-0", local_epochs=2, batch=8, hyper=Hyper(lr=0.1, momentum=0.9)
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))


def session(folder: Path, **over: object) -> Session:
    return Session(fakes.experiment(folder, **over), folder)


def a_round(
    s: Session,
    number: int = 1,
    node: str = "node-0",
    recorded: Placement | None = None,
    params: Float32Array = START,
    clock: RoundClock | None = None,
) -> tuple[Outcome, NodeRecord]:
    task = replace(TASK, round=number, partition=node)
    return s.train(task, None, params, recorded, clock or RoundClock())


def kinds(record: NodeRecord) -> list[str]:
    return [event.kind for event in record.events]


def zeros(model: Model, grads: Float32Array, count: int) -> None:
    grads[...] = 0


@pytest.fixture
def by_numpy(tmp_path: Path) -> Float32Array:
    """Parameters after node-0's first round on numpy alone."""
    return a_round(session(tmp_path, devices={"backend": "numpy"}))[0].params


# -- micro-batches ---------------------------------------------------------------------------


@pytest.mark.parametrize(("micro_batch", "size"), [(3, 3), (5, 4), ("auto", 3), (1, 1)])
def test_slices_train_as_the_batch_and_are_recorded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_numpy: Float32Array,
    micro_batch: object,
    size: int,
) -> None:
    """As equal as can be: 8 is 3 + 3 + 2, or 4 + 4 where 5 would fit."""
    monkeypatch.setattr(NumpyDevice, "largest_batch", lambda self, segment, at_most, recipe: 3)
    devices, train = {"backend": "numpy"}, {"micro_batch": micro_batch}
    outcome, record = a_round(session(tmp_path, devices=devices, train=train))
    np.testing.assert_allclose(outcome.params, by_numpy, rtol=1e-4, atol=1e-6)
    assert not np.array_equal(outcome.params, by_numpy)
    assert record.placement is not None
    assert record.placement.kept.micro_batch == size
    said = [event.message for event in record.events if event.kind == "micro-batches"]
    assert [m.partition(": ")[2] for m in said] == [
        f"a batch of 8 runs as {-(-8 // size)} x {size}"
    ]
    again = a_round(session(tmp_path, devices=devices), recorded=record.placement)
    np.testing.assert_array_equal(again[0].params, outcome.params)
    assert again[1].placement == record.placement


@pytest.mark.parametrize("micro_batch", [None, 8, 100, "auto"])
def test_a_batch_that_fits_is_not_cut(
    tmp_path: Path, by_numpy: Float32Array, micro_batch: object
) -> None:
    train = {"micro_batch": micro_batch}
    s = session(tmp_path, devices={"backend": "numpy"}, train=train)
    outcome, record = a_round(s)
    np.testing.assert_array_equal(outcome.params, by_numpy)
    assert record.placement is not None
    assert record.placement.kept.micro_batch == 0
    assert "micro-batches" not in kinds(record)


def test_a_batch_whose_statistics_matter_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before anything runs where it is asked for, and where a device would need it."""
    monkeypatch.setattr(NumpyDevice, "largest_batch", lambda self, segment, at_most, recipe: 3)
    layers = ["flatten", "batchnorm1d", {"type": "linear", "out_features": 3}]
    over = {"model": {"layers": layers}, "devices": {"backend": "numpy"}}
    with pytest.raises(ConfigError, match=r"train.micro_batch: found 3, .* layer 1 needs"):
        session(tmp_path, train={"micro_batch": 3}, **over)
    s = session(tmp_path, train={"micro_batch": "auto"}, **over)
    with pytest.raises(DeviceError, match=r"1 needs the statistics .* train.batch to at most 3"):
        a_round(s, params=initialise(s.model, seed=0))


# -- choice ----------------------------------------------------------------------------------


@pytest.mark.parametrize("faster", ["alpha", "beta"])
def test_the_faster_device_is_chosen_and_the_figures_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: str
) -> None:
    both = [Fake(name, step_s=1.0 if name == faster else 3.0) for name in ("alpha", "beta")]
    fakes.register(monkeypatch, *both, numpy=False)
    s = session(tmp_path, federation={"rounds": 50})
    rounds = [a_round(s, number) for number in range(1, 6)]
    # trials go on until each device had its turns
    outcome, record = [r for r in rounds if r[1].decision and r[1].decision.kind == "plan"][-1]
    assert record.placement is not None
    assert fakes.backend_of(record) == faster
    assert record.device["name"] == f"{faster} device"
    assert outcome.num_examples == record.num_examples == 30
    # 2 epochs of 4 batches
    expected = {f.name: 8 * f.step_s for f in both}
    assert {key: m["round_s"] for key, m in record.measured.items()} == expected
    assert record.reason == "measured a round: " + ", ".join(
        f"{f.name} {8 * f.step_s:.3f} s ({f.step_s * 1e3:.2f} ms a step)" for f in both
    )


def test_each_node_measures_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, beta = Fake("alpha", step_s=1.0), Fake("beta", step_s=3.0)
    fakes.register(monkeypatch, alpha, beta, numpy=False)
    s = session(tmp_path)
    assert fakes.backend_of(a_round(s, node="node-0")[1]) == "alpha"
    alpha.step_s = 9.0  # another node, another device's time
    _, record = a_round(s, node="node-1")
    assert record.measured
    assert fakes.backend_of(record) == "beta"


def test_weights_do_not_depend_on_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_numpy: Float32Array
) -> None:
    fakes.register(monkeypatch, Fake("alpha"), Fake("beta", step_s=2.0), numpy=False)
    outcome, record = a_round(session(tmp_path))
    assert record.measured
    np.testing.assert_array_equal(outcome.params, by_numpy)


def test_a_forced_backend_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, beta = Fake("alpha"), Fake("beta")
    fakes.register(monkeypatch, alpha, beta, numpy=False)
    _, record = a_round(session(tmp_path, devices={"backend": "beta"}))
    assert fakes.backend_of(record) == "beta"
    assert record.reason == "forced by devices.backend: beta"
    assert record.measured == {}
    assert not alpha.calls
    assert beta.calls["step"] == 8


def test_a_device_is_picked_by_part_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.register(monkeypatch, Fake("alpha"), Fake("beta"), numpy=False)
    _, record = a_round(session(tmp_path, devices={"device": "BETA dev"}))
    assert record.device["name"] == "beta device"
    with pytest.raises(ConfigError, match="found 'gamma', here: alpha device, beta device"):
        a_round(session(tmp_path, devices={"device": "gamma"}))


def test_equal_devices_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alpha = Fake("alpha", twins=2)
    fakes.register(monkeypatch, alpha, numpy=False)
    _, record = a_round(session(tmp_path))
    assert set(record.measured) == {"alpha (alpha device)", "alpha (alpha device #2)"}
    assert "alpha (alpha device) " in record.reason
    assert "alpha (alpha device #2) " in record.reason
    assert alpha.calls["open"] == 2
    # each can be named, and repeated
    _, named = a_round(session(tmp_path, devices={"device": "device #2"}))
    assert named.device["name"] == "alpha device #2"
    _, repeated = a_round(session(tmp_path), recorded=named.placement)
    assert repeated.placement == named.placement != record.placement


def test_the_second_round_opens_builds_loads_and_plans_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha, beta = Fake("alpha"), Fake("beta", step_s=2.0)
    fakes.register(monkeypatch, alpha, beta, numpy=False)
    s = session(tmp_path)
    _, first = a_round(s)
    before = Counter(alpha.calls)
    other = Counter(beta.calls)
    clock = RoundClock()
    _, second = a_round(s, number=2, clock=clock)
    assert alpha.calls - before == Counter(upload=1, step=8, download=1)
    assert beta.calls == other
    assert second.measured == {}
    assert second.events == []
    assert first.placement is not None
    assert second.placement == first.placement.without_trials()
    assert second.reason == first.reason
    phases = {"data", "plan", "build", "upload", "train", "download", "encode"}
    assert set(clock.phases) == phases


def test_only_tasks_with_a_proximal_term_keep_the_rounds_start(tmp_path: Path) -> None:
    """As many bytes as the gradients; the program that was there before is given back."""
    s = session(tmp_path, devices={"backend": "numpy"})
    near = replace(TASK, hyper=replace(TASK.hyper, proximal_mu=0.5))
    outcomes = [s.train(t, None, START, None, RoundClock()) for t in (TASK, near, TASK)]
    nbytes = [record.peak_nbytes for _, record in outcomes]
    assert nbytes[1] - nbytes[0] == 4 * sum(p.size for p in s.model.trained)
    assert nbytes[2] == nbytes[1]
    np.testing.assert_array_equal(outcomes[0][0].params, outcomes[2][0].params)
    moved = [float(np.square(o.params - START).sum()) for o, _ in outcomes]
    assert moved[1] < moved[0]
    assert len(s.devices._programs) == 1
    s.close()


def test_nodes_share_device_and_program_but_not_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = Fake("alpha")
    fakes.register(monkeypatch, alpha, numpy=False)
    s = session(tmp_path)
    zero, one = a_round(s, node="node-0")[0], a_round(s, node="node-1")[0]
    assert not np.array_equal(zero.params, one.params)
    assert (alpha.calls["open"], alpha.calls["compile"]) == (1, 1)
    assert alpha.calls["load"] == 2 + 1  # and the parity gate's


def test_the_record_counts_bytes_and_steps_of_this_round_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.register(monkeypatch, Fake("alpha"), numpy=False)
    s = session(tmp_path)
    a_round(s)
    _, record = a_round(s, number=2)
    assert record.traffic["upload_nbytes"] == START.nbytes
    assert record.traffic["sampled_steps"] == 2
    assert record.launches > 0
    assert record.peak_nbytes > START.nbytes


def test_a_batch_beyond_the_examples_takes_no_more_memory_than_they_need(tmp_path: Path) -> None:
    over: dict[str, Any] = {"devices": {"backend": "numpy"}}
    wide = session(tmp_path, **over, train={"lr": 0.1, "momentum": 0.9, "batch": 10**9})
    n = len(wide.shares.of("node-0").train)
    task = replace(TASK, batch=10**9)
    outcome, record = wide.train(task, None, START, None, RoundClock())
    assert outcome.num_examples == n
    whole = session(tmp_path, **over, train={"lr": 0.1, "momentum": 0.9, "batch": n})
    expected, _ = whole.train(replace(TASK, batch=n), None, START, None, RoundClock())
    np.testing.assert_array_equal(outcome.params, expected.params)
    assert record.peak_nbytes < 2**20


def test_a_nodes_own_file_is_trained_on(tmp_path: Path) -> None:
    path = fakes.write_examples(tmp_path / "phone.npz", 21, seed=5)
    s = session(tmp_path, devices={"backend": "numpy"})
    outcome, record = s.train(replace(TASK, partition="my phone"), path, START, None, RoundClock())
    assert outcome.num_examples == 21
    assert record.partition == "my phone"


# -- what fails ------------------------------------------------------------------------------


def test_an_unavailable_backend_is_said_once_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.register(monkeypatch, Fake("alpha", unavailable="no driver: install pocl-opencl-icd"))
    s = session(tmp_path)
    _, record = a_round(s)
    assert [(e.kind, e.message) for e in record.events] == [
        ("fallback", "alpha is not used: no driver: install pocl-opencl-icd")
    ]
    assert record.reason == "the only device that can train: numpy"
    assert fakes.backend_of(record) == "numpy"
    assert a_round(s, number=2)[1].events == []
    assert a_round(s, node="node-1")[1].events == []


def test_a_backend_without_devices_is_said_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.register(monkeypatch, Fake("alpha", empty=True))
    _, record = a_round(session(tmp_path))
    assert [(e.kind, e.message) for e in record.events] == [
        ("fallback", "alpha is not used: it found no device")
    ]


@pytest.mark.parametrize(
    "fake", [Fake("alpha", unavailable="no driver"), Fake("alpha", empty=True)]
)
def test_a_forced_backend_that_is_unavailable_is_an_error_not_a_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: Fake
) -> None:
    fakes.register(monkeypatch, fake)
    with pytest.raises(DeviceError, match=r"no driver|none was found"):
        a_round(session(tmp_path, devices={"backend": "alpha"}))


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(2, id="in its trials"),
        pytest.param(2 + 3, id="in mid-round"),  # it has two steps of the trials in this round
    ],
)
def test_a_device_that_fails_is_refused_and_the_round_done_on_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_numpy: Float32Array, step: int
) -> None:
    # as fast as numpy, whose steps take no time by this clock: the earlier one of equals trains
    fakes.register(monkeypatch, Fake("alpha", step_s=0.0, fail_at_step=step))
    s = session(tmp_path)
    outcome, record = a_round(s)
    np.testing.assert_array_equal(outcome.params, by_numpy)
    assert kinds(record) == ["parity", "device refused"]
    assert record.events[1].message == "alpha alpha device: alpha device: lost: restart it"
    assert fakes.backend_of(record) == "numpy"
    assert record.reason == "the only device that can train: numpy"
    assert record.device["backend"] == "numpy"
    assert record.traffic["upload_nbytes"] == 0  # numpy's, not the lost device's
    _, second = a_round(s, number=2)
    assert second.events == []
    assert second.placement == record.placement


def test_other_nodes_leave_a_refused_device_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = Fake("alpha", step_s=-1.0)  # faster than any
    fakes.register(monkeypatch, alpha)
    s = session(tmp_path)
    assert fakes.backend_of(a_round(s, node="node-0")[1]) == "alpha"
    assert fakes.backend_of(a_round(s, node="node-1")[1]) == "alpha"
    alpha.fail_at_step = alpha.calls["step"] + 2
    _, failed = a_round(s, number=2, node="node-0")
    assert kinds(failed) == ["device refused"]
    _, other = a_round(s, number=2, node="node-1")
    assert fakes.backend_of(other) == "numpy"
    assert other.reason == "the only device that can train: numpy"


@pytest.mark.parametrize(
    ("fake", "said"),
    [
        (Fake("alpha", spoil=zeros), "computes wrong numbers"),
        (Fake("alpha", fail_to_compile=True), "gemm.cl does not build: update the driver"),
    ],
    ids=["wrong numbers", "does not build"],
)
def test_a_device_that_fails_before_it_trains_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_numpy: Float32Array, fake: Fake, said: str
) -> None:
    fakes.register(monkeypatch, fake)
    s = session(tmp_path)
    outcome, record = a_round(s)
    assert kinds(record) == ["device refused"]
    assert said in record.events[0].message
    np.testing.assert_array_equal(outcome.params, by_numpy)
    assert fake.calls["step"] == 0
    a_round(s, number=2)
    assert fake.calls["compile"] == 1


def test_what_is_compiled_for_a_refused_device_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake("alpha", spoil=zeros)
    fakes.register(monkeypatch, fake)
    a_round(session(tmp_path))
    assert fake.calls["release"] == 1


def test_if_all_are_refused_one_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Fake("alpha", spoil=zeros), Fake("beta", fail_to_compile=True)
    fakes.register(monkeypatch, *both, numpy=False)
    with pytest.raises(DeviceError) as e:
        a_round(session(tmp_path))
    text = str(e.value)
    assert text.startswith("no device is left to train on (devices.backend: auto): alpha: alpha")
    assert "; beta: " in text
    assert "computes wrong numbers" in text
    assert "does not build" in text
    assert "\n" not in text


def test_a_round_that_explodes_refuses_no_device(tmp_path: Path) -> None:
    s = session(tmp_path, devices={"backend": "numpy"})
    wild = replace(TASK, hyper=Hyper(lr=1e30))
    with pytest.raises(TrainingError, match="node-0: the loss became"):
        s.train(wild, None, START, None, RoundClock())
    assert s.devices.usable() == [NUMPY]


# -- recorded placements ---------------------------------------------------------------------


def test_a_recorded_placement_is_repeated_without_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha, beta = Fake("alpha"), Fake("beta", step_s=2.0)
    fakes.register(monkeypatch, alpha, beta, numpy=False)
    slow = fakes.placement("beta", beta.devices()[0].key, 1)
    s = session(tmp_path)
    _, record = a_round(s, recorded=slow)
    assert record.placement == slow
    assert record.reason == "recorded choice"
    assert record.measured == {}
    assert alpha.calls["open"] == 0
    # and kept, where nothing else is said
    assert a_round(s, number=2)[1].placement == slow


def test_a_recorded_device_that_is_not_here_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.register(monkeypatch, Fake("alpha"), numpy=False)
    with pytest.raises(
        DeviceError, match=r"the recorded device is not here: gone\|.*; here: alpha"
    ):
        a_round(session(tmp_path), recorded=fakes.placement("gone", "gone|device", 1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threads": 99}, r"recorded .* here "),
        (
            {"variants": (("fc1", "gemm 8x2"), ("fc2", "dot 4x1"))},
            r"2 kernel variants differ, .* of fc1 on numpy: recorded 'gemm 8x2', here 'none'; "
            r".*probably tuned \(pocketfed tune\) .*set POCKETFED_CACHE",
        ),
    ],
    ids=["threads", "variants"],
)
def test_a_recorded_placement_that_came_out_otherwise_is_a_mismatch(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    s = session(tmp_path, devices={"backend": "numpy"})
    here = fakes.placement("numpy", NUMPY.key, NUMPY.compute_units)
    assert a_round(s, recorded=here)[1].placement == here
    other = replace(here.kept.parts[0], **change)  # type: ignore[arg-type]
    with pytest.raises(MismatchError, match=rf"cannot be repeated here: {said}"):
        a_round(s, recorded=Placement((PlacedLayout((other,)),)))


def test_a_recorded_device_that_fails_is_an_error_not_a_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = Fake("alpha", fail_at_step=2)
    fakes.register(monkeypatch, alpha)
    with pytest.raises(DeviceError, match="lost"):
        a_round(session(tmp_path), recorded=fakes.placement("alpha", alpha.devices()[0].key, 1))


# -- evaluation ------------------------------------------------------------------------------


def test_a_node_evaluates_on_examples_it_does_not_train_on(tmp_path: Path) -> None:
    s = session(tmp_path, devices={"backend": "numpy"}, data={"node_holdout": 0.2})
    outcome, _ = a_round(s)
    clock = RoundClock()
    metrics, record = s.evaluate("node-0", None, outcome.params, clock)
    data = s.shares.of("node-0")
    assert data.held_out is not None
    logits = fakes.logits(outcome.params, data.held_out.x)
    assert (outcome.num_examples, metrics.count) == (24, 6)
    assert metrics.correct == (logits.argmax(1) == data.held_out.y).sum()
    assert record.accuracy == metrics.correct / 6
    assert record.loss == pytest.approx(metrics.loss_sum / 6)
    assert record.device["backend"] == "numpy"
    assert set(clock.phases) == {"data", "plan", "build", "upload", "evaluate", "encode"}


# -- nothing works unattributed --------------------------------------------------------------


class Witness(RoundClock):
    """A clock that notes which functions are called while no phase is open."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: Counter[str] = Counter()

    def see(self, frame: FrameType, event: str, argument: Any) -> None:
        """To be given to sys.setprofile."""
        if self.open is None and event in ("call", "c_call"):
            ours = frame.f_globals["__name__"] == "client.timing"
            if not ours and argument is not sys.setprofile:
                name = frame.f_code.co_qualname if event == "call" else argument.__qualname__
                self.outside[name] += 1


def test_a_warm_round_does_nothing_outside_its_phases(tmp_path: Path) -> None:
    s = session(tmp_path, devices={"backend": "numpy"}, data={"node_holdout": 0.2})
    params = a_round(s)[0].params
    s.evaluate("node-0", None, params, RoundClock())
    task, clock = replace(TASK, round=2), Witness()
    sys.setprofile(clock.see)
    try:
        s.train(task, None, params, None, clock)
        s.evaluate("node-0", None, params, clock)
    finally:
        sys.setprofile(None)
    steps = {"Session._course", "Session._place", "Session._train_on", "Session._evaluate_on"}
    assert set(clock.outside) == {"Session.train", "train", "Session.evaluate", *steps}


def test_evaluation_leaves_training_as_it_was(tmp_path: Path) -> None:
    settings = {"devices": {"backend": "numpy"}, "data": {"node_holdout": 0.2}}
    plain, evaluated = session(tmp_path, **settings), session(tmp_path, **settings)
    evaluated.evaluate("node-0", None, START, RoundClock())
    np.testing.assert_array_equal(a_round(plain)[0].params, a_round(evaluated)[0].params)


def test_evaluation_uses_the_chosen_device_and_falls_back_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beta = Fake("beta", step_s=0.5)
    fakes.register(monkeypatch, Fake("alpha"), beta, numpy=False)
    s = session(tmp_path, data={"node_holdout": 0.2})
    a_round(s)
    _, record = s.evaluate("node-0", None, START, RoundClock())
    assert record.device["backend"] == "beta"

    def lost(params: Float32Array) -> None:
        raise DeviceError("beta device: lost: restart it")

    program = next(p for (key, *_), p in s.devices._programs.items() if key.startswith("beta"))
    monkeypatch.setattr(program, "upload", lost)
    _, record = s.evaluate("node-0", None, START, RoundClock())
    assert record.device["backend"] == "alpha"
    assert kinds(record) == ["device refused"]


def test_without_held_out_examples_the_remedy_is_named(tmp_path: Path) -> None:
    s = session(tmp_path, devices={"backend": "numpy"})
    with pytest.raises(TrainingError, match=r"node-0: .* set data\.node_holdout above 0"):
        s.evaluate("node-0", None, START, RoundClock())


# -- the end ---------------------------------------------------------------------------------


def test_close_gives_everything_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alpha = Fake("alpha")
    fakes.register(monkeypatch, alpha, numpy=False)
    s = session(tmp_path)
    a_round(s)
    s.close()
    assert alpha.calls["release"] == 1
    a_round(s)  # and can begin anew
    assert alpha.calls["open"] == 2


# -- for the device worker -------------------------------------------------------------------


def test_excluded_backends_are_not_even_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_numpy: Float32Array
) -> None:
    alpha = Fake("alpha", step_s=1e-9)
    fakes.register(monkeypatch, alpha)
    s = Session(fakes.experiment(tmp_path), tmp_path, {"alpha": "it crashes"})
    outcome, record = a_round(s)
    np.testing.assert_array_equal(outcome.params, by_numpy)
    assert kinds(record) == ["fallback"]
    assert record.events[0].message == "alpha is not used: it crashes"
    assert not alpha.calls
    recorded = fakes.placement("alpha", alpha.devices()[0].key, 1)
    with pytest.raises(DeviceError, match=r"is not here: alpha.*\(refused: it crashes\)"):
        a_round(s, recorded=recorded)


@pytest.mark.parametrize("devices", [{"backend": "alpha"}, {"device": "alpha"}])
def test_a_forced_backend_that_is_excluded_leaves_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: dict[str, str]
) -> None:
    fakes.register(monkeypatch, Fake("alpha"))
    s = Session(fakes.experiment(tmp_path, devices=devices), tmp_path, {"alpha": "it crashes"})
    with pytest.raises(DeviceError, match=r"no device is left .*: alpha: it crashes"):
        a_round(s)


def test_a_backend_is_named_before_it_is_asked_to_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {name: Fake(name, step_s=s) for name, s in (("alpha", 1.0), ("beta", 3.0))}
    fakes.register(monkeypatch, *both.values(), numpy=False)
    asked: list[tuple[str, int]] = []
    token = on_backend.set(lambda name: asked.append((name, both[name].calls["step"])))
    s = session(tmp_path)
    try:
        a_round(s)
        steps = [n for name, n in asked if name == "beta"]
        assert steps == sorted(steps)
        assert steps[0] == 0
        assert ("alpha", 1) in asked  # after its warm-up and the other's
        asked.clear()
        a_round(s, number=2)
    finally:
        on_backend.reset(token)
    assert {name for name, _ in asked} == {"alpha"}
