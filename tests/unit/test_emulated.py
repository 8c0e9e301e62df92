"""Emulated devices: what their own clock says, with time that the tests make."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import backends
from client.backends.base import Program
from client.backends.emulated.clock import HostClock
from client.backends.emulated.device import EmulatedDevice, describe
from client.backends.emulated.reference import References, thread_time, wall_time
from client.backends.emulated.schedule import Schedule
from client.backends.emulated.spec import Emulation, Heat, Link, Way, load
from client.backends.emulated.timeline import Order, Timeline
from client.backends.figures import Command
from client.backends.recipe import Hyper, Recipe
from client.errors import ConfigError, DataError, DeviceError
from client.fields import shipped_names
from client.model import initialise
from client.model.graph import Segment
from tests import fakes

WORK_S = 0.01
"""What the tests' meter says of any command."""

LINK = Link(upload=Way(1e-3, 1e6), download=Way(2e-3, 0.5e6))
HYPER = Hyper(lr=0.1, momentum=0.9)
BATCH = 8


class Clock:
    """Stands still but while somebody waits."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def now_s(self) -> float:
        return self.time_s

    def wait_until(self, moment_s: float) -> None:
        self.time_s = max(self.time_s, moment_s)


def meter(work: Callable[[], Any]) -> tuple[Any, float]:
    return work(), WORK_S


@contextmanager
def emulated(clock: Clock | None = None, **over: Any) -> Iterator[EmulatedDevice]:
    """numpy on a clock of its own; ``over``: keys of the emulation."""
    emulation = replace(Emulation("toy", LINK, compute_factor=3.0), **over)
    numpy = backends.get("numpy")
    inner = numpy.open_part(numpy.devices()[0], memory_nbytes=emulation.memory_nbytes)
    info = describe(emulation, inner.info)
    device = EmulatedDevice(info, emulation, inner, clock or Clock(), meter)
    yield device
    device.close()


def ready(device: EmulatedDevice, n: int = 3 * BATCH) -> Program:
    """A program with values and an epoch's order; nothing is in flight."""
    model = fakes.model()
    program = device.compile(model.whole, BATCH)
    program.upload(initialise(model, seed=0))
    data = device.load(*fakes.examples(n))
    program.begin_epoch(data, np.arange(n, dtype=np.int32), BATCH, 0)
    device.finish()
    return program


