"""Emulated devices: what passes the link, what steps cost, what is refused; time is made here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from client.backends.emulated.device import EmulatedDevice, describe
from client.backends.emulated.spec import Emulation, Heat, Link, Way
from client.backends.figures import Command
from client.backends.recipe import Recipe
from client.errors import DataError, DeviceError
from client.model import initialise
from client.model.graph import Segment
from client.placed import Placed, Site, place
from client.placement.layout import Layout
from tests import fakes
from tests.emulation import BATCH, HYPER, LINK, WORK_S, Clock, Lap, emulated, meter, ready


@pytest.fixture
def clock() -> Clock:
    return Clock()


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


@contextmanager
def placed(clock: Clock, layout: Callable[[Sequence[str], int], Layout]) -> Iterator[Placed]:
    """The small network on two devices with one clock, an epoch begun."""
    model, (x, y) = fakes.model(), fakes.examples(2 * BATCH)
    with emulated(clock, name="one") as one, emulated(clock, name="two") as two:
        found = layout([one.info.key, two.info.key], len(model.block_names))
        sites = [
            Site(device, device.compile(part.segment(model), BATCH), device.load(x, y))
            for device, part in zip((one, two), found.parts, strict=True)
        ]
        network = place(found, sites)
        network.upload(initialise(model, seed=0))
        network.begin_epoch(np.arange(2 * BATCH, dtype=np.int32), BATCH, 0)
        network.finish()
        yield network


COMMAND_S = 3 * WORK_S


def test_both_slices_of_a_split_batch_are_computed_at_once(clock: Clock) -> None:
    with placed(clock, lambda keys, blocks: Layout.split(keys, [0.5, 0.5], blocks)) as network:
        lap, values_nbytes = Lap(clock), 4 * fakes.model().num_values
        network.step(0, BATCH, HYPER)
        network.finish()
        way_s = LINK.upload.seconds(values_nbytes) + LINK.download.seconds(values_nbytes)
        # gather, forward, loss, backward on both; gradients to the owner, who adds and updates;
        # values to the other
        assert lap() == pytest.approx((4 + 2) * COMMAND_S + 2 * way_s)


def test_the_tail_of_a_cut_network_is_updated_while_its_head_goes_backward(clock: Clock) -> None:
    with placed(clock, lambda keys, blocks: Layout.cut(keys, [3, blocks])) as network:
        lap, boundary_nbytes = Lap(clock), 4 * BATCH * 8
        network.step(0, BATCH, HYPER)
        network.finish()
        way_s = LINK.upload.seconds(boundary_nbytes) + LINK.download.seconds(boundary_nbytes)
        # gather, forward; forward, loss, backward; backward, update
        assert lap() == pytest.approx((2 + 3 + 2) * COMMAND_S + 2 * way_s)


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
