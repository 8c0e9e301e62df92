"""Compute the results that backends are held against, in PyTorch, and write them to files.

    python tests/peers/freeze_pytorch.py [NAME ...]     writes tests/backend/frozen/*.npz

Everything is computed in float64 (the reference) and in float32 (the yardstick: see
tests/tolerance.py) from the same float32 parameters and the same data. The inputs are stored with
the results; for the shipped networks the initial parameters are not (they come from a seed), but
their digest is.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from client.backends.recipe import DEFAULT_RECIPE, Hyper, OptimizerName, Recipe
from client.model import Model, initialise
from client.model.losses import MSE, BCEWithLogits, CrossEntropy, Labels, Loss
from server.peer_torch import twin
from tests.backend.cases import (
    CASES,
    HYPERS,
    RECIPES,
    STEPS,
    TRAJECTORIES,
    Case,
    Trajectory,
    digest,
    steps_per_epoch,
)

PRECISIONS = {"32": torch.float32, "64": torch.float64}


class Peer:
    """A model in PyTorch, in one precision, with parameters and data of ours."""

    def __init__(
        self,
        model: Model,
        params: NDArray[np.float32],
        x: NDArray[Any],
        y: Labels,
        dtype: torch.dtype,
        recipe: Recipe = DEFAULT_RECIPE,
    ) -> None:
        self.model, self.recipe = model, recipe
        self.net = twin(model).to(dtype)
        trained = {p.name for p in model.trained}
        for name, p in self.net.named_parameters():
            p.requires_grad_(name in trained)
        self.load(params)
        factor, shift = (
            torch.from_numpy(v).to(dtype).reshape(-1, *[1] * (len(model.input.shape) - 1))
            for v in model.input.affine(x.dtype)
        )
        self.x = torch.from_numpy(x).to(dtype) * factor + shift
        self.y = torch.from_numpy(y).to(torch.long if y.dtype == np.int32 else dtype)
        self.criterion = _criterion(recipe.loss).to(dtype)

    def load(self, params: NDArray[np.float32]) -> None:
        """Set all values."""
        named = {k: torch.from_numpy(v.copy()) for k, v in self.model.views(params).items()}
        self.net.load_state_dict(named)
        self.start = {k: v.detach().clone() for k, v in self.net.named_parameters()}

    def loss(self, rows: NDArray[np.int32]) -> torch.Tensor:
        """Mean loss of the examples ``rows``."""
        index = torch.from_numpy(rows).long()
        with warnings.catch_warnings():
            # PyTorch warns that 'same' with an even kernel copies its input; the numbers are right
            warnings.filterwarnings("ignore", message="Using padding='same'")
            self.logits = self.net(self.x[index])
        return self.criterion(self.logits, self.y[index])

    def flat(self, what: str) -> NDArray[Any]:
        """Values ("data") or the parameters' gradients ("grad"; 0 for none), flat, in order."""
        named = dict(self.net.named_parameters()) | dict(self.net.named_buffers())
        wanted = self.model.values if what == "data" else self.model.params
        found = [(named[p.name], getattr(named[p.name], what)) for p in wanted]
        parts = [(torch.zeros_like(p) if v is None else v).detach() for p, v in found]
        return np.concatenate([v.numpy().ravel() for v in parts]).copy()

    def train(self, batches: Iterator[NDArray[np.int32]], hyper: Hyper) -> list[float]:
        """The loss of each step."""
        params = [p for p in self.net.parameters() if p.requires_grad]
        optimizer = _optimizer(self.recipe.optimizer, params, hyper)
        losses = []
        for rows in batches:
            optimizer.zero_grad()
            loss = self.loss(rows)
            loss.backward()
            for name, p in self.net.named_parameters():
                if p.requires_grad:
                    p.grad += hyper.proximal_mu * (p.detach() - self.start[name])
            if hyper.clip_norm:
                torch.nn.utils.clip_grad_norm_(params, hyper.clip_norm)
            optimizer.step()
            losses.append(loss.item())
        return losses


