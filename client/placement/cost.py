"""Predicts: seconds of each unit-block on each processor, and of what passes between. Pure.

See docs/placement.md for the equations and where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from client.backends.figures import Command
from client.placement.layout import Layout
from client.placement.profile import Link

FLOAT_NBYTES = 4

MEASURED_LINK = 0.3
OBSERVED = 0.1
"""Relative uncertainty of what passes over a link by the probe's figures, and of what was seen in
training."""


@dataclass(frozen=True)
class Affine:
    """Seconds that grow evenly with the examples at once: ``fixed_s + row_s * rows``."""

    fixed_s: float
    row_s: float

    def at(self, rows: int) -> float:
        """Seconds for so many examples; 0 for none, for which nothing is enqueued."""
        return self.fixed_s + self.row_s * rows if rows else 0.0


@dataclass(frozen=True)
class BlockCost:
    """A unit-block on a processor, in a training step.

    ``uncertainty``: relative, of its seconds; ``observed``: they were corrected by what was seen.
    """

    forward: Affine
    backward: Affine
    update_s: float
    params_nbytes: int  # values, gradients, optimizer state
    row_nbytes: int  # activations and their gradients, of one example
    uncertainty: float
    observed: bool = False

    def nbytes(self, rows: int) -> int:
        """What it needs on the processor for so many examples at once."""
        return self.params_nbytes + self.row_nbytes * rows


@dataclass(frozen=True)
class ProcessorCost:
    """A processor: its blocks, and what is not any block's.

    ``queued``: it works on its own while the caller goes on; otherwise it computes in the caller's
    thread, and nothing of it overlaps with the caller's waiting for others. ``part_s``: what a part
    costs in a step whatever its blocks: calls, and the update's launches.
    """

    key: str
    backend: str
    name: str
    queued: bool
    memory_nbytes: int  # 0: no limit known
    blocks: tuple[BlockCost, ...]
    gather: Affine
    loss: Affine
    part_s: float
    link: Link
    power_w: float | None = None


@dataclass(frozen=True)
class Boundary:
    """What passes from one unit-block to the next: bytes of one example's tensor.

    ``gradient``: as many pass back, which they do unless nothing before is trained.
    """

    row_nbytes: int
    gradient: bool


@dataclass(frozen=True)
class SampledStep:
    """The commands of one training step of a program (see ``Program.sample_next_step``)."""

    device: str  # DeviceInfo.key
    rows: int
    commands: tuple[Command, ...]


@dataclass(frozen=True)
class TimedSteps:
    """Seconds of a step of batches of ``rows`` examples: K steps ended by one finish, over K."""

    layout: Layout
    rows: int
    step_s: float


@dataclass(frozen=True)
class Costs:
    """All that the planner knows, for batches of ``batch`` examples.

    ``contention``: of two processors (by key) that compute at the same time, how much of the
    shorter one's time the longer one loses: 0 where they have nothing in common, 1 where they take
    turns on the same cores. ``edges``: seconds that each passage between two processors takes
    beyond what their links say, as expected or as seen. ``observed``: step_s of layouts that ran
    with such batches.
    """

    batch: int
    block_names: tuple[str, ...]
    processors: tuple[ProcessorCost, ...]
    boundaries: tuple[Boundary, ...]  # one fewer than blocks
    num_trained: int
    block_values: tuple[int, ...]  # numbers that are sent, of each block
    batch_layers: tuple[str, ...] = ()
    clips: bool = False
    contention: Mapping[frozenset[str], float] = field(default_factory=dict)
    edges: Mapping[frozenset[str], float] = field(default_factory=dict)
    observed: Mapping[Layout, float] = field(default_factory=dict)

    @property
    def num_values(self) -> int:
        """Of all blocks."""
        return sum(self.block_values)

    def processor(self, key: str) -> ProcessorCost:
        """The processor of a key; ValueError where it has no costs."""
        for processor in self.processors:
            if processor.key == key:
                return processor
        raise ValueError(f"no costs are known of {key}")

    def contends(self, one: str, other: str) -> float:
        """See ``contention``."""
        return self.contention.get(frozenset((one, other)), 0.0)

    def move_s(self, source: ProcessorCost, target: ProcessorCost, nbytes: int) -> float:
        """Seconds of a tensor from one processor to another, through the host."""
        seconds = source.link.download_s(nbytes) + target.link.upload_s(nbytes)
        return seconds + self.edges.get(frozenset((source.key, target.key)), 0.0)

    def round_moves_s(self, processor: ProcessorCost, first: int, stop: int) -> float:
        """Values of blocks [first, stop) up and down, as once a round."""
        nbytes = FLOAT_NBYTES * sum(self.block_values[first:stop])
        return processor.link.upload_s(nbytes) + processor.link.download_s(nbytes)

    def edge_uncertainty(self, one: str, other: str) -> float:
        """Relative, of what passes between two processors."""
        cuts = (layout for layout in self.observed if layout.kind == "cut")
        seen = any({one, other} == set(layout.devices) for layout in cuts)
        return OBSERVED if seen else MEASURED_LINK
