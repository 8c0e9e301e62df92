"""What a program is compiled for beside its segment, and the numbers of one update."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Literal

from client.model.losses import CrossEntropy, Loss

OptimizerName = Literal["sgd", "adam", "adamw"]


@dataclass(frozen=True)
class Recipe:
    """What a program is compiled for beside its segment.

    The loss; the kind of optimizer; whether gradients of slices are added up, so that a batch may
    be larger than the program's capacity; whether updates may have FedProx's proximal term, for
    which the parameters are kept as they were at the round's start.
    """

    loss: Loss = field(default_factory=CrossEntropy)
    optimizer: OptimizerName = "sgd"
    accumulates: bool = False
    proximal: bool = False


DEFAULT_RECIPE = Recipe()

OPTIMIZER_STATES: dict[OptimizerName, int] = {"sgd": 1, "adam": 2, "adamw": 2}
"""How many numbers an optimizer keeps for each trained parameter."""


@dataclass(frozen=True)
class Hyper:
    """The numbers of one update: of an optimizer as in PyTorch, FedProx's proximal term, clipping.

    g = grad + proximal_mu·(w - w_round_start), the gradient of what the node minimises
    (a ``proximal_mu`` other than 0 needs a recipe that is ``proximal``);
    with a ``clip_norm`` above 0, g *= min(1, clip_norm / (‖g‖ + 1e-6)), ‖g‖ over all trained
    parameters of the program, as ``torch.nn.utils.clip_grad_norm_``; then, by the recipe,

    sgd: g += weight_decay·w; v = momentum·v + g; w -= lr · (g + momentum·v if nesterov else v);
    adam (Kingma and Ba, ICLR 2015), in its t-th update since the upload, with betas (a, b):
    g += weight_decay·w; m = a·m + (1-a)·g; s = b·s + (1-b)·g²;
    w -= lr · m/(1-aᵗ) / (√(s/(1-bᵗ)) + eps);
    adamw (Loshchilov and Hutter, ICLR 2019): w -= lr·weight_decay·w in place of adam's first step.
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    proximal_mu: float = 0.0
    clip_norm: float = 0.0  # 0: not clipped
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def clip_factor(self, norm: float) -> float:
        """What a gradient with this norm is multiplied by: at most 1; no number if that is none."""
        ratio = self.clip_norm / (norm + 1e-6)
        return 1.0 if ratio > 1 else ratio

    def adam_scales(self, t: int) -> tuple[float, float]:
        """(lr/(1-aᵗ), 1/√(1-bᵗ)): what m and √s are multiplied by in the t-th update."""
        a, b = self.betas
        return self.lr / (1 - a**t), 1 / sqrt(1 - b**t)
