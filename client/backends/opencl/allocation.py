"""Buffers on a device, within its limits."""

from __future__ import annotations

from dataclasses import dataclass

import pyopencl as cl

from client.backends.device_info import DeviceInfo
from client.backends.opencl.calls import errors_as_ours
from client.errors import DeviceError


@dataclass(frozen=True)
class Limits:
    """A device's limits. A test sets them lower, to force streaming and small work-groups."""

    max_alloc_nbytes: int
    global_mem_nbytes: int
    max_work_group_size: int

    @classmethod
    def of(cls, info: DeviceInfo) -> Limits:
        return cls(info.max_alloc_nbytes, info.global_mem_nbytes, info.max_work_group_size)


class Allocator:
    """Makes buffers and keeps count of them."""

    def __init__(self, context: cl.Context, info: DeviceInfo, limits: Limits) -> None:
        self._context, self._info, self.limits = context, info, limits
        self._sizes: dict[int, int] = {}  # by the buffer's handle
        self.peak_nbytes = 0  # most at one time

    @property
    def free_nbytes(self) -> int:
        return self.limits.global_mem_nbytes - sum(self._sizes.values())

    def refusal(self, sizes: list[int], room: int | None = None) -> str:
        """Why buffers of these sizes cannot be made in ``room`` bytes; empty if they can.

        Without ``room``, in all that is free.
        """
        room = self.free_nbytes if room is None else room
        if max(sizes) > self.limits.max_alloc_nbytes:
            return (
                f"needs a buffer of {max(sizes):,} bytes, "
                f"the device's largest is {self.limits.max_alloc_nbytes:,}"
            )
        if sum(sizes) > room:
            return f"needs {sum(sizes):,} bytes, the device has {room:,} left"
        return ""

    def make(self, nbytes: int, what: str) -> cl.Buffer:
        """A buffer; DeviceError where it does not fit.

        Where host and device share memory it lies where both reach it, so that mapping it copies
        nothing.
        """
        refusal = self.refusal([nbytes])
        if refusal:
            raise DeviceError(f"{self._info.name}: {what}: {refusal}")
        flags = cl.mem_flags.READ_WRITE
        if self._info.unified_memory:
            flags |= cl.mem_flags.ALLOC_HOST_PTR
        with errors_as_ours(self._info.name, f"allocating {nbytes:,} bytes for {what}"):
            buffer = cl.Buffer(self._context, flags, nbytes)
        self._sizes[buffer.int_ptr] = nbytes
        self.peak_nbytes = max(self.peak_nbytes, sum(self._sizes.values()))
        return buffer

    def give_back(self, buffer: cl.Buffer) -> None:
        """Free a buffer that ``make`` made; the driver waits for commands that use it."""
        del self._sizes[buffer.int_ptr]
        with errors_as_ours(self._info.name, "freeing a buffer"):
            buffer.release()
