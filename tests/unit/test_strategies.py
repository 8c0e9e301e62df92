"""Strategies by name: parameters from YAML reach Flower's classes, mistakes are named."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.serverapp import strategy as flower

from client.errors import ConfigError
from server.engine.strategies import _RANGES, STRATEGIES, build_strategy, parameters

WHERE = "e.yaml: federation.strategy"


def build(
    settings: dict[str, Any], nodes: int = 8, per_round: int = 8, evaluate: bool = False
) -> Any:
    return build_strategy(settings, nodes, per_round, evaluate, WHERE)


@pytest.mark.parametrize(
    ("settings", "cls"),
    [
        ({"name": "fedavg"}, flower.FedAvg),
        ({"name": "fedprox", "proximal_mu": 0.1}, flower.FedProx),
        ({"name": "fedavgm", "server_momentum": 0.9, "server_learning_rate": 1}, flower.FedAvgM),
        ({"name": "fedadam", "eta": 0.01, "tau": 1e-4}, flower.FedAdam),
        ({"name": "fedyogi", "beta_1": 0.5, "beta_2": 0.5}, flower.FedYogi),
        ({"name": "fedmedian"}, flower.FedMedian),
        ({"name": "krum", "num_malicious_nodes": 2}, flower.Krum),
    ],
)
def test_each_name_gives_flowers_class_with_its_parameters(
    settings: dict[str, Any], cls: type
) -> None:
    strategy = build(settings)
    assert type(strategy) is cls
    for key, value in settings.items():
        if key != "name":
            assert getattr(strategy, key) == value


def test_every_parameter_has_a_range() -> None:
    assert {key for name in STRATEGIES for key in parameters(name)} == set(_RANGES)


def test_who_takes_part_comes_from_the_federation() -> None:
    strategy = build({"name": "fedavg"}, nodes=10, per_round=3)
    assert (strategy.fraction_train, strategy.min_train_nodes) == (0.3, 3)
    assert (strategy.fraction_evaluate, strategy.min_evaluate_nodes) == (0.0, 0)
    strategy = build({"name": "fedavg"}, nodes=10, per_round=3, evaluate=True)
    assert (strategy.fraction_evaluate, strategy.min_evaluate_nodes) == (0.3, 3)
    with pytest.raises(ConfigError, match="but the federation has 2"):
        build({"name": "fedavg"}, nodes=2, per_round=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "fedavgg"}, r"strategy\.name: found 'fedavgg'.*did you mean 'fedavg'"),
        ({"name": 3}, r"strategy\.name: found 3, needs text"),
        ({"name": "fedprox"}, r"strategy\.proximal_mu: is missing"),
        ({"name": "fedavgm"}, r"strategy\.server_momentum: is missing"),
        ({"name": "krum"}, r"strategy\.num_malicious_nodes: is missing"),
        ({"name": "fedprox", "proximal_my": 1}, r"strategy\.proximal_my: .*mean 'proximal_mu'"),
        ({"name": "fedavg", "eta": 1}, r"strategy\.eta: .*no such parameter; allowed: none"),
        ({"name": "fedavg", "fraction_train": 0.5}, r"fraction_train: .*no such parameter"),
        ({"name": "fedadam", "eta": "fast"}, r"strategy\.eta: found 'fast', needs a number"),
        ({"name": "fedadam", "eta": 0}, r"strategy\.eta: found 0.0, must be above 0"),
        ({"name": "fedadam", "beta_1": 1}, r"beta_1: found 1.0, must be at least 0 and below 1"),
        ({"name": "krum", "num_malicious_nodes": 1.5}, "needs a whole number"),
        ({"name": "krum", "num_malicious_nodes": 3}, "more than 8 nodes in a round; here are 8"),
    ],
)
def test_a_mistake_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as e:
        build(settings)
    assert str(e.value).startswith("e.yaml: federation.strategy")


def test_building_says_nothing_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    build({"name": "fedprox", "proximal_mu": 0})
    assert capfd.readouterr() == ("", "")
