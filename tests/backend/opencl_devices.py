"""OpenCL devices as the tests want them: with lower limits, or with another device's kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from client.backends.base import DeviceInfo
from client.errors import DeviceError

if TYPE_CHECKING:
    from client.backends.opencl.device import OpenCLDevice
    from client.backends.opencl.tiles import Target


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
