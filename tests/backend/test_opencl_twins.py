"""Two equal devices: the same one, found twice, stands for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client.backends import get
from tests.backend.harness import Subject, examples, network
from tests.backend.opencl_devices import first_device


def test_equal_devices_are_opened_apart_and_share_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_device()
    backend = get("opencl")
    alone = backend.devices()
    from client.backends.opencl.discover import cl

    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path))
    monkeypatch.setattr("client.backends.opencl.device.keeps_its_own", lambda device: False)
    platforms = cl.get_platforms()
    monkeypatch.setattr(cl, "get_platforms", lambda: [*platforms, *platforms])
    infos = backend.devices()
    assert infos[: len(alone)] == alone
    first, second = infos[0], infos[len(alone)]
    equal = sum(info.description == first.description for info in alone)
    assert second.name == f"{first.name} #{equal + 1}"
    assert second.key != first.key

    model = network([3], {"type": "linear", "out_features": 2})
    grads, kept = [], []
    for info in (first, second):
        device = backend.open(info)
        assert device.info == info
        subject = Subject(device, model, 4, *examples(model, 4))
        grads.append(subject.gradients(4))
        kept.append({path.name for path in (tmp_path / "programs").iterdir()})
        device.close()
    np.testing.assert_array_equal(*grads)
    assert kept[0] == kept[1] != set()
