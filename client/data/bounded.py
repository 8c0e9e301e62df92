"""Reading packed files without trusting the sizes that they declare."""

from __future__ import annotations

from typing import IO

CHUNK_NBYTES = 2**20


def unpacked_limit(packed_nbytes: int) -> int:
    """Bytes that a compressed file of ``packed_nbytes`` may unpack to.

    Images and sensor readings shrink to a half or a tenth; a file that grows a hundredfold, beyond
    64 MiB, is damaged or made to fill the memory.
    """
    return max(64 * 2**20, 100 * packed_nbytes)


def read_up_to(f: IO[bytes], nbytes: int) -> bytearray:
    """The next ``nbytes`` bytes, fewer at the end of the file; memory grows with what is there."""
    content = bytearray()
    while len(content) < nbytes:
        chunk = f.read(min(CHUNK_NBYTES, nbytes - len(content)))
        if not chunk:
            break
        content += chunk
    return content
