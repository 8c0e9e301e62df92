"""Flower's strategies by name, with parameters from an experiment file.

    federation:
      strategy: {name: fedadam, eta: 0.01, tau: 0.001}

The keys are the parameters of Flower's constructors. Who takes part is not said here but by
``federation.nodes_per_round``, and Flower's record keys are the messages' own (client/wire.py).
"""

from __future__ import annotations

import inspect
import logging
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from client.config import Experiment
from client.errors import ConfigError, did_you_mean
from client.fields import convert, describe, join

_NOT_FROM_YAML = (
    "fraction_train",
    "fraction_evaluate",
    "min_train_nodes",
    "min_evaluate_nodes",
    "min_available_nodes",
    "weighted_by_key",
    "arrayrecord_key",
    "configrecord_key",
    "train_metrics_aggr_fn",
    "evaluate_metrics_aggr_fn",
    "eta_l",  # the nodes' learning rate, which Flower's server never uses: it is train.lr
)


@dataclass(frozen=True)
class _Known:
    """A strategy that may be named: its class, and which parameters must be given."""

    cls: Callable[..., Strategy]
    required: tuple[str, ...] = ()


STRATEGIES: dict[str, _Known] = {
    "fedavg": _Known(flower.FedAvg),
    "fedprox": _Known(flower.FedProx, ("proximal_mu",)),
    "fedavgm": _Known(flower.FedAvgM, ("server_momentum",)),
    "fedadam": _Known(flower.FedAdam),
    "fedyogi": _Known(flower.FedYogi),
    "fedmedian": _Known(flower.FedMedian),
    "krum": _Known(flower.Krum, ("num_malicious_nodes",)),
}
"""Strategies by the name that stands in YAML."""

# What Flower does not check itself: (lower limit, whether it is allowed, upper limit, not allowed)
_RANGES: dict[str, tuple[float, bool, float]] = {
    "proximal_mu": (0, True, float("inf")),
    "server_learning_rate": (0, False, float("inf")),
    "server_momentum": (0, True, 1),
    "eta": (0, False, float("inf")),
    "beta_1": (0, True, 1),
    "beta_2": (0, True, 1),
    "tau": (0, False, float("inf")),
    "num_malicious_nodes": (0, True, float("inf")),
}


def strategy_of(experiment: Experiment, num_nodes: int) -> Strategy:
    """The experiment's strategy for a federation of ``num_nodes``; ConfigError if it cannot be."""
    federation = experiment.federation
    return build_strategy(
        federation.strategy,
        num_nodes,
        federation.nodes_per_round or num_nodes,
        federation.evaluate_nodes,
        f"{experiment.name}: federation.strategy",
    )


def build_strategy(
    settings: Mapping[str, Any],
    num_nodes: int,
    nodes_per_round: int,
    evaluate_nodes: bool,
    where: str,
) -> Strategy:
    """The strategy of ``federation.strategy``; ConfigError naming ``where`` and the key.

    ``nodes_per_round`` of ``num_nodes`` are sampled to train, and as many to evaluate if
    ``evaluate_nodes``.
    """
    name = convert(settings.get("name"), str, join(where, "name"))
    if name not in STRATEGIES:
        raise ConfigError(
            f"{join(where, 'name')}: found {describe(name)}, allowed: {', '.join(STRATEGIES)}"
            f"{did_you_mean(name, STRATEGIES)}"
        )
    known = STRATEGIES[name]
    values = _parameters(name, known, settings, where)
    if nodes_per_round > num_nodes:
        raise ConfigError(
            f"{where}: {nodes_per_round} nodes are asked for each round, "
            f"but the federation has {num_nodes}"
        )
    malicious = int(values.get("num_malicious_nodes", 0))
    if name == "krum" and nodes_per_round <= 2 * malicious + 2:
        raise ConfigError(  # Blanchard et al., 2017: n > 2f + 2
            f"{join(where, 'num_malicious_nodes')}: found {malicious}, which takes more than "
            f"{2 * malicious + 2} nodes in a round; here are {nodes_per_round}"
        )
    fraction = nodes_per_round / num_nodes
    with _quiet():
        return known.cls(
            fraction_train=fraction,
            min_train_nodes=nodes_per_round,
            fraction_evaluate=fraction if evaluate_nodes else 0.0,
            min_evaluate_nodes=nodes_per_round if evaluate_nodes else 0,
            min_available_nodes=nodes_per_round,
            **values,
        )


def averages_only(strategy: Strategy) -> bool:
    """Whether new values are an average (a median, a choice) of the nodes', with no step beyond.

    A step beyond the average, by a server's learning rate or momentum, is no running statistic:
    a variance might even become negative.
    """
    return not isinstance(strategy, flower.FedAvgM | flower.FedAdam | flower.FedYogi)


def fit_to(
    strategy: Strategy, num_nodes: int, nodes_per_round: int | None, evaluate_nodes: bool
) -> None:
    """Sample from ``num_nodes`` from now on: all, or as many of ``nodes_per_round`` as there are.

    Flower's strategies would wait without limit for nodes that have left.
    """
    assert isinstance(strategy, flower.FedAvg)  # what all of STRATEGIES derive from
    sampled = min(nodes_per_round or num_nodes, num_nodes)
    strategy.fraction_train = sampled / num_nodes
    strategy.min_train_nodes = strategy.min_available_nodes = sampled
    strategy.fraction_evaluate = strategy.fraction_train if evaluate_nodes else 0.0
    strategy.min_evaluate_nodes = sampled if evaluate_nodes else 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Flower's constructors warn on the terminal of what is meant: no evaluation on nodes."""
    logger = logging.getLogger("flwr")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def parameters(name: str) -> dict[str, type]:
    """Parameters of a strategy that may stand in YAML, with their types."""
    constructor = STRATEGIES[name].cls.__init__
    hints = typing.get_type_hints(constructor)
    names = inspect.signature(constructor).parameters
    return {n: hints[n] for n in names if n != "self" and n not in _NOT_FROM_YAML}


def _parameters(
    name: str, known: _Known, settings: Mapping[str, Any], where: str
) -> dict[str, int | float]:
    allowed = parameters(name)
    values = {}
    for key, value in settings.items():
        if key == "name":
            continue
        at = join(where, key)
        if key not in allowed:
            raise ConfigError(
                f"{at}: strategy '{name}' has no such parameter; allowed: "
                f"{', '.join(allowed) or 'none'}{did_you_mean(key, allowed)}"
            )
        values[key] = convert(value, allowed[key], at)
        low, inclusive, high = _RANGES[key]
        if not (low <= values[key] < high) or (values[key] == low and not inclusive):
            bound = "at least" if inclusive else "above"
            below = "" if high == float("inf") else f" and below {high:g}"
            raise ConfigError(f"{at}: found {values[key]}, must be {bound} {low:g}{below}")
    for key in known.required:
        if key not in values:
            raise ConfigError(f"{join(where, key)}: is missing; strategy '{name}' needs it")
    return values
