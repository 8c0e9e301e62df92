"""The most that a device does, measured on it: multiply-adds in registers, copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyopencl as cl

from client.backends.figures import COPY_SIZES, Peaks
from client.backends.opencl.calls import errors_as_ours
from client.backends.opencl.joined import Variant

if TYPE_CHECKING:
    from client.backends.opencl.device import OpenCLDevice

LEAST_S = 0.002
"""A launch is made longer until it takes so long: what it costs to begin is small in it, and it is
still short enough to pass undisturbed on a machine that others use."""

MOST_ROUNDS = 2**24
REPEATS = 15
CHAINS = 10
GROUPS_PER_UNIT = {"cpu": 4, "gpu": 32}
"""Work-groups for each compute unit: as many as a GPU runs at a time; a CPU's are single items."""


def measure(device: OpenCLDevice) -> Peaks:
    """Each the best of some launches, by the device's own clock."""
    with errors_as_ours(device.info.name, "measuring its peaks"):
        return Peaks(_arithmetic(device), _copies(device), "multiply-adds in registers")


def _arithmetic(device: OpenCLDevice) -> float:
    width, num_items = device.target.vector, items(device)
    defines = (("CHAINS", CHAINS), ("VW", width))
    kernel = device.programs.kernel(Variant("peak", "multiply_adds", defines))
    result = device.allocator.make(4 * num_items, "peak")
    try:
        rounds = 64
        while True:
            kernel.set_args(result, np.int32(rounds))
            seconds = _shortest_s(device, kernel, num_items)
            if seconds >= LEAST_S or rounds >= MOST_ROUNDS:
                return 2 * CHAINS * width * num_items * rounds / seconds
            rounds *= 2
    finally:
        device.allocator.give_back(result)


def _copies(device: OpenCLDevice) -> tuple[tuple[int, float], ...]:
    """(bytes read and written, bytes a second) by size, within the device's limits."""
    width, num_items = device.target.vector, items(device)
    limits, free = device.allocator.limits, device.allocator.free_nbytes
    largest = min(limits.max_alloc_nbytes, free // 4)
    sizes = [n for n in COPY_SIZES if n <= largest]
    kernel = device.programs.kernel(Variant("peak", "copy_vectors", (("VW", width),)))
    buffers: list[cl.Buffer] = []
    try:
        for _ in range(2):
            buffers.append(device.allocator.make(sizes[-1], "peak"))
            cl.enqueue_fill_buffer(device.queue, buffers[-1], np.float32(1), 0, sizes[-1])
        device.queue.finish()
        found = []
        for nbytes in sizes:
            kernel.set_args(*buffers, np.int32(nbytes // (4 * width)), np.int32(num_items))
            seconds = _shortest_s(device, kernel, num_items)
            found.append((2 * nbytes, 2 * nbytes / seconds))
        return tuple(found)
    finally:
        for buffer in buffers:
            device.allocator.give_back(buffer)


def group(device: OpenCLDevice) -> int:
    """Work-items in a group of these kernels."""
    return min(device.target.large_group, device.allocator.limits.max_work_group_size)


def items(device: OpenCLDevice) -> int:
    """Work-items that keep the device busy."""
    groups = max(1, device.info.compute_units) * GROUPS_PER_UNIT[device.target.kind]
    return groups * group(device)


def _shortest_s(device: OpenCLDevice, kernel: cl.Kernel, num_items: int) -> float:
    local = (group(device),)
    taken: list[float] = []
    for _ in range(REPEATS):
        event = cl.enqueue_nd_range_kernel(device.profiling_queue, kernel, (num_items,), local)
        event.wait()
        taken.append(1e-9 * max(1, event.profile.end - event.profile.start))
    return min(taken)
