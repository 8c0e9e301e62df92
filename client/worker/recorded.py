"""Layouts as they are recorded, and back: what a round ran, in enough detail to repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from client.errors import ConfigError, MismatchError
from client.placed import Placed
from client.placement.course import Fixed
from client.placement.layout import Layout, Part
from client.record import PlacedLayout, PlacedPart, Placement, cannot_be_repeated


def placement_of(course: Fixed) -> Placement:
    """What ran, the layout that was kept first."""
    ran = [course.kept, *(trial.placed for trial in course.trials)]
    networks = list(dict.fromkeys(ran))
    trials = tuple((networks.index(trial.placed), trial.steps) for trial in course.trials)
    return Placement(tuple(_recorded(placed) for placed in networks), trials)


def _recorded(placed: Placed) -> PlacedLayout:
    parts = []
    for part, site in zip(placed.layout.parts, placed.sites, strict=True):
        info, variants = site.device.info, site.program.usage.variants
        at = part.first, part.stop, part.share
        parts.append(PlacedPart(info.backend, info.key, info.compute_units, *at, variants))
    program = placed.programs[0]
    return PlacedLayout(tuple(parts), program.capacity if program.recipe.accumulates else 0)


def layout_of(recorded: PlacedLayout) -> Layout:
    """The layout of a record; ConfigError if its parts make none."""
    try:
        return Layout(tuple(Part(p.device, p.first, p.stop, p.share) for p in recorded.parts))
    except ValueError as e:
        raise ConfigError(f"recorded placement: {e}") from None


def repeated(recorded: Placement, networks: Sequence[Placed], epoch_steps: int) -> Fixed:
    """The recorded stages again; MismatchError where one of the layouts came out otherwise."""
    here = Placement(tuple(_recorded(placed) for placed in networks), recorded.trials)
    if here != recorded:
        raise MismatchError(cannot_be_repeated(recorded, here))
    before = [(networks[i], steps) for i, steps in recorded.trials]
    return Fixed(networks[0], epoch_steps, before)


def described(placed: Placed) -> dict[str, Any]:
    """The device of a network's first part, with the names of all its devices."""
    names = " + ".join(device.info.name for device in placed.devices)
    return asdict(placed.devices[0].info) | {"name": names}
