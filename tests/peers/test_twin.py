"""The same network in PyTorch has our names and shapes, and gives the results that were frozen."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from client.errors import MissingExtraError
from client.model import load_model
from server.peer_torch import twin
from tests.backend.cases import CASES, TRAJECTORIES, Case, Trajectory
from tests.tolerance import assert_close

MODELS = sorted(Path(str(files("configs"))).glob("models/*.yaml"))


def test_without_pytorch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pocketfed\[peer\]'"):
        twin(load_model(Path("mlp")))


@pytest.mark.slow
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_names_and_shapes(path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (extra: peer)")
    model = load_model(path)
    net = twin(model)
    for ours, theirs in (
        (model.params, net.named_parameters()),
        (model.buffers, net.named_buffers()),
    ):
        assert [(p.name, p.shape) for p in ours] == [
            (k, tuple(v.shape)) for k, v in theirs if not k.endswith("num_batches_tracked")
        ]


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, *TRAJECTORIES], ids=lambda case: case.path.stem)
def test_frozen_results_are_pytorchs(case: Case | Trajectory) -> None:
    """Computed anew: float64 but for the last digits, float32 within the rule for any result."""
    pytest.importorskip("torch", reason="PyTorch is not installed (extra: peer)")
    from tests.peers.freeze_pytorch import freeze_case, freeze_trajectory

    live = freeze_case(case) if isinstance(case, Case) else freeze_trajectory(case)
    with np.load(case.path) as frozen:
        assert set(live) == set(frozen.files) - {"torch_version"}
        for name in live:
            if name.endswith("64"):
                pair = frozen[name], frozen[f"{name[:-2]}32"]
                largest = float(np.abs(frozen["logits64"]).max()) if "loss" in name else 0.0
                for suffix in ("64", "32"):
                    found = np.asarray(live[f"{name[:-2]}{suffix}"])
                    assert_close(f"{name[:-2]}{suffix}", found, *pair, largest)
            elif not name.endswith("32"):
                np.testing.assert_array_equal(live[name], frozen[name])
