"""How far a result may lie from PyTorch's float64: the one table and the one function.

A float32 result may be no further from the float64 result than four times PyTorch's own float32
is (largest difference over the tensor), and rounding a few times at the size of the largest
number is always allowed: a small tensor may by luck come out exact in PyTorch. A float64 result is
measured by the same yardstick, scaled by the ratio of the two machine epsilons.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rule:
    """``factor`` times the peer's own error, at least ``floor_ulp`` roundings."""

    factor: float
    floor_ulp: float


RULES = {
    np.dtype(np.float32): Rule(factor=4, floor_ulp=8),
    np.dtype(np.float64): Rule(factor=8, floor_ulp=16),
}
EPS32 = float(np.finfo(np.float32).eps)


def bound(
    reference: NDArray[np.float64],
    peer: NDArray[np.float32],
    dtype: np.dtype[np.generic],
    largest: float = 0.0,
) -> float:
    """The largest difference to ``reference`` that is allowed for a result of ``dtype``.

    ``peer``: the same result computed by the peer in float32. ``largest``: the largest term of the
    sums behind the result, where that is more than the result itself.
    """
    rule = RULES[dtype]
    own_error = float(np.max(np.abs(peer - reference), initial=0.0))
    size = max(float(np.max(np.abs(reference), initial=0.0)), largest)
    scale = float(np.finfo(dtype).eps) / EPS32
    return max(rule.factor * own_error, rule.floor_ulp * EPS32 * size) * scale


def assert_close(
    name: str,
    found: NDArray[np.floating],
    reference: NDArray[np.float64],
    peer: NDArray[np.float32],
    largest: float = 0.0,
) -> None:
    """Fail, naming the result and its worst element, where ``found`` is further off than that."""
    found, reference, peer = np.asarray(found), np.asarray(reference), np.asarray(peer)
    assert found.shape == reference.shape == peer.shape, (
        f"{name}: shapes {found.shape}, {reference.shape}, {peer.shape}"
    )
    assert np.isfinite(found).all(), f"{name}: not finite"
    error = np.abs(found.astype(np.float64) - reference)
    allowed = bound(reference, peer, found.dtype, largest)
    if not error.size or error.max() <= allowed:
        return
    worst = np.unravel_index(int(error.argmax()), error.shape)
    raise AssertionError(
        f"{name}: element {tuple(map(int, worst))} is {found[worst]!r}, reference "
        f"{reference[worst]!r}: off by {error.max():.3g}, allowed {allowed:.3g} "
        f"({(error > allowed).sum()} of {error.size} elements are off)"
    )
