"""What programs and devices say of themselves: metrics, cost, traffic, commands, peaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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

    def __add__(self, other: Metrics) -> Metrics:
        """Of both together."""
        right = None
        if self.correct is not None and other.correct is not None:
            right = self.correct + other.correct
        return Metrics(
            self.loss_sum + other.loss_sum,
            right,
            self.count + other.count,
            self.weight + other.weight,
        )

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
