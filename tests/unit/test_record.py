"""Recorded placements: what they refuse, and what of them is meant for a further round."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from client.errors import ConfigError
from client.record import PlacedLayout, PlacedPart, Placement, placement_from_json
from server.engine.choices import Choices

FRONT, BACK = PlacedPart("alpha", "alpha|a", 1, 0, 2), PlacedPart("numpy", "numpy|n", 2, 2, 3)
CUT, WHOLE = PlacedLayout((FRONT, BACK)), PlacedLayout((PlacedPart("numpy", "numpy|n", 2, 0, 3),))
TRIED = Placement((CUT, WHOLE), ((1, 4), (0, 4)))


def text(placement: Placement) -> str:
    return json.dumps(asdict(placement))


def test_a_placement_of_several_parts_comes_back_as_it_was() -> None:
    assert placement_from_json(text(TRIED)) == TRIED
    assert TRIED.kept == CUT


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layouts": []}, "layouts: found none"),
        ({"layouts": [{"parts": []}]}, "layouts[0].parts: found none"),
        ({"trials": [[2, 4]]}, "trials: found [2, 4] at place 0, needs the number of one of 2"),
        ({"trials": [[0, 1], [1, 0]]}, "trials: found [1, 0] at place 1"),
        ({"backend": "numpy"}, "backend: unknown key; allowed: layouts, trials"),
    ],
)
def test_what_is_no_placement_is_named(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as e:
        placement_from_json(json.dumps(asdict(TRIED) | change))
    assert said in str(e.value)


def test_trials_are_repeated_in_their_round_and_not_in_a_further_one() -> None:
    going_on = Choices({(1, "a"): text(Placement((WHOLE,))), (2, "a"): text(TRIED)})
    assert placement_from_json(going_on.of(2, "a")) == TRIED
    assert going_on.of(3, "a") == ""  # it was told in this session
    resumed = Choices({(1, "a"): text(Placement((WHOLE,))), (2, "a"): text(TRIED)})
    assert placement_from_json(resumed.of(3, "a")) == Placement((CUT,))
    assert resumed.of(4, "a") == ""
