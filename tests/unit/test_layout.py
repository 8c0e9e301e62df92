"""Layouts: which parts make a network, what they are called, how batches are divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.placement.layout import Layout, Part, slices
from tests.backend.harness import network

GPU = "opencl|PoCL|vendor|gpu one|1"
OTHER = "opencl|PoCL|vendor|gpu two|1"
CPU = "numpy|Python|x86|cpu|1"
NAMES = ["conv1", "pool1", "fc1", "fc2"]


def test_the_three_kinds_and_their_lines() -> None:
    whole = Layout.whole(GPU, 4)
    assert (whole.kind, whole.describe(NAMES)) == ("whole", "opencl")
    cut = Layout.cut([GPU, CPU], [2, 4])
    assert cut.describe(NAMES) == "opencl [conv1..pool1] | numpy [fc1..fc2]"
    assert (cut.kind, cut.blocks, cut.devices) == ("cut", 4, (GPU, CPU))
    three = Layout.cut([GPU, OTHER, GPU], [1, 3, 4])
    assert three.describe(NAMES) == (
        "opencl (gpu one) [conv1] | opencl (gpu two) [pool1..fc1] | opencl (gpu one) [fc2]"
    )
    split = Layout.split([GPU, CPU], [0.7, 0.3], 4)
    assert (split.kind, split.shares) == ("split", (0.7, 0.3))
    assert split.describe(NAMES) == "opencl 0.7 + numpy 0.3"
    assert Layout.cut([GPU, GPU], [1, 4]).kind == "cut"  # every block on one device: movement


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "block 0"),
        ([Part(GPU, 1, 4)], "block 0"),
        ([Part(GPU, 0, 4, 0.5)], "share 0.5"),
        ([Part(GPU, 0, 2), Part(CPU, 3, 4)], "ends at 2"),
        ([Part(GPU, 0, 3), Part(CPU, 2, 4)], "ends at 3"),
        ([Part(GPU, 0, 2), Part(CPU, 2, 4, 0.5)], "share 0.5"),
        ([Part(GPU, 0, 4, 0.5), Part(CPU, 0, 3, 0.5)], "all blocks"),
        ([Part(GPU, 0, 4, 0.5), Part(CPU, 0, 4, 0.4)], "0.9"),
        ([Part(GPU, 0, 4, 0.5), Part(GPU, 0, 4, 0.5)], "twice"),
    ],
)
def test_what_is_no_layout_is_refused(parts: list[Part], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout(tuple(parts))


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_lies_above_0_and_up_to_1(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        Part(GPU, 0, 1, share)


def test_a_layout_of_another_model_is_refused() -> None:
    model = network([4], "relu", {"type": "linear", "out_features": 2})
    Layout.whole(GPU, 2).check(model)
    with pytest.raises(ValueError, match="3 blocks"):
        Layout.whole(GPU, 3).check(model)


@given(
    count=st.integers(0, 300),
    weights=st.lists(st.integers(1, 100), min_size=1, max_size=5),
)
def test_slices_add_up_and_lie_near_their_shares(count: int, weights: list[int]) -> None:
    shares = [w / sum(weights) for w in weights]
    rows = slices(count, shares)
    assert sum(rows) == count
    assert min(rows) >= 0
    assert all(abs(n - count * share) <= 1 for n, share in zip(rows, shares, strict=True))
    assert rows == slices(count, shares)


def test_a_small_slice_may_be_empty() -> None:
    assert slices(3, (0.9, 0.1)) == (3, 0)
    assert slices(32, (0.7, 0.3)) == (22, 10)