class Lap:
    """How far a clock went since the last asking."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._last_s = clock, clock.time_s

    def __call__(self) -> float:
        passed_s = self._clock.time_s - self._last_s
        self._last_s = self._clock.time_s
        return passed_s


# -- schedule ------------------------------------------------------------------------------------


def test_a_command_begins_when_it_is_there_and_the_one_before_is_over() -> None:
    schedule = Schedule(compute_factor=4.0, heat=None)
    first = schedule.add(arrived_s=10.0, reference_s=0.5, transfer_s=0.25)
    assert (first.start_s, first.end_s) == (10.0, 12.25)
    assert (first.compute_s, first.transfer_s) == (2.0, 0.25)
    assert schedule.add(11.0, 0.5, 0.0).start_s == 12.25
    late = schedule.add(20.0, 0.0, 1.0, prepare_s=0.5)
    assert (late.start_s, late.end_s) == (20.0, 21.5), "what is built is built as fast as anywhere"
    assert schedule.busy_s == 2.25 + 2.0 + 1.5


def factors(schedule: Schedule, moments_s: list[float]) -> list[float]:
    """By how much commands of one second are slowed that arrive then."""
    return [schedule.add(moment_s, 1.0, 0.0).compute_s for moment_s in moments_s]


def test_heat_sets_in_after_busy_seconds_and_idle_ones_take_it_away() -> None:
    schedule = Schedule(1.0, Heat(after_busy_s=2.0, factor=3.0, cools_idle_s=4.0))
    assert factors(schedule, [0.0] * 4) == [1.0, 1.0, 3.0, 3.0]  # it is busy until 8
    assert schedule.factor == 3.0
    assert factors(schedule, [10.0]) == [3.0], "two idle seconds are half of what it takes"
    assert factors(schedule, [17.0]) == [1.0], "four in a row, after it was busy until 13"
    assert schedule.factor == 1.0
    assert factors(schedule, [18.0] * 2) == [1.0, 3.0]


def test_short_pauses_add_up() -> None:
    schedule = Schedule(1.0, Heat(after_busy_s=2.0, factor=3.0, cools_idle_s=2.0))
    moments_s = [2.0 * i for i in range(10)]  # as long idle as busy: it never becomes hot
    assert factors(schedule, moments_s) == [1.0] * 10


def test_heat_of_a_given_length_ends_whether_busy_or_idle() -> None:
    schedule = Schedule(2.0, Heat(after_busy_s=2.0, factor=3.0, cools_s=9.0))
    assert factors(schedule, [0.0] * 4) == [2.0, 6.0, 6.0, 2.0]  # hot from 2 to 11, until 14
    assert factors(schedule, [20.0]) == [6.0], "the next heat began after two busy seconds"


# -- reference -----------------------------------------------------------------------------------


def test_the_reference_is_the_calm_minimum() -> None:
    references = References(prepares=False)
    assert [references.of("a", s) for s in (3.0, 5.0, 2.0, 9.0)] == [3.0, 3.0, 2.0, 2.0]
    assert references.of("b", 7.0) == 7.0


def test_times_in_which_something_was_built_tell_nothing() -> None:
    references = References(prepares=True)
    assert references.of("forward", 50.0, ["forward"]) is None
    assert references.of("forward", 3.0, ["forward"]) == 3.0
    assert references.of("step", 9.0, ["forward", "backward"]) is None
    assert references.of("step", 5.0, ["forward", "backward"]) == 5.0


def test_time_that_a_thread_waits_does_not_count_as_its_own() -> None:
    waited = threading.Event()
    _, own_s = thread_time(lambda: waited.wait(0.2))
    _, wall_s = wall_time(lambda: waited.wait(0.2))
    assert own_s < 0.1 < wall_s


def test_the_hosts_clock_waits_no_shorter() -> None:
    clock = HostClock()
    for wait_s in (0.0, 50e-6, 2e-3):
        moment_s = clock.now_s() + wait_s
        clock.wait_until(moment_s)
        assert clock.now_s() >= moment_s


# -- timeline ------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timeline(clock: Clock) -> Iterator[Timeline]:
    timeline = Timeline("test", Schedule(1.0, None), clock, meter, stall_after=None)
    yield timeline
    timeline.close()


def test_enqueueing_does_not_wait(timeline: Timeline, clock: Clock) -> None:
    go_on, done = threading.Event(), []
    timeline.enqueue(Order(lambda: done.append(go_on.wait(60))))
    mark = timeline.mark()
    assert not mark.done()  # nor could it be: it waits for us
    go_on.set()
    mark.wait()
    assert done == [True]


def test_whoever_waits_waits_for_the_devices_clock(timeline: Timeline, clock: Clock) -> None:
    order = Order(lambda: "result", transfer_s=2.0)
    timeline.enqueue(order)
    mark = timeline.mark()
    assert timeline.call(order) == "result"
    assert clock.time_s == 104.0
    assert mark.done()
    assert timeline.late_s == 0.0


def test_a_command_that_was_carried_out_is_not_over_before_its_time(
    timeline: Timeline, clock: Clock
) -> None:
    timeline.enqueue(Order(lambda: None, transfer_s=2.0))
    mark = timeline.mark()
    timeline.aside(lambda: None)  # all before it is carried out
    assert clock.time_s == 100.0
    assert not mark.done()
    clock.time_s = 103.0  # the host has done something else
    assert mark.done()
    mark.wait()
    assert timeline.late_s == 1.0


def test_an_error_of_what_was_enqueued_meets_whoever_waits_next(timeline: Timeline) -> None:
    def fail() -> None:
        raise DeviceError("lost")

    timeline.enqueue(Order(fail))
    with pytest.raises(DeviceError, match="lost"):
        timeline.mark().wait()
    timeline.mark().wait()
    with pytest.raises(DeviceError, match="lost"):
        timeline.call(Order(fail))
    assert timeline.call(Order(lambda: 5)) == 5


def test_a_command_that_stalls_never_ends_and_none_after_it_begins(clock: Clock) -> None:
    timeline = Timeline("stalling", Schedule(1.0, None), clock, meter, stall_after=2)
    ran: list[int] = []
    for i in range(4):
        timeline.enqueue(Order(lambda i=i: ran.append(i)))
    mark = timeline.mark()
    assert timeline.stalled.wait(60)
    waiting = threading.Thread(target=mark.wait, daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    assert not mark.done()
    assert ran == [0, 1]


# -- device --------------------------------------------------------------------------------------


def test_each_transfer_passes_the_link_with_its_bytes(clock: Clock) -> None:
    model = fakes.model()
    first, last = (Segment(model, *cut) for cut in ((0, 3), (3, 4)))
    with emulated(clock, compute_factor=1.0) as device:
        lap = Lap(clock)
        x, y = fakes.examples(20)

        def passed(up: int = 0, down: int = 0, compute: int = 0) -> None:
            """Bytes on the link since the last asking, and commands that computed."""
            nonlocal before
            device.finish()
            moved, before = device.traffic.since(before), replace(device.traffic)
            assert (moved.upload_nbytes, moved.download_nbytes) == (up, down)
            transfer_s = LINK.upload.seconds(up) + LINK.download.seconds(down)
            assert lap() == pytest.approx(transfer_s + compute * WORK_S, rel=1e-9)

        before = replace(device.traffic)
        data = device.load(x, y)
        passed(up=x.nbytes + y.nbytes)
        head, tail = (device.compile(segment, BATCH) for segment in (first, last))
        passed()
        values = first.values_of(initialise(model, seed=0))
        head.upload(values)
        passed(up=values.nbytes)
        head.download()
        passed(down=values.nbytes)
        for program in (head, tail):
            program.begin_epoch(data, np.arange(20, dtype=np.int32), BATCH, 0)
        device.finish()
        before = replace(device.traffic)
        lap()
        head.begin_epoch(data, np.arange(12, dtype=np.int32), BATCH, 0)
        passed(up=12 * 4 + 8)
        head.gather(0, BATCH)
        head.forward(BATCH)
        passed(compute=2)
        boundary = head.take_output(BATCH)
        passed(down=4 * BATCH * 8)
        tail.gather(0, BATCH)
        tail.put_input(boundary)
        passed(up=boundary.nbytes, compute=1)
        tail.forward(BATCH)
        tail.loss(BATCH)
        tail.backward(BATCH)
        passed(compute=3)
        dy = tail.take_input_grad(BATCH)
        passed(down=dy.nbytes)
        head.put_output_grad(dy)
        passed(up=dy.nbytes)
        head.backward(BATCH)
        passed(compute=1)
        grads = head.take_grads()
        passed(down=grads.nbytes)
        head.add_grads(grads)
        passed(up=grads.nbytes, compute=1)
        head.update(HYPER)
        passed(compute=1)
        head.put_values(values)
        passed(up=values.nbytes)
        tail.read_metrics()
        passed(down=12)
        lap()
        state = head.read_state()
        assert lap() == pytest.approx(LINK.download.seconds(state.nbytes))
        head.write_state(state)
        assert lap() == pytest.approx(LINK.upload.seconds(state.nbytes))


def test_a_step_is_enqueued_and_costs_its_time_when_it_is_waited_for(clock: Clock) -> None:
    with emulated(clock) as device:
        program, lap = ready(device), Lap(clock)
        for start in (0, BATCH):
            program.step(start, BATCH, HYPER)
        assert lap() == 0.0
        device.finish()
        assert lap() == pytest.approx(2 * 3 * WORK_S)


def test_results_are_those_of_the_inner_device() -> None:
    inner, model = fakes.numpy_device(), fakes.model()
    found = []
    with emulated() as device:
        for d in (inner, device):
            program = d.compile(model.whole, BATCH)
            program.upload(initialise(model, seed=0))
            data = d.load(*fakes.examples(3 * BATCH))
            program.begin_epoch(data, np.arange(3 * BATCH, dtype=np.int32), BATCH, 0)
            for start in range(0, 3 * BATCH, BATCH):
                program.step(start, BATCH, HYPER)
            found.append((program.read_metrics(), program.download().tobytes()))
    assert found[0] == found[1]


def test_a_timed_step_is_told_on_the_devices_clock() -> None:
    with emulated() as device:
        program = ready(device)
        commands: list[Command] = []
        program.sample_next_step(commands)
        program.step(0, BATCH, HYPER)
        program.step(BATCH, BATCH, HYPER)
        device.finish()
        spent = device.traffic
        assert spent.sampled_steps == 1
        assert spent.copy_s == pytest.approx(3 * WORK_S, rel=1e-5)  # the gather
        assert spent.compute_s == pytest.approx(4 * 3 * WORK_S, rel=1e-5)
        assert len(commands) == program.usage.launches
        for part in ("gather", "forward", "loss", "backward", "update"):
            part_s = sum(c.seconds for c in commands if c.part == part)
            assert part_s == pytest.approx(3 * WORK_S, rel=1e-5)


def test_work_in_flight_is_bounded_on_the_devices_clock(clock: Clock) -> None:
    limit_s = 5 * 3 * WORK_S
    with emulated(clock) as device:
        program = ready(device)
        for i in range(30):
            program.step(0, BATCH, HYPER)
            device.throttle(limit_s)
            ahead_s = device.aside(lambda: device._schedule.free_s) - clock.time_s
            assert ahead_s <= limit_s + 1e-9
            if i > 20:
                assert ahead_s >= limit_s - 3 * WORK_S - 1e-9


def test_heat_shows_in_the_times_of_steps(clock: Clock) -> None:
    heat = Heat(after_busy_s=10 * WORK_S, factor=3.0, cools_idle_s=1.0)
    with emulated(clock, compute_factor=1.0, heat=heat, link=Link(*[Way(0, 1e12)] * 2)) as device:
        program, lap = ready(device), Lap(clock)
        times = []
        for _ in range(14):
            program.step(0, BATCH, HYPER)
            device.finish()
            times.append(lap())
        assert times == pytest.approx([WORK_S] * 10 + [3 * WORK_S] * 4, rel=1e-3)
        clock.time_s += 1.0
        program.step(0, BATCH, HYPER)
        device.finish()
        assert lap() == pytest.approx(1.0 + WORK_S)


def test_a_device_that_stalls_takes_orders_and_answers_none() -> None:
    inner = fakes.numpy_device()
    emulation = Emulation("stalling", LINK, stall_after=4)
    device = EmulatedDevice(describe(emulation, inner.info), emulation, inner, Clock(), meter)
    program = ready(device)  # load, upload, epoch
    for _ in range(3):
        program.step(0, BATCH, HYPER)
    assert device._timeline.stalled.wait(60)
    waiting = threading.Thread(target=device.finish, daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()


def test_memory_is_its_own(clock: Clock) -> None:
    model = fakes.model()
    with emulated(clock) as roomy:
        needed = roomy.compile(model.whole, BATCH).nbytes
    with emulated(clock, memory_nbytes=needed - 1) as small:
        with pytest.raises(DeviceError, match=rf"toy: model 'small' .* {needed:,} bytes.*batch"):
            small.compile(model.whole, BATCH)
        assert small.peak_nbytes == 0
        assert 0 < small.largest_batch(model.whole, 10**6, Recipe()) < 10**4
    x, y = fakes.examples(3 * BATCH)
    with emulated(clock, memory_nbytes=needed + x.nbytes) as streaming:
        program = ready(streaming)
        assert streaming.peak_nbytes == needed + y.nbytes
        before = replace(streaming.traffic)
        program.step(0, BATCH, HYPER)
        assert streaming.traffic.since(before).upload_nbytes == x.nbytes // 3


def test_what_does_not_fit_is_refused_at_the_call() -> None:
    with emulated() as device:
        program = ready(device)
        with pytest.raises(ValueError, match="holds 1 to 8"):
            program.forward(BATCH + 1)
        with pytest.raises(ValueError, match="gather of 8 from 20: an order of 24"):
            program.step(20, BATCH, HYPER)
        order = np.arange(3, dtype=np.int32)
        with pytest.raises(TypeError, match="another backend"):
            program.begin_epoch(fakes.numpy_device().load(*fakes.examples(3)), order, 3, 0)
        foreign = device.load(np.zeros((3, 5), np.float32), np.zeros(3, np.int32))
        with pytest.raises(DataError, match=r"examples have shape \(5,\)"):
            program.begin_epoch(foreign, order, 3, 0)
        fresh = device.compile(fakes.model().whole, BATCH)
        with pytest.raises(RuntimeError, match="gather before begin_epoch"):
            fresh.gather(0, 1)


def test_the_probes_primitives_take_the_devices_time(clock: Clock) -> None:
    with emulated(clock) as device:
        exercises, lap = device.exercises(), Lap(clock)
        gemm = exercises.gemm(8, 8, 8)
        assert lap() == 0.0
        gemm.run(4)
        assert lap() == pytest.approx(3 * WORK_S)
        gemm.release()
        exercises.upload(1000, "pageable").run(3)
        assert lap() == pytest.approx(3 * (1e-3 + 1000 / 1e6))
        exercises.download(1000, "pageable").run(2)
        assert lap() == pytest.approx(2 * (2e-3 + 1000 / 0.5e6))


# -- backend -------------------------------------------------------------------------------------

FILE = """
name: toy
compute_factor: 2
memory_nbytes: 1_000_000
link:
  upload: {latency_s: 1e-5, bytes_per_s: 1e9}
  download: {latency_s: 1e-5, bytes_per_s: 1e9}
