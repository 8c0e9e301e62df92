"""pyopencl's errors as ours: one wrapper, with the device and what was being done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyopencl as cl

from client.errors import DeviceError


def device_error(device: str, doing: str, error: cl.Error) -> DeviceError:
    """One line: device, what was being done, and what OpenCL answered."""
    answer = " ".join(str(error).split())
    return DeviceError(f"{device}: {doing}: {answer}")


@contextmanager
def errors_as_ours(device: str, doing: str) -> Iterator[None]:
    """DeviceError for any pyopencl error in the enclosed calls."""
    try:
        yield
    except cl.Error as e:
        raise device_error(device, doing, e) from e
