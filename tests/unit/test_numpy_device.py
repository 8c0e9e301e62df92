"""The numpy backend as a device: what it says of itself and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from client.backends import get
from client.backends.numpy import plan
from client.backends.numpy.device import THREAD_VARIABLES, NumpyDevice
from client.backends.numpy.ops.elementwise import ReLU
from client.backends.recipe import Recipe
from client.errors import DeviceError
from client.model import Model, build_model

INFO = get("numpy").devices()[0]


def model() -> Model:
    layers = ["flatten", {"type": "linear", "name": "fc", "out_features": 3}]
    return build_model({"name": "net", "input": {"shape": [1, 2, 2]}, "layers": layers}, "net")


def test_one_device_that_tells_what_results_depend_on() -> None:
    assert len(get("numpy").devices()) == 1
    assert (INFO.backend, INFO.kind, INFO.unified_memory) == ("numpy", "cpu", True)
    assert INFO.name
    assert INFO.compute_units >= 1
    assert INFO.global_mem_nbytes > 2**20
    assert re.fullmatch(r"numpy \d+\.\d+.*, .*(blas|mkl|accelerate).*", INFO.driver, re.IGNORECASE)
    assert INFO.key == get("numpy").devices()[0].key


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        ({}, 6),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "3"}, 3),
        ({"OPENBLAS_NUM_THREADS": "9"}, 6),
        ({"OPENBLAS_NUM_THREADS": "0"}, 6),
    ],
)
def test_threads_are_those_that_openblas_takes(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], threads: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)))
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert get("numpy").devices()[0].compute_units == threads


def test_a_part_has_less_memory_and_no_cores_of_its_own() -> None:
    part = get("numpy").open_part(INFO, memory_nbytes=1 << 20)
    assert part.info.global_mem_nbytes == 1 << 20
    assert part.largest_batch(model().whole, 10**9, Recipe()) < 10**6
    with pytest.raises(DeviceError, match=r"threads cannot be limited .* set one of OPENBLAS"):
        get("numpy").open_part(INFO, cores=1)


def test_too_little_memory_is_a_device_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise MemoryError("Unable to allocate 9.00 GiB")

    monkeypatch.setattr(plan.np, "zeros", full)
    with pytest.raises(DeviceError, match=r"'net' with batches of 64: Unable .* train\.batch"):
        NumpyDevice(INFO).compile(model().whole, 64)


def test_data_is_not_copied() -> None:
    x, y = np.zeros((5, 1, 2, 2), np.uint8), np.zeros(5, np.int32)
    device = NumpyDevice(INFO)
    data = device.load(x, y)
    assert (data.num_examples, data.resident, data.nbytes) == (5, True, 5 * 4 + 5 * 4)
    assert np.shares_memory(data.x, x)
    data.release()
    assert data.nbytes == 0
    assert (device.traffic.upload_nbytes, device.traffic.download_nbytes) == (0, 0)


def test_memory_of_a_program_is_told() -> None:
    """Parameters, gradients, velocity: 3 buffers of 15 floats; arena: x, x flat, y, dy."""
    program = NumpyDevice(INFO).compile(model().whole, 10)
    assert program.usage.params_nbytes == 3 * 15 * 4
    assert program.usage.arena_nbytes == (4 + 4 + 3 + 3) * 10 * 4


def test_work_out_of_order_is_refused() -> None:
    device = NumpyDevice(INFO)
    program = device.compile(model().whole, 4)
    with pytest.raises(RuntimeError, match="before begin_epoch"):
        program.gather(0, 1)
    data = device.load(np.zeros((9, 1, 2, 2), np.uint8), np.zeros(9, np.int32))
    with pytest.raises(ValueError, match="batches of 5, but the program holds 4"):
        program.begin_epoch(data, np.arange(9, dtype=np.int32), 5, 0)
    program.begin_epoch(data, np.arange(9, dtype=np.int32), 4, 0)
    with pytest.raises(ValueError, match="5 examples"):
        program.forward(5)
    program.gather(0, 4)
    program.forward(4)
    program.loss(4)
    program.backward(4)
    with pytest.raises(ValueError, match="own input"):
        program.take_input_grad(4)


@pytest.mark.parametrize(
    ("layers", "shared"),
    [
        (["conv", "relu"], True),
        (["pool", "relu"], False),  # pooling looks at its output again
        (["relu"], False),  # the network's input
        (["conv", {"type": "residual", "body": ["relu"]}], False),  # two readers
    ],
)
def test_relu_overwrites_only_what_nobody_reads_again(layers: list[Any], shared: bool) -> None:
    known = {
        "conv": {"type": "conv2d", "out_channels": 2, "kernel_size": 2},
        "pool": {"type": "maxpool2d", "kernel_size": 2},
    }
    full = [known.get(layer, layer) if isinstance(layer, str) else layer for layer in layers]
    end = ["flatten", {"type": "linear", "out_features": 2}]
    mapping = {"name": "net", "input": {"shape": [1, 4, 4]}, "layers": [*full, *end]}
    program = NumpyDevice(INFO).compile(build_model(mapping, "net").whole, 3)
    (relu,) = (f for f in program._plan(3).forward if isinstance(f, ReLU))
    assert np.shares_memory(relu.t.x[0], relu.t.y) == shared
