"""Every device of every backend that is found; where a backend has none, its reason to skip."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client.backends import get
from client.backends.base import Device
from client.backends.device_info import DeviceInfo
from tests.backend.harness import found_devices
from tests.backend.opencl_devices import stand_in

stand_in()


@pytest.fixture(scope="session", params=found_devices())
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """An open device; the same one for all tests."""
    info: DeviceInfo = request.param
    opened = get(info.backend).open(info)
    yield opened
    opened.close()
