"""The seam between the trainer and the processors: Backend, Device, Program.

A Backend finds devices. A Device opened from it holds data sets and compiles segments of a model
into Programs. A Program trains: its methods enqueue work and return at once (on a device with a
queue), except those that say that they wait. Backends know nothing of placement, Flower or files.

A training step over a whole network is

    program.gather(start, count); program.forward(count); program.loss(count)
    program.backward(count); program.update(hyper)

and where a network is cut, the boundary's tensors pass through ``put_input``/``take_output`` and
``put_output_grad``/``take_input_grad``, and the gradient's norm is that of all parts
(``grad_squares``). Where a batch is split over programs of the whole network, gradients pass
through ``take_grads``/``add_grads`` and new values through ``put_values``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from client.backends.device_info import DeviceInfo
from client.backends.exercises import Exercises
from client.backends.figures import Command, Metrics, Peaks, Traffic, Usage
from client.backends.recipe import DEFAULT_RECIPE, Hyper, Recipe
from client.backends.state import State
from client.errors import DeviceError
from client.model.graph import Float32Array, Model, Segment
from client.model.losses import Labels, Loss

ROOM_FOR_DATA = 0.25
"""Of the memory that is free, so much is left for data where a batch is made to fit."""


class DeviceData(ABC):
    """A data set made available to a device: resident there, or streamed in chunks."""

    num_examples: int
    resident: bool
    nbytes: int  # on the device

    @abstractmethod
    def check(self, model: Model, loss: Loss) -> None:
        """DataError where the examples do not fit model and loss."""

    @abstractmethod
    def release(self) -> None:
        """Free what it holds on the device."""


class Program(ABC):
    """A compiled segment: parameters, gradients, optimizer state, activations on a device."""

    segment: Segment
    capacity: int
    recipe: Recipe
    usage: Usage

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """What it holds on the device: as planned, and what the epoch's data set needs beside."""

    # -- a round ---------------------------------------------------------------------------
    @abstractmethod
    def upload(self, params: Float32Array) -> None:
        """Set the segment's values, zero gradients and optimizer state.

        ``params``: flat, the segment's parameters and then its buffers (``Segment.values_of``).
        Where the recipe is proximal, the parameters are also remembered as the round's start.
        What an optimizer counts and keeps begins anew.
        """

    @abstractmethod
    def download(self) -> Float32Array:
        """Wait for the queue and return the flat values (a copy), as ``upload`` takes them."""

    @abstractmethod
    def put_values(self, values: Float32Array) -> None:
        """Set the segment's values alone: neither the optimizer's state nor the round's start.

        In place of ``update`` where another program made the step; it ends a sampled step.
        """

    @abstractmethod
    def read_state(self) -> State:
        """Wait for the queue; values and optimizer state (a copy)."""

    @abstractmethod
    def write_state(self, state: State) -> None:
        """Go on from there: all but the round's start, which stays that of the last upload.

        ValueError where it is of another segment or optimizer.
        """

    # -- an epoch --------------------------------------------------------------------------
    @abstractmethod
    def begin_epoch(
        self, data: DeviceData, order: NDArray[np.int32], batch: int, dropout_key: int
    ) -> None:
        """Visit ``data`` in ``order`` by batches of ``batch`` from now on.

        At most as large as the program's capacity, unless it accumulates gradients.

        A segment in mid-network is given the same data, order and key as the others: dropout
        counts by example, and the last segment needs the labels. DataError where examples or
        labels do not fit the model.
        """

    @abstractmethod
    def read_metrics(self) -> Metrics:
        """Wait for the queue; the metrics that ``loss`` accumulated since the last reading."""

    # -- a step: enqueue only ----------------------------------------------------------------
    @abstractmethod
    def gather(self, start: int, count: int) -> None:
        """Bring examples order[start:start + count] in: normalised input, labels.

        They lie within one of the epoch's batches. Input is gathered by a first segment, labels
        by a last one.
        """

    @abstractmethod
    def forward(self, count: int, training: bool = True) -> None:
        """Output of the segment for the first ``count`` rows.

        Only in training, dropout drops, and batch norm uses the batch's statistics and updates its
        running ones.
        """

    @abstractmethod
    def weight(self, start: int, count: int) -> float:
        """What examples order[start:start + count] weigh in the loss (see ``Loss.weight``)."""

    @abstractmethod
    def loss(self, count: int, total: float | None = None) -> None:
        """The recipe's loss and its gradient (last segment); accumulates the metrics.

        The gradient is that of the sum divided by ``total``, by default what these rows weigh: of
        their mean. Where this program has only a slice of a batch, ``total`` is what the whole
        batch weighs (see ``weight``), so that the slices' gradients add up to the batch's.
        """

    @abstractmethod
    def backward(self, count: int) -> None:
        """Gradients of the trained parameters (overwritten, not added to) and of the input.

        They are those of the last ``forward``, which must have been one of training. The input's
        is computed only where the segment needs it (see ``Segment.needs_input_grad``).
        """

    @abstractmethod
    def update(self, hyper: Hyper, norm: float | None = None) -> None:
        """One step of the recipe's optimizer on all trained parameters.

        ``norm``: of a network of which this program has a part, where gradients are clipped
        (``hyper.clip_norm``); by default that of the program's own.
        """

    @abstractmethod
    def grad_squares(self, hyper: Hyper) -> float:
        """Wait; the sum of the squares of what ``hyper.clip_norm`` limits (see ``Hyper``).

        The square root of the sum over a network's parts is the ``norm`` of their ``update``.
        """

    @abstractmethod
    def accumulate(self, first: bool, last: bool) -> None:
        """Add the gradients of the last backward to those of the batch's earlier slices.

        To be called after each slice of a batch of two or more (see ``Recipe``); after the last
        one, the gradients are those of the whole batch.
        """

    def step(self, start: int, count: int, hyper: Hyper) -> None:
        """gather, forward, loss, backward, update: a training step of a whole network.

        A batch larger than the program's capacity goes through it in slices (micro-batches).
        """
        if count <= self.capacity:
            self.gather(start, count)
            self.forward(count)
            self.loss(count)
            self.backward(count)
        else:
            total = self.weight(start, count)
            for at in range(0, count, self.capacity):
                rows = min(self.capacity, count - at)
                self.gather(start + at, rows)
                self.forward(rows)
                self.loss(rows, total)
                self.backward(rows)
                self.accumulate(first=at == 0, last=at + rows == count)
        self.update(hyper)

    @abstractmethod
    def sample_next_step(self, commands: list[Command] | None = None) -> None:
        """Time the commands from the next ``gather`` to its ``update`` by events (see Traffic).

        Or to its ``put_values``.
        To ``commands`` they are also added one by one, at the latest when ``finish`` returns.
        """

    # -- boundaries, and what tests and the parity gate read (all wait) -------------------------
    @abstractmethod
    def put_input(self, x: Float32Array) -> None:
        """Rows of the segment's input, (count, *shape), in place of ``gather``."""

    @abstractmethod
    def take_output(self, count: int) -> Float32Array:
        """Rows of the segment's output, (count, *shape), a copy; logits for the last segment."""

    @abstractmethod
    def put_output_grad(self, dy: Float32Array) -> None:
        """Gradient of the segment's output, in place of ``loss``."""

    @abstractmethod
    def take_input_grad(self, count: int) -> Float32Array:
        """Gradient (a copy) of the segment's input after ``backward``; not of a first segment."""

    @abstractmethod
    def take_grads(self) -> Float32Array:
        """Wait; gradients (a copy) of the trained parameters alone, (num_trained,).

        Of the last ``backward``, and what was added to them.
        """

    @abstractmethod
    def add_grads(self, grads: Float32Array, *, replace: bool = False) -> None:
        """Add (num_trained,) to the gradients of the last ``backward``, or put them in their place.

        ``replace`` is for a step of which this program had no examples.
        """

    @abstractmethod
    def read_grads(self) -> Float32Array:
        """Gradients of the last ``backward``, of the parameters alone; 0 where frozen."""

    @abstractmethod
    def poison(self) -> None:
        """Fill activations, gradients and working memory with NaN (for tests).

        A step that follows must not read what it has not written: its results stay the same.
        Values, optimizer state, metrics and what ``begin_epoch`` set are left as they are.
        """

    @abstractmethod
    def release(self) -> None:
        """Free what the program holds on the device."""

    # -- what every program refuses, in the same words: errors of whoever calls it -----------------
    def _check_count(self, count: int) -> None:
        if not 0 < count <= self.capacity:
            raise ValueError(f"{count} examples, but the program holds 1 to {self.capacity}")

    def _check_batch(self, batch: int) -> None:
        if batch < 1 or (batch > self.capacity and not self.recipe.accumulates):
            raise ValueError(f"batches of {batch}, but the program holds {self.capacity}")

    def _check_order(self, order: NDArray[np.int32], num_examples: int) -> None:
        if not len(order) or order.min() < 0 or order.max() >= num_examples:
            raise ValueError(f"an order must number examples of the {num_examples} loaded")

    def _check_gather(self, start: int, count: int, num_ordered: int, batch: int) -> None:
        """``batch`` and ``num_ordered``: the epoch's, 0 before the first one."""
        if batch == 0:
            raise RuntimeError("gather before begin_epoch")
        if start < 0 or not 0 < count <= min(batch - start % batch, num_ordered - start):
            raise ValueError(
                f"gather of {count} from {start}: an order of {num_ordered} is visited by "
                f"batches of {batch}"
            )

    def _check_accumulates(self) -> None:
        if not self.recipe.accumulates:
            raise ValueError("the program was not compiled to add up gradients")

    def _check_values(self, values: Float32Array) -> None:
        if values.shape != (self.segment.num_values,):
            n = self.segment.num_values
            raise ValueError(f"values of shape {values.shape}, the segment has {n}")

    def _check_grads(self, grads: Float32Array) -> None:
        if grads.shape != (self.segment.num_trained,):
            n = self.segment.num_trained
            raise ValueError(f"gradients of shape {grads.shape}, the segment has {n}")

    def _check_proximal(self, hyper: Hyper) -> None:
        if hyper.proximal_mu and not self.recipe.proximal:
            raise ValueError("the program was not compiled for a proximal term")

    def _check_input_grad(self) -> None:
        if not self.segment.needs_input_grad:
            raise ValueError(
                "the gradient of the network's own input is not computed, nor one below "
                "frozen layers"
            )


