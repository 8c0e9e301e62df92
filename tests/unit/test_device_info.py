"""Devices that are described alike: each is one of its own, and they share compiled programs."""

from __future__ import annotations

from client.backends.device_info import DeviceInfo, numbered

GPU = DeviceInfo("opencl", "GPU", "gpu", vendor="V", platform="P 1.2", driver="3")
OTHER = DeviceInfo("opencl", "Other", "gpu", vendor="V", platform="P 1.2", driver="3")


def test_equal_devices_are_told_apart_by_number() -> None:
    infos = numbered([GPU, OTHER, GPU, GPU])
    assert [i.name for i in infos] == ["GPU", "Other", "GPU #2", "GPU #3"]
    assert [i.index for i in infos] == [0, 0, 1, 2]
    assert len({i.key for i in infos}) == 4
    assert len({i.description for i in infos}) == 2


def test_a_device_that_is_alone_is_as_it_was() -> None:
    assert numbered([GPU, OTHER]) == [GPU, OTHER]
    assert GPU.key == GPU.description == "opencl|P 1.2|V|GPU|3"
