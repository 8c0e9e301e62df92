"""What is measured: models, batches and pairs of processors; all of them, or a fixed sample.

Every pair is numpy on one core beside something on another core: PoCL, or a device emulated on one
core of PoCL, so many times slower and behind a link of so many GB/s. Where a machine has a discrete
GPU, that beside the host's processor is a pair as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from client.errors import ConfigError, did_you_mean

MODELS = (
    "mlp",
    "lenet5",
    "femnist_cnn",
    "char_lstm",
    "har_cnn1d",
    "tcn",
    "resnet8",
    "resnet20",
)
BATCHES = (8, 32, 128)
LATENCY_S = 20e-6


@dataclass(frozen=True)
class Pair:
    """Processors that share a node. ``factor``: compute so many times slower; ``link_gb_s``.

    Without a link the other processor is no emulated one: PoCL confined to a core, or, where
    ``gpu`` is its name, a discrete GPU beside all the host's cores. ``sub_device``: PoCL has two
    threads, and the emulated device is one compute unit of it.
    """

    name: str
    factor: int = 1
    link_gb_s: float | None = None
    sub_device: bool = False
    gpu: str | None = None

    @property
    def emulated(self) -> bool:
        """Whether its other processor is emulated."""
        return self.link_gb_s is not None

    @property
    def backend(self) -> str:
        """Of the processor beside numpy."""
        return "emulated" if self.emulated else "opencl"

    def to_yaml(self) -> str:
        """The emulated device, as the backend ``emulated`` reads it."""
        assert self.link_gb_s is not None
        way = f"{{latency_s: {LATENCY_S}, bytes_per_s: {self.link_gb_s * 1e9}}}"
        return (
            f"name: {self.name}\n"
            f"inner: {{backend: opencl{', cores: 1' if self.sub_device else ''}}}\n"
            f"compute_factor: {self.factor}\n"
            f"link:\n  upload: {way}\n  download: {way}\n"
        )


def _emulated(factor: int, link_gb_s: float) -> Pair:
    return Pair(f"x{factor}@{link_gb_s:g}GB/s", factor, link_gb_s)


PAIRS = (
    Pair("pocl"),
    Pair("sub-device", 1, 12, sub_device=True),
    _emulated(1, 12),
    _emulated(1, 4),
    _emulated(1, 1),
    _emulated(1, 0.3),
    _emulated(2, 12),
    _emulated(2, 4),
    _emulated(2, 1),
    _emulated(4, 4),
    _emulated(4, 0.3),
    _emulated(16, 12),
)


@dataclass(frozen=True)
class Cell:
    """One choice to be made."""

    model: str
    batch: int
    device: str  # Pair.name

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch}, {self.device}"


def grid(models: Sequence[str], batches: Sequence[int], pairs: Iterable[Pair]) -> list[Cell]:
    """All cells; those of a pair stand together, since they share a process."""
    return [
        Cell(model, batch, pair.name) for pair in pairs for model in models for batch in batches
    ]


SAMPLE_BATCHES = {
    "mlp": (8, 32, 128),
    "lenet5": (8, 32, 128),
    "har_cnn1d": (8,),
    "femnist_cnn": (8,),
}
"""Models of the sample, with the batches that are measured in seconds."""

SAMPLE_PAIRS = ("pocl", "x1@12GB/s", "x1@1GB/s", "x2@4GB/s", "x4@0.3GB/s")


def sample() -> list[Cell]:
    """Forty cells, always the same ones: eight each of five pairs."""
    return [
        Cell(model, batch, pair)
        for pair in SAMPLE_PAIRS
        for model, batches in SAMPLE_BATCHES.items()
        for batch in batches
    ]


def find(names: Sequence[str], pairs: Sequence[Pair] = PAIRS) -> list[Pair]:
    """Pairs by their names, all where none is given; ConfigError for an unknown one."""
    known = {pair.name: pair for pair in pairs}
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--device: found '{name}', allowed: {'; '.join(known)}{did_you_mean(name, known)}"
            )
    return [known[name] for name in names] or list(pairs)
