"""What an OpenCL device is measured by: our kernels, and transfers by each kind of memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from client.backends.exercises import LINK_KINDS, Exercise, Exercises, LinkKind
from client.backends.opencl import peak
from client.backends.opencl.calls import device_error, errors_as_ours
from client.backends.opencl.launch import Define, fitted, rounded
from client.backends.opencl.tiles import tile
from client.backends.opencl.transfer import through_map

if TYPE_CHECKING:
    from client.backends.opencl.device import OpenCLDevice


SLACK_NBYTES = 256
"""After each tensor: vectors are read over its end (see common.h.cl)."""


class OpenCLExercises(Exercises):
    """Kernels as a program enqueues them: arguments set once, on the device's own queue."""

    link_kinds = LINK_KINDS

    def __init__(self, device: OpenCLDevice) -> None:
        self._device = device
        self.link_used: LinkKind = "mapped" if device.info.unified_memory else "pageable"
        free_nbytes = device.allocator.free_nbytes // 4
        self.most_nbytes = min(device.allocator.limits.max_alloc_nbytes, free_nbytes)

    def gemm(self, m: int, n: int, k: int) -> Exercise:
        """By the kernel of a linear layer's input gradient, its tile chosen by shape alone."""
        target = self._device.target
        vectors = -(-n // target.vector)
        t = tile(m, vectors, target.accumulators, row_load=1.0)
        items = (-(-vectors // t.columns), -(-m // t.rows))
        defines: dict[str, Define] = {"TM": t.rows, "TN": t.columns}
        if target.rows_first:
            items, defines["ROWS_FIRST"] = (items[1], items[0]), 1
        buffers = self._buffers(*(4 * size + SLACK_NBYTES for size in (m * k, k * n, m * n)))
        a, b, c = ((buffer, np.int32(0)) for buffer in buffers)
        sizes = (np.int32(m), np.int32(n), np.int32(k))
        local = (target.large_group, 1)
        return self._kernel("gemm", "gemm", defines, [*a, *b, *c, *sizes], items, local, buffers)

    def copy(self, nbytes: int) -> Exercise:
        buffers = self._buffers(nbytes, nbytes)
        return self._copies(nbytes // (4 * self._device.target.vector), buffers)

    def launch(self) -> Exercise:
        """A kernel that copies a single vector."""
        width_nbytes = 4 * self._device.target.vector
        return self._copies(1, self._buffers(width_nbytes, width_nbytes))

    def _copies(self, vectors: int, buffers: list[cl.Buffer]) -> Exercise:
        group = peak.group(self._device)
        items = min(peak.items(self._device), -(-vectors // group) * group)
        args = [*buffers, np.int32(vectors), np.int32(items)]
        defines: dict[str, Define] = {"VW": self._device.target.vector}
        return self._kernel("peak", "copy_vectors", defines, args, (items,), (group,), buffers)

    def upload(self, nbytes: int, kind: LinkKind) -> Exercise:
        queue = self._device.queue
        (buffer,) = self._buffers(nbytes)
        if kind == "pinned":
            host, unpin = self._pinned(nbytes)
        else:
            host, unpin = np.ones(nbytes, np.uint8), None
        if kind == "mapped":
            write = cl.map_flags.WRITE_INVALIDATE_REGION
            enqueue = partial(through_map, queue, buffer, host, write, 0)
        else:
            enqueue = partial(cl.enqueue_copy, queue, buffer, host, is_blocking=True)
        return self._exercise(f"uploading {nbytes:,} bytes", enqueue, [buffer], unpin)

    def download(self, nbytes: int, kind: LinkKind) -> Exercise:
        queue = self._device.queue
        (buffer,) = self._buffers(nbytes)
        doing = f"downloading {nbytes:,} bytes"
        if kind == "pinned":
            host, unpin = self._pinned(nbytes)
            enqueue = partial(cl.enqueue_copy, queue, host, buffer, is_blocking=True)
            return self._exercise(doing, enqueue, [buffer], unpin)
        if kind == "mapped":

            def download() -> None:
                values = np.empty(nbytes, np.uint8)
                through_map(queue, buffer, values, cl.map_flags.READ, 0)
        else:

            def download() -> None:
                cl.enqueue_copy(queue, np.empty(nbytes, np.uint8), buffer, is_blocking=True)

        return self._exercise(doing, download, [buffer])

    # -- common to all -----------------------------------------------------------------------
    def _kernel(
        self,
        source: str,
        name: str,
        defines: dict[str, Define],
        args: list[Any],
        items: tuple[int, ...],
        local: tuple[int, ...],
        buffers: list[cl.Buffer],
    ) -> Exercise:
        device = self._device
        vector: dict[str, Define] = {"VW": device.target.vector}
        try:
            with errors_as_ours(device.info.name, f"preparing the kernel {name}"):
                kernel = cl.Kernel(
                    device.programs.get(source, tuple({**vector, **defines}.items())), name
                )
                kernel.set_args(*args)
                limit = kernel.get_work_group_info(
                    cl.kernel_work_group_info.WORK_GROUP_SIZE, device.context.devices[0]
                )
        except BaseException:
            self._free(buffers)
            raise
        local = fitted(local, min(limit, device.allocator.limits.max_work_group_size))
        size = rounded(items, local)
        enqueue = partial(cl.enqueue_nd_range_kernel, device.queue, kernel, size, local)
        return self._exercise(f"running the kernel {name}", enqueue, buffers)

    def _exercise(
        self,
        doing: str,
        enqueue: Callable[[], object],
        buffers: list[cl.Buffer],
        unpin: Callable[[], None] | None = None,
    ) -> Exercise:
        name = self._device.info.name

        def guarded(work: Callable[[], object]) -> Callable[[], None]:
            def run() -> None:
                try:
                    work()
                except cl.Error as e:
                    raise device_error(name, doing, e) from e

            return run

        def release() -> None:
            if unpin is not None:
                unpin()
            self._free(buffers)

        return Exercise(guarded(enqueue), guarded(self._device.queue.finish), release)

    def _buffers(self, *sizes: int) -> list[cl.Buffer]:
        """Filled with ones: nothing is slow to compute, and every page is there."""
        device, made = self._device, list[cl.Buffer]()
        try:
            for nbytes in sizes:
                whole = -(-nbytes // 4) * 4
                made.append(device.allocator.make(whole, "the probe"))
                with errors_as_ours(device.info.name, "filling a buffer"):
                    cl.enqueue_fill_buffer(device.queue, made[-1], np.float32(1), 0, whole)
        except BaseException:
            self._free(made)
            raise
        return made

    def _free(self, buffers: list[cl.Buffer]) -> None:
        for buffer in buffers:
            self._device.allocator.give_back(buffer)

    def _pinned(self, nbytes: int) -> tuple[NDArray[np.uint8], Callable[[], None]]:
        """Host memory that the driver allocated, mapped for as long as the exercise lasts."""
        device = self._device
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        with errors_as_ours(device.info.name, f"pinning {nbytes:,} bytes"):
            pinned = cl.Buffer(device.context, flags, nbytes)
            both = cl.map_flags.READ | cl.map_flags.WRITE
            host, event = cl.enqueue_map_buffer(
                device.queue, pinned, both, 0, (nbytes,), np.uint8, is_blocking=True
            )
            event.wait()
            host.fill(1)

        def unpin() -> None:
            with errors_as_ours(device.info.name, "freeing pinned memory"):
                host.base.release(device.queue).wait()
                pinned.release()

        return host, unpin
