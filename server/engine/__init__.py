"""Where nodes run: ``inline`` in this process. Flower's own runtimes go through server/app.py."""

from __future__ import annotations