def _criterion(loss: Loss) -> torch.nn.Module:
    """PyTorch's own loss."""
    match loss:
        case CrossEntropy(smoothing, weights):
            given = torch.tensor(weights, dtype=torch.float64) if weights else None
            return torch.nn.CrossEntropyLoss(given, label_smoothing=smoothing)
        case BCEWithLogits():
            return torch.nn.BCEWithLogitsLoss()
    assert isinstance(loss, MSE)
    return torch.nn.MSELoss()


def _optimizer(name: OptimizerName, params: list[Any], hyper: Hyper) -> torch.optim.Optimizer:
    """PyTorch's own, new."""
    if name == "sgd":
        return torch.optim.SGD(
            params,
            hyper.lr,
            momentum=hyper.momentum,
            weight_decay=hyper.weight_decay,
            nesterov=hyper.nesterov,
        )
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(params, hyper.lr, hyper.betas, hyper.eps, hyper.weight_decay)


def batches(orders: NDArray[np.int32], batch: int) -> Iterator[NDArray[np.int32]]:
    """The examples of each step, epoch by epoch."""
    for order in orders:
        for start in range(0, len(order), batch):
            yield order[start : start + batch]


def freeze_case(case: Case) -> dict[str, Any]:
    """First batch: logits, loss, gradients; then STEPS steps with each optimizer."""
    x, y, orders = case.data()
    params = initialise(case.model, seed=0)
    steps = list(batches(orders, case.batch))[:STEPS]
    assert len(steps) == STEPS > steps_per_epoch(len(x), case.batch)
    result: dict[str, Any] = {"x": x, "y": y, "orders": orders, "params": params}
    for suffix, dtype in PRECISIONS.items():
        peer = Peer(case.model, params, x, y, dtype, case.recipe())
        loss = peer.loss(steps[0])
        loss.backward()
        result[f"loss{suffix}"] = loss.detach().numpy()
        result[f"logits{suffix}"] = peer.logits.detach().numpy()
        result[f"grads{suffix}"] = peer.flat("grad")
        for name in case.hypers:
            peer.load(params)
            losses = peer.train(iter(steps), HYPERS[name])
            result[f"{name}_losses{suffix}"] = np.array(losses, peer.logits.detach().numpy().dtype)
            result[f"{name}_params{suffix}"] = peer.flat("data")
    return result


def freeze_trajectory(t: Trajectory) -> dict[str, Any]:
    """Losses of all steps; afterwards the logits of all examples, and a sample of the values."""
    x, y, orders = t.data()
    params = t.params()
    result: dict[str, Any] = {"x": x, "y": y, "orders": orders, "digest": digest(params)}
    for suffix, dtype in PRECISIONS.items():
        peer = Peer(t.model, params, x, y, dtype)
        losses = peer.train(batches(orders, t.batch), t.hyper)
        sample = t.sampled(peer.flat("data"))
        result[f"values{suffix}"] = np.concatenate(list(sample.values()))
        peer.net.eval()
        peer.loss(np.arange(len(x), dtype=np.int32))
        logits = peer.logits.detach().numpy()
        result[f"losses{suffix}"] = np.array(losses, logits.dtype)
        result[f"logits{suffix}"] = logits
    return result


def main(names: list[str]) -> None:
    """All of them, or those that are named."""
    cases = (*CASES, *RECIPES)
    frozen = {case.path: freeze_case(case) for case in cases if not names or case.name in names}
    frozen |= {t.path: freeze_trajectory(t) for t in TRAJECTORIES if not names or t.name in names}
    for path, arrays in frozen.items():
        path.parent.mkdir(exist_ok=True)
        np.savez_compressed(path, torch_version=torch.__version__, **arrays)
    total = sum(path.stat().st_size for path in frozen)
    print(f"PyTorch {torch.__version__}: {len(frozen)} files, {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
