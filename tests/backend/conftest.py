"""Every device of every backend that is found; where a backend has none, its reason to skip."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client.backends import get, names
from client.backends.base import Device, DeviceInfo
from client.errors import DeviceError


def _found() -> list[object]:
    found: list[object] = []
    for name in names():
        try:
            infos = get(name).devices()
            reason = f"{name}: no device found"
        except DeviceError as e:
            infos, reason = [], f"{name}: {e}"
        found += [pytest.param(info, id=f"{name}{i}") for i, info in enumerate(infos)]
        if not infos:
            found.append(pytest.param(None, id=name, marks=pytest.mark.skip(reason=reason)))
    return found


@pytest.fixture(scope="session", params=_found())
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """An open device; the same one for all tests."""
    info: DeviceInfo = request.param
    opened = get(info.backend).open(info)
    yield opened
    opened.close()
