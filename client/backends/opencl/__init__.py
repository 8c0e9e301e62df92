"""Training on OpenCL devices: GPUs, and CPUs through PoCL or another driver.

Importing this package imports neither pyopencl nor a driver; ``devices()`` and ``open()`` do.
From the model to the device: ``lower`` (operations -> launches), ``plan`` (and memory), both
free of any device; ``program_cache`` (build), ``program`` (enqueue), ``device``, ``data``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from client.backends.base import Backend, Device
from client.backends.device_info import DeviceInfo
from client.errors import DeviceError


class OpenCLBackend(Backend):
    """All devices of all OpenCL platforms of this machine."""

    name: ClassVar[str] = "opencl"

    def devices(self) -> list[DeviceInfo]:
        from client.backends.opencl.discover import find

        return [info for info, _ in find()]

    def open(self, info: DeviceInfo) -> Device:
        return self.open_part(info)

    def open_part(
        self, info: DeviceInfo, cores: int | None = None, memory_nbytes: int | None = None
    ) -> Device:
        """``cores``: compute units of a sub-device, which PoCL has and most GPUs have not."""
        from client.backends.opencl.allocation import Limits
        from client.backends.opencl.device import OpenCLDevice
        from client.backends.opencl.discover import find, part_of

        device = next((device for found, device in find() if found == info), None)
        if device is None:
            raise DeviceError(f"{info.name} ({info.platform}): the device is no longer there")
        if cores is not None:
            info, device = part_of(info, device, cores)
        if memory_nbytes is not None:
            most_nbytes = min(memory_nbytes, info.max_alloc_nbytes)
            info = replace(info, global_mem_nbytes=memory_nbytes, max_alloc_nbytes=most_nbytes)
        return OpenCLDevice(device, info, Limits.of(info))

    def tuning(self, info: DeviceInfo) -> str:
        from client.backends.opencl import tiles, tuned

        return tuned.describe(info, tiles.shipped_for(info))

    def tune(
        self,
        info: DeviceInfo,
        models: Sequence[str],
        batch: int,
        budget_s: float,
        say: Callable[[str], None],
    ) -> None:
        from client.backends.opencl import tuning

        tuning.tune(info, models, batch, budget_s, say)


BACKEND = OpenCLBackend()

__all__ = ["BACKEND"]
