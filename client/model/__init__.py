"""Models as data: layers, graph, building from YAML, initialisation, cost."""

from client.model.build import build_model, load_model
from client.model.graph import InputSpec, Model, Op, Param, Segment
from client.model.initialise import initialise

__all__ = [
    "InputSpec",
    "Model",
    "Op",
    "Param",
    "Segment",
    "build_model",
    "initialise",
    "load_model",
]
