"""Limits of devices: streaming, small work-groups, what does not fit, what is given back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from client.backends.opencl.plan import plan_segment
from client.backends.recipe import Hyper
from client.errors import DeviceError
from client.model import Model, load_model
from tests.backend.harness import Subject, examples, network
from tests.backend.opencl_devices import open_device
from tests.backend.test_program import small_net

if TYPE_CHECKING:
    from client.backends.opencl.device import OpenCLDevice

HYPER = Hyper(lr=0.05, momentum=0.9)
BATCH, EXAMPLES = 6, 75


def train(subject: Subject, epochs: int = 2) -> tuple[list[float], np.ndarray]:
    """Losses and parameters after some epochs, each in an order of its own; no waiting within."""
    subject.reset()
    g = np.random.default_rng(1)
    losses = []
    for _ in range(epochs):
        order = g.permutation(EXAMPLES).astype(np.int32)
        subject.begin(order)
        for start in range(0, EXAMPLES, BATCH):
            subject.program.step(start, min(BATCH, EXAMPLES - start), HYPER)
            subject.device.throttle(0.25)
        losses.append(subject.program.read_metrics().loss_sum)
    return losses, subject.program.download()


@pytest.fixture(scope="module")
def model() -> Model:
    return small_net()


@pytest.fixture(scope="module", params=["uint8", "float32"])
def expected(request: pytest.FixtureRequest, model: Model) -> tuple[str, list[float], np.ndarray]:
    """Data type and results with the data set on the device."""
    device = open_device()
    subject = Subject(device, model, BATCH, *examples(model, EXAMPLES, request.param))
    assert subject.data.resident
    result = (request.param, *train(subject))
    device.close()
    return result


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_streamed_equals_resident(
    model: Model, expected: tuple[str, list[float], np.ndarray], batches: int
) -> None:
    """Bit by bit, with chunks of some batches, over epochs with a smaller last batch."""
    dtype, losses, params = expected
    x, y = examples(model, EXAMPLES, dtype)
    row_nbytes = x.nbytes // len(x)
    device = open_device()
    subject = Subject(device, model, BATCH, x, y)
    subject.data.release()
    limits = type(device.allocator.limits)
    most = 2 * batches * BATCH * row_nbytes + row_nbytes
    device.allocator.limits = limits(most + 64, device.info.global_mem_nbytes, 4096)
    subject.data = device.load(x, y)
    assert not subject.data.resident
    before = device.traffic.upload_nbytes
    found = train(subject)
    assert found[0] == losses
    np.testing.assert_array_equal(found[1], params)
    assert device.traffic.upload_nbytes - before >= 2 * x.nbytes, "each epoch is uploaded"
    device.close()


def test_a_slow_upload_is_waited_for(
    model: Model,
    expected: tuple[str, list[float], np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the device: each upload is held back until after its gather was enqueued."""
    cl = pytest.importorskip("pyopencl")
    dtype, losses, params = expected
    x, y = examples(model, EXAMPLES, dtype)
    device = open_device()
    subject = Subject(device, model, BATCH, x, y)
    subject.data.release()
    limits = type(device.allocator.limits)
    device.allocator.limits = limits(x.nbytes // 2, device.info.global_mem_nbytes, 4096)
    subject.data = device.load(x, y)
    copy = cl.enqueue_copy

    def slow(queue: Any, *args: Any, wait_for: Any = (), **kwargs: Any) -> Any:
        if queue != device.transfer_queue:
            return copy(queue, *args, wait_for=wait_for, **kwargs)
        held = cl.UserEvent(device.context)
        event = copy(queue, *args, wait_for=[*wait_for, held], **kwargs)
        complete = cl.command_execution_status.COMPLETE
        threading.Timer(0.05, held.set_status, [complete]).start()
        return event

    monkeypatch.setattr(cl, "enqueue_copy", slow)
    found = train(subject)
    assert found[0] == losses
    np.testing.assert_array_equal(found[1], params)
    device.close()


def test_a_streamed_sample_has_its_share_of_the_transfer(model: Model) -> None:
    x, y = examples(model, EXAMPLES)
    device = open_device()
    subject = Subject(device, model, BATCH, x, y)
    subject.data.release()
    limits = type(device.allocator.limits)
    device.allocator.limits = limits(x.nbytes // 2, device.info.global_mem_nbytes, 4096)
    subject.data = device.load(x, y)
    subject.begin(np.arange(EXAMPLES, dtype=np.int32))
    subject.program.sample_next_step()
    subject.program.step(0, BATCH, HYPER)
    device.finish()
    assert device.traffic.sampled_steps == 1
    assert device.traffic.transfer_s > 0
    device.close()


def test_a_batch_that_cannot_be_streamed_is_refused(model: Model) -> None:
    x, y = examples(model, EXAMPLES)
    device = open_device()
    subject = Subject(device, model, BATCH, x, y)
    subject.data.release()
    limits = type(device.allocator.limits)
    row = x.nbytes // len(x)
    device.allocator.limits = limits(4 * row, device.info.global_mem_nbytes, 4096)
    subject.data = device.load(x, y)
    with pytest.raises(DeviceError, match="at most 3"):
        subject.begin(np.arange(EXAMPLES, dtype=np.int32))
    device.close()


@pytest.mark.parametrize("size", [1, 64])
def test_small_work_groups_give_the_same(
    model: Model, expected: tuple[str, list[float], np.ndarray], size: int
) -> None:
    dtype, losses, params = expected
    device = open_device(max_work_group_size=size)
    subject = Subject(device, model, BATCH, *examples(model, EXAMPLES, dtype))
    found = train(subject)
    assert found[0] == losses
    np.testing.assert_array_equal(found[1], params)
    device.close()


def test_what_does_not_fit_is_refused_before_it_runs() -> None:
    """Bytes needed, the limit, and the largest batch that fits, which indeed does."""
    model = load_model(Path("lenet5"))
    device = open_device(global_mem_nbytes=4 << 20)
    held = device.allocator.free_nbytes
    with pytest.raises(DeviceError, match=r"needs [\d,]+ bytes, .* 4,194,304") as caught:
        device.compile(model.whole, 1000)
    assert device.allocator.free_nbytes == held
    fits = int(str(caught.value).split("largest batch that fits is ")[1].split(":")[0])
    device.compile(model.whole, fits).release()
    with pytest.raises(DeviceError, match=f"fits is {fits}:"):
        device.compile(model.whole, fits + 1)
    device.close()


def test_a_buffer_over_the_largest_allocation_is_refused() -> None:
    model = load_model(Path("lenet5"))
    device = open_device(max_alloc_nbytes=1 << 20)
    with pytest.raises(DeviceError, match="largest is 1,048,576"):
        device.compile(model.whole, 1000)
    device.close()
    device = open_device(max_alloc_nbytes=1 << 10)
    with pytest.raises(DeviceError, match="not even one example fits"):
        device.compile(model.whole, 1)
    device.close()


def test_what_kernels_cannot_number_is_refused() -> None:
    """On a device with more memory than 32 bits number."""
    many = 1 << 50
    device = open_device(max_alloc_nbytes=many, global_mem_nbytes=many)
    with pytest.raises(DeviceError, match=r"kernels reach .* largest batch that fits is \d+"):
        device.compile(load_model(Path("lenet5")).whole, 10_000_000)
    device.close()


def test_what_was_planned_is_what_is_allocated(model: Model) -> None:
    device = open_device()
    everything = device.allocator.free_nbytes
    program = device.compile(model.whole, BATCH)
    plan = plan_segment(model.whole, BATCH, device.target)
    assert sum(plan.sizes) == program.usage.nbytes == program.nbytes
    assert everything - device.allocator.free_nbytes == program.nbytes
    device.close()


@pytest.mark.parametrize("resident", [True, False])
def test_what_a_round_holds_is_told(model: Model, resident: bool) -> None:
    device = open_device()
    everything = device.allocator.free_nbytes
    program = device.compile(model.whole, BATCH)
    x, y = examples(model, EXAMPLES)
    if not resident:
        limits = type(device.allocator.limits)
        device.allocator.limits = limits(x.nbytes // 2, device.info.global_mem_nbytes, 4096)
    data = device.load(x, y)
    program.begin_epoch(data, np.arange(EXAMPLES, dtype=np.int32), BATCH, 0)
    assert data.resident is resident
    assert everything - device.allocator.free_nbytes == program.nbytes + data.nbytes
    device.close()


def test_activations_in_several_buffers_give_the_same(
    model: Model, expected: tuple[str, list[float], np.ndarray]
) -> None:
    """Where the device has no allocation as large as all of them: bit by bit."""
    dtype, losses, params = expected
    whole = plan_segment(model.whole, BATCH, open_device().target).arena
    largest = max(slot.nbytes for slot in whole.places)
    device = open_device(max_alloc_nbytes=max(largest + 1024, 4 * (model.num_params + 64)))
    subject = Subject(device, model, BATCH, *examples(model, EXAMPLES, dtype))
    assert len(subject.program._arena) > len(whole.sizes) == 1  # type: ignore[attr-defined]
    subject.program.poison()
    found = train(subject)
    assert found[0] == losses
    np.testing.assert_array_equal(found[1], params)
    device.close()


def test_another_data_set_makes_no_kernels(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of a simulation take turns, for as many rounds as there are."""
    cl = pytest.importorskip("pyopencl")
    device = open_device()
    subject = Subject(device, model, BATCH, *examples(model, EXAMPLES))
    first, losses = subject.data, train(subject)
    others = [
        device.load(*examples(model, EXAMPLES, dtype, seed=1)) for dtype in ("float32", "uint8")
    ]
    for subject.data in others:
        train(subject, epochs=1)
    made: list[str] = []
    kernel = cl.Kernel
    monkeypatch.setattr(cl, "Kernel", lambda *args: made.append(args[1]) or kernel(*args))
    for subject.data in others:
        train(subject, epochs=1)
    subject.data = first
    again = train(subject)
    assert again[0] == losses[0]
    np.testing.assert_array_equal(again[1], losses[1])
    assert not made
    device.close()


def programs(device: OpenCLDevice) -> tuple[object, ...]:
    """All that was built."""
    return dict(device.programs._programs), dict(device.programs._joined)


def test_everything_is_given_back(model: Model) -> None:
    device = open_device()
    before = device.allocator.free_nbytes
    subject = Subject(device, model, BATCH, *examples(model, EXAMPLES))
    subject.epoch(HYPER)
    assert device.allocator.free_nbytes < before
    subject.release()
    assert device.allocator.free_nbytes == before
    subject.program.release()
    subject.data.release()
    device.close()


def test_a_split_step_moves_and_holds_what_it_must(model: Model) -> None:
    """Gradients and values once each way; their memory is made at the first exchange, and told."""
    device = open_device()
    everything = device.allocator.free_nbytes
    subject = Subject(device, model, BATCH, *examples(model, EXAMPLES))
    subject.gradients(BATCH)
    planned = subject.program.nbytes
    before, built = replace(device.traffic), programs(device)
    subject.program.add_grads(subject.program.take_grads())
    subject.program.update(HYPER)
    subject.program.put_values(subject.program.download())
    moved = device.traffic.since(before)
    assert moved.upload_nbytes == moved.download_nbytes == 2 * 4 * model.num_params
    assert planned + 4 * model.num_params <= subject.program.nbytes < planned + 5 * model.num_params
    assert everything - device.allocator.free_nbytes == subject.program.nbytes + subject.data.nbytes
    assert programs(device) == built
    subject.release()
    assert device.allocator.free_nbytes == everything
    device.close()


def test_the_last_batch_compiles_nothing(model: Model) -> None:
    device = open_device()
    subject = Subject(device, model, BATCH, *examples(model, EXAMPLES))
    subject.program.step(0, BATCH, HYPER)
    built = programs(device)
    for count in range(1, BATCH):
        subject.program.step(0, count, HYPER)
        subject.program.forward(count, training=False)
    assert programs(device) == built
    device.close()


def test_no_bytes_move_in_a_step(model: Model) -> None:
    """Parameters go up and down once a round, orders once an epoch, and nothing between."""
    device = open_device()
    subject = Subject(device, model, BATCH, *examples(model, EXAMPLES))
    device.finish()
    before = type(device.traffic)(**vars(device.traffic))
    subject.begin(np.arange(EXAMPLES, dtype=np.int32))
    for start in range(0, EXAMPLES - BATCH, BATCH):
        subject.program.step(start, BATCH, HYPER)
    device.finish()
    moved = device.traffic.since(before)
    assert (moved.upload_nbytes, moved.download_nbytes) == (4 * EXAMPLES + 8, 0)
    subject.program.upload(subject.params)
    subject.program.download()
    moved = device.traffic.since(before)
    params_nbytes = 4 * model.num_params
    assert moved.upload_nbytes == 4 * EXAMPLES + 8 + params_nbytes
    assert moved.download_nbytes == params_nbytes
    device.close()


def test_a_timed_step_may_end_without_an_update(
    model: Model, expected: tuple[str, list[float], np.ndarray]
) -> None:
    """As in an evaluation; it counts for nothing and disturbs nothing."""
    dtype, losses, params = expected
    device = open_device()
    subject = Subject(device, model, BATCH, *examples(model, EXAMPLES, dtype))
    subject.program.sample_next_step()
    subject.program.gather(0, BATCH)
    subject.program.forward(BATCH)
    found = train(subject)
    assert found[0] == losses
    np.testing.assert_array_equal(found[1], params)
    assert device.traffic.sampled_steps == 0
    device.close()


@pytest.fixture(scope="module")
def subject(model: Model) -> Iterator[Subject]:
    device = open_device()
    yield Subject(device, model, BATCH, *examples(model, EXAMPLES))
    device.close()


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda s: s.program.gather(3, 4), "visited by batches of 6"),
        (lambda s: s.program.gather(72, 4), "order of 75"),
        (lambda s: s.program.forward(7), "1 to 6"),
        (lambda s: s.program.upload(np.zeros(3, np.float32)), "shape"),
        (lambda s: s.begin(np.array([75], np.int32)), "75 loaded"),
        (lambda s: s.begin(np.array([-1], np.int32)), "75 loaded"),
        (lambda s: s.begin(np.arange(9, dtype=np.int32), 9), "holds 6"),
        (lambda s: s.program.put_input(np.zeros((7, 2, 9, 8), np.float32)), "up to 6"),
        (lambda s: s.program.take_input_grad(2), "own input"),
    ],
)
def test_misuse_is_refused(
    subject: Subject, misuse: Callable[[Subject], object], message: str
) -> None:
    subject.reset()
    with pytest.raises(ValueError, match=message):
        misuse(subject)


def test_model_without_parameters_in_a_segment() -> None:
    """A ReLU alone on the device: nothing to upload, update or read."""
    from client.model import Segment

    model = network([5], "relu", {"type": "linear", "out_features": 3})
    device = open_device()
    program = device.compile(Segment(model, 0, 1), 4)
    program.upload(np.empty(0, np.float32))
    x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
    program.put_input(x)
    program.forward(2)
    np.testing.assert_array_equal(program.take_output(2), np.maximum(x, 0))
    program.put_output_grad(x)
    program.backward(2)
    program.update(HYPER)
    assert program.download().size == program.read_grads().size == 0
    device.close()
