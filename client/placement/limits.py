"""What a layout must keep to, and what is refused because of it, as data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from client.placement.cost import Costs, ProcessorCost


@dataclass(frozen=True)
class Limits:
    """What a layout must keep to. ``memory_nbytes`` by processor, where less than all it has."""

    memory_nbytes: Mapping[str, int] = field(default_factory=dict)
    round_s: float | None = None
    energy_j: float | None = None  # of a round

    def room(self, processor: ProcessorCost) -> float:
        """Bytes that a processor may hold; infinite where nothing is known of it."""
        known = (processor.memory_nbytes, self.memory_nbytes.get(processor.key, 0))
        return min((nbytes for nbytes in known if nbytes), default=float("inf"))


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Refusal:
    """What is not among the predictions, and why: ``what`` in the words of ``Layout.describe``.

    ``layer``: the one that needs a whole batch's statistics.
    """

    what: str
    why: Literal["batch statistics", "memory", "time", "energy"]
    message: str
    layer: str | None = None


def memory(costs: Costs, limits: Limits, processor: ProcessorCost) -> Refusal | None:
    """Why a processor cannot have all blocks; None if it can."""
    needed = sum(b.nbytes(costs.batch) for b in processor.blocks)
    if needed <= limits.room(processor):
        return None
    room = mib(limits.room(processor))
    message = f"{processor.name} would need {mib(needed)}, it may hold {room}"
    return Refusal(processor.backend, "memory", message)


def batch_statistics(costs: Costs) -> Refusal:
    """Why batches are not split."""
    layer = costs.batch_layers[0]
    others = len(costs.batch_layers) - 1
    more = f" (and so do {others} more)" if others else ""
    message = f"{layer} needs the statistics of the whole batch{more}"
    return Refusal("both at once", "batch statistics", message, layer)


def no_cut(costs: Costs, limits: Limits) -> Refusal:
    """Why there is no cut at all."""
    if limits.energy_j is not None:
        message = "none keeps to the energy of a round, on processors whose power is known"
        return Refusal("cut", "energy", message)
    rooms = ", ".join(f"{p.name} {mib(limits.room(p))}" for p in costs.processors)
    return Refusal("cut", "memory", f"none fits what each processor may hold: {rooms}")


def mib(nbytes: float) -> str:
    """In MiB, as memory is counted."""
    return "any" if nbytes == float("inf") else f"{nbytes / 2**20:,.1f} MiB"
