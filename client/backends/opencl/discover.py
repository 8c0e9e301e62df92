"""Which OpenCL devices there are, and what is odd about them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from client.backends.device_info import DeviceInfo, numbered
from client.errors import DeviceError

# Programs are kept by a cache of ours, keyed on the driver too; pyopencl's would keep them twice.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

try:
    import pyopencl as cl
except ImportError as e:
    raise DeviceError(f"pyopencl cannot be imported ({e}): pip install pyopencl") from None

log = logging.getLogger(__name__)

NO_PLATFORM = (
    "no OpenCL platform found: install the GPU's driver; for this machine's processor, on Debian: "
    "apt install pocl-opencl-icd, elsewhere: pip install 'pocketfed[pocl]'"
)


def find() -> list[tuple[DeviceInfo, cl.Device]]:
    """All devices that can compile; DeviceError with the remedy where there is none.

    A platform that fails (a driver that does not fit its kernel module) does not take the others
    with it: that is said once, and is an error where no device is left.
    """
    try:
        platforms = cl.get_platforms()
    except cl.Error as e:  # the loader's way to say that there are none
        raise DeviceError(NO_PLATFORM) from e
    if not platforms:
        raise DeviceError(NO_PLATFORM)
    found: list[tuple[DeviceInfo, cl.Device]] = []
    failures = []
    for platform in platforms:
        try:
            devices = [d for d in _devices(platform) if d.available and d.compiler_available]
            found += [(describe(device), device) for device in devices]
        except cl.Error as e:
            answer = " ".join(str(e).split())
            failures.append(f"OpenCL platform {platform.name}: {answer}: install its driver anew")
    if failures and not found:
        raise DeviceError("; ".join(failures))
    if not found:
        names = ", ".join(platform.name for platform in platforms)
        raise DeviceError(
            f"the OpenCL platform {names} has no device that can compile: install its driver anew; "
            "PoCL needs a folder that it can write, POCL_CACHE_DIR"
        )
    for failure in failures:
        _say_once(failure)
    infos = numbered(info for info, _ in found)
    return [(info, device) for info, (_, device) in zip(infos, found, strict=True)]


@cache
def _say_once(failure: str) -> None:
    log.warning("%s", failure)


def _devices(platform: cl.Platform) -> list[cl.Device]:
    try:
        found: list[cl.Device] = platform.get_devices()
    except cl.LogicError as e:
        if e.code == cl.status_code.DEVICE_NOT_FOUND:
            return []
        raise
    return found


def describe(device: cl.Device) -> DeviceInfo:
    """What a device says about itself."""
    kinds = {cl.device_type.CPU: "cpu", cl.device_type.GPU: "gpu"}
    kind = next((name for flag, name in kinds.items() if device.type & flag), "accelerator")
    return DeviceInfo(
        backend="opencl",
        name=_clean(device.name),
        kind=kind,
        vendor=_clean(device.vendor),
        platform=f"{_clean(device.platform.name)} {_clean(device.platform.version)}",
        driver=_clean(device.driver_version),
        compute_units=device.max_compute_units,
        global_mem_nbytes=device.global_mem_size,
        max_alloc_nbytes=device.max_mem_alloc_size,
        max_work_group_size=device.max_work_group_size,
        unified_memory=bool(device.host_unified_memory),
        remarks=tuple(_remarks(device, kind)),
    )


def part_of(info: DeviceInfo, device: cl.Device, cores: int) -> tuple[DeviceInfo, cl.Device]:
    """A sub-device with so many compute units; DeviceError where the device has none to give."""
    if cores == device.max_compute_units:
        return info, device
    try:
        by_counts = cl.device_partition_property.BY_COUNTS
        part = device.create_sub_devices([by_counts, cores])[0]
    except cl.Error as e:
        raise DeviceError(
            f"{info.name}: cannot be opened with {cores} of its {device.max_compute_units} compute "
            f"units: {' '.join(str(e).split())}: leave the number of cores out"
        ) from e
    return replace(info, compute_units=cores), part


def _remarks(device: cl.Device, kind: str) -> Iterator[str]:
    """What a user should know, each with its remedy after a colon."""
    if "PoCL" in device.version:
        # "OpenCL 3.0 PoCL HSTR: pthread-x86_64-pc-linux-gnu-skylake-avx512": the last part is the
        # processor that PoCL compiles for.
        target = device.version.rsplit("gnu-", 1)[-1].rsplit(" ", 1)[-1]
        if target in ("", "x86-64", "generic", "unknown"):
            yield (
                "PoCL does not know this processor and compiles slow generic code: "
                "install a newer PoCL, on Debian: apt install pocl-opencl-icd"
            )
        elif "PoCL 3.0-rc" in device.platform.version:
            yield (
                "this is the old PoCL 3.0 of the pocl extra, which can be several times slower: "
                "on Debian, apt install pocl-opencl-icd brings a newer one"
            )
    if kind == "cpu" and device.native_vector_width_float < 4:
        yield (
            "the compiler reports no vector units for this processor: "
            "install a newer OpenCL driver, or train with --backend numpy"
        )


def _clean(text: str) -> str:
    return " ".join(text.replace("\0", " ").split())
