"""From a launch as data to a kernel with its arguments set, ready to be enqueued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyopencl as cl

from client.backends.opencl.compiling import Job
from client.backends.opencl.joined import Variant
from client.backends.opencl.launch import (
    Arg,
    At,
    Launch,
    Memory,
    PerCount,
    Slot,
    Symbol,
    UInt,
    fitted,
    rounded,
)
from client.backends.opencl.memory import Place
from client.backends.opencl.program_cache import ProgramCache


@dataclass(frozen=True)
class Prepared:
    """A kernel object of its own; the first ``num_args`` arguments are set."""

    launch: Launch
    kernel: cl.Kernel
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    num_args: int
    count: int


@dataclass(frozen=True)
class Binder:
    """Sets arguments: where tensors lie, and what depends on the batch."""

    device: cl.Device
    programs: ProgramCache
    buffers: Mapping[Memory, cl.Buffer]
    arena: Sequence[cl.Buffer]
    places: Mapping[Slot, Place]
    max_group: int

    def prepare(self, launch: Launch, count: int) -> Prepared:
        """``launch`` for a batch of ``count`` rows."""
        kernel = self.programs.kernel(Variant.of(launch))
        values = [value for arg in launch.args for value in self._values(arg, count)]
        for i, value in enumerate(values):
            kernel.set_arg(i, value)
        local = self._local(launch, kernel)
        size = rounded(launch.items(count), local)
        return Prepared(launch, kernel, size, local, len(values), count)

    def job(self, launch: Launch, name: str, count: int) -> Job:
        """What compiles the kernel of ``launch``, which is called ``name`` in its program."""
        values = [value for arg in launch.args for value in self._values(arg, count)]
        args = (None if isinstance(v, cl.Buffer) else (v.dtype.name, v.item()) for v in values)
        kernel = self.programs.kernel(Variant.of(launch))
        return Job(name, self._local(launch, kernel), tuple(args))

    def _local(self, launch: Launch, kernel: cl.Kernel) -> tuple[int, ...]:
        limit = kernel.get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, self.device)
        return fitted(launch.local, min(limit, self.max_group))

    def _values(self, arg: Arg, count: int) -> tuple[cl.Buffer | np.generic, ...]:
        match arg:
            case Slot():
                place = self.places[arg]
                return self.arena[place.buffer], np.int32(place.offset)
            case At(memory, offset):
                return self.buffers[memory], np.int32(offset)
            case Memory():
                return (self.buffers[arg],)
            case Symbol.COUNT:
                return (np.int32(count),)
            case PerCount(factor):
                return (np.int32(factor * count),)
            case UInt(value):
                return (np.uint32(value),)
            case int():
                return (np.int32(arg),)
            case float():
                return (np.float32(arg),)
        raise TypeError(f"no kernel argument: {arg!r}")
