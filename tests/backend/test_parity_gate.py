"""Every device found here passes the parity gate with the shipped models, at several batches."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from client import parity
from client.backends.base import Device
from client.model import Segment, load_model


@pytest.mark.parametrize(
    ("name", "capacity"),
    [
        ("mlp", 1),
        ("mlp", 32),
        ("lenet5", 3),
        ("lenet5", 32),
        ("resnet8", 4),
        pytest.param("resnet8", 32, marks=pytest.mark.slow),
        pytest.param("resnet20", 32, marks=pytest.mark.slow),
        pytest.param("femnist_cnn", 32, marks=pytest.mark.slow),
        pytest.param("char_lstm", 32, marks=pytest.mark.slow),
    ],
)
def test_a_sound_device_passes(device: Device, name: str, capacity: int) -> None:
    model = load_model(Path(name))
    program = device.compile(model.whole, capacity)
    try:
        parity.compare(program, device, model)
    finally:
        program.release()


@pytest.mark.parametrize(
    ("name", "capacity"),
    [
        ("mlp", 8),
        ("lenet5", 3),
        pytest.param("resnet8", 4, marks=pytest.mark.slow),
        pytest.param("resnet20", 8, marks=pytest.mark.slow),
        pytest.param("mobilenet_v1_025", 8, marks=pytest.mark.slow),
        pytest.param("har_cnn1d", 8, marks=pytest.mark.slow),
        pytest.param("char_lstm", 8, marks=pytest.mark.slow),
    ],
)
def test_a_sound_device_passes_with_the_parts_of_a_cut(
    device: Device, name: str, capacity: int
) -> None:
    """In three: a first, a middle and a last segment."""
    model = load_model(Path(name))
    stops = [len(model.block_names) * i // 3 for i in range(4)]
    for first, stop in pairwise(stops):
        program = device.compile(Segment(model, first, stop), capacity)
        try:
            parity.compare(program, device, model)
        finally:
            program.release()
