"""Sequences: recurrent layers and their neighbours, cut, in parts, frozen, poisoned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client.backends.base import Device
from client.backends.recipe import Hyper
from client.model import Model, Segment
from tests.backend.harness import (
    KEY,
    Subject,
    assert_tensors_close,
    examples,
    network,
    numpy_device,
)
from tests.tolerance import assert_close

BATCH = 6
LAYERS: tuple[Any, ...] = (
    {"type": "embedding", "embedding_dim": 5},
    {"type": "lstm", "hidden_size": 17, "num_layers": 2},
    {"type": "dropout", "p": 0.3},
    {"type": "residual", "body": [{"type": "gru", "hidden_size": 17}, "relu"]},
    {"type": "gru", "hidden_size": 9, "num_layers": 2},
    "relu",
    {"type": "linear", "out_features": 7},
    "transpose",
    "tanh",
    "transpose",
    "last_step",
    {"type": "linear", "out_features": 5},
)
"""A state that the next layer would overwrite (dropout, relu), and one with two readers."""


def model() -> Model:
    return network([4], *LAYERS, vocabulary=11)


@pytest.fixture
def subject(device: Device) -> Subject:
    return Subject(device, model(), BATCH, *examples(model(), 10))


@pytest.mark.parametrize("count", [1, 4, BATCH])
def test_gradients_agree_with_the_reference(device: Device, subject: Subject, count: int) -> None:
    subject.program.poison()
    results = [(subject.gradients(count), subject.program.take_output(count))]
    for dtype in (np.float64, np.float32):
        reference = Subject(numpy_device(dtype), model(), BATCH, *examples(model(), 10))
        results.append((reference.gradients(count), reference.program.take_output(count)))
    assert_tensors_close(model(), "gradient", *(grads for grads, _ in results))
    assert_close("logits", *(logits for _, logits in results))
    subject.release()


@pytest.mark.parametrize("cut", range(1, len(LAYERS)))
def test_two_segments_equal_the_whole(device: Device, subject: Subject, cut: int) -> None:
    whole = subject.gradients(BATCH)
    segments = [Segment(subject.model, 0, cut), Segment(subject.model, cut, len(LAYERS))]
    first, last = (device.compile(s, BATCH) for s in segments)
    for program in (first, last):
        program.upload(subject.params[program.segment.param_slice])
        program.begin_epoch(subject.data, subject.order, BATCH, KEY)
        program.poison()
        program.gather(0, BATCH)
    first.forward(BATCH)
    last.put_input(first.take_output(BATCH))
    last.forward(BATCH)
    last.loss(BATCH)
    last.backward(BATCH)
    first.put_output_grad(last.take_input_grad(BATCH))
    first.backward(BATCH)
    grads = np.concatenate([first.read_grads(), last.read_grads()])
    np.testing.assert_allclose(grads, whole, rtol=1e-4, atol=1e-6)
    for program in (first, last):
        program.release()
    subject.release()


def test_frozen_recurrent_layers_pass_gradients_on(device: Device) -> None:
    """Only the embedding and the end are trained: their gradients are those of the whole."""
    whole = model()
    ops = tuple(replace(op, frozen=op.layer.kind in ("lstm", "gru")) for op in whole.ops)
    part = replace(whole, ops=ops)
    x, y = examples(whole, 10)
    expected = whole.views(Subject(device, whole, BATCH, x, y).gradients(BATCH))
    subject = Subject(device, part, BATCH, x, y)
    found = part.views(subject.gradients(BATCH))
    assert [p.name for p in part.trained] == [
        "0.weight", "6.weight", "6.bias", "11.weight", "11.bias"
    ]  # fmt: skip
    for p in part.trained:
        np.testing.assert_allclose(found[p.name], expected[p.name], rtol=1e-5, atol=1e-7)
    subject.program.update(Hyper(lr=1.0))
    after = part.views(subject.program.download())
    np.testing.assert_array_equal(
        after["1.weight_hh_l1"], part.views(subject.params)["1.weight_hh_l1"]
    )
    subject.release()
