"""Finding devices, and what is said where there is none."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from client.backends import get
from client.errors import DeviceError
from tests.backend.opencl_devices import first_device, open_device

DISCOVER = "client.backends.opencl.discover"


@pytest.mark.slow
def test_importing_the_backend_imports_no_pyopencl() -> None:
    code = (
        "import sys, client.backends.opencl as o; o.BACKEND; "
        "sys.exit(any(m.startswith('pyopencl') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_pyopencl_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    monkeypatch.delitem(sys.modules, DISCOVER, raising=False)
    with pytest.raises(DeviceError, match="pip install pyopencl"):
        get("opencl").devices()


def test_a_part_of_a_device_has_its_own_limits() -> None:
    info = first_device()
    if info.kind != "cpu":
        pytest.skip("only PoCL's devices have parts")
    part = get("opencl").open_part(info, cores=1, memory_nbytes=100 << 20)
    assert (part.info.compute_units, part.info.global_mem_nbytes) == (1, 100 << 20)
    assert part.info.max_alloc_nbytes <= 100 << 20
    x = np.zeros((30, 1, 1 << 20), np.float32)
    assert not part.load(x, np.zeros(30, np.int32)).resident
    part.close()
    with pytest.raises(DeviceError, match=r"cannot be opened with 999 of its .*: leave"):
        get("opencl").open_part(info, cores=999)


@pytest.mark.parametrize("raises", [True, False])
def test_without_a_platform_the_remedy_is_said(
    monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    cl = pytest.importorskip("pyopencl")

    def platforms() -> list[Any]:
        if raises:
            raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")
        return []

    monkeypatch.setattr(cl, "get_platforms", platforms)
    with pytest.raises(DeviceError, match=r"no OpenCL platform found: .*pocketfed\[pocl\]"):
        get("opencl").devices()


class Broken:
    """A platform whose driver does not answer."""

    name = "Broken"

    def get_devices(self) -> list[Any]:
        import pyopencl as cl

        raise cl.RuntimeError("clGetDeviceIDs failed: OUT_OF_HOST_MEMORY")


def test_a_platform_that_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first_device()
    cl = pytest.importorskip("pyopencl")
    infos, platforms = get("opencl").devices(), cl.get_platforms()
    monkeypatch.setattr(cl, "get_platforms", lambda: [Broken(), *platforms])
    for _ in range(2):
        assert get("opencl").devices() == infos
    said = "OpenCL platform Broken: clGetDeviceIDs failed: OUT_OF_HOST_MEMORY: install its driver"
    assert [said in record.message for record in caplog.records] == [True]
    monkeypatch.setattr(cl, "get_platforms", lambda: [Broken()])
    with pytest.raises(DeviceError, match=said):
        get("opencl").devices()


def test_a_platform_without_devices_has_its_remedy_said(monkeypatch: pytest.MonkeyPatch) -> None:
    cl = pytest.importorskip("pyopencl")
    empty = SimpleNamespace(name="Empty", get_devices=list)
    monkeypatch.setattr(cl, "get_platforms", lambda: [empty])
    with pytest.raises(DeviceError, match=r"platform Empty has no device .*: install its driver"):
        get("opencl").devices()


def test_a_device_describes_itself() -> None:
    info = first_device()
    assert info.backend == "opencl"
    assert info.kind in ("cpu", "gpu", "accelerator")
    assert info.name
    assert info.platform
    assert info.driver
    assert min(info.global_mem_nbytes, info.max_alloc_nbytes, info.max_work_group_size) > 0
    assert get("opencl").devices()[0] == info


def test_a_device_that_is_gone_is_an_error() -> None:
    first_device()
    gone = type(first_device())(backend="opencl", name="Gone", kind="gpu")
    with pytest.raises(DeviceError, match="Gone"):
        get("opencl").open(gone)


def fake(version: str, platform: str = "PoCL 3.1", vector: int = 16, kind: int = 2) -> Any:
    return SimpleNamespace(
        version=version,
        platform=SimpleNamespace(name="PoCL", version=platform),
        native_vector_width_float=vector,
        type=kind,
    )


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (fake("OpenCL 3.0 PoCL HSTR: pthread-x86_64-pc-linux-gnu-skylake-avx512"), []),
        (fake("OpenCL 3.0 PoCL HSTR: pthread-x86_64-pc-linux-gnu-x86-64"), ["generic code"]),
        (fake("OpenCL 3.0 PoCL HSTR: pthread-aarch64-linux-gnu-generic"), ["generic code"]),
        (fake("OpenCL 3.0 PoCL HSTR: x-gnu-icelake", "OpenCL 3.0 PoCL 3.0-rc2"), ["old PoCL"]),
        (fake("OpenCL 2.0", vector=1), ["no vector units"]),
    ],
)
def test_what_is_odd_is_remarked_with_a_remedy(device: Any, said: list[str]) -> None:
    first_device()
    remarks = list(importlib.import_module(DISCOVER)._remarks(device, "cpu"))
    assert len(remarks) == len(said)
    for remark, part in zip(remarks, said, strict=True):
        assert part in remark
        assert ": " in remark


def test_errors_of_opencl_name_device_and_kernel() -> None:
    from pathlib import Path

    from client.model import load_model

    device = open_device()
    program = device.compile(load_model(Path("mlp")).whole, 4)
    prepared = program._bind(program._plan.forward, 4, "training")  # type: ignore[attr-defined]
    p = prepared[0]
    broken = replace(p, global_size=(3, 3), local_size=(1 << 20, 1 << 20))
    with pytest.raises(DeviceError, match=rf"{device.info.name[:7]}.*kernel gemm of fc1") as caught:
        program._run("forward", [broken])  # type: ignore[attr-defined]
    assert "\n" not in str(caught.value)
    device.close()
