"""OpenCL devices as the tests want them: with lower limits, or with another device's kernels.

The whole suite runs on a stand-in for each device where POCKETFED_TEST_OPENCL names one:

- ``restricted``: work-groups of at most 64, buffers of at most 64 MB (that no kernel needs an
  optional extension is tested everywhere);
- ``one-core``: a sub-device with one compute unit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from client.backends.device_info import DeviceInfo
from client.errors import DeviceError

if TYPE_CHECKING:
    from client.backends.opencl.device import OpenCLDevice
    from client.backends.opencl.tiles import Target

STAND_IN = os.environ.get("POCKETFED_TEST_OPENCL", "")

Found = list[tuple[DeviceInfo, Any]]


def stand_in() -> None:
    """Let discovery find the stand-ins that the environment asks for."""
    if not STAND_IN:
        return
    from client.backends.opencl import discover

    make = {"restricted": _restricted, "one-core": _one_core}[STAND_IN]
    find: Callable[[], Found] = discover.find
    discover.find = lambda: [make(*found) for found in find()]


def _restricted(info: DeviceInfo, device: Any) -> tuple[DeviceInfo, Any]:
    return replace(info, max_alloc_nbytes=64 << 20, max_work_group_size=64), device


def _one_core(info: DeviceInfo, device: Any) -> tuple[DeviceInfo, Any]:
    from client.backends.opencl.discover import part_of

    info, part = part_of(info, device, 1)
    assert part.max_compute_units == 1
    return info, part


def first_device() -> DeviceInfo:
    """The first OpenCL device; skips where there is none, with the reason."""
    from client.backends import get

    try:
        infos = get("opencl").devices()
    except DeviceError as e:
        pytest.skip(f"opencl: {e}")
    if not infos:
        pytest.skip("opencl: no device found")
    return infos[0]


def open_device(
    *,
    max_alloc_nbytes: int | None = None,
    global_mem_nbytes: int | None = None,
    max_work_group_size: int | None = None,
    target: Target | None = None,
) -> OpenCLDevice:
    """The first device, with limits of one's own where they are given."""
    info = first_device()
    from client.backends.opencl.allocation import Limits
    from client.backends.opencl.device import OpenCLDevice
    from client.backends.opencl.discover import find

    limits = Limits(
        max_alloc_nbytes or info.max_alloc_nbytes,
        global_mem_nbytes or info.global_mem_nbytes,
        max_work_group_size or info.max_work_group_size,
    )
    device = next(device for found, device in find() if found == info)
    return OpenCLDevice(device, info, limits, target)
