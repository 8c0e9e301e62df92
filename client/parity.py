"""The parity gate: before a device is trusted, its numbers are held against the numpy reference.

GPU drivers do return wrong numbers (all zeros from an fp16 GEMM, one kernel variant wrong, wrong
after a driver's upgrade). So whole training steps of the compiled variants, at the model's real
shapes, are computed on both, and every gradient is compared, and an evaluation after them: once
for a device, driver, version of this package, set of kernels and model; a pass is kept in the
cache folder. A segment of a network that is cut is held against numpy's program of that segment,
with random tensors at its boundaries.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

import kernels
from client import __version__, backends
from client.backends.base import Device, Program
from client.backends.numpy.device import NumpyDevice
from client.backends.recipe import Hyper
from client.cache import cache_dir, write_atomically
from client.errors import ParityError
from client.model.graph import Float32Array, Model
from client.model.initialise import initialise
from client.random import generator

log = logging.getLogger(__name__)

NORM_TOLERANCE = 1e-2
MAX_TOLERANCE = 5e-2
"""Bounds on ‖device − numpy‖ ÷ ‖numpy‖ and max|device − numpy| ÷ max|numpy| of each tensor.

Both sides round float32 in their own order, which differs by some 1e-6; but where a pre-activation
lies that close to zero, or two values of a pooling window that close together, a whole gradient
term flips. A flip changes a tensor by some 1e-3 of its norm, up to 1e-2 (the bias of a first
layer, whose terms cancel); faults of drivers (zeros, a wrong tile, a stale edge) are of the order
of 1e-1 and more.
"""

ROUNDING_FACTOR = 4
"""In deep networks flips multiply: where numpy itself lies far from its own results in float64, a
device may lie this many times as far from them (the tolerance of all float32 results here) ..."""

MOST_NORM, MOST_MAX = 5e-2, 2.5e-1
"""... up to these bounds, which a fault still passes."""

SMALL = 1e-3
"""A gradient is compared as if its typical element were at least this part of the largest tensor's.

