"""Seeded streams: known answers, and what a stream depends on."""

from __future__ import annotations

import numpy as np

from client import random


def test_philox_known_answers() -> None:
    """The vectors of Random123's kat_vectors for philox4x32-10."""
    ones = 0xFFFF_FFFF
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    cases = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, (ones, ones), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (pi, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ]
    for counter, (low, high), expected in cases:
        found = random.philox4x32(low | high << 32, np.array([counter], np.uint32))
        assert found.dtype == np.uint32
        assert tuple(map(int, found[0])) == expected


def test_philox_rows_are_independent() -> None:
    counters = np.random.default_rng(0).integers(0, 2**32, (50, 4), np.uint32)
    together = random.philox4x32(12345, counters)
    for i in range(50):
        np.testing.assert_array_equal(random.philox4x32(12345, counters[i : i + 1])[0], together[i])


def test_order_is_a_permutation_fixed_by_its_key() -> None:
    order = random.order(1, 2, "node-3", 0, 100)
    assert order.dtype == np.int32
    np.testing.assert_array_equal(np.sort(order), np.arange(100))
    np.testing.assert_array_equal(order, random.order(1, 2, "node-3", 0, 100))
    others = [
        random.order(2, 2, "node-3", 0, 100),
        random.order(1, 3, "node-3", 0, 100),
        random.order(1, 2, "node-4", 0, 100),
        random.order(1, 2, "node-3", 1, 100),
    ]
    for other in others:
        assert (order != other).any()


def test_order_is_the_same_everywhere() -> None:
    """A change of these numbers makes old runs impossible to repeat."""
    assert random.order(1, 1, "0", 0, 10).tolist() == [5, 1, 0, 4, 8, 3, 2, 6, 7, 9]
    assert random.key64("init", 0, "fc.weight") == 7939688448394832586


def test_keys_tell_types_and_borders_apart() -> None:
    keys = [("a", "b"), ("ab",), ("a", 1), ("a", "1"), (1, 1), (11,), ("a", "", "b")]
    assert len({random.key64(*key) for key in keys}) == len(keys)
    assert all(0 <= random.key64(*key) < 2**64 for key in keys)
    assert random.dropout_key(0, 1, "n", 2) == random.dropout_key(0, 1, "n", 2)
    assert random.dropout_key(0, 1, "n", 2) != random.dropout_key(0, 1, "n", 3)


def test_separators_inside_text_do_not_collide() -> None:
    """Partition names come from users' files and may hold any character."""
    assert random.key64("a\x1fstr:b") != random.key64("a", "b")
    assert random.key64("a\x1f", "b") != random.key64("a", "\x1fb")
    assert random.key64("a\x1f\x1f") != random.key64("a\x1f")
    random.key64("not utf-8: \udcff")


def test_numbers_of_numpy_are_the_same_key() -> None:
    assert random.key64("order", np.int64(3)) == random.key64("order", 3)
