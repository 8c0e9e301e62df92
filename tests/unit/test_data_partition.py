"""Sharing examples out: every example once, in a keyed order, equal for equal seeds."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import configs
from client.config import PartitionConfig, load_experiment
from client.data import Dataset, load, partition, split_holdout, split_share
from client.errors import ConfigError, DataError

Parts = list[tuple[str, np.ndarray]]


def share(labels: Any, seed: int = 0, **config: Any) -> Parts:
    return partition(np.asarray(labels, np.int32), {}, PartitionConfig(**config), seed)


def by(column: Any, seed: int = 0, name: str = "speaker", **config: Any) -> Parts:
    column = np.asarray(column)
    return partition(
        np.zeros(len(column), np.int32),
        {name: column},
        PartitionConfig(kind="column", column=name, **config),
        seed,
    )


def assert_disjoint_cover(parts: Parts, n: int, min_examples: int = 1) -> None:
    together = np.concatenate([index for _, index in parts])
    np.testing.assert_array_equal(np.sort(together), np.arange(n))
    assert min(len(index) for _, index in parts) >= min_examples
    assert len({name.casefold() for name, _ in parts}) == len(parts)


def equal(a: Parts, b: Parts) -> bool:
    return len(a) == len(b) and all(
        m == n and np.array_equal(i, j) for (m, i), (n, j) in zip(a, b, strict=True)
    )


LABELS = np.repeat(np.arange(10), 100)

# -- properties of every kind --------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=120),
    nodes=st.integers(1, 12),
    alpha=st.floats(1e-300, 1e308),
    min_examples=st.integers(1, 3),
    seed=st.integers(0, 2**64),
)
def test_dirichlet_gives_each_example_to_one_node_or_says_why_not(
    labels: list[int], nodes: int, alpha: float, min_examples: int, seed: int
) -> None:
    config = {"kind": "dirichlet", "nodes": nodes, "alpha": alpha, "min_examples": min_examples}
    try:
        parts = share(labels, seed, **config)
    except ConfigError as e:
        message = str(e)
    else:
        assert_disjoint_cover(parts, len(labels), min_examples)
        assert len(parts) == nodes
        assert equal(parts, share(labels, seed, **config))
        return
    assert "data.partition" in message
    assert nodes > 1 or len(labels) < min_examples  # one node gets everything, whatever alpha is


@settings(max_examples=200, deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=12, max_size=120),
    nodes=st.integers(1, 4),
    shards_per_node=st.integers(1, 3),
    kind=st.sampled_from(["iid", "shards"]),
    seed=st.integers(0, 2**64),
)
def test_even_kinds_give_each_example_to_one_node(
    labels: list[int], nodes: int, shards_per_node: int, kind: str, seed: int
) -> None:
    parts = share(labels, seed, kind=kind, nodes=nodes, shards_per_node=shards_per_node)
    assert_disjoint_cover(parts, len(labels))
    sizes = [len(index) for _, index in parts]
    assert max(sizes) - min(sizes) <= (shards_per_node if kind == "shards" else 1)


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.text(max_size=6), min_size=1, max_size=40),
    name=st.text(min_size=1, max_size=100),
    nodes=st.none() | st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_columns_keep_the_examples_of_a_value_together(
    values: list[str], name: str, nodes: int | None, seed: int
) -> None:
    column = np.array(values)
    distinct = len(np.unique(column))
    if nodes is not None and nodes > distinct:
        with pytest.raises(ConfigError, match=rf"found {nodes}, .* allowed: 1 to {distinct}"):
            by(column, seed, name, nodes=nodes)
        return
    parts = by(column, seed, name, nodes=nodes)
    assert len(parts) == (nodes or distinct)
    assert_disjoint_cover(parts, len(values))
    held = [set(column[index].tolist()) for _, index in parts]
    assert sum(map(len, held)) == distinct
    for node, _ in parts:
        assert node.encode("ascii").isascii()
        assert Path(node).name == node
        assert not node.startswith((".", "-"))
        assert len(node) < 100


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards"])
def test_seeds_give_partitions_of_their_own_in_a_mixed_order(kind: str) -> None:
    first = share(LABELS, 1, kind=kind, nodes=5)
    assert equal(first, share(LABELS, 1, kind=kind, nodes=5))
    assert not equal(first, share(LABELS, 2, kind=kind, nodes=5))
    for _, index in first:
        assert not np.array_equal(index, np.sort(index))


# -- each kind for itself --------------------------------------------------------------------------


def test_alpha_says_how_uneven() -> None:
    def spread(alpha: float) -> float:
        parts = share(LABELS, 3, kind="dirichlet", nodes=5, alpha=alpha)
        counts = np.array([np.bincount(LABELS[index], minlength=10) for _, index in parts])
        return float(counts.std())

    assert spread(0.1) > spread(1) > spread(100) > spread(1e300) == 0


def test_dirichlet_shares_have_the_mean_and_variance_of_dir_alpha() -> None:
    # One share of Dir(alpha over k nodes): mean 1/k, variance (k - 1) / (k^2 (k alpha + 1)).
    labels = np.repeat(np.arange(400), 50)
    for alpha in (0.3, 2.0):
        parts = share(labels, 4, kind="dirichlet", nodes=4, alpha=alpha)
        shares = np.array([np.bincount(labels[i], minlength=400) / 50 for _, i in parts])
        np.testing.assert_allclose(shares.mean(axis=1), 0.25, atol=0.05)
        np.testing.assert_allclose(shares.var(), 3 / (16 * (4 * alpha + 1)), rtol=0.15)


def test_dirichlet_draws_again_until_each_node_has_enough() -> None:
    for seed in range(5):
        parts = share(LABELS, seed, kind="dirichlet", nodes=6, alpha=0.3, min_examples=60)
        assert_disjoint_cover(parts, 1000, 60)
    sizes = [len(i) for _, i in share(LABELS, 0, kind="dirichlet", nodes=6, alpha=0.3)]
    assert min(sizes) < 60  # so that the first of these did need another draw


def test_shards_limit_the_classes_of_a_node() -> None:
    parts = share(np.random.default_rng(0).permutation(LABELS), 5, kind="shards", nodes=10)
    assert_disjoint_cover(parts, 1000)
    # 20 shards of 50: two to a class, so two classes or one at each node.
    labels = np.random.default_rng(0).permutation(LABELS)
    assert {len(np.unique(labels[index])) for _, index in parts} <= {1, 2}


def test_columns_name_their_nodes() -> None:
    parts = by([10, 9, 9, 3, 10, 9])
    assert [name for name, _ in parts] == ["speaker-3", "speaker-9", "speaker-10"]
    assert [sorted(index.tolist()) for _, index in parts] == [[3], [1, 2, 5], [0, 4]]


def test_values_that_would_give_one_name_are_numbered() -> None:
    names = [name for name, _ in by(["a/b", "a b", "A_B", "a_b~2", "ü", "../x"], name="who")]
    assert sorted(names) == sorted(
        ["who-.._x", "who-A_B", "who-a_b~2", "who-a_b~3", "who-a_b_2", "who-_"]
    )


def test_grouped_values_are_balanced_and_seeded() -> None:
    column = np.repeat(np.arange(20), np.arange(1, 21))
    parts = by(column, 1, nodes=4)
    assert [name for name, _ in parts] == ["node-0", "node-1", "node-2", "node-3"]
    sizes = [len(index) for _, index in parts]
    assert sum(sizes) == 210
    assert max(sizes) <= 1.05 * 210 / 4
    even = np.repeat(np.arange(20), 5)
    assert not equal(by(even, 1, nodes=4), by(even, 2, nodes=4))


@pytest.mark.parametrize(
    ("nodes", "first", "last"), [(1, "node-0", "node-0"), (10, "node-0", "node-9")]
)
def test_few_nodes_have_one_digit(nodes: int, first: str, last: str) -> None:
    names = [name for name, _ in share(LABELS, kind="iid", nodes=nodes)]
    assert (names[0], names[-1]) == (first, last)


def test_names_sort_as_numbers() -> None:
    names = [name for name, _ in share(LABELS, kind="iid", nodes=101)]
    assert (names[0], names[-1]) == ("node-000", "node-100")
    assert names == sorted(names)
    assert share(LABELS, kind="iid", nodes=11)[0][0] == "node-00"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "iid", "nodes": 1001}, "nodes: found 1001, but 1000 examples give at most 1000"),
        (
            {"kind": "iid", "nodes": 11, "min_examples": 100},
            "nodes: found 11, but 1000 examples give at most 10 nodes with .*min_examples 100",
        ),
        (
            {"kind": "dirichlet", "nodes": 100, "alpha": 0.01},
            r"in 1000 draws of Dirichlet\(0\.01\) .* 100 nodes min_examples \(1\) .* raise .*alpha",
        ),
        (
            {"kind": "shards", "nodes": 400, "shards_per_node": 3},
            "shards_per_node: found 3, so 400 nodes need 1200 shards of 1000 examples",
        ),
        (
            {"kind": "shards", "nodes": 3, "shards_per_node": 300, "min_examples": 333},
            "min_examples: found 333, but node 'node-.' gets 3.. examples: lower it",
        ),
        ({"kind": "column", "column": "who"}, "column: found 'who', allowed: none, for this data"),
    ],
)
def test_what_the_data_cannot_give_is_one_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.partition.*{message}") as e:
        share(LABELS, 0, **config)
    assert "\n" not in str(e.value)


def test_an_unknown_column_shows_the_nearest() -> None:
    config = PartitionConfig(kind="column", column="speker")
    columns = {"speaker": np.zeros(3), "day": np.zeros(3)}
    with pytest.raises(ConfigError, match=r"allowed: speaker, day; did you mean 'speaker'\?"):
        partition(np.zeros(3, np.int32), columns, config, 0)


def test_a_value_with_too_few_examples_is_named() -> None:
    with pytest.raises(ConfigError, match="but node 'speaker-7' gets 1 examples: lower it, or set"):
        by([5, 7, 5], min_examples=2)


# -- kept apart ------------------------------------------------------------------------------------


def dataset(counts: list[int]) -> Dataset:
    y = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    x = np.arange(len(y), dtype=np.float32)[:, None]
    return Dataset(x, y, "some.npz", {"number": np.arange(len(y))})


@settings(max_examples=200, deadline=None)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any),
    part=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 2**64),
)
def test_holdout_is_a_stratified_split(counts: list[int], part: float, seed: int) -> None:
    whole = dataset(counts)
    n = int(part * len(whole))
    rest, held = split_holdout(whole, n, seed)
    assert len(held) == n
    together = np.concatenate([rest.columns["number"], held.columns["number"]])
    np.testing.assert_array_equal(np.sort(together), np.arange(len(whole)))
    for label, count in enumerate(counts):
        assert abs(held.class_counts().get(label, 0) - n * count / len(whole)) < 1
    again = split_holdout(whole, n, seed)[1]
    np.testing.assert_array_equal(held.x, again.x)


def test_holdout_differs_by_seed_and_leaves_something() -> None:
    whole = dataset([50, 50])
    a, b = (split_holdout(whole, 20, seed)[1] for seed in (1, 2))
    assert not np.array_equal(a.x, b.x)
    with pytest.raises(DataError, match=r"data\.holdout: found 100, but there are 100 .* 0 to 99"):
        split_holdout(whole, 100, 1)


@pytest.mark.parametrize(
    ("n", "share", "held"), [(10, 0.2, 2), (10, 0.01, 1), (10, 0.99, 9), (2, 0.5, 1), (7, 0.0, 0)]
)
def test_a_share_leaves_both_parts_something(n: int, share: float, held: int) -> None:
    train, evaluate = split_share(dataset([n]), share, 1, "node-0")
    assert (len(train), len(evaluate)) == (n - held, held)


def test_a_share_is_keyed_by_the_node_and_the_seed() -> None:
    whole = dataset([40, 40])
    drawn = [
        split_share(whole, 0.25, seed, name)[1].x.tobytes()
        for seed, name in ((1, "node-0"), (1, "node-1"), (2, "node-0"), (1, "node-0"))
    ]
    assert drawn[0] == drawn[3]
    assert len(set(drawn)) == 3


def test_a_single_example_cannot_be_shared() -> None:
    with pytest.raises(DataError, match="node 'node-3' has 1 example, too few to keep some apart"):
        split_share(dataset([1]), 0.5, 1, "node-3")


# -- the quickstart, frozen ----------------------------------------------------------------------


def test_the_quickstart_shares_its_data_as_ever() -> None:
    """Recorded runs are resumed and repeated only if every node gets what it got then.

    A change here means that the keys changed, or numpy's streams (numpy.random.Generator may
    change them between feature releases; recorded with 2.4).
    """
    experiment = load_experiment(Path(configs.__path__[0]) / "quickstart.yaml")
    rest, held = split_holdout(load(experiment.data.source), experiment.data.holdout, 1)
    assert held.class_counts() == dict.fromkeys(range(10), 100)
    parts = partition(rest.y, rest.columns, experiment.data.partition, 1)
    assert [len(index) for _, index in parts] == [770, 632, 357, 233, 418, 466, 928, 196]
    h = hashlib.blake2b(digest_size=16)
    for name, index in parts:
        part = rest.subset(index)
        h.update(name.encode() + part.x.tobytes() + part.y.astype("<i4").tobytes())
    assert h.hexdigest() == "acb166eb6301f79e116c56eb7f506822"
