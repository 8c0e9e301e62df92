"""What passes between programs that train one network: gradients, values, optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyopencl as cl

from client.backends.opencl.calls import errors_as_ours
from client.backends.opencl.launch import Launch, Memory
from client.backends.opencl.lower.optimizer import flat_elements, lower_receive
from client.backends.opencl.plan import SegmentPlan
from client.backends.opencl.prepare import Prepared
from client.backends.opencl.sampling import Sample
from client.backends.recipe import OPTIMIZER_STATES
from client.backends.state import State
from client.model.graph import Float32Array

if TYPE_CHECKING:
    from client.backends.opencl.device import OpenCLDevice

Bind = Callable[[Sequence[Launch], int, str], list[Prepared]]
"""Prepares launches for a size of batch and a mode."""


class Exchange:
    """Between a program's flat buffers and the host.

    Where gradients are received into is made when the first ones come: a program that trains alone
    has no such memory. It is freed with ``buffers``, the program's.
    """

    def __init__(
        self,
        device: OpenCLDevice,
        plan: SegmentPlan,
        buffers: dict[Memory, cl.Buffer],
        bind: Bind,
    ) -> None:
        self._device, self._plan, self._buffers, self._bind = device, plan, buffers, bind
        self._receive: list[Prepared] | None = None

    @property
    def nbytes(self) -> int:
        """Held on the device, beside what was planned."""
        received = self._buffers.get(Memory.RECEIVED)
        return 0 if received is None else int(received.size)

    def put_values(self, values: Float32Array, sample: Sample | None) -> None:
        """To the parameters and buffers."""
        array = np.ascontiguousarray(values, np.float32)
        self._device.upload(self._buffers[Memory.PARAMS], array, wait=True, sample=sample)

    def take_values(self, sample: Sample | None) -> Float32Array:
        """Parameters and buffers."""
        return self._take(Memory.PARAMS, self._plan.segment.num_values, sample=sample)

    def take_grads(self, sample: Sample | None) -> Float32Array:
        """Those of the trained parameters."""
        return self._take(Memory.GRADS, self._plan.segment.num_trained, sample=sample)

    def put_grads(
        self, grads: Float32Array, replace: bool, sample: Sample | None
    ) -> list[Prepared]:
        """Receive gradients; the launch that adds them up, none where nothing is trained."""
        launches = self._prepared()
        for launch in launches:
            array = np.ascontiguousarray(grads, np.float32)
            self._device.upload(self._buffers[Memory.RECEIVED], array, wait=True, sample=sample)
            with errors_as_ours(self._device.info.name, "adding up gradients"):
                launch.kernel.set_arg(launch.num_args, np.int32(not replace))
        return launches

    def _prepared(self) -> list[Prepared]:
        if self._receive is None:
            plan = self._plan
            if plan.segment.num_trained:
                nbytes = 4 * flat_elements(plan.segment)
                what = "gradients of another program"
                self._buffers[Memory.RECEIVED] = self._device.allocator.make(nbytes, what)
            launches = lower_receive(plan.segment, plan.recipe, plan.target)
            self._receive = self._bind(launches, plan.capacity, "training")
        return self._receive

    def read_state(self, updates: int) -> State:
        """Wait; values and optimizer state after so many updates."""
        slots = [
            self._take(Memory.OPT_STATE, self._plan.segment.num_trained, at) for at in self._slots
        ]
        return State(self.take_values(None), np.stack(slots), updates)

    def write_state(self, state: State) -> None:
        """Set values and optimizer state."""
        state.check(self._plan.segment, len(self._slots))
        self.put_values(state.values, None)
        for at, slot in zip(self._slots, state.slots, strict=True):
            array = np.ascontiguousarray(slot, np.float32)
            self._device.upload(self._buffers[Memory.OPT_STATE], array, wait=True, offset_nbytes=at)

    @property
    def _slots(self) -> list[int]:
        """Where each of the optimizer's numbers for the trained parameters begins, in bytes."""
        flat = 4 * flat_elements(self._plan.segment)
        return [i * flat for i in range(OPTIMIZER_STATES[self._plan.recipe.optimizer])]

    def _take(
        self, memory: Memory, elements: int, offset_nbytes: int = 0, sample: Sample | None = None
    ) -> Float32Array:
        return self._device.download(
            self._buffers[memory], (elements,), np.float32, offset_nbytes, sample
        )
