"""The primitives by which a device is measured: all are there, and leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from client.backends.base import Device
from client.backends.exercises import LINK_KINDS, Exercise


def run(exercise: Exercise) -> None:
    exercise.run(1)
    exercise.run(3)
    exercise.release()


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 33, 7), (32, 65, 64)])
def test_a_product_of_any_shape_runs(device: Device, shape: tuple[int, int, int]) -> None:
    run(device.exercises().gemm(*shape))


@pytest.mark.parametrize("nbytes", [64, 2**16])
def test_copies_and_launches_run(device: Device, nbytes: int) -> None:
    run(device.exercises().copy(nbytes))
    run(device.exercises().launch())


@pytest.mark.parametrize("nbytes", [4, 5, 2**16])
def test_transfers_of_every_kind_run(device: Device, nbytes: int) -> None:
    exercises = device.exercises()
    assert exercises.link_used in exercises.link_kinds
    assert set(exercises.link_kinds) <= set(LINK_KINDS)
    for kind in exercises.link_kinds:
        run(exercises.upload(nbytes, kind))
        run(exercises.download(nbytes, kind))


def test_exercises_neither_count_as_traffic_nor_keep_memory(device: Device) -> None:
    device.finish()
    before = vars(device.traffic).copy()
    allocator: Any = getattr(device, "allocator", None)
    free_nbytes = allocator and allocator.free_nbytes
    exercises = device.exercises()
    for exercise in (
        exercises.gemm(8, 8, 8),
        exercises.copy(64),
        exercises.launch(),
        *(exercises.upload(64, kind) for kind in exercises.link_kinds),
        *(exercises.download(64, kind) for kind in exercises.link_kinds),
    ):
        run(exercise)
    assert vars(device.traffic) == before
    assert free_nbytes == (allocator and allocator.free_nbytes)
