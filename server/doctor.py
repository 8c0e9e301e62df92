"""`pocketfed doctor`: what this machine has, what is odd about it, and how to mend it."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from client import backends, parity
from client.cache import cache_dir
from client.errors import ConfigError, DeviceError
from client.model import load_model
from server import console

if TYPE_CHECKING:
    from rich.table import Table

Level = Literal["ok", "odd", "wrong"]

PACKAGES = {
    "flwr": "",
    "numpy": "",
    "pyopencl": "",
    "grpcio": "",
    "protobuf": "",
    "pyyaml": "",
    "safetensors": "server",
    "typer": "server",
    "rich": "server",
    "mlxtend": "data",
    "scikit-learn": "data",
}
"""Packages and the extra that brings them (empty: the base install)."""


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, and the remedy where one is needed."""

    check: str
    level: Level
    found: str
    remedy: str = ""


def examine(runs: Path) -> list[Finding]:
    """All checks in order; none of them raises."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python,
        _packages,
        _devices,
        lambda: _writable("cache folder", cache_dir(), "set POCKETFED_CACHE to a folder of yours"),
        lambda: _writable("runs folder", runs, "start from another folder, or use --out"),
    ]
    return [finding for check in checks for finding in check()]


def _python() -> Iterator[Finding]:
    supported = sys.version_info >= (3, 11)
    yield Finding(
        "Python",
        "ok" if supported else "wrong",
        f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "" if supported else "install Python 3.11 or later",
    )


def _packages() -> Iterator[Finding]:
    for package, extra in PACKAGES.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            target = f"pocketfed[{extra}]" if extra else "pocketfed"
            level: Level = "odd" if extra else "wrong"
            yield Finding(package, level, "not installed", f"pip install '{target}'")
            continue
        right = package != "flwr" or version.startswith("1.42.")
        remedy = "" if right else "pip install 'flwr>=1.42,<1.43'"
        yield Finding(package, "ok" if right else "wrong", version, remedy)


def _devices() -> Iterator[Finding]:
    model = load_model(Path("lenet5"))
    for name in backends.at_hand():
        backend = backends.get(name)
        try:
            found = backend.devices()
        except ConfigError as e:
            remedy = f"correct it, or unset {backends.EMULATED_VARIABLE}"
            yield Finding(f"backend {name}", "wrong", str(e), remedy)
            continue
        except DeviceError as e:
            text, _, remedy = str(e).partition(": ")
            yield Finding(f"backend {name}", "odd", text, remedy)
            continue
        if not found:
            yield Finding(f"backend {name}", "odd", "no device found", "install a driver for it")
        for info in found:
            where = f"{info.name}; {info.platform}" if info.platform else info.name
            if info.driver:
                where += f", driver {info.driver}"
            yield Finding(f"device {name}", "ok", where)
            for remark in info.remarks:
                text, _, remedy = remark.partition(": ")
                yield Finding("  remark", "odd", text, remedy)
            tuning = backend.tuning(info)
            if tuning:
                yield Finding("  kernels", "ok", tuning)
            if name == backends.REFERENCE:
                continue
            try:
                device = backend.open(info)
                try:
                    program = device.compile(model.whole, 32)
                    parity.compare(program, device, model)
                finally:
                    device.close()
            except DeviceError as e:
                yield Finding(
                    "  parity", "wrong", str(e), "update the driver; until then it is not used"
                )
            else:
                yield Finding("  parity", "ok", f"{model.name}: every gradient agrees with numpy")


def _writable(check: str, folder: Path, remedy: str) -> Iterator[Finding]:
    existing = next(f for f in (folder.absolute(), *folder.absolute().parents) if f.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as f:
            f.write(b"pocketfed")
    except OSError as e:
        yield Finding(check, "wrong", f"{folder}: {e.strerror}", remedy)
    else:
        yield Finding(check, "ok", str(folder))


def as_json(findings: list[Finding]) -> dict[str, Any]:
    """The JSON object of `pocketfed doctor`."""
    return {
        "healthy": all(f.level != "wrong" for f in findings),
        "findings": [asdict(f) for f in findings],
    }


def render(findings: list[Finding]) -> Table:
    """A table with a remedy beside each finding that needs one."""
    rows = [[f.check, f.level, f.found, f.remedy] for f in findings]
    return console.table(
        "pocketfed doctor", ["check", "", "found", "remedy"], rows, fold=("found", "remedy")
    )
