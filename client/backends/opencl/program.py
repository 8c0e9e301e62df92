"""A segment's program on a device: buffers, prepared launches, and the loop that enqueues them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from client.backends.base import DeviceData, Program
from client.backends.figures import Command, Metrics, Part, Usage
from client.backends.opencl.calls import device_error, errors_as_ours
from client.backends.opencl.compiling import CONTENT_FREE, Work, compile_ahead
from client.backends.opencl.data import OpenCLData
from client.backends.opencl.epoch import Epoch
from client.backends.opencl.exchange import Exchange
from client.backends.opencl.joined import Variant
from client.backends.opencl.launch import OPTIONS, Launch, Memory, Slot
from client.backends.opencl.plan import SegmentPlan
from client.backends.opencl.prepare import Binder, Prepared
from client.backends.opencl.program_cache import Built
from client.backends.opencl.sampling import Sample
from client.backends.opencl.update import Update
from client.backends.opencl.work import describe
from client.backends.recipe import Hyper
from client.backends.state import State
from client.model.graph import Float32Array

if TYPE_CHECKING:
    from client.backends.opencl.device import OpenCLDevice

ZEROED = (Memory.EXAMPLES, Memory.LABELS, Memory.METRICS, Memory.DROPOUT_KEY, Memory.ZEROS)
"""Buffers that begin as zeros: a segment may run without a ``gather`` before it."""


class OpenCLProgram(Program):
    """See ``Program``. Launches are prepared once for each size of batch."""

    def __init__(self, device: OpenCLDevice, plan: SegmentPlan) -> None:
        self.segment, self.capacity, self.recipe = plan.segment, plan.capacity, plan.recipe
        self._device, self._plan = device, plan
        self._buffers: dict[Memory, cl.Buffer] = {}
        self._arena: list[cl.Buffer] = []  # in plan.arena's numbers: the gradients', its own
        self._forward: dict[tuple[int, bool], list[Prepared]] = {}
        self._loss: dict[int, list[Prepared]] = {}
        self._loss_scale: dict[int, float] = {}
        self._backward: dict[int, list[Prepared]] = {}
        self._epoch = Epoch(device, plan, self._bind)
        self._exchange = Exchange(device, plan, self._buffers, self._bind)
        self._between_slices = False
        self._count = 0  # predictions since the last reading
        self._next_sample: Sample | None = None
        self._sample: Sample | None = None
        try:
            for memory, nbytes in plan.nbytes.items():
                self._buffers[memory] = device.allocator.make(nbytes, memory.name.lower())
            self._arena.append(self._buffers[Memory.GRADS])
            for nbytes in plan.arena.sizes:
                self._arena.append(device.allocator.make(nbytes, "activations"))
            self._binder = Binder(
                device.context.devices[0],
                device.programs,
                self._buffers,
                self._arena,
                plan.arena.places,
                device.allocator.limits.max_work_group_size,
            )
            with errors_as_ours(device.info.name, "clearing buffers"):
                for memory in ZEROED:
                    self._fill(memory, 0)
            if plan.class_weights:
                weights = np.array(plan.class_weights, np.float32)
                device.upload(self._buffers[Memory.CLASS_WEIGHTS], weights, wait=True)
            self._update = self._prepare(self.capacity)
        except BaseException:
            self._free()
            raise
        flat = (Memory.PARAMS, Memory.GRADS, Memory.HELD, Memory.OPT_STATE, Memory.ROUND_START)
        self.usage = Usage(
            params_nbytes=sum(n for memory, n in plan.nbytes.items() if memory in flat),
            arena_nbytes=plan.arena.nbytes,
            other_nbytes=sum(n for memory, n in plan.nbytes.items() if memory not in flat),
            launches=plan.step_launches,
            variants=plan.variants,
        )

    @property
    def nbytes(self) -> int:
        return self.usage.nbytes + self._epoch.nbytes + self._exchange.nbytes

    def _prepare(self, count: int) -> Update:
        """Build everything a step needs, so that a compile error comes now."""
        plan = self._plan
        with errors_as_ours(self._device.info.name, "building kernels"):
            launches = {Variant.of(launch): launch for launch in plan.all_launches}
            built = self._device.programs.build(launches)
            if built is not None:
                compile_ahead(self._work(built, launches), built.program, self._device.queue)
        self._forward[count, True] = self._bind(plan.forward, count, "training")
        self._backward[count] = self._bind(plan.backward, count, "training")
        self._loss[count] = self._bind(plan.loss, count, "training")
        update = Update(
            self._device.info.name,
            self.recipe,
            clip=self._bind(plan.clip, count, "training"),
            update=self._bind(plan.update, count, "training"),
            accumulate=self._bind(plan.accumulate, count, "training"),
        )
        self._device.programs.save()
        return update

    def _work(self, built: Built, launches: Mapping[Variant, Launch]) -> Work:
        """The kernels of a program that was compiled, to be compiled to their end."""
        names, capacity = built.joined.names, self.capacity
        return Work(
            device=self._device.info.key,
            text=built.joined.text,
            options=OPTIONS,
            nbytes=max(self._plan.sizes),
            jobs=tuple(
                self._binder.job(launch, names[variant], capacity)
                for variant, launch in launches.items()
                if variant in names and launch.source in CONTENT_FREE
            ),
        )

    def _bind(self, launches: Sequence[Launch], count: int, mode: str) -> list[Prepared]:
        self._check_count(count)
        with errors_as_ours(self._device.info.name, f"preparing a batch of {count}"):
            return [
                self._binder.prepare(launch, count)
                for launch in launches
                if launch.mode in ("always", mode)
            ]

    # -- a round ---------------------------------------------------------------------------
    def upload(self, params: Float32Array) -> None:
        self._check_values(params)
        buffers = self._buffers
        self._exchange.put_values(params, self._sample)
        with errors_as_ours(self._device.info.name, "beginning a round"):
            self._fill(Memory.GRADS, 0)
            self._fill(Memory.OPT_STATE, 0)
            for run, at in self.segment.trained_places if self.recipe.proximal else ():
                cl.enqueue_copy(
                    self._device.stream(self._sample),
                    buffers[Memory.ROUND_START],
                    buffers[Memory.PARAMS],
                    src_offset=4 * run.start,
                    dst_offset=4 * at,
                    byte_count=4 * (run.stop - run.start),
                )
        self._update.updates = 0

    def download(self) -> Float32Array:
        return self._exchange.take_values(self._sample)

    def put_values(self, values: Float32Array) -> None:
        self._check_values(values)
        self._exchange.put_values(values, self._sample)
        if self._sample is not None:
            self._end_sample()

    def read_state(self) -> State:
        return self._exchange.read_state(self._update.updates)

    def write_state(self, state: State) -> None:
        self._exchange.write_state(state)
        self._update.updates = state.updates

    # -- an epoch --------------------------------------------------------------------------
    def begin_epoch(
        self, data: DeviceData, order: NDArray[np.int32], batch: int, dropout_key: int
    ) -> None:
        if not isinstance(data, OpenCLData):
            raise TypeError("the data set was loaded by another backend")
        self._check_batch(batch)
        self._check_order(order, data.num_examples)
        data.check(self.segment.model, self.recipe.loss)
        if self._sample is not None:  # a step without an update: not a training step
            self._leave_profiling_queue()
        self._between_slices = False
        self._epoch.begin(data, np.array(order, np.int32), batch)
        key = np.array([dropout_key & 0xFFFFFFFF, dropout_key >> 32], np.uint32)
        self._device.upload(self._buffers[Memory.DROPOUT_KEY], key, wait=False)

    def read_metrics(self) -> Metrics:
        words = self._read(Memory.METRICS, (3, self._plan.metrics_places), np.int32)
        with errors_as_ours(self._device.info.name, "clearing the metrics"):
            self._fill(Memory.METRICS, 0)
        count, self._count = self._count, 0
        loss_sum, weight = words[[0, 2]].view(np.float32).sum(axis=1, dtype=np.float64)
        return Metrics(
            loss_sum=float(loss_sum),
            correct=int(words[1].sum()) if self.recipe.loss.has_accuracy else None,
            count=count,
            weight=float(weight) if self._plan.class_weights else float(count),
        )

    # -- a step ----------------------------------------------------------------------------
    def gather(self, start: int, count: int) -> None:
        self._check_gather(start, count, self._epoch.num_ordered, self._epoch.batch)
        launches, wait_for = self._epoch.gather(start, count)
        if not self._between_slices:
            self._begin_sample()
        self._between_slices = False
        event = self._run("gather", launches, wait_for)
        assert event is not None
        self._epoch.gathered(start, count, event, self._sample)

    def forward(self, count: int, training: bool = True) -> None:
        key = (count, training)
        if key not in self._forward:
            mode = "training" if training else "evaluation"
            self._forward[key] = self._bind(self._plan.forward, count, mode)
        self._run("forward", self._forward[key])

    def weight(self, start: int, count: int) -> float:
        return self.recipe.loss.weight(self._epoch.labels(start, count))

    def loss(self, count: int, total: float | None = None) -> None:
        if not self._plan.loss:
            raise ValueError("the loss belongs to the last segment")
        if count not in self._loss:
            self._loss[count] = self._bind(self._plan.loss, count, "training")
        if total is None:  # with class weights, what the rows weigh is summed on the device
            total = 0.0 if self._plan.class_weights else count * self._plan.label_elements
        self._set_loss_scale(count, 1 / total if total else 0.0)
        self._run("loss", self._loss[count])
        self._count += count * self._plan.label_elements

    def _set_loss_scale(self, count: int, scale: float) -> None:
        """Set the last argument of the loss itself, which is the last of its launches."""
        if self._loss_scale.get(count) != scale:
            loss = self._loss[count][-1]
            with errors_as_ours(self._device.info.name, "preparing the loss"):
                loss.kernel.set_arg(loss.num_args, np.float32(scale))
            self._loss_scale[count] = scale

    def backward(self, count: int) -> None:
        if count not in self._backward:
            self._backward[count] = self._bind(self._plan.backward, count, "training")
        self._run("backward", self._backward[count])

    def accumulate(self, first: bool, last: bool) -> None:
        self._check_accumulates()
        self._run("backward", self._update.accumulate(first, last))
        self._between_slices = not last

    def grad_squares(self, hyper: Hyper) -> float:
        self._check_proximal(hyper)
        self._run("update", self._update.squares(hyper))
        sums = self._device.download(
            self._buffers[Memory.CLIP], (self._plan.squares,), np.float32, 4, self._sample
        )
        return float(sums.sum(dtype=np.float64))

    def update(self, hyper: Hyper, norm: float | None = None) -> None:
        self._check_proximal(hyper)
        if hyper.clip_norm and norm is not None:
            self._set_clip_factor(hyper.clip_factor(norm))
        self._run("update", self._update.step(hyper, own_norm=norm is None))
        if self._sample is not None:
            self._end_sample()

    def _set_clip_factor(self, factor: float) -> None:
        queue, value = self._device.stream(self._sample), np.float32(factor)
        with errors_as_ours(self._device.info.name, "setting the norm of the gradients"):
            event = cl.enqueue_fill_buffer(queue, self._buffers[Memory.CLIP], value, 0, 4)
        if self._sample is not None:
            self._sample.add("copy", event)

    def _run(
        self, part: Part, launches: list[Prepared], wait_for: list[cl.Event] | None = None
    ) -> cl.Event | None:
        """Enqueue; returns the last event."""
        sample = self._sample
        queue = self._device.stream(sample)
        enqueue = cl.enqueue_nd_range_kernel
        event: cl.Event | None = None
        p: Prepared | None = None
        try:
            for p in launches:
                event = enqueue(queue, p.kernel, p.global_size, p.local_size, wait_for=wait_for)
                wait_for = None
                if sample is not None:
                    what = self._describe(p, part) if sample.wanted is not None else None
                    sample.add(p.launch.busy, event, what=what)
        except cl.Error as e:
            assert p is not None
            doing = f"kernel {p.launch.kernel} of {p.launch.op} {p.launch.variant}".strip()
            raise device_error(self._device.info.name, doing, e) from e
        if event is not None:
            self._device.enqueued(event)
        return event

    # -- sampled steps -----------------------------------------------------------------------
    def sample_next_step(self, commands: list[Command] | None = None) -> None:
        self._next_sample = Sample(commands)

    def _describe(self, prepared: Prepared, part: Part) -> Command:
        return describe(prepared.launch, part, prepared.count, self._plan, self._epoch.itemsize)

    def _begin_sample(self) -> None:
        if self._sample is not None:  # a step without an update: not a training step
            self._leave_profiling_queue()
        if self._next_sample is not None:
            device = self._device
            with errors_as_ours(device.info.name, "beginning a timed step"):
                before = cl.enqueue_marker(device.queue)
                device.queue.flush()
                cl.enqueue_barrier(device.profiling_queue, wait_for=[before])
            self._sample, self._next_sample = self._next_sample, None

    def _end_sample(self) -> None:
        assert self._sample is not None
        self._device.samples.add(self._sample)
        self._leave_profiling_queue()

    def _leave_profiling_queue(self) -> None:
        device, self._sample = self._device, None
        with errors_as_ours(device.info.name, "ending a timed step"):
            after = cl.enqueue_marker(device.profiling_queue)
            device.profiling_queue.flush()
            cl.enqueue_barrier(device.queue, wait_for=[after])

    # -- boundaries and tests --------------------------------------------------------------
    def put_input(self, x: Float32Array) -> None:
        self._put(self._plan.input, self.segment.input, x)

    def take_output(self, count: int) -> Float32Array:
        return self._take(self._plan.output, self.segment.output, count)

    def put_output_grad(self, dy: Float32Array) -> None:
        if self._plan.output_grad is not None:  # nothing before it is trained
            self._put(self._plan.output_grad, self.segment.output, dy)

    def take_input_grad(self, count: int) -> Float32Array:
        self._check_input_grad()
        assert self._plan.input_grad is not None
        return self._take(self._plan.input_grad, self.segment.input, count)

    def _put(self, slot: Slot, tensor: int, values: Float32Array) -> None:
        shape = self.segment.model.tensors[tensor]
        if values.shape[1:] != shape or not 0 < len(values) <= self.capacity:
            raise ValueError(f"found shape {values.shape}, needs up to {self.capacity} of {shape}")
        place = self._plan.arena.places[slot]
        self._device.upload(
            self._arena[place.buffer],
            np.ascontiguousarray(values, np.float32),
            wait=True,
            offset_nbytes=4 * place.offset,
            sample=self._sample,
        )

    def _take(self, slot: Slot, tensor: int, count: int) -> Float32Array:
        shape = (count, *self.segment.model.tensors[tensor])
        place = self._plan.arena.places[slot]
        return self._device.download(
            self._arena[place.buffer], shape, np.float32, 4 * place.offset, self._sample
        )

    def take_grads(self) -> Float32Array:
        return self._exchange.take_grads(self._sample)

    def add_grads(self, grads: Float32Array, *, replace: bool = False) -> None:
        self._check_grads(grads)
        self._run("backward", self._exchange.put_grads(grads, replace, self._sample))

    def read_grads(self) -> Float32Array:
        return self.segment.all_grads(self.take_grads())

    def _read(self, memory: Memory, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        return self._device.download(self._buffers[memory], shape, dtype, sample=self._sample)

    def poison(self) -> None:
        with errors_as_ours(self._device.info.name, "filling with NaN"):
            for buffer in self._arena:
                self._fill_buffer(buffer, np.nan)
            for memory in (Memory.HELD, Memory.RECEIVED):
                if memory in self._buffers:
                    self._fill(memory, np.nan)

    def _fill(self, memory: Memory, value: float) -> None:
        self._fill_buffer(self._buffers[memory], value)

    def _fill_buffer(self, buffer: cl.Buffer, value: float) -> None:
        queue = self._device.stream(self._sample)
        cl.enqueue_fill_buffer(queue, buffer, np.float32(value), 0, buffer.size)

    def release(self) -> None:
        if not self._buffers:
            return
        self._device.finish()
        self._free()
        self._device.released(self)

    def _free(self) -> None:
        self._epoch.release()
        for buffer in (*self._buffers.values(), *self._arena[1:]):
            self._device.allocator.give_back(buffer)
        self._buffers.clear()
        self._arena.clear()
        for prepared in (self._forward, self._loss, self._backward):
            prepared.clear()
        self._update = Update(self._device.info.name, self.recipe, [], [], [])
