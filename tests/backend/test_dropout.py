"""Dropout's masks: equal bit by bit on every backend, in every batch and for every cut."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from client.backends.base import Device
from client.model import Model, Segment
from client.random import philox4x32
from tests.backend.harness import KEY, examples, network

P = 0.3
OTHER_KEY = 0xFFFF_FFFF_0000_0001


def kept(key: int, examples_: NDArray[np.int32], size: int, op: int, p: float) -> NDArray[np.bool_]:
    """By the definition, element by element: (examples, size)."""
    mask = np.empty((len(examples_), size), np.bool_)
    for row, example in enumerate(examples_):
        for element in range(size):
            counter = np.array([[element // 4, example, op, 0]], np.uint32)
            word = int(philox4x32(key, counter)[0, element % 4])
            mask[row, element] = word >= int(p * 2**32)
    return mask


def through(
    device: Device, model: Model, key: int, order: NDArray[np.int32], start: int, count: int
) -> NDArray[np.float32]:
    """Ones through the model's dropout, flattened: all zeros and 1/(1-p)."""
    x, y = examples(model, len(order))
    program = device.compile(model.whole, 4)
    program.upload(np.eye(model.num_classes, dtype=np.float32).ravel())
    program.begin_epoch(device.load(np.ones_like(x), y), order, 4, key)
    program.gather(start, count)
    program.forward(count)
    out = program.take_output(count)
    program.release()
    return out


@pytest.mark.parametrize("shape", [[1], [5], [33], [2, 3, 5]], ids=str)
@pytest.mark.parametrize("key", [KEY, OTHER_KEY], ids=hex)
def test_masks_follow_the_definition(device: Device, shape: list[int], key: int) -> None:
    size = int(np.prod(shape))
    passing = {"type": "linear", "out_features": size, "bias": False}
    flatten = ["flatten"] if len(shape) == 3 else []
    model = network(shape, {"type": "dropout", "p": P}, *flatten, passing)
    order = np.random.default_rng(0).permutation(11).astype(np.int32)
    for start, count in ((0, 4), (4, 1), (8, 3)):
        out = through(device, model, key, order, start, count)
        mask = kept(key, order[start : start + count], size, 0, P)
        np.testing.assert_array_equal(out != 0, mask)
        np.testing.assert_allclose(out[mask], 1 / (1 - P), rtol=1e-6)


def test_each_dropout_has_masks_of_its_own(device: Device) -> None:
    """The counter holds the operation's place in the whole model, also in a later segment."""
    drop, passing = {"type": "dropout", "p": 0.5}, {"type": "linear", "out_features": 33}
    model = network([33], "relu", drop, "relu", drop, passing)
    order = np.arange(6, dtype=np.int32)[::-1].copy()
    x, y = examples(model, 6)
    data = device.load(x, y)
    for segment, op in ((Segment(model, 1, 2), 1), (Segment(model, 3, 4), 3)):
        program = device.compile(segment, 6)
        program.upload(np.empty(0, np.float32))
        program.begin_epoch(data, order, 6, KEY)
        program.gather(0, 6)
        program.put_input(np.ones((6, 33), np.float32))
        program.forward(6)
        out = program.take_output(6)
        program.put_output_grad(np.full((6, 33), 3, np.float32))
        program.backward(6)
        mask = kept(KEY, order, 33, op, 0.5)
        np.testing.assert_array_equal(out, 2 * mask)
        np.testing.assert_array_equal(program.take_input_grad(6), 6 * mask)
        program.release()


def test_probability_zero_keeps_everything(device: Device) -> None:
    passing = {"type": "linear", "out_features": 9, "bias": False}
    model = network([9], {"type": "dropout", "p": 0.0}, passing)
    out = through(device, model, KEY, np.arange(4, dtype=np.int32), 0, 4)
    np.testing.assert_array_equal(out, np.ones((4, 9)))
