"""PyTorch's time of each operation of a model, forward and backward, one by one.

Eager, as PyTorch trains: what its Python and its autograd engine cost at each call is in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from client.backends.figures import Part
from client.model import Model
from server.bench.workloads import Examples, TorchSteps, import_torch

MOST_S = 0.1
LEAST_CALLS, MOST_CALLS = 5, 50


def torch_parts(model: Model, examples: Examples, batch: int) -> dict[tuple[str, Part], float]:
    """Seconds by (operation, part), medians over calls, on the values that pass in a step.

    The parts gather, loss and update have one entry each, called like the part.
    """
    torch = import_torch()
    steps = TorchSteps(model, examples, batch)
    steps.run(2)
    found: dict[tuple[str, Part], float] = {("gather", "gather"): median_s(steps.gather)}
    x, y = steps.gather()
    tensors = {0: x}
    with_grad: set[int] = set()
    for op, module in steps.net.steps:
        inputs = [tensors[i].detach().clone().requires_grad_(i in with_grad) for i in op.inputs]
        params = []
        if isinstance(module, torch.nn.Module):
            params = [p for p in module.parameters() if p.requires_grad]
        found[op.name, "forward"] = median_s(partial(module, *inputs))
        output = module(*inputs)
        tensors[op.output] = output.detach()
        wanted = [i for i in inputs if i.requires_grad] + params
        if wanted:
            with_grad.add(op.output)
            dy = torch.randn_like(output)
            found[op.name, "backward"] = median_s(
                partial(torch.autograd.grad, output, wanted, dy, retain_graph=True)
            )
    logits = tensors[model.ops[-1].output].requires_grad_(True)
    found["loss", "loss"] = median_s(lambda: torch.autograd.grad(steps.loss(logits, y), [logits]))
    found["update", "update"] = median_s(steps.update)
    return found


def median_s(call: Callable[[], object]) -> float:
    """Median of calls after one: at least ``LEAST_CALLS``, then more while ``MOST_S`` last."""
    call()
    taken: list[float] = []
    while len(taken) < MOST_CALLS and (len(taken) < LEAST_CALLS or sum(taken) < MOST_S):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
