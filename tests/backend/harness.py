"""What the conformance tests do with a device: programs, steps, comparisons by tensor."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client.backends import at_hand, get
from client.backends.base import Device, DeviceData, Program
from client.backends.device_info import DeviceInfo
from client.backends.emulated import describe, open_emulated
from client.backends.emulated.spec import Emulation, Inner, Link, Way
from client.backends.numpy.device import NumpyDevice
from client.backends.recipe import DEFAULT_RECIPE, Hyper, Recipe
from client.errors import DeviceError
from client.model import Model, build_model, initialise
from client.model.losses import Labels
from tests.tolerance import assert_close

KEY = 0x0123_4567_89AB_CDEF
"""A dropout key with both halves in use."""


EMULATED = {
    "emulated-numpy": Inner("numpy"),
    "emulated-opencl": Inner("opencl", cores=1),
}
"""Emulated devices that are held to the same promises, by what computes for them."""


def emulation(inner: Inner, **over: Any) -> Emulation:
    """A device twice as slow as the inner one, with a link that hardly holds a test up."""
    way = Way(latency_s=5e-6, bytes_per_s=4e9)
    return replace(Emulation("emulated", Link(way, way), inner, compute_factor=2), **over)


def found_devices() -> list[Any]:
    """A test parameter for each device of each backend; a skipped one for a backend without."""
    found = []
    for name in at_hand():
        try:
            infos = get(name).devices()
            reason = f"{name}: no device found"
        except DeviceError as e:
            infos, reason = [], f"{name}: {e}"
        found += [pytest.param(info, id=f"{name}{i}") for i, info in enumerate(infos)]
        if not infos:
            found.append(pytest.param(None, id=name, marks=pytest.mark.skip(reason=reason)))
    return found + [pytest.param(emulation(inner), id=name) for name, inner in EMULATED.items()]


def open_found(device: DeviceInfo | Emulation) -> Device:
    """Open what ``found_devices`` found; skips where an emulated device has no inner one here."""
    if isinstance(device, DeviceInfo):
        return get(device.backend).open(device)
    try:
        return open_emulated(describe(device), device)
    except DeviceError as e:
        pytest.skip(str(e))


def network(shape: list[int], *layers: Any, **spec: Any) -> Model:
    """A model from its layers as YAML has them."""
    mapping = {"name": "net", "input": {"shape": shape, **spec}, "layers": list(layers)}
    return build_model(mapping, "net")


def examples(
    model: Model, n: int, dtype: str = "float32", seed: int = 0
) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """``n`` random examples that fit a model, and their labels."""
    g = np.random.default_rng(seed)
    shape = (n, *model.input.shape)
    x: NDArray[Any] = g.normal(size=shape).astype(np.float32)
    if model.input.vocabulary is not None:
        x = model.input.draw(g, n)
    elif dtype == "uint8":
        x = g.integers(0, 256, shape, np.uint8)
    return x, g.integers(0, model.num_classes, n).astype(np.int32)


class Subject:
    """A whole network on a device, with parameters and data in place."""

    def __init__(
        self,
        device: Device,
        model: Model,
        capacity: int,
        x: NDArray[Any],
        y: Labels,
        params: NDArray[np.float32] | None = None,
        recipe: Recipe = DEFAULT_RECIPE,
        batch: int | None = None,
    ) -> None:
        self.device, self.model = device, model
        self.params = initialise(model, seed=0) if params is None else params
        self.program: Program = device.compile(model.whole, capacity, recipe)
        self.data: DeviceData = device.load(x, y)
        self.capacity = capacity
        self.predictions = prod(recipe.loss.labels_shape(model.output_shape))
        self.reset(batch=batch)

    def reset(self, order: NDArray[np.int32] | None = None, batch: int | None = None) -> None:
        """Parameters as at the start; the epoch's order, by default that of the data."""
        if order is None:
            order = np.arange(self.data.num_examples, dtype=np.int32)
        self.program.upload(self.params)
        self.program.read_metrics()
        self.begin(order, batch)

    def begin(self, order: NDArray[np.int32], batch: int | None = None) -> None:
        """Begin an epoch."""
        self.batch = batch or self.capacity
        self.order = order
        self.program.begin_epoch(self.data, order, self.batch, KEY)

    def gradients(self, count: int, start: int = 0) -> NDArray[np.float32]:
        """One batch forward and backward: flat gradients."""
        self.program.gather(start, count)
        self.program.forward(count)
        self.program.loss(count)
        self.program.backward(count)
        return self.program.read_grads()

    def epoch(self, hyper: Hyper) -> list[float]:
        """Mean loss of each step of an epoch."""
        losses = []
        for start in range(0, len(self.order), self.batch):
            count = min(self.batch, len(self.order) - start)
            self.program.step(start, count, hyper)
            metrics = self.program.read_metrics()
            assert metrics.count == count * self.predictions
            losses.append(metrics.loss)
        return losses

    def release(self) -> None:
        self.program.release()
        self.data.release()


def numpy_device(dtype: type[np.floating[Any]]) -> NumpyDevice:
    """The reference, in a precision of one's choice."""
    return NumpyDevice(get("numpy").devices()[0], dtype)


def assert_tensors_close(
    model: Model,
    name: str,
    found: NDArray[Any],
    reference: NDArray[np.float64],
    peer: NDArray[np.float32],
) -> None:
    """Flat buffers, compared parameter by parameter."""
    found_named, peer_named = model.views(found), model.views(peer)
    for key, value in model.views(reference).items():
        assert_close(f"{name} of {key}", found_named[key], value, peer_named[key])
