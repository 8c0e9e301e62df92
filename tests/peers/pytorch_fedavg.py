"""FedAvg in plain PyTorch: the peer that pocketfed's quickstart is held against.

It starts from the same parameters, deals the examples to the same nodes and visits them in the
same order as pocketfed; everything else (layers, loss, gradients, SGD, averaging, evaluation) is
PyTorch's own arithmetic. Run as a script it prints both sides' accuracies:

    python tests/peers/pytorch_fedavg.py --seeds 5 [--set train.lr=0.01]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from client import random
from client.config import Experiment, TrainConfig, load_experiment
from client.data.dataset import Dataset
from client.data.shares import Shares
from client.model import InputSpec, Model, build_model, initialise
from server.peer_torch import twin

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"


# -- PyTorch's side -------------------------------------------------------------------------


def load_params(net: torch.nn.Module, model: Model, params: np.ndarray) -> None:
    """Give the network pocketfed's flat parameters, by name."""
    named = {name: torch.from_numpy(v.copy()) for name, v in model.views(params).items()}
    net.load_state_dict(named)


def flat_params(net: torch.nn.Module, model: Model) -> np.ndarray:
    """The network's parameters, flat, in pocketfed's order and in the network's own precision."""
    state = net.state_dict()
    return np.concatenate([state[p.name].detach().numpy().ravel() for p in model.params])


def inputs(data: Dataset, spec: InputSpec, dtype: torch.dtype) -> torch.Tensor:
    """uint8 images as the network sees them: (raw / 255 - mean) / std."""
    mean = torch.tensor(spec.mean, dtype=dtype).reshape(-1, 1, 1)
    std = torch.tensor(spec.std, dtype=dtype).reshape(-1, 1, 1)
    return (torch.from_numpy(data.x).to(dtype) / 255 - mean) / std


def train_locally(
    net: torch.nn.Module,
    data: Dataset,
    model: Model,
    config: TrainConfig,
    seed: int,
    round_number: int,
    name: str,
) -> None:
    """One node's round, in the precision of ``net``; momentum starts at zero in each round."""
    x = inputs(data, model.input, next(net.parameters()).dtype)
    y = torch.from_numpy(data.y).long()
    sgd = torch.optim.SGD(net.parameters(), config.lr, config.momentum)
    net.train()
    for epoch in range(config.local_epochs):
        order = torch.from_numpy(random.order(seed, round_number, name, epoch, len(data))).long()
        for index in order.split(config.batch):
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(net(x[index]), y[index]).backward()
            sgd.step()


def accuracy(net: torch.nn.Module, data: Dataset, model: Model) -> float:
    """Share of ``data`` that the network classifies correctly."""
    net.eval()
    with torch.no_grad():
        guess = net(inputs(data, model.input, torch.float32)).argmax(1)
    return float((guess == torch.from_numpy(data.y)).float().mean())


def fedavg(experiment: Experiment) -> float:
    """Accuracy on the held-out examples after all rounds; every node takes part in each."""
    model = build_model(experiment.model, experiment.name)
    shares = Shares(experiment, model, ROOT)
    nodes = {name: shares.of(name).train for name in shares.names}
    weights = np.array([len(data) for data in nodes.values()], np.float64)
    net = twin(model)
    params = initialise(model, experiment.seed)
    for round_number in range(1, experiment.federation.rounds + 1):
        results = []
        for name, data in nodes.items():
            load_params(net, model, params)
            train_locally(net, data, model, experiment.train, experiment.seed, round_number, name)
            results.append(flat_params(net, model))
        params = np.average(results, axis=0, weights=weights).astype(np.float32)
    load_params(net, model, params)
    return accuracy(net, shares.held_out, model)


# -- both sides -----------------------------------------------------------------------------


def pocketfed(experiment: Path, settings: list[str]) -> float:
    """Accuracy of the same experiment, run by the command as a user runs it."""
    command = [sys.executable, "-c", "from server.cli import main; main()", "simulate"]
    for setting in settings:
        command += ["--set", setting]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--json", "--out", f"{folder}/run", str(experiment)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1])["final_accuracy"])


def accuracies(settings: list[str], seeds: int) -> tuple[list[float], list[float]]:
    """Final accuracies of the quickstart for seeds 1, 2, …: pocketfed's and PyTorch's."""
    ours, theirs = [], []
    for seed in range(1, seeds + 1):
        both = [*settings, f"seed={seed}"]
        ours.append(pocketfed(QUICKSTART, both))
        theirs.append(fedavg(load_experiment(QUICKSTART, tuple(both))))
        print(f"seed {seed}: pocketfed {ours[-1]:.1%}, PyTorch {theirs[-1]:.1%}", flush=True)
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description="The quickstart against a PyTorch FedAvg.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    ours, theirs = accuracies(arguments.settings, arguments.seeds)
    for name, values in (("pocketfed", ours), ("PyTorch", theirs)):
        low, high = min(values), max(values)
        print(f"{name:9}  mean {np.mean(values):.2%}, lowest {low:.1%}, highest {high:.1%}")
    print(f"difference of the means: {100 * (np.mean(ours) - np.mean(theirs)):+.2f} points")


if __name__ == "__main__":
    main()
