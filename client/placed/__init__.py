"""Networks that train where a layout says: on one device, cut over several, or split over several.

``place`` is the way in; base.py says what a placed network can do.
"""

from __future__ import annotations

from collections.abc import Sequence

from client.placed.base import Placed, Site
from client.placed.cut import Cut
from client.placed.split import Split
from client.placed.whole import Whole
from client.placement.layout import Layout

__all__ = ["Placed", "Site", "place"]

KINDS: tuple[type[Placed], ...] = (Whole, Cut, Split)


def place(layout: Layout, sites: Sequence[Site]) -> Placed:
    """The network of a layout, on sites that have its parts in order.

    DeviceError where the model cannot be trained so.
    """
    return next(kind for kind in KINDS if kind.kind == layout.kind)(layout, sites)
