"""Every layer can be trained by every backend, and one that cannot is no traceback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from client import backends
from client.backends.checks import require_layers
from client.backends.numpy.ops import FUNCTIONS
from client.backends.opencl.lower import FAMILIES
from client.errors import DeviceError
from client.model import Model, build_model
from client.model.layers import LAYERS, Add, Concat, Flatten, Layer


@dataclass(frozen=True)
class Unheard(Layer):
    """A layer that no backend has heard of."""

    kind: ClassVar[str] = "unheard"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setitem(LAYERS, "unheard", Unheard)
    layers = ["flatten", {"type": "linear", "out_features": 2}, "unheard"]
    return build_model({"name": "odd", "input": {"shape": [1, 2, 2]}, "layers": layers}, "odd")


def test_every_layer_is_known_to_every_backend() -> None:
    every = {*LAYERS.values(), Add, Concat}
    assert every == set(FUNCTIONS)
    assert every == {*FAMILIES, Flatten}  # flatten needs no kernel


def test_an_unknown_layer_is_refused_by_name(model: Model) -> None:
    with pytest.raises(DeviceError, match=r"^the backend opencl cannot train the layer unheard$"):
        require_layers(model.whole, FAMILIES.keys() | {Flatten}, "opencl")


def test_numpy_refuses_an_unknown_layer(model: Model) -> None:
    numpy = backends.get("numpy")
    device = numpy.open(numpy.devices()[0])
    with pytest.raises(DeviceError, match="numpy cannot train the layer unheard"):
        device.compile(model.whole, 4)
