"""Costs from a profile alone: a roofline over each operation of the model. Pure.

An operation's part of a step takes launches · launch_s + max(flops / speed, nbytes / bandwidth)
(Williams, Waterman and Patterson, CACM 2009), with the speed of matrix products of the same
arithmetic intensity and the bandwidth of copies of the same size, both measured on the processor,
without the launch that was timed with them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise
from math import exp, log, prod

from client.backends import REFERENCE
from client.backends.recipe import DEFAULT_RECIPE, Recipe
from client.model.graph import Model, Segment
from client.placement.cost import (
    FLOAT_NBYTES,
    Affine,
    BlockCost,
    Boundary,
    Costs,
    ProcessorCost,
)
from client.placement.profile import DeviceProfile, Link, ProcessorProfile
from client.placement.workload import Product, Work, Workload

ROOFLINE = 1.0
ASSUMED = 3.0
"""Relative uncertainty of what the roofline says, and of what it says of assumed speeds."""

ASSUMED_FLOPS_PER_S = 20e9
ASSUMED_BYTES_PER_S = 5e9
"""Of a processor whose arithmetic and copies were not measured: of the order of a phone's."""

LAUNCH_SHARE = 0.8
"""Of the time of a small product or copy: launches of real kernels overlap, and then cost less."""

CALLS_PER_PART = 2
"""Commands of a part that are no block's: the update, and what gathers labels or keys."""


def estimate(
    profile: DeviceProfile,
    model: Model,
    batch: int,
    recipe: Recipe = DEFAULT_RECIPE,
    clips: bool = False,
) -> Costs:
    """Costs of training ``model`` by batches of ``batch`` on the profile's processors.

    ``clips``: gradients are clipped by their norm, which all parts must have before any updates.
    """
    work = Workload(model, recipe)
    blocks = range(len(model.block_names))
    return Costs(
        batch=batch,
        block_names=model.block_names,
        processors=tuple(_processor(p, work, batch) for p in profile.processors),
        boundaries=tuple(
            Boundary(
                FLOAT_NBYTES * prod(model.tensors[work.boundary(b)]),
                Segment(model, b + 1, len(blocks)).needs_input_grad,
            )
            for b in blocks[:-1]
        ),
        num_trained=sum(param.size for param in model.trained),
        block_values=tuple(work.num_values(b) for b in blocks),
        batch_layers=model.batch_layers,
        clips=clips,
        contention=_contention(profile),
        edges={
            frozenset((p.key, q.key)): _refill_s(p.link, q.link)
            for p, q in combinations(profile.processors, 2)
        },
    )


def seconds(processor: ProcessorProfile, work: Work) -> float:
    """The roofline: see the module."""
    if not work.launches:
        return 0.0
    if not processor.complete:
        roof_s = max(work.flops / ASSUMED_FLOPS_PER_S, work.nbytes / ASSUMED_BYTES_PER_S)
        return work.launches * processor.launch_s + roof_s
    arithmetic_s = work.flops / speed(processor, work.size) if work.size else 0.0
    memory_s = work.nbytes / bandwidth(processor, work.nbytes // work.launches)
    return work.launches * processor.launch_s + max(arithmetic_s, memory_s)


def speed(processor: ProcessorProfile, size: float) -> float:
    """Operations a second of products of a size: between those measured, on logarithmic scales.

    Beyond them it stays: below the smallest one, launches and memory are what limits.
    """
    gemms = processor.gemms
    known = sorted(
        (Product(g.m, g.n, g.k).size, _without_launch(processor, g.flops, g.flops_per_s))
        for g in gemms
    )
    for (small, slow), (large, fast) in pairwise(known):
        if size <= large:
            share = log(max(size, small) / small) / log(large / small)
            return exp(log(slow) + share * log(fast / slow))
    return known[-1][1]


def bandwidth(processor: ProcessorProfile, nbytes: int) -> float:
    """Bytes a second of the smallest copy that moves at least so many, else of the largest."""
    of = processor.copy_of(nbytes)
    return _without_launch(processor, of.nbytes, of.bytes_per_s)


def _without_launch(processor: ProcessorProfile, amount: int, per_s: float) -> float:
    """A speed that was timed with a launch, without it; at most LAUNCH_SHARE of it was that."""
    taken_s = amount / per_s
    return amount / max(taken_s - processor.launch_s, (1 - LAUNCH_SHARE) * taken_s)


def affine(seconds_of: Callable[[int], float], batch: int) -> Affine:
    """Seconds as a straight line in the rows: right at ``batch``, and at half of it about so."""
    low, high = max(1, batch // 2), max(2, batch)
    at_low, at_high = seconds_of(low), seconds_of(high)
    row_s = min(max((at_high - at_low) / (high - low), 0.0), at_high / high)
    return Affine(at_high - row_s * high, row_s)


def _processor(p: ProcessorProfile, work: Workload, batch: int) -> ProcessorCost:
    model = work.model
    example = FLOAT_NBYTES * prod(model.input.shape)
    output = FLOAT_NBYTES * prod(model.output_shape)

    def block(number: int) -> BlockCost:
        ops = work.ops(number)
        return BlockCost(
            forward=affine(lambda n: sum(seconds(p, work.forward(op, n)) for op in ops), batch),
            backward=affine(lambda n: sum(seconds(p, work.backward(op, n)) for op in ops), batch),
            update_s=_copy_s(p, work.update_nbytes(number)),
            params_nbytes=work.params_nbytes(number),
            row_nbytes=work.row_nbytes(number),
            uncertainty=ROOFLINE if p.complete else ASSUMED,
        )

    return ProcessorCost(
        key=p.key,
        backend=p.backend,
        name=p.name,
        queued=p.backend != REFERENCE,
        memory_nbytes=p.memory_nbytes,
        blocks=tuple(block(b) for b in range(len(model.block_names))),
        gather=affine(lambda n: p.launch_s + _copy_s(p, 2 * example * n), batch),
        loss=affine(lambda n: p.launch_s + _copy_s(p, 2 * output * n), batch),
        part_s=CALLS_PER_PART * p.launch_s,
        link=p.link,
        power_w=p.power_w,
    )


def _copy_s(p: ProcessorProfile, nbytes: int) -> float:
    if not nbytes:
        return 0.0
    return nbytes / (bandwidth(p, nbytes) if p.complete else ASSUMED_BYTES_PER_S)


def _refill_s(p: Link, q: Link) -> float:
    """What a passage takes beyond the probe's transfers, which follow each other: waiting until a
    queue is empty and filling it again was seen to take about a transfer's latency once more."""
    latencies = (p.upload_latency_s, p.download_latency_s, q.upload_latency_s, q.download_latency_s)
    return sum(latencies) / 2  # of a passage either way


def _contention(profile: DeviceProfile) -> dict[frozenset[str], float]:
    """What processors lose to each other that are the host's own cores: of two with more threads
    than there are cores, the share of the smaller one's threads that have none; all of it where the
    cores are not known. Those that compute in the caller's thread take turns. What is seen of them
    in training may say otherwise.
    """
    found = {}
    for a, b in combinations(profile.processors, 2):
        pair = frozenset((a.key, b.key))
        if a.backend == b.backend == REFERENCE:
            found[pair] = 1.0
        elif all(p.kind == "cpu" and p.shared_memory for p in (a, b)):
            short = a.threads + b.threads - profile.cores
            found[pair] = min(max(short / min(a.threads, b.threads), 0.0), 1.0)
    return found
