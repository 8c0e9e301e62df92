"""A processor as its backend describes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DeviceInfo:
    """A processor as its backend describes it. Sizes in bytes; 0 where there is no limit.

    ``name`` is its own: of several devices that are described alike, the second is called
    "… #2" and has the ``index`` 1, and so on (see ``numbered``).
    """

    backend: str
    name: str
    kind: str  # "cpu", "gpu" or "accelerator"
    vendor: str = ""
    platform: str = ""
    driver: str = ""
    compute_units: int = 1
    global_mem_nbytes: int = 0
    max_alloc_nbytes: int = 0
    max_work_group_size: int = 0
    unified_memory: bool = True
    remarks: tuple[str, ...] = ()
    index: int = 0

    @property
    def key(self) -> str:
        """What is kept of this one device: measurements, parity, recorded placements."""
        return self._key(self.name)

    @property
    def description(self) -> str:
        """What compiled programs are kept under: equal for devices that are described alike."""
        return self._key(self.name.removesuffix(_number(self.index)))

    def _key(self, name: str) -> str:
        return "|".join((self.backend, self.platform, self.vendor, name, self.driver))


def _number(index: int) -> str:
    return f" #{index + 1}" if index else ""


def numbered(infos: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """A backend's devices in its order, those that are described alike told apart by number."""
    found: Counter[str] = Counter()
    result = []
    for info in infos:
        index = found[info.key]
        found[info.key] += 1
        result.append(replace(info, name=info.name + _number(index), index=index))
    return result
