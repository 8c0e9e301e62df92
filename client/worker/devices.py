"""The devices of this process: opened once, programs compiled once, checked once, then kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from client import backends, parity
from client.backends.base import Device, Program
from client.backends.device_info import DeviceInfo
from client.backends.recipe import DEFAULT_RECIPE, Recipe
from client.config import DevicesConfig
from client.errors import ConfigError, DeviceError
from client.model import Model
from client.model.graph import Segment
from client.placement.layout import Layout
from client.record import Event

log = logging.getLogger(__name__)


@dataclass
class Devices:
    """Devices that the experiment allows, in order of discovery.

    A device that fails is refused from then on, with the reason; what is refused or falls back is
    logged, and handed out once by ``take_events`` for the node's record. ``excluded``: backends
    that must not even be asked for their devices, and why.
    """

    config: DevicesConfig
    model: Model
    excluded: Mapping[str, str] = field(default_factory=dict)
    recipe: Recipe = DEFAULT_RECIPE
    _open: dict[str, Device] = field(default_factory=dict)
    _programs: dict[tuple[str, tuple[int, int], int, int | str | None], Program] = field(
        default_factory=dict
    )
    _build_s: dict[str, float] = field(default_factory=dict)  # the longest of each device
    _refused: dict[str, str] = field(default_factory=dict)
    _events: list[Event] = field(default_factory=list)
    _found: list[DeviceInfo] | None = None

    def usable(self) -> list[DeviceInfo]:
        """Allowed devices that were not refused; DeviceError naming the reasons if none is left."""
        if self._found is None:
            self._found = self._discover()
        left = [info for info in self._found if info.key not in self._refused]
        if not left:
            reasons = {**self.excluded, **self._refused}
            refused = [f"{key.partition('|')[0]}: {why}" for key, why in reasons.items()]
            raise DeviceError(
                f"no device is left to train on (devices.backend: {self.config.backend}): "
                f"{'; '.join(refused) or 'none was found'}"
            )
        return left

    def found(self) -> list[DeviceInfo]:
        """The same and those that were refused since."""
        self.usable()
        assert self._found is not None
        return self._found

    def build_s(self, layout: Layout) -> float:
        """What the programs of a layout may take that were not built yet, by those that were."""
        built = {(key, blocks) for key, blocks, *_ in self._programs}
        missing = [p for p in layout.parts if (p.device, (p.first, p.stop)) not in built]
        return sum(self._build_s.get(part.device, 0.0) for part in missing)

    def holds_whole(self, info: DeviceInfo, batch: int) -> bool:
        """Whether there is room for the whole network and a batch, by planning alone."""
        whole = self.model.whole
        built = any(k[:2] == (info.key, (whole.first, whole.stop)) for k in self._programs)
        return built or self.open(info).largest_batch(whole, batch, self.recipe) >= batch

    def find(self, key: str) -> DeviceInfo:
        """The usable device with this key; DeviceError if there is none."""
        usable = self.usable()
        for info in usable:
            if info.key == key:
                return info
        why = self._refused.get(key) or self.excluded.get(key.partition("|")[0])
        raise DeviceError(
            f"the recorded device is not here: {key}; here: {', '.join(i.key for i in usable)}"
            + (f" (refused: {why})" if why else "")
        )

    def need_proximal(self) -> None:
        """From now on updates may have a proximal term.

        Programs without are given back, since what trains is also what evaluates.
        """
        if not self.recipe.proximal:
            self.recipe = replace(self.recipe, proximal=True)
            self._release_programs()

    def open(self, info: DeviceInfo) -> Device:
        """The opened device; DeviceError if it cannot be opened."""
        backends.at_work(info.backend)
        device = self._open.get(info.key)
        if device is None:
            device = self._open[info.key] = backends.get(info.backend).open(info)
        return device

    def ready(
        self, info: DeviceInfo, batch: int, micro_batch: int | Literal["auto"] | None = None
    ) -> tuple[Device, Program]:
        """The opened device and a program of the whole network; DeviceError if there is none.

        The program takes a batch in slices where it is larger than ``micro_batch``, or, with
        "auto", than what fits.
        """
        device = self.open(info)
        whole = self.model.whole
        key = (info.key, (whole.first, whole.stop), batch, micro_batch)
        program = self._programs.get(key)
        if program is None:
            capacity = self._capacity(device, batch, micro_batch)
            recipe = replace(self.recipe, accumulates=capacity < batch)
            program = self._compile(info, device, whole, capacity, recipe)
            self._programs[key] = program
            if capacity < batch:
                slices = f"{-(-batch // capacity)} x {capacity}"
                self.say("micro-batches", f"{info.name}: a batch of {batch} runs as {slices}")
        return device, program

    def ready_part(
        self, info: DeviceInfo, segment: Segment, batch: int
    ) -> tuple[Device, Program] | None:
        """The opened device and a program of a part of a layout, for whole batches.

        None where they do not fit; DeviceError as in ``ready``.
        """
        device = self.open(info)
        blocks = (segment.first, segment.stop)
        for micro_batch in (None, "auto"):
            program = self._programs.get((info.key, blocks, batch, micro_batch))
            if program is not None and program.capacity >= batch:
                return device, program
        if device.largest_batch(segment, batch, self.recipe) < batch:
            return None
        program = self._compile(info, device, segment, batch, self.recipe)
        self._programs[info.key, blocks, batch, None] = program
        return device, program

    def _capacity(
        self, device: Device, batch: int, micro_batch: int | Literal["auto"] | None
    ) -> int:
        """Examples at once: all of a batch, or slices of it that are as equal as can be."""
        whole = self.model.whole
        if micro_batch != "auto":
            most = micro_batch or batch
        else:
            most = device.largest_batch(whole, batch, self.recipe)
            if most < batch:  # adding up gradients takes memory, too
                recipe = replace(self.recipe, accumulates=True)
                most = max(1, device.largest_batch(whole, batch, recipe))
        if most >= batch:
            return batch
        if self.model.batch_layers:
            raise DeviceError(
                f"{device.info.name}: {most} of a batch's {batch} examples go at once, but "
                f"{self.model.batch_layers[0]} needs the statistics of the whole batch: "
                f"set train.batch to at most {most}"
            )
        return -(-batch // -(-batch // most))

    def refuse(self, info: DeviceInfo, error: DeviceError) -> None:
        """Never use this device again in this process, and say so."""
        self._refused[info.key] = str(error)
        self.say("device refused", f"{info.backend} {info.name}: {error}")

    def say(self, kind: str, message: str) -> None:
        """Log, and record with the next round; the server shows it."""
        log.info("%s: %s", kind, message)
        self._events.append(Event(kind, message))

    def take_events(self) -> list[Event]:
        """What was said since the last call."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Give programs and devices back."""
        self._release_programs()
        for device in self._open.values():
            device.close()
        self._open.clear()

    def _release_programs(self) -> None:
        for program in self._programs.values():
            program.release()
        self._programs.clear()

    def _compile(
        self, info: DeviceInfo, device: Device, segment: Segment, capacity: int, recipe: Recipe
    ) -> Program:
        """A program that passed the parity gate; DeviceError if not."""
        began_s = time.perf_counter()
        program = device.compile(segment, capacity, recipe)
        if info.backend != backends.REFERENCE:
            self._check(info, device, program)
        build_s = time.perf_counter() - began_s
        self._build_s[info.key] = max(build_s, self._build_s.get(info.key, 0.0))
        return program

    def _check(self, info: DeviceInfo, device: Device, program: Program) -> None:
        segment = program.segment
        try:
            new = parity.check(device, program, self.model)
            if not new and len(self.usable()) > 1:  # devices will be compared by their steps
                parity.rehearse(device, program, self.model)
        except DeviceError:
            program.release()
            raise
        if new:
            of = "" if segment == self.model.whole else f" [{_run(segment)}]"
            self.say("parity", f"{info.name}: {self.model.name}{of} agrees with numpy")

    def _discover(self) -> list[DeviceInfo]:
        found: list[DeviceInfo] = []
        wanted = self.config.backend
        for name in backends.at_hand() if wanted == "auto" else (wanted,):
            if name in self.excluded:
                self.say("fallback", f"{name} is not used: {self.excluded[name]}")
                continue
            backends.at_work(name)
            try:
                here = backends.get(name).devices()
            except DeviceError as e:
                if wanted != "auto":
                    raise
                self.say("fallback", f"{name} is not used: {e}")
                continue
            if not here and wanted == "auto":
                self.say("fallback", f"{name} is not used: it found no device")
            found += here
        part = self.config.device
        if part is not None:
            matching = [i for i in found if part.lower() in i.name.lower()]
            if not matching and not self.excluded:
                raise ConfigError(
                    f"devices.device: found '{part}', "
                    f"here: {', '.join(i.name for i in found) or 'none'}"
                )
            return matching
        return found


def _run(segment: Segment) -> str:
    """Its unit-blocks, by the first one's name and the last one's."""
    names = segment.model.block_names
    return "..".join(dict.fromkeys((names[segment.first], names[segment.stop - 1])))
