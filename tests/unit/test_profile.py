"""Profiles of processors: what is written is read again, what is wrong is told in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from client.errors import ConfigError
from client.placement import profile
from client.placement.profile import Copy, DeviceProfile, Gemm, Link, ProcessorProfile

GPU = ProcessorProfile(
    key="opencl|Platform|Vendor|A GPU|1.0",
    backend="opencl",
    name="A GPU",
    kind="gpu",
    driver="1.0",
    threads=4,
    memory_nbytes=2**30,
    shared_memory=False,
    gemms=(Gemm(32, 32, 32, 1e9), Gemm(1024, 1024, 1024, 1e11)),
    copies=(Copy(2**16, 1e9), Copy(2**20, 1.5e9)),
    launch_s=1e-5,
    links={"pageable": Link(2e-5, 1e9, 3e-5, 5e8), "pinned": Link(1e-5, 2e9, 1e-5, 2e9)},
    link_used="pageable",
)
CPU = replace(
    GPU, key="numpy|||CPU|1", backend="numpy", kind="cpu", shared_memory=True, power_w=3.5
)
PROFILE = DeviceProfile(1, "host", "2026-01-02T03:04:05+00:00", "0.1.0", (GPU, CPU), cores=8)


def test_a_written_profile_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(PROFILE.to_yaml(), encoding="utf-8")
    assert profile.load(path) == PROFILE


def test_a_transfer_takes_its_latency_and_its_bytes() -> None:
    assert GPU.link.upload_s(1_000_000) == pytest.approx(2e-5 + 1e-3)
    assert GPU.link.download_s(1_000_000) == pytest.approx(3e-5 + 2e-3)


def test_a_copy_is_as_fast_as_the_smallest_measured_that_holds_it() -> None:
    assert GPU.copy_of(1).bytes_per_s == 1e9
    assert GPU.copy_of(2**16 + 1).bytes_per_s == 1.5e9
    assert GPU.copy_of(2**30).bytes_per_s == 1.5e9


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1", "version: 2", "p.yaml: version: found 2, this pocketfed reads version 1"),
        ("version: 1", "version: true", "p.yaml: version: found True"),
        ("version: 1\n", "", "p.yaml: version: found nothing"),
        ("host: host", "hots: host", "p.yaml: hots: unknown key; allowed"),
        (
            "launch_s: 1.0e-05",
            "launch_s: soon",
            r"p.yaml: processors\[0\].launch_s: found 'soon', needs a number",
        ),
        (
            "launch_s: 1.0e-05",
            "launch_s: -1",
            r"p.yaml: processors\[0\].launch_s: found -1.0, needs a number from 0",
        ),
        (
            "upload_bytes_per_s: 1000000000.0",
            "upload_bytes_per_s: 0",
            r"processors\[0\].links.pageable.upload_bytes_per_s: found 0.0, needs a number above 0",
        ),
        (
            "link_used: pageable",
            "link_used: mapped",
            r"processors\[0\].link_used: found 'mapped', which is not among the links",
        ),
        (
            "    pinned:",
            "    glued:",
            r"processors\[0\].links.glued: unknown key; allowed: pageable, pinned",
        ),
        (GPU.key, CPU.key, "processors: the key 'numpy.*' stands twice"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_key(old: str, new: str, message: str) -> None:
    text = PROFILE.to_yaml()
    assert old in text
    with pytest.raises(ConfigError, match=message) as caught:
        profile.from_yaml(text.replace(old, new, 1), "p.yaml")
    assert "\n" not in str(caught.value)


def test_a_text_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"p.yaml: needs a mapping"):
        profile.from_yaml("- 1", "p.yaml")