class Device(ABC):
    """A processor that was opened."""

    info: DeviceInfo
    traffic: Traffic
    has_queue: ClassVar[bool]
    """Whether what is enqueued runs beside the caller's thread; else it is done on return."""

    @property
    def peak_nbytes(self) -> int | None:
        """Most bytes that it allocated at one time since it was opened; None: not counted."""
        return None

    @abstractmethod
    def load(self, x: NDArray[Any], y: Labels) -> DeviceData:
        """Make examples available: uploaded once if they fit, else streamed in chunks.

        ``x``: (n, *shape), uint8 or float32, kept in that type; ``y``: (n, *labels), int32 class
        numbers or float32 targets, as the loss needs them.
        """

    @abstractmethod
    def compile(self, segment: Segment, capacity: int, recipe: Recipe = DEFAULT_RECIPE) -> Program:
        """A program for batches of up to ``capacity``; DeviceError if it does not fit or build."""

    @abstractmethod
    def measure_peaks(self) -> Peaks:
        """Time what this device does best: some seconds, nothing else running."""

    @abstractmethod
    def exercises(self) -> Exercises:
        """The primitives that the probe times."""

    @abstractmethod
    def largest_batch(self, segment: Segment, at_most: int, recipe: Recipe) -> int:
        """The largest capacity up to ``at_most`` that fits now, and leaves ROOM_FOR_DATA.

        0 where not even one example fits. By planning alone: nothing is built or allocated.
        """

    @abstractmethod
    def throttle(self, limit_s: float) -> None:
        """Wait until at most about ``limit_s`` of enqueued work is in flight."""

    @abstractmethod
    def flush(self) -> None:
        """See to it that the device begins what is enqueued; returns at once."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all enqueued work is done."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""


class Backend(ABC):
    """A folder below client/backends that exports ``BACKEND``; found by itself."""

    name: ClassVar[str]

    @abstractmethod
    def devices(self) -> list[DeviceInfo]:
        """The devices that can be opened, each with a key of its own (see ``numbered``).

        Empty if there are none. Raises DeviceError with the remedy where the backend as a whole
        cannot work (no driver, package missing).
        """

    @abstractmethod
    def open(self, info: DeviceInfo) -> Device:
        """Open one of ``devices()``."""

    def open_part(
        self, info: DeviceInfo, cores: int | None = None, memory_nbytes: int | None = None
    ) -> Device:
        """Open as if the device had no more cores and memory than that (None: all of it).

        DeviceError where the backend cannot keep to it.
        """
        if cores is not None or memory_nbytes is not None:
            raise DeviceError(f"{info.name}: the backend {self.name} opens whole devices only")
        return self.open(info)

    def tuning(self, info: DeviceInfo) -> str:
        """One line: how kernels are chosen for a device. Empty where there is nothing to choose."""
        return ""

    def tune(
        self,
        info: DeviceInfo,
        models: Sequence[str],
        batch: int,
        budget_s: float,
        say: Callable[[str], None],
    ) -> None:
        """Measure kernel variants for shipped models or model files, for about so long.

        What is found is kept on this machine and used by whatever is compiled from then on; a
        further call goes on. DeviceError where the device cannot be tuned.
        """
        raise DeviceError(f"{info.name}: the backend {self.name} has nothing to tune")