Some are zero but for rounding: that of a bias before batch norm, which takes any bias away.
"""

DRAWS = 5
"""Examples are drawn again after a mismatch: flips fall elsewhere, a fault stays."""

HYPER = Hyper(lr=0.05, momentum=0.9, weight_decay=1e-3, betas=(0.9, 0.99), eps=0.05)
"""With an eps about as large as gradients are: a smaller one makes Adam's steps of what is nothing
but rounding (the gradient of a bias before batch norm) as large as any other."""
CLIPPED = replace(HYPER, clip_norm=0.1)  # below any gradient's norm at the start


def check(device: Device, program: Program, model: Model) -> bool:
    """True if parity was established now, False if it was known; ParityError on a mismatch."""
    known = cache_dir() / "parity" / f"{_key(device, program, model)}.json"
    try:
        if known.is_file():
            return False
    except OSError as e:  # a folder that may not be entered
        log.warning("what passed the parity check cannot be read: %s: %s", known, e)
    compare(program, device, model)
    try:
        note = {"device": device.info.key, "model": model.name, "kernels": kernels.digest()}
        write_atomically(known, json.dumps(note).encode())
    except OSError as e:
        log.warning("parity is checked anew at each start: %s cannot be written: %s", known, e)
    return True


def rehearse(device: Device, program: Program, model: Model) -> None:
    """The check's steps on the device alone, compared with nothing: what is known needs no more.

    Drivers build or load a kernel's code when it is first launched, which makes a first step a
    hundred times as long as the next: it must not be the one by which a device is judged.
    """
    _results(device, program, model, draw=0)


def _key(device: Device, program: Program, model: Model) -> str:
    code = (__version__, kernels.digest())
    blocks = program.segment.first, program.segment.stop
    compiled = (*blocks, program.capacity, program.recipe, program.usage)
    what = (device.info.key, *code, model.digest, *compiled)
    return hashlib.blake2b(repr(what).encode(), digest_size=16).hexdigest()


def compare(program: Program, device: Device, model: Model) -> None:
    """Two steps and an evaluation, on both; ParityError naming what differs first."""
    reference = backends.get(backends.REFERENCE)
    info = reference.devices()[0]
    single, double = reference.open(info), NumpyDevice(info, np.float64)
    for draw in range(DRAWS):
        got = _results(device, program, model, draw)
        want = _reference(single, program, model, draw)
        try:
            _compare_results(program, device, got, want)
            return
        except ParityError:
            exact = _reference(double, program, model, draw)
            try:
                _compare_results(program, device, got, exact, want)
                return
            except ParityError:
                if draw == DRAWS - 1:
                    raise


Results = dict[str, Float32Array]


def _reference(device: Device, program: Program, model: Model, draw: int) -> Results:
    """The results of the same steps on numpy."""
    reference = device.compile(program.segment, program.capacity, program.recipe)
    try:
        return _results(device, reference, model, draw)
    finally:
        reference.release()


def _compare_results(
    program: Program,
    device: Device,
    got: Results,
    want: Results,
    rounded: Results | None = None,
) -> None:
    """ParityError naming what differs first; ``rounded``: of numpy in float32, ``want`` exact."""
    gradients = [name for name in want if name.startswith("gradient")]
    least = SMALL * max((_typical(want[name]) for name in gradients), default=0.0)
    for name, expected in want.items():
        if not expected.size:  # nothing is trained
            continue
        floor = least if name in gradients else 0.0
        allowed = NORM_TOLERANCE, MAX_TOLERANCE
        if rounded is not None:
            norm, largest = _distance(rounded[name], expected, floor)
            allowed = (
                min(max(NORM_TOLERANCE, ROUNDING_FACTOR * norm), MOST_NORM),
                min(max(MAX_TOLERANCE, ROUNDING_FACTOR * largest), MOST_MAX),
            )
        _compare_tensor(device, program, name, got[name], expected, floor, allowed)


def _results(device: Device, program: Program, model: Model, draw: int) -> dict[str, Float32Array]:
    """Results of training steps on a full batch and a part of one, in the order of computing.

    Output, gradients, loss, what two updates change (a wrong one is small beside the parameters
    themselves); then the output of the full batch in evaluation; and, of a program that adds up
    gradients, those of a batch in three slices. What would come from a network's other segments is
    random; then the second update is clipped by a norm that is given.
    """
    full, part = program.capacity, max(1, program.capacity * 2 // 3 - 1)
    segment = program.segment
    g = generator("parity", model.digest, draw)
    x = model.input.draw(g, full + part)
    y = program.recipe.loss.random_labels(model.output_shape, full + part, g)
    boundary, output_grad = (
        g.standard_normal((full + part, *model.tensors[tensor]), np.float32)
        for tensor in (segment.input, segment.output)
    )
    data = device.load(x, y)
    order = g.permutation(full + part).astype(np.int32)
    program.begin_epoch(data, order, full, dropout_key=1)
    program.read_metrics()  # forget what an earlier draw left
    params = segment.values_of(initialise(model, seed=0))
    output = "logits" if segment.is_last else "output"
    result: dict[str, Float32Array] = {}

    def forward(start: int, count: int, training: bool = True) -> None:
        program.gather(start, count)
        if not segment.is_first:
            program.put_input(boundary[start : start + count])
        program.forward(count, training)

    for start, count in ((0, full), (full, part)):
        program.upload(params)
        forward(start, count)
        if segment.is_last:
            program.loss(count)
        else:
            program.put_output_grad(output_grad[start : start + count] / np.float32(count))
        program.backward(count)
        result[f"{output} of a batch of {count}"] = program.take_output(count)
        for name, grad in segment.named(program.read_grads()).items():
            result[f"gradient of {name} at a batch of {count}"] = grad.astype(np.float32)
        if segment.needs_input_grad:
            result[f"gradient of the input at a batch of {count}"] = program.take_input_grad(count)
    if segment.is_last:
        result["loss"] = np.array([program.read_metrics().loss], np.float32)
    program.update(HYPER)
    norm: float | None = None
    if not segment.is_whole:
        squares = program.grad_squares(CLIPPED)
        result["sum of the gradient's squares"] = np.array([squares], np.float32)
        norm = 2 * sqrt(squares)
    program.update(CLIPPED, norm)
    result["change of the parameters in two updates"] = program.download() - params
    forward(0, full, training=False)
    result[f"{output} of a batch of {full} in evaluation"] = program.take_output(full)
    if program.recipe.accumulates and segment.is_whole:
        in_slices = np.concatenate([order, order[:full]])
        program.begin_epoch(data, in_slices, len(in_slices), dropout_key=1)
        program.upload(params)
        program.step(0, len(in_slices), HYPER)
        result["gradients of a batch in slices"] = program.read_grads().astype(np.float32)
    data.release()
    return result


def _distance(got: Float32Array, want: Float32Array, floor: float) -> tuple[float, float]:
    """Relative distance in the norm, and of the largest element."""
    difference = np.abs(got.astype(np.float64) - want)
    norm = _typical(difference) / max(_typical(want), floor, 1e-30)
    return norm, float(difference.max() / max(float(np.abs(want).max()), floor, 1e-30))


def _compare_tensor(
    device: Device,
    program: Program,
    name: str,
    got: Float32Array,
    want: Float32Array,
    floor: float,
    allowed: tuple[float, float],
) -> None:
    norm, largest = _distance(got, want, floor)
    if norm <= allowed[0] and largest <= allowed[1]:  # False for NaN as well
        return
    layer = name.removeprefix("gradient of ").split(" ")[0].rsplit(".", 1)[0]
    variants = ", ".join(f"{op}: {v}" for op, v in program.usage.variants if op.startswith(layer))
    segment = program.segment
    blocks = segment.model.block_names[segment.first : segment.stop]
    where = "" if segment.is_whole else f" in the blocks {blocks[0]} to {blocks[-1]}"
    raise ParityError(
        f"{device.info.name} ({device.info.platform}, driver {device.info.driver}) computes wrong "
        f"numbers{where}: {name}, shape {want.shape}, differs from numpy by {norm:.2g} of its norm "
        f"(allowed {allowed[0]:.2g}), {largest:.2g} of its largest value "
        f"(allowed {allowed[1]:.2g})" + (f"; kernels {variants}" if variants else "")
    )


def _typical(x: NDArray[np.floating]) -> float:
    """Root of the mean square."""
    return float(np.linalg.norm(x) / np.sqrt(max(x.size, 1)))
