"""A model as data: operations in order, tensors, parameters in one flat buffer, unit-blocks.

A model is a chain of unit-blocks (DeepX, Lane et al., IPSN 2016): a layer, or a residual body
that is not cut. Inside a block, operations form a graph over numbered tensors; between blocks
exactly one tensor passes.

What a model has learned are its values: one flat float32 vector of all parameters in block order,
then of all buffers in block order. Buffers (running statistics) are initialised, sent and averaged
as parameters are, but have no gradient and no optimizer state. The parameters of a run of blocks
are one contiguous slice of the values, and its buffers another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from client.errors import DataError, ModelError
from client.model.layers import BatchNorm, Layer, Shape

Float32Array = NDArray[np.float32]
Scalar = TypeVar("Scalar", bound=np.generic)

MAX_VOCABULARY = 2**24
"""Tokens become float32, which holds every whole number up to here."""


@dataclass(frozen=True)
class Param:
    """A named view into the model's flat values, of a parameter or a buffer.

    ``offset`` and ``size`` in elements; ``value``, ``fan_in`` and ``normal`` say how it begins,
    ``variance`` that it is never negative (see ParamSpec).
    """

    name: str
    shape: Shape
    offset: int
    fan_in: int = 1
    value: float | None = None
    normal: bool = False
    variance: bool = False

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def slice(self) -> slice:
        return slice(self.offset, self.offset + self.size)

    def flaw(self, found: NDArray[Any]) -> str:
        """Why these numbers cannot be its own, whatever they were trained on; empty if they can."""
        if not np.isfinite(found).all():
            return "holds values that are not finite"
        if self.variance and (found < 0).any():
            return f"holds a negative variance ({found.min():g})"
        return ""


@dataclass(frozen=True)
class Op:
    """One layer at its place: tensors read and written (by number), parameters, unit-block.

    ``index`` is the operation's place in its model; it keys what must be equal on every backend
    and for every cut (dropout's counter). ``buffers``: what it keeps beside its parameters.
    ``frozen``: its parameters stay as they are; they have neither gradients nor optimizer state,
    and no gradient passes below the first trained operation. Its buffers stay as they are, too:
    batch norm normalises by its running statistics.
    """

    layer: Layer
    name: str
    index: int
    inputs: tuple[int, ...]
    output: int
    params: tuple[Param, ...]
    block: int
    buffers: tuple[Param, ...] = ()
    frozen: bool = False

    @property
    def trained(self) -> bool:
        """Whether it has parameters that are trained."""
        return bool(self.params) and not self.frozen


@dataclass(frozen=True)
class InputSpec:
    """What one example looks like, and how raw values become the network's input.

    ``x = (raw / scale - mean) / std`` with scale 255 for uint8 data and 1 otherwise; ``mean`` and
    ``std`` hold one value, or one per channel (the first axis of ``shape``). With a ``vocabulary``
    an example is ``(steps,)`` tokens, whole numbers from 0 to below it, and x is raw itself.
    """

    shape: Shape
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1:
            raise ModelError(f"shape: needs sizes of at least 1, found {self.shape}")
        if self.vocabulary is not None:
            self._check_tokens(self.vocabulary)
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.shape[0]):
                raise ModelError(
                    f"{key}: needs 1 value or one per channel ({self.shape[0]}), "
                    f"found {len(values)}"
                )
        if min(self.std) <= 0:
            raise ModelError(f"std: must be positive, found {list(self.std)}")
        with np.errstate(over="ignore"):
            factor, shift = self.affine(np.dtype(np.float32))
        if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
            raise ModelError(
                f"std: found {list(self.std)} with mean {list(self.mean)}, which float32 "
                "cannot normalise by"
            )

    def _check_tokens(self, vocabulary: int) -> None:
        if not 1 <= vocabulary <= MAX_VOCABULARY:
            raise ModelError(
                f"vocabulary: found {vocabulary}, allowed: 1 to {MAX_VOCABULARY}, "
                "beyond which float32 does not tell tokens apart"
            )
        if len(self.shape) != 1:
            raise ModelError(f"shape: tokens need one axis, [steps], found {list(self.shape)}")
        if (self.mean, self.std) != ((0.0,), (1.0,)):
            raise ModelError("vocabulary: tokens are not normalised: leave mean and std out")

    def draw(self, g: np.random.Generator, n: int) -> NDArray[np.uint8] | Float32Array:
        """``n`` random raw examples: bytes, or tokens in the type that data sets keep them in."""
        limit, shape = self.vocabulary or 256, (n, *self.shape)
        if limit <= 256:
            return g.integers(0, limit, shape, dtype=np.uint8)
        return g.integers(0, limit, shape).astype(np.float32)

    def affine(self, dtype: np.dtype[np.generic]) -> tuple[Float32Array, Float32Array]:
        """(factor, shift), one value per channel each: ``x = raw * factor + shift``.

        One value in all where examples are tokens.
        """
        if self.vocabulary is not None:
            return np.ones(1, np.float32), np.zeros(1, np.float32)
        scale = 255.0 if dtype == np.uint8 else 1.0
        mean = np.broadcast_to(np.asarray(self.mean, np.float64), (self.shape[0],))
        std = np.broadcast_to(np.asarray(self.std, np.float64), (self.shape[0],))
        return (1 / (scale * std)).astype(np.float32), (-mean / std).astype(np.float32)


@dataclass(frozen=True)
class Model:
    """A network that backends compile: see the module's docstring.

    ``tensors[i]`` is the shape of tensor i for one example; tensor 0 is the input, the last
    operation writes the logits.
    """

    name: str
    input: InputSpec
    tensors: tuple[Shape, ...]
    ops: tuple[Op, ...]
    block_names: tuple[str, ...]

    @cached_property
    def params(self) -> tuple[Param, ...]:
        return tuple(param for op in self.ops for param in op.params)

    @cached_property
    def buffers(self) -> tuple[Param, ...]:
        return tuple(buffer for op in self.ops for buffer in op.buffers)

    @property
    def batch_layers(self) -> tuple[str, ...]:
        """Names of layers in which, in training, an example's result depends on the others'."""
        return tuple(op.name for op in self.ops if op.layer.uses_batch and not op.frozen)

    @property
    def values(self) -> tuple[Param, ...]:
        """Parameters, then buffers: all that lies in the flat values."""
        return self.params + self.buffers

    @cached_property
    def trained(self) -> tuple[Param, ...]:
        """The parameters that are trained: all but those of frozen operations."""
        return tuple(param for op in self.ops if op.trained for param in op.params)

    @cached_property
    def sent(self) -> tuple[Param, ...]:
        """What a round may change, and a node sends back: parameters and buffers not frozen."""
        buffers = tuple(buffer for op in self.ops if not op.frozen for buffer in op.buffers)
        return self.trained + buffers

    @cached_property
    def batch_norm(self) -> tuple[Param, ...]:
        """Parameters and buffers of the batch norms that are trained: FedBN's local values."""
        trained = [o for o in self.ops if isinstance(o.layer, BatchNorm) and not o.frozen]
        return tuple(v for op in trained for v in (*op.params, *op.buffers))

    @property
    def num_params(self) -> int:
        return sum(param.size for param in self.params)

    @property
    def num_values(self) -> int:
        return sum(value.size for value in self.values)

    @property
    def output_shape(self) -> Shape:
        """Shape of the last operation's output, for one example."""
        return self.tensors[self.ops[-1].output]

    @property
    def num_classes(self) -> int:
        return self.output_shape[0]

    @property
    def whole(self) -> Segment:
        """The segment of all blocks."""
        return Segment(self, 0, len(self.block_names))

    @cached_property
    def digest(self) -> str:
        """Hex digest of everything a backend compiles from; equal models, equal digests."""
        h = hashlib.blake2b(digest_size=16)
        for op in self.ops:
            tensors = (op.inputs, op.output, op.params, op.buffers)
            h.update(repr((op.layer, op.index, *tensors, op.frozen)).encode())
        h.update(repr((self.input, self.tensors)).encode())
        return h.hexdigest()

    def views(self, flat: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
        """Named, shaped views into flat values, or into what has a place for each parameter alone.

        ``flat``: ``num_values`` elements, or ``num_params`` as gradients have.
        """
        if flat.shape not in ((self.num_values,), (self.num_params,)):
            raise ValueError(f"found shape {flat.shape}, the model has {self.num_values} values")
        named = self.values if len(flat) == self.num_values else self.params
        return {p.name: flat[p.slice].reshape(p.shape) for p in named}

    def flatten(self, named: Mapping[str, NDArray[np.generic]], source: str) -> Float32Array:
        """Flat values from named arrays; an error names ``source`` and what is wrong.

        ModelError where names or shapes differ from the model's, DataError where numbers cannot
        be used (see ``Param.flaw``). PyTorch's counters of batches, which nothing here reads, are
        left out.
        """
        missing = [p.name for p in self.values if p.name not in named]
        counters = {f"{op.name}.num_batches_tracked" for op in self.ops if op.buffers}
        extra = sorted(set(named) - {p.name for p in self.values} - counters)
        if missing or extra:
            raise ModelError(
                f"{source}: parameters differ from model '{self.name}': "
                f"missing {missing or 'none'}, not in the model {extra or 'none'}"
            )
        flat = np.empty(self.num_values, np.float32)
        for p in self.values:
            value = named[p.name]
            if value.shape != p.shape:
                raise ModelError(
                    f"{source}: {p.name}: found shape {value.shape}, "
                    f"model '{self.name}' has {p.shape}"
                )
            with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
                flat[p.slice] = value.reshape(-1)
            if flaw := p.flaw(flat[p.slice]):
                raise DataError(f"{source}: {p.name} {flaw}")
        return flat


@dataclass(frozen=True)
class Segment:
    """A run of unit-blocks [first, stop) of a model, meant for one processor."""

    model: Model
    first: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.stop <= len(self.model.block_names):
            raise ValueError(f"no blocks [{self.first}, {self.stop}) in {self.model.name}")

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return tuple(op for op in self.model.ops if self.first <= op.block < self.stop)

    @property
    def is_first(self) -> bool:
        return self.first == 0

    @property
    def is_last(self) -> bool:
        return self.stop == len(self.model.block_names)

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole network."""
        return self.is_first and self.is_last

    @property
    def input(self) -> int:
        """Number of the tensor that enters."""
        return self.ops[0].inputs[0]

    @property
    def output(self) -> int:
        """Number of the tensor that leaves (the logits, for the last segment)."""
        return self.ops[-1].output

    @cached_property
    def param_slice(self) -> slice:
        """Where this segment's parameters lie in the model's flat values."""
        return _run([p for op in self.ops for p in op.params])

    @cached_property
    def buffer_slice(self) -> slice:
        """Where this segment's buffers lie in the model's flat values."""
        return _run([b for op in self.ops for b in op.buffers])

    @property
    def num_params(self) -> int:
        return sum(param.size for op in self.ops for param in op.params)

    @property
    def num_values(self) -> int:
        """Elements of the segment's own values: its parameters, then its buffers."""
        return self.num_params + sum(b.size for op in self.ops for b in op.buffers)

    def values_of(self, flat: NDArray[Scalar]) -> NDArray[Scalar]:
        """The segment's own values (a copy) out of the model's."""
        return np.concatenate([flat[self.param_slice], flat[self.buffer_slice]])

    def place(self, value: Param) -> int:
        """Where a parameter or buffer of the segment begins in the segment's own values."""
        if value.offset < self.model.num_params:
            return value.offset - int(self.param_slice.start)
        return self.num_params + value.offset - int(self.buffer_slice.start)

    @cached_property
    def trained_runs(self) -> tuple[slice, ...]:
        """Which runs of the segment's own values are trained: whole operations, in order.

        Gradients and optimizer state are kept for these alone, one run after the other.
        """
        runs: list[slice] = []
        for op in self.ops:
            if not op.trained:
                continue
            start = self.place(op.params[0])
            stop = start + sum(p.size for p in op.params)
            if runs and runs[-1].stop == start:
                runs[-1] = slice(runs[-1].start, stop)
            else:
                runs.append(slice(start, stop))
        return tuple(runs)

    @cached_property
    def trained_places(self) -> tuple[tuple[slice, int], ...]:
        """Each trained run, and where it begins in a buffer that holds these alone."""
        places, at = [], 0
        for run in self.trained_runs:
            places.append((run, at))
            at += run.stop - run.start
        return tuple(places)

    @property
    def num_trained(self) -> int:
        """Number of trained parameters."""
        return sum(run.stop - run.start for run in self.trained_runs)

    def grad_place(self, param: Param) -> int:
        """Where the gradient of a trained parameter begins among the segment's gradients."""
        place = self.place(param)
        for run, at in self.trained_places:
            if run.start <= place < run.stop:
                return at + place - int(run.start)
        raise ValueError(f"{param.name} is not trained in this segment")

    def all_grads(self, trained: Float32Array) -> Float32Array:
        """Gradients of all parameters from those of the trained ones: 0 where frozen."""
        grads = np.zeros(self.num_params, trained.dtype)
        for run, at in self.trained_places:
            grads[run] = trained[at : at + run.stop - run.start]
        return grads

    def named(self, params: NDArray[Scalar]) -> dict[str, NDArray[Scalar]]:
        """Named, shaped views into what has a place for each of the segment's parameters."""
        return {
            p.name: params[self.place(p) :][: p.size].reshape(p.shape)
            for op in self.ops
            for p in op.params
        }

    @property
    def needs_input_grad(self) -> bool:
        """Whether something before the segment needs the gradient of its input.

        Nothing does before a first segment, nor where all layers before it are frozen.
        """
        before = [op for op in self.model.ops if op.block < self.first]
        frozen = any(op.frozen for op in before) and not any(op.trained for op in before)
        return not self.is_first and not frozen


def _run(params: list[Param]) -> slice:
    """From the first to the last of neighbours."""
    if not params:
        return slice(0, 0)
    return slice(params[0].offset, params[-1].offset + params[-1].size)
