"""Profiles of processors that do not exist."""

from __future__ import annotations

from dataclasses import replace

from client.placement.profile import Copy, DeviceProfile, Gemm, Link, ProcessorProfile


def processor(key: str, kind: str = "cpu", **over: object) -> ProcessorProfile:
    """Some 10 to 100 GFLOPS, 10 to 40 GB/s, a link of 1 GB/s; ``over`` replaces its fields."""
    found = ProcessorProfile(
        key=key,
        backend=key.partition("|")[0],
        name=key.split("|")[3],
        kind=kind,
        driver="d",
        threads=1,
        memory_nbytes=0,
        shared_memory=kind == "cpu",
        gemms=(Gemm(64, 64, 64, 1e10), Gemm(256, 256, 256, 4e10), Gemm(1024, 1024, 1024, 1e11)),
        copies=(Copy(2**16, 4e10), Copy(2**26, 1e10)),
        launch_s=1e-6,
        links={"pageable": Link(1e-5, 1e9, 2e-5, 5e8)},
        link_used="pageable",
    )
    return replace(found, **over)  # type: ignore[arg-type]


def profile(*processors: ProcessorProfile) -> DeviceProfile:
    """A machine that has these."""
    return DeviceProfile(1, "host", "2026-01-01", "0.1.0", processors)
