"""A training step, ours and PyTorch's, over the same examples, parameters and order.

A step is gather, forward, loss, backward, update. On both sides the data set is resident as bytes
(or tokens), nothing is read back between steps, and a run of steps ends with one wait.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.backends.base import Device, DeviceData, Program
from client.backends.figures import Command, Traffic
from client.backends.recipe import Hyper
from client.errors import MissingExtraError
from client.model import Model, initialise
from client.model.losses import CrossEntropy
from client.random import generator

NUM_EXAMPLES = 2048
SEED = 0

HYPER = Hyper(lr=1e-3, momentum=0.9)
"""Small, since labels are random: thousands of steps leave the network about where it began."""


@dataclass(frozen=True)
class Examples:
    """Random examples (n, *shape), bytes or tokens, labels (n, …), the order of visiting them."""

    x: NDArray[Any]
    y: NDArray[np.int32]
    order: NDArray[np.int32]

    def batch(self, step: int, size: int) -> tuple[int, int]:
        """(start, count) of the batch of a step; whole batches only, from the start again at the
        end."""
        return step % (len(self.x) // size) * size, size


def random_examples(model: Model, batch: int, num_examples: int = NUM_EXAMPLES) -> Examples:
    """So many seeded examples of the model's shape; more where one batch needs more."""
    g = generator("bench", SEED)
    n = max(num_examples, batch)
    x = model.input.draw(g, n)
    y = CrossEntropy().random_labels(model.output_shape, n, g)
    return Examples(x, y, g.permutation(n).astype(np.int32))


class OurSteps:
    """Steps of a compiled program; ``run`` is what is timed."""

    def __init__(
        self, device: Device, program: Program, model: Model, examples: Examples, batch: int
    ) -> None:
        self.device, self.program = device, program
        self.examples, self._batch = examples, batch
        self.data: DeviceData = device.load(examples.x, examples.y)
        self._step = 0
        program.upload(initialise(model, SEED))
        program.begin_epoch(self.data, examples.order, batch, dropout_key=SEED)
        device.finish()

    def run(self, steps: int) -> None:
        """``steps`` training steps, ended by one wait."""
        for _ in range(steps):
            self._one()
        self.device.finish()

    def commands(self, steps: int) -> list[Command]:
        """The commands of ``steps`` steps in order, each with the time that it took."""
        found: list[Command] = []
        for _ in range(steps):
            self.program.sample_next_step(found)
            self._one()
        self.device.finish()
        self.program.read_metrics()
        return found

    def sample(self, steps: int) -> Traffic:
        """Device-busy time and bytes of ``steps`` steps whose commands are timed one by one."""
        before = replace(self.device.traffic)
        for _ in range(steps):
            self.program.sample_next_step()
            self._one()
        self.device.finish()
        self.program.read_metrics()
        return self.device.traffic.since(before)

    def _one(self) -> None:
        self.program.step(*self.examples.batch(self._step, self._batch), HYPER)
        self._step += 1


class TorchSteps:
    """The same steps in PyTorch on the CPU, as fast as its public interface makes them.

    Gradients are dropped rather than zeroed, SGD is the fused one, oneDNN is on, and one thread
    runs on each CPU that this process may use. MissingExtraError without PyTorch.
    """

    def __init__(self, model: Model, examples: Examples, batch: int) -> None:
        torch = import_torch()
        from server.peer_torch import twin

        self._torch, self._examples, self._batch = torch, examples, batch
        self.net: Any = twin(model)
        named = model.views(initialise(model, SEED))
        own = {k: torch.from_numpy(v.copy()) for k, v in named.items()}
        self.net.load_state_dict({**self.net.state_dict(), **own})  # counters stay PyTorch's
        self.net.train()
        self._x = torch.from_numpy(examples.x)
        self._y = torch.from_numpy(examples.y).long()
        self._order = torch.from_numpy(examples.order).long()
        self._normalised = model.input.vocabulary is None
        factor, shift = model.input.affine(examples.x.dtype)
        per_channel = (-1, *[1] * (len(model.input.shape) - 1))
        self._factor = torch.from_numpy(factor).reshape(per_channel)
        self._shift = torch.from_numpy(shift).reshape(per_channel)
        self._sgd = torch.optim.SGD(
            self.net.parameters(), lr=HYPER.lr, momentum=HYPER.momentum, fused=True
        )
        self._step = 0

    def run(self, steps: int) -> None:
        """``steps`` training steps; PyTorch's CPU computes at once, so that none is left over."""
        for _ in range(steps):
            x, y = self.gather()
            self.drop_grads()
            self.loss(self.net(x), y).backward()
            self.update()
            self._step += 1

    def gather(self) -> tuple[Any, Any]:
        """The batch of the step: input, labels."""
        start, count = self._examples.batch(self._step, self._batch)
        index = self._order[start : start + count]
        x = self._x.index_select(0, index).float()
        if self._normalised:
            x.mul_(self._factor).add_(self._shift)
        return x, self._y.index_select(0, index)

    def loss(self, logits: Any, y: Any) -> Any:
        """Mean cross-entropy."""
        return self._torch.nn.functional.cross_entropy(logits, y)

    def update(self) -> None:
        """The optimizer's step, by the gradients that are there."""
        self._sgd.step()

    def drop_grads(self) -> None:
        """Free the gradients, as each step does at its beginning."""
        self._sgd.zero_grad(set_to_none=True)

    def resident_nbytes(self) -> int:
        """Bytes of the data set, parameters, buffers and optimizer state."""
        tensors = [self._x, self._y, self._order, *self.net.state_dict().values()]
        tensors += [t for s in self._sgd.state.values() for t in s.values() if t is not None]
        return int(sum(t.nbytes for t in tensors))


def import_torch() -> Any:
    """PyTorch with oneDNN on and a thread for each CPU that this process may use."""
    # its profiler writes to stderr that it begins and ends, unless told before the import
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        import torch
    except ImportError:
        raise MissingExtraError(
            "torch", "peer", "comparing with PyTorch (left out by --no-peer)"
        ) from None
    torch.backends.mkldnn.enabled = True
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return torch
