"""Kernel launches as data: what to build, with which arguments, over how many work-items.

Plain and free of any device, so that a program can be planned, counted and tested without one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from math import prod
from typing import Literal

Define = str | int

OPTIONS = "-cl-std=CL1.2 -cl-mad-enable"
"""What all programs are built with."""


class Memory(Enum):
    """The buffers of a program, beside the arena's, in which slots lie."""

    PARAMS = auto()  # all values: parameters, then buffers
    GRADS = auto()
    HELD = auto()  # gradients of a batch's earlier slices
    RECEIVED = auto()  # gradients from another program, made when the first ones come
    OPT_STATE = auto()  # what the optimizer keeps: see optimizer.cl
    ROUND_START = auto()  # trained parameters as uploaded, where there may be a proximal term
    CLIP = auto()  # what gradients are multiplied by, then sums of squares: see optimizer.cl
    EXAMPLES = auto()  # numbers of the batch's examples in the data set, int32
    LABELS = auto()  # their labels, int32 or float
    CLASS_WEIGHTS = auto()  # of the loss
    BATCH_WEIGHT = auto()  # partial sums of what the batch's labels weigh
    METRICS = auto()  # see loss.cl
    DROPOUT_KEY = auto()  # two uint32
    ZEROS = auto()  # a row of zeros, see conv.cl


class Symbol(Enum):
    """Arguments that are known when a launch is prepared."""

    COUNT = auto()  # rows in the batch


@dataclass(frozen=True, eq=False)
class Slot:
    """A region of the arena, whose place the plan decides; compared by identity."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class At:
    """A place in a buffer, in elements of 4 bytes: passed to a kernel as two arguments."""

    memory: Memory
    offset: int


@dataclass(frozen=True)
class PerCount:
    """An integer argument that is a multiple of the batch's rows."""

    factor: int


@dataclass(frozen=True)
class UInt:
    """An unsigned argument of 32 bits."""

    value: int


Arg = Slot | At | Memory | Symbol | PerCount | UInt | int | float
"""``Slot`` and ``At`` are passed as buffer and offset, ``Memory`` as the bare buffer."""

Items = Callable[[int], tuple[int, ...]]
"""Work-items along each dimension for a batch of so many rows."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch. ``op`` and ``variant`` are for messages and records.

    ``choice``: which choice of a tile it depends on, where there is one.
    ``flops``: arithmetic for one example by the layer's count; 0 where none is counted.
    ``flat_nbytes``: of a kernel that goes over the flat buffers, not over a layer's tensors: the
    bytes that it reads and writes there. ``parts``: slots of which it touches one of so many equal
    parts, as a step of a sequence does.
    """

    op: str
    source: str  # kernels/<source>.cl
    kernel: str
    args: tuple[Arg, ...]
    items: Items
    local: tuple[int, ...]
    defines: tuple[tuple[str, Define], ...] = ()
    variant: str = ""
    choice: str = ""
    busy: Literal["compute", "copy"] = "compute"
    mode: Literal["always", "training", "evaluation"] = "always"
    flops: int = 0
    flat_nbytes: int = 0
    parts: tuple[tuple[Slot, int], ...] = ()

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(arg for arg in self.args if isinstance(arg, Slot))


def rounded(items: tuple[int, ...], local: tuple[int, ...]) -> tuple[int, ...]:
    """The global size: ``items`` rounded up to whole work-groups."""
    return tuple(-(-n // size) * size for n, size in zip(items, local, strict=True))


def fitted(local: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """``local`` with its largest dimension halved until a work-group has at most ``limit`` items.

    No kernel shares memory within a work-group, so any size gives the same results.
    """
    size = list(local)
    while prod(size) > limit:
        widest = size.index(max(size))
        size[widest] = -(-size[widest] // 2)
    return tuple(size)
