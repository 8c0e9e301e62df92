"""The seam between the trainer and the processors: Backend, Device, Program.

A Backend finds devices. A Device opened from it holds data sets and compiles segments of a model
into Programs. A Program trains: its methods enqueue work and return at once (on a device with a
queue), except those that say that they wait. Backends know nothing of placement, Flower or files.

A training step over a whole network is

    program.gather(start, count); program.forward(count); program.loss(count)
    program.backward(count); program.update(hyper)

and where a network is cut, the boundary's tensors pass through ``put_input``/``take_output`` and
``put_output_grad``/``take_input_grad``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from client.errors import DeviceError
from client.model.graph import Float32Array, Segment
from client.model.layers import Layer
from client.model.losses import CrossEntropy, Labels, Loss


@dataclass(frozen=True)
class DeviceInfo:
    """A processor as its backend describes it. Sizes in bytes; 0 where there is no limit.

    ``name`` is its own: of several devices that are described alike, the second is called
    "… #2" and has the ``index`` 1, and so on (see ``numbered``).
    """

    backend: str
    name: str
    kind: str  # "cpu", "gpu" or "accelerator"
    vendor: str = ""
    platform: str = ""
    driver: str = ""
    compute_units: int = 1
    global_mem_nbytes: int = 0
    max_alloc_nbytes: int = 0
    max_work_group_size: int = 0
    unified_memory: bool = True
    remarks: tuple[str, ...] = ()
    index: int = 0

    @property
    def key(self) -> str:
        """What is kept of this one device: measurements, parity, recorded placements."""
        return self._key(self.name)

    @property
    def description(self) -> str:
        """What compiled programs are kept under: equal for devices that are described alike."""
        return self._key(self.name.removesuffix(_number(self.index)))

    def _key(self, name: str) -> str:
        return "|".join((self.backend, self.platform, self.vendor, name, self.driver))


def _number(index: int) -> str:
    return f" #{index + 1}" if index else ""


def numbered(infos: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """A backend's devices in its order, those that are described alike told apart by number."""
    found: Counter[str] = Counter()
    result = []
    for info in infos:
        index = found[info.key]
        found[info.key] += 1
        result.append(replace(info, name=info.name + _number(index), index=index))
    return result


OptimizerName = Literal["sgd", "adam", "adamw"]


@dataclass(frozen=True)
class Recipe:
    """What a program is compiled for beside its segment.

    The loss; the kind of optimizer; whether gradients of slices are added up, so that a batch may
    be larger than the program's capacity.
    """

    loss: Loss = field(default_factory=CrossEntropy)
    optimizer: OptimizerName = "sgd"
    accumulates: bool = False


DEFAULT_RECIPE = Recipe()


