"""Every device of every backend that is found; where a backend has none, its reason to skip."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client.backends.base import Device
from tests.backend.harness import EMULATED, found_devices, open_found
from tests.backend.opencl_devices import stand_in

stand_in()


QUICK = ("test_program.py", "test_exchange.py")
"""Files that quick tests run on an emulated device, too: on the one that is numpy beneath."""

KERNELS = (
    *("test_activations.py", "test_dropout.py", "test_frozen.py", "test_norm.py"),
    *("test_random_stacks.py", "test_recipes.py", "test_sequences.py"),
)
"""Files on what kernels compute. An emulated device hands all kernels on alike, so that these need
not compile each of them once more: emulated, they run on numpy alone."""

NOT_QUICK = "test_peaks_are_above_what_a_step_does"
"""It takes seconds, and the peaks are the inner device's."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All else on emulated devices is slow."""
    left_out = {i for i in items if "emulated-opencl" in i.name and i.path.name in KERNELS}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        names = [name for name in EMULATED if name in item.name]
        quick = item.path.name in QUICK and NOT_QUICK not in item.name
        if names and not (names == ["emulated-numpy"] and quick):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", params=found_devices())
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """An open device; the same one for all tests."""
    opened = open_found(request.param)
    yield opened
    opened.close()
