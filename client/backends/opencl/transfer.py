"""Transfers through memory that host and device share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray


def through_map(
    queue: cl.CommandQueue,
    buffer: cl.Buffer,
    values: NDArray[Any],
    access: int,
    offset_nbytes: int,
) -> list[cl.Event]:
    """Copy ``values`` to or from the mapped buffer (``cl.map_flags``); done when it returns."""
    mapped, opened = cl.enqueue_map_buffer(
        queue, buffer, access, offset_nbytes, values.shape, values.dtype
    )
    if access == cl.map_flags.READ:
        np.copyto(values, mapped)
    else:
        np.copyto(mapped, values)
    closed = mapped.base.release(queue)
    closed.wait()
    return [opened, closed]
