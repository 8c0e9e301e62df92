"""What a round has come to on a program, so that another one can go on from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.model.graph import Float32Array, Segment


@dataclass(frozen=True)
class State:
    """Values and the optimizer's state of a segment.

    ``values``: flat, parameters and then buffers (``Segment.values_of``). ``slots``: what the
    optimizer keeps, (k, num_trained), by the letters of ``Hyper``: v (sgd), or m and then s (adam,
    adamw). ``updates``: how many there were since the upload.
    """

    values: Float32Array
    slots: Float32Array
    updates: int

    @property
    def nbytes(self) -> int:
        """Of all its arrays."""
        return self.values.nbytes + self.slots.nbytes

    def check(self, segment: Segment, slots: int) -> None:
        """ValueError where it is of another segment, or of another optimizer."""
        found = self.values.shape, self.slots.shape
        needed = (segment.num_values,), (slots, segment.num_trained)
        if found != needed:
            raise ValueError(f"state of shapes {found}, the program needs {needed}")

    def cut(self, segments: Sequence[Segment]) -> list[State]:
        """A whole network's state, for each of the segments that it is cut into, in order."""
        parts, at = [], 0
        for segment in segments:
            slots = self.slots[:, at : at + segment.num_trained]
            parts.append(State(segment.values_of(self.values), slots, self.updates))
            at += segment.num_trained
        return parts


def join_values(segments: Sequence[Segment], values: Sequence[Float32Array]) -> Float32Array:
    """A network's flat values from those of the segments that it is cut into."""
    whole = np.empty(segments[0].model.num_values, values[0].dtype)
    for segment, own in zip(segments, values, strict=True):
        whole[segment.param_slice] = own[: segment.num_params]
        whole[segment.buffer_slice] = own[segment.num_params :]
    return whole


def join_states(segments: Sequence[Segment], states: Sequence[State]) -> State:
    """A network's state from those of the segments that it is cut into, all as many updates old."""
    return State(
        join_values(segments, [state.values for state in states]),
        np.concatenate([state.slots for state in states], axis=1),
        states[0].updates,
    )