"""


def test_without_the_variable_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POCKETFED_EMULATE", raising=False)
    assert "emulated" not in backends.at_hand()
    with pytest.raises(DeviceError, match=r"only where POCKETFED_EMULATE .*: set POCKET"):
        backends.get("emulated").devices()


def test_devices_are_those_of_the_files_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "toy.yaml"
    file.write_text(FILE)
    monkeypatch.setenv("POCKETFED_EMULATE", f"{file}:phone:{file}")
    assert "emulated" in backends.at_hand()
    backend = backends.get("emulated")
    infos = backend.devices()
    assert [info.name for info in infos] == ["toy", "emulated phone GPU", "toy #2"]
    toy = infos[0]
    assert (toy.backend, toy.kind, toy.unified_memory) == ("emulated", "gpu", False)
    assert (toy.global_mem_nbytes, toy.max_alloc_nbytes) == (1_000_000, 1_000_000)
    assert "emulated device" in toy.remarks[0]
    opened = backend.open(infos[2])
    assert opened.info == infos[2]
    opened.close()
    file.write_text(FILE.replace("compute_factor: 2", "compute_factor: 4"))
    assert backend.devices()[0].key != toy.key, "what was measured of the old one is not of it"
    with pytest.raises(DeviceError, match=r"toy: .*no longer there"):
        backend.open(toy)


@pytest.mark.parametrize("name", shipped_names("emulated"))
def test_shipped_ones_can_be_opened(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("POCKETFED_EMULATE", name)
    emulation = load(Path(str(files("configs")), "emulated", f"{name}.yaml"))
    try:
        backends.get(emulation.inner.backend).devices()
    except DeviceError as e:
        pytest.skip(f"no inner device: {e}")
    (info,) = backends.get("emulated").devices()
    backends.get("emulated").open(info).close()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("compute_facto: 2", r"toy\.yaml: compute_facto: unknown key.*'compute_factor'"),
        ("heat: {after_busy_s: 1}", r"toy\.yaml: heat: the key 'factor' is missing"),
        ("heat: {after_busy_s: 1, factor: 2}", r"heat: needs either cools_idle_s or cools_s"),
        ("heat: {after_busy_s: 1, factor: 0.5, cools_s: 1}", r"heat\.factor: found 0\.5, must be"),
        ("inner: {cores: 1}", r"toy\.yaml: inner\.cores: found backend 'numpy', only opencl"),
        ("inner: {backend: emulated}", r"inner\.backend: found 'emulated', allowed: numpy"),
        ("inner: {backend: numpy, device: Z80}", r"no inner device .*'Z80' in its name; here: "),
        ("stall_after: -1", r"toy\.yaml: stall_after: found -1, must be at least 0"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    file = tmp_path / "toy.yaml"
    file.write_text(f"{FILE}{line}\n")
    monkeypatch.setenv("POCKETFED_EMULATE", str(file))
    with pytest.raises((ConfigError, DeviceError), match=said):
        backends.get("emulated").devices()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("compute_factor: 2", "compute_factor: 0.5", "compute_factor: found 0.5, must be at least"),
        ("bytes_per_s: 1e9", "bytes_per_s: 0", r"link\.upload\.bytes_per_s: found 0\.0, must be"),
        ("latency_s: 1e-5", "latency_s: -1", r"link\.upload\.latency_s: found -1\.0, must be"),
        ("name: toy", "name: ''", "name: found nothing"),
        ("1_000_000", "0", "memory_nbytes: found 0, must be above 0"),
    ],
)
def test_values_that_no_device_has_are_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    file = tmp_path / "toy.yaml"
    file.write_text(FILE.replace(old, new, 1))
    with pytest.raises(ConfigError, match=said):
        load(file)
