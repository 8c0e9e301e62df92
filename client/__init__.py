"""What runs on the device: model, data, backends, placement, trainer, worker, ClientApp."""

from __future__ import annotations

__version__ = "0.1.0"