@dataclass(frozen=True)
class Hyper:
    """The numbers of one update: of an optimizer as in PyTorch, FedProx's proximal term, clipping.

    g = grad + proximal_mu·(w - w_round_start), the gradient of what the node minimises;
    with a ``clip_norm`` above 0, g *= min(1, clip_norm / (‖g‖ + 1e-6)), ‖g‖ over all trained
    parameters of the program, as ``torch.nn.utils.clip_grad_norm_``; then, by the recipe,

    sgd: g += weight_decay·w; v = momentum·v + g; w -= lr · (g + momentum·v if nesterov else v);
    adam (Kingma and Ba, ICLR 2015), in its t-th update since the upload, with betas (a, b):
    g += weight_decay·w; m = a·m + (1-a)·g; s = b·s + (1-b)·g²;
    w -= lr · m/(1-aᵗ) / (√(s/(1-bᵗ)) + eps);
    adamw (Loshchilov and Hutter, ICLR 2019): w -= lr·weight_decay·w in place of adam's first step.
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    proximal_mu: float = 0.0
    clip_norm: float = 0.0  # 0: not clipped
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def adam_scales(self, t: int) -> tuple[float, float]:
        """(lr/(1-aᵗ), 1/√(1-bᵗ)): what m and √s are multiplied by in the t-th update."""
        a, b = self.betas
        return self.lr / (1 - a**t), 1 / sqrt(1 - b**t)


@dataclass(frozen=True)
class Metrics:
    """Sums over the predictions since the last reading, and means where there were any.

    ``count`` is of predictions: one for each example, step or element, as the loss has it.
    ``correct`` is None where a loss knows no right and wrong; ``weight``: what the loss is divided
    by (see ``Loss.weight``).
    """

    loss_sum: float
    correct: int | None
    count: int
    weight: float

    @property
    def loss(self) -> float:
        """Mean over the predictions, weighted as the loss has it."""
        return self.loss_sum / self.weight

    @property
    def accuracy(self) -> float | None:
        """Share of the predictions that were right."""
        return None if self.correct is None else self.correct / self.count


@dataclass(frozen=True)
class Usage:
    """What a program costs before it runs: bytes on the device and launches of a training step."""

    params_nbytes: int  # parameters, gradients and optimizer state
    arena_nbytes: int  # activations and their gradients, as planned by liveness
    launches: int
    variants: tuple[tuple[str, str], ...] = ()  # (operation, kernel variant chosen)
    other_nbytes: int = 0  # labels, metrics, and what else a batch needs

    @property
    def nbytes(self) -> int:
        """All that a program allocates when it is compiled."""
        return self.params_nbytes + self.arena_nbytes + self.other_nbytes


@dataclass
class Traffic:
    """Counters of a device since it was opened: host-device bytes, and time busy in sampled steps.

    ``compute_s``: kernels that do arithmetic; ``transfer_s``: between host and device; ``copy_s``:
    commands on the device whose kernels do no arithmetic (layout, gather, fill, copies).
    ``sampled_steps`` says on how many training steps the three rest.
    """

    upload_nbytes: int = 0
    download_nbytes: int = 0
    compute_s: float = 0.0
    transfer_s: float = 0.0
    copy_s: float = 0.0
    sampled_steps: int = 0

    def since(self, before: Traffic) -> Traffic:
        """The difference to an earlier copy."""
        return Traffic(
            **{k: getattr(self, k) - getattr(before, k) for k in self.__dataclass_fields__}
        )


Part = Literal["gather", "forward", "loss", "backward", "update"]
"""The parts of a training step, in order."""


@dataclass(frozen=True)
class Command:
    """One command of a sampled training step: what it was, its least work, what it took.

    ``op``: name of the operation in the model, else the part; ``flops``: arithmetic by the layer's
    count, 0 where none is counted; ``nbytes``: the least that passes to and from memory, each
    tensor once. ``busy`` as in Traffic.
    """

    op: str
    part: Part
    kernel: str
    variant: str
    busy: Literal["compute", "copy", "transfer"]
    flops: int
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Peaks:
    """The most that a device does, measured on it: arithmetic a second, bytes a second.

    ``copies``: (bytes read and written, bytes a second) of copies, by size: what fits a cache
    passes faster than what does not. ``how``: what was timed as arithmetic.
    """

    flops_per_s: float
    copies: tuple[tuple[int, float], ...]
    how: str

    def nbytes_per_s(self, nbytes: int) -> float:
        """Of the smallest copy that moves at least so many bytes, else of the largest."""
        return next((speed for size, speed in self.copies if size >= nbytes), self.copies[-1][1])


COPY_SIZES = tuple(2**k for k in range(15, 28, 2))
"""Bytes of the buffers whose copies are timed: from a first-level cache's to beyond all caches."""


def require_layers(segment: Segment, known: Collection[type[Layer]], backend: str) -> None:
    """DeviceError where the segment has a layer that a backend does not know."""
    for op in segment.ops:
        if type(op.layer) not in known:
            raise DeviceError(f"the backend {backend} cannot train the layer {op.layer.kind}")


class DeviceData(ABC):
    """A data set made available to a device: resident there, or streamed in chunks."""

    num_examples: int
    resident: bool
    nbytes: int  # on the device

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
        The parameters are also remembered as the round's start, for the proximal term. What an
        optimizer counts and keeps begins anew.
        """

    @abstractmethod
    def download(self) -> Float32Array:
        """Wait for the queue and return the flat values (a copy), as ``upload`` takes them."""

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
    def update(self, hyper: Hyper) -> None:
        """One step of the recipe's optimizer on all trained parameters."""

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


class Device(ABC):
    """A processor that was opened."""

    info: DeviceInfo
    traffic: Traffic

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
    def largest_batch(self, segment: Segment, at_most: int, recipe: Recipe) -> int:
        """The largest capacity up to ``at_most`` that fits now, and leaves room for data.

        0 where not even one example fits. By planning alone: nothing is built or allocated.
        """

    @abstractmethod
    def throttle(self, limit_s: float) -> None:
        """Wait until at most about ``limit_s`` of enqueued work is in flight."""

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
