"""Where nodes run: in this process, in Flower's simulation runtime, or on machines that join."""

from __future__ import annotations
