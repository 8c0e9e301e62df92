"""A segment's program on a device: buffers, prepared launches, and the loop that enqueues them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from client.backends.base import DeviceData, Program
from client.backends.figures import Command, Metrics, Part, Usage
from client.backends.opencl.calls import device_error, errors_as_ours
from client.backends.opencl.data import Feed, OpenCLData, ResidentFeed, StreamFeed
from client.backends.opencl.launch import Launch, Memory, Slot
from client.backends.opencl.plan import SegmentPlan, gather_launches
from client.backends.opencl.prepare import Binder, Prepared
from client.backends.opencl.sampling import Sample
from client.backends.opencl.work import describe
from client.backends.recipe import Hyper
from client.model.graph import Float32Array

if TYPE_CHECKING:
    from client.backends.opencl.device import OpenCLDevice

ZEROED = (Memory.EXAMPLES, Memory.LABELS, Memory.METRICS, Memory.DROPOUT_KEY, Memory.ZEROS)
"""Buffers that begin as zeros: a segment may run without a ``gather`` before it."""

ADAM_SCALES = 9
"""Place of the two arguments of the kernel adam that change with every update, after the others."""


class OpenCLProgram(Program):
    """See ``Program``. Launches are prepared once for each size of batch."""

    def __init__(self, device: OpenCLDevice, plan: SegmentPlan) -> None:
        self.segment, self.capacity, self.recipe = plan.segment, plan.capacity, plan.recipe
        self._device, self._plan = device, plan
        self._buffers: dict[Memory, cl.Buffer] = {}
        self._arena: list[cl.Buffer] = []
        self._forward: dict[tuple[int, bool], list[Prepared]] = {}
        self._loss: dict[int, list[Prepared]] = {}
        self._loss_scale: dict[int, float] = {}
        self._backward: dict[int, list[Prepared]] = {}
        self._gather: dict[tuple[int, np.dtype[Any]], list[Prepared]] = {}
        self._bound: set[tuple[int, np.dtype[Any]]] = set()  # with the arguments of this data set
        self._clip: list[Prepared] = []
        self._accumulate: list[Prepared] = []
        self._between_slices = False
        self._update: list[Prepared] = []
        self._hyper: Hyper | None = None
        self._updates = self._count = 0  # since the last upload; predictions since the last reading
        self._data: OpenCLData | None = None
        self._feed: Feed | None = None
        self._order: cl.Buffer | None = None
        self._affine: list[cl.Buffer] = []
        self._rows: NDArray[np.int32] = np.empty(0, np.int32)
        self._batch = self._order_length = 0
        self._next_sample: Sample | None = None
        self._sample: Sample | None = None
        try:
            for memory, nbytes in plan.nbytes.items():
                self._buffers[memory] = device.allocator.make(nbytes, memory.name.lower())
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
            self._prepare(self.capacity)
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
        beside = [*self._affine, *([self._order] if self._order is not None else [])]
        feed_nbytes = self._feed.nbytes if self._feed is not None else 0
        return self.usage.nbytes + sum(int(buffer.size) for buffer in beside) + feed_nbytes

    def _prepare(self, count: int) -> None:
        """Build everything a step needs, so that a compile error comes now."""
        self._forward[count, True] = self._bind(self._plan.forward, count, "training")
        self._backward[count] = self._bind(self._plan.backward, count, "training")
        self._loss[count] = self._bind(self._plan.loss, count, "training")
        self._clip = self._bind(self._plan.clip, count, "training")
        self._accumulate = self._bind(self._plan.accumulate, count, "training")
        self._update = self._bind(self._plan.update, count, "training")
        self._device.programs.save()

    def _bind(self, launches: Sequence[Launch], count: int, mode: str) -> list[Prepared]:
        if not 0 < count <= self.capacity:
            raise ValueError(f"{count} examples, but the program holds 1 to {self.capacity}")
        with errors_as_ours(self._device.info.name, f"preparing a batch of {count}"):
            return [
                self._binder.prepare(launch, count)
                for launch in launches
                if launch.mode in ("always", mode)
            ]

    # -- a round ---------------------------------------------------------------------------
    def upload(self, params: Float32Array) -> None:
        n = self.segment.num_values
        if params.shape != (n,):
            raise ValueError(f"values of shape {params.shape}, the segment has {n}")
        buffers = self._buffers
        values = np.ascontiguousarray(params, np.float32)
        self._device.upload(buffers[Memory.PARAMS], values, wait=True, sample=self._sample)
        with errors_as_ours(self._device.info.name, "beginning a round"):
            self._fill(Memory.GRADS, 0)
            self._fill(Memory.OPT_STATE, 0)
            at = 0
            for run in self.segment.trained_runs:
                nbytes = 4 * (run.stop - run.start)
                cl.enqueue_copy(
                    self._device.stream(self._sample),
                    buffers[Memory.ROUND_START],
                    buffers[Memory.PARAMS],
                    src_offset=4 * run.start,
                    dst_offset=at,
                    byte_count=nbytes,
                )
                at += nbytes
        self._updates = 0

    def download(self) -> Float32Array:
        return self._read(Memory.PARAMS, (self.segment.num_values,), np.float32)

    # -- an epoch --------------------------------------------------------------------------
    def begin_epoch(
        self, data: DeviceData, order: NDArray[np.int32], batch: int, dropout_key: int
    ) -> None:
        if not isinstance(data, OpenCLData):
            raise TypeError("the data set was loaded by another backend")
        if batch < 1 or (batch > self.capacity and not self.recipe.accumulates):
            raise ValueError(f"batches of {batch}, but the program holds {self.capacity}")
        if not len(order) or order.min() < 0 or order.max() >= data.num_examples:
            raise ValueError(f"an order must number examples of the {data.num_examples} loaded")
        data.check(self.segment.model, self.recipe.loss)
        if self._sample is not None:  # a step without an update: not a training step
            self._leave_profiling_queue()
        self._between_slices = False
        order = np.array(order, np.int32)
        self._set_data(data, order, batch)
        key = np.array([dropout_key & 0xFFFFFFFF, dropout_key >> 32], np.uint32)
        self._device.upload(self._buffers[Memory.DROPOUT_KEY], key, wait=False)

    def _set_data(self, data: OpenCLData, order: NDArray[np.int32], batch: int) -> None:
        device = self._device
        if self._order is None or self._order.size < order.nbytes:
            if self._order is not None:
                device.allocator.give_back(self._order)
            self._order = device.allocator.make(order.nbytes, "an epoch's order")
            self._bound.clear()
        device.upload(self._order, order, wait=False)
        self._rows = order
        if data is not self._data:
            self._set_affine(data.dtype)
            self._bound.clear()
        self._feed = self._feed_for(data, order, batch)
        self._data, self._batch, self._order_length = data, batch, len(order)

    def _feed_for(self, data: OpenCLData, order: NDArray[np.int32], batch: int) -> Feed:
        feed = self._feed
        if data.resident or not self.segment.is_first:
            if feed is not None:
                feed.release()
            return ResidentFeed(data)
        if not (isinstance(feed, StreamFeed) and feed.data is data and feed.batch_size == batch):
            self._feed = None
            if feed is not None:
                feed.release()
            feed = StreamFeed(self._device, data, batch)
        feed.begin(order)
        return feed

    def _set_affine(self, dtype: np.dtype[Any]) -> None:
        for buffer in self._affine:
            self._device.allocator.give_back(buffer)
        self._affine = []
        for values in self.segment.model.input.affine(dtype):
            self._affine.append(self._device.allocator.make(values.nbytes, "normalisation"))
            self._device.upload(self._affine[-1], values, wait=True)

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
        if self._feed is None or self._data is None:
            raise RuntimeError("gather before begin_epoch")
        place = start % self._batch
        if not 0 < count <= min(self._batch - place, self._order_length - start):
            raise ValueError(
                f"gather of {count} from {start}: an order of {self._order_length} is visited by "
                f"batches of {self._batch}"
            )
        gather = self._gather_for(self._data, count)
        if not self._between_slices:
            self._begin_sample()
        self._between_slices = False
        kernel, place = gather[0].kernel, gather[0].num_args
        wait_for: list[cl.Event] = []
        with errors_as_ours(self._device.info.name, "gathering a batch"):
            for prepared in gather:
                prepared.kernel.set_arg(prepared.num_args, np.int32(start))
            if self.segment.is_first:
                buffer, chunk_start, wait_for = self._feed.batch(start)
                if chunk_start >= 0:
                    kernel.set_arg(place + 1, np.int32(chunk_start))
                    kernel.set_arg(place + 2, buffer)
        event = self._run("gather", gather, wait_for)
        assert event is not None
        self._feed.gathered(start, count, event, self._sample)

    def _gather_for(self, data: OpenCLData, count: int) -> list[Prepared]:
        """Prepared once for a size of batch and a type of data, and bound anew to each data set.

        pyopencl keeps some text for every kernel that was ever made, so that a kernel for each
        data set would grow without end.
        """
        key = count, data.dtype
        if key not in self._gather:
            launches = gather_launches(self._plan, data.dtype)
            self._gather[key] = self._bind(launches, count, "training")
            self._device.programs.save()
        if key not in self._bound:
            self._bind_gather(self._gather[key], data)
            self._bound.add(key)
        return self._gather[key]

    def _bind_gather(self, gather: list[Prepared], data: OpenCLData) -> None:
        """Last arguments of each: start, (chunk_start, data,) order, labels, (factor, shift)."""
        labels: list[cl.Buffer | np.generic | None] = [self._order, data.y]
        first = [np.int32(-1), data.x, *labels, *self._affine] if self.segment.is_first else labels
        with errors_as_ours(self._device.info.name, "preparing the gather"):
            for prepared, rest in zip(gather, (first, labels), strict=False):
                for at, value in enumerate(rest, prepared.num_args + 1):
                    if value is not None:  # a chunk's buffer is set with each batch
                        prepared.kernel.set_arg(at, value)

    def forward(self, count: int, training: bool = True) -> None:
        key = (count, training)
        if key not in self._forward:
            mode = "training" if training else "evaluation"
            self._forward[key] = self._bind(self._plan.forward, count, mode)
        self._run("forward", self._forward[key])

    def weight(self, start: int, count: int) -> float:
        if self._data is None:
            raise RuntimeError("weight before begin_epoch")
        return self.recipe.loss.weight(self._data.labels[self._rows[start : start + count]])

    def loss(self, count: int, total: float | None = None) -> None:
        if not self._plan.loss:
            raise ValueError("the loss belongs to the last segment")
        if count not in self._loss:
            self._loss[count] = self._bind(self._plan.loss, count, "training")
        if total is None:  # with class weights, what the rows weigh is summed on the device
            total = 0.0 if self._plan.class_weights else count * self._plan.predictions
        self._set_loss_scale(count, 1 / total if total else 0.0)
        self._run("loss", self._loss[count])
        self._count += count * self._plan.predictions

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
        if not self.recipe.accumulates:
            raise ValueError("the program was not compiled to add up gradients")
        for launch in self._accumulate[int(last) :][:1]:  # none where nothing is trained
            with errors_as_ours(self._device.info.name, "adding up gradients"):
                launch.kernel.set_arg(launch.num_args, np.int32(not first))
            self._run("backward", [launch])
        self._between_slices = not last

    def update(self, hyper: Hyper) -> None:
        if hyper != self._hyper:
            self._set_hyper(hyper)
        self._updates += 1
        if self.recipe.optimizer != "sgd":
            self._set_adam_scales(hyper)
        if hyper.clip_norm:
            self._run("update", self._clip)
        self._run("update", self._update)
        if self._sample is not None:
            self._end_sample()

    def _set_hyper(self, hyper: Hyper) -> None:
        """Set the arguments that follow the prepared ones, of each kernel by its name."""
        a, b = hyper.betas
        clipped = np.int32(hyper.clip_norm > 0)
        decay, mu = hyper.weight_decay, np.float32(hyper.proximal_mu)
        decoupled = self.recipe.optimizer == "adamw"
        values = {
            "clip_squares": (mu,),
            "clip_factor": (np.float32(hyper.clip_norm),),
            "sgd": (
                np.float32(hyper.lr),
                np.float32(hyper.momentum),
                np.int32(hyper.nesterov),
                np.float32(decay),
                mu,
                clipped,
            ),
            "adam": (
                *(np.float32(v) for v in (a, 1 - a, b, 1 - b, hyper.eps)),
                np.float32(0 if decoupled else decay),
                np.float32(1 - hyper.lr * decay if decoupled else 1),
                mu,
                clipped,
            ),
        }
        with errors_as_ours(self._device.info.name, "preparing the update"):
            for prepared in (*self._clip, *self._update):
                for i, value in enumerate(values[prepared.launch.kernel], prepared.num_args):
                    prepared.kernel.set_arg(i, value)
        self._hyper = hyper

    def _set_adam_scales(self, hyper: Hyper) -> None:
        """Set the arguments that change with every update."""
        scales = hyper.adam_scales(self._updates)
        with errors_as_ours(self._device.info.name, "preparing the update"):
            for prepared in self._update:
                for i, value in enumerate(scales, prepared.num_args + ADAM_SCALES):
                    prepared.kernel.set_arg(i, np.float32(value))

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
        itemsize = self._data.dtype.itemsize if self._data is not None else 0
        return describe(prepared.launch, part, prepared.count, self._plan, itemsize)

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
        if self._plan.input_grad is None:
            raise ValueError(
                "the gradient of the network's own input is not computed, nor one below "
                "frozen layers"
            )
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

    def read_grads(self) -> Float32Array:
        trained = self._read(Memory.GRADS, (self.segment.num_trained,), np.float32)
        grads, at = np.zeros(self.segment.num_params, np.float32), 0
        for run in self.segment.trained_runs:
            size = run.stop - run.start
            grads[run] = trained[at : at + size]
            at += size
        return grads

    def _read(self, memory: Memory, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        return self._device.download(self._buffers[memory], shape, dtype, sample=self._sample)

    def poison(self) -> None:
        with errors_as_ours(self._device.info.name, "filling with NaN"):
            for buffer in self._arena:
                self._fill_buffer(buffer, np.nan)
            for memory in (Memory.GRADS, Memory.HELD):
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
        if self._feed is not None:
            self._feed.release()
        give_back = self._device.allocator.give_back
        for buffer in (*self._buffers.values(), *self._arena, *self._affine):
            give_back(buffer)
        if self._order is not None:
            give_back(self._order)
        self._buffers.clear()
        self._arena.clear()
        self._affine, self._order, self._feed, self._data = [], None, None, None
        for prepared in (self._forward, self._loss, self._backward, self._gather):
            prepared.clear()
        self._bound.clear()
        self._clip, self._accumulate, self._update = [], [], []
