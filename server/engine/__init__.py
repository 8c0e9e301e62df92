"""All that knows Flower: rounds and their strategies; and the three ways to nodes, which run in
this process, in Flower's simulation runtime, or on machines that join."""

from __future__ import annotations
