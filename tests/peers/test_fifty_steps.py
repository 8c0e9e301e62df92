"""Fifty steps of a shipped model from the same weights on the same batches: each device's losses
and parameters stay as near to PyTorch's float64 as its float32 does."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client.backends.base import Device
from client.backends.recipe import Hyper
from client.model import initialise, load_model
from tests.backend.conftest import device
from tests.backend.harness import Subject, assert_tensors_close, examples
from tests.tolerance import assert_close

__all__ = ["device"]

STEPS, BATCH, EXAMPLES = 50, 6, 30
HYPER = Hyper(lr=0.05, momentum=0.9)


@cache
def pytorch(name: str) -> dict[str, NDArray[Any]]:
    """Losses (STEPS,) and parameters after them, in both precisions."""
    import torch

    from tests.peers.freeze_pytorch import PRECISIONS, Peer, batches

    model = load_model(Path(name))
    x, y = examples(model, EXAMPLES)
    found: dict[str, NDArray[Any]] = {}
    for suffix, dtype in PRECISIONS.items():
        peer = Peer(model, initialise(model, seed=0), x, y, dtype)
        losses = peer.train(batches(orders(), BATCH), HYPER)
        found[f"losses{suffix}"] = np.array(losses, torch.empty(0, dtype=dtype).numpy().dtype)
        found[f"params{suffix}"] = peer.flat("data")
    return found


def orders() -> NDArray[np.int32]:
    """The examples' order in each epoch, (epochs, EXAMPLES)."""
    g = np.random.default_rng(1)
    epochs = STEPS * BATCH // EXAMPLES
    return np.stack([g.permutation(EXAMPLES) for _ in range(epochs)]).astype(np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["char_lstm"])
def test_a_model_follows_pytorch(device: Device, name: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (extra: peer)")
    peer = pytorch(name)
    model = load_model(Path(name))
    subject = Subject(device, model, BATCH, *examples(model, EXAMPLES))
    losses: list[float] = []
    for order in orders():
        subject.begin(order, BATCH)
        losses += subject.epoch(HYPER)
    assert len(losses) == STEPS
    assert losses[-1] < 0.9 * losses[0]
    assert_close("losses", np.array(losses, np.float32), peer["losses64"], peer["losses32"])
    params = subject.program.download()
    assert_tensors_close(model, "parameters", params, peer["params64"], peer["params32"])
    subject.release()
