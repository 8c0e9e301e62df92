"""Seeded randomness: every stream is keyed by what it is for, never by when it is drawn.

A key is any sequence of strings and integers, for example ("order", seed, round, partition,
epoch). Equal keys give equal streams on every machine and in every order of execution.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_BORDER = "\x1f"


def key64(*parts: str | int) -> int:
    """64 bits from a key, by BLAKE2b; parts differ by type and border, whatever they hold."""
    text = _BORDER.join(
        f"str:{p.replace(_BORDER, 2 * _BORDER)}" if isinstance(p, str) else f"int:{int(p)}"
        for p in parts
    )
    data = text.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def generator(*parts: str | int) -> np.random.Generator:
    """A generator of its own for a key: Philox, counter-based (Salmon et al., SC 2011)."""
    return np.random.Generator(np.random.Philox(key=key64(*parts)))


def order(seed: int, round_number: int, partition: str, epoch: int, n: int) -> NDArray[np.int32]:
    """The order in which one epoch visits ``n`` examples."""
    g = generator("order", seed, round_number, partition, epoch)
    return g.permutation(n).astype(np.int32)


def dropout_key(seed: int, round_number: int, partition: str, epoch: int) -> int:
    """The 64-bit key of one epoch's dropout masks (see ``philox4x32``)."""
    return key64("dropout", seed, round_number, partition, epoch)


def philox4x32(key: int, counter: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

    ``counter`` has shape (n, 4); returns 4 random words for each. kernels/random.h.cl computes
    the same, so that a mask depends on its key alone and not on the backend.
    """
    m0, m1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
    w0, w1 = 0x9E3779B9, 0xBB67AE85
    low = np.uint64(0xFFFFFFFF)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    for _ in range(10):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            p1 & low,
            (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            p0 & low,
        )
        k0, k1 = (k0 + w0) & 0xFFFFFFFF, (k1 + w1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)
