"""A model from YAML: a list of layers, each a name or a mapping with ``type`` and its settings.

    name: lenet5
    input: {shape: [1, 28, 28], mean: [0.1307], std: [0.3081]}
    layers:
      - {type: conv2d, name: conv1, out_channels: 6, kernel_size: 5, padding: 2}
      - relu
      - {type: residual, name: block1, body: [...], shortcut: [...]}
      - {type: concat, name: fire1, branches: [[...], [...]]}

Parameters are named as PyTorch names them: ``<name>.weight`` and ``<name>.bias``, and so are
buffers (``<name>.running_mean``); a layer without a name has its number in the list, as in
``torch.nn.Sequential``; layers inside a residual block or a concat carry its name (and ``body.0``,
``shortcut.0``, ``branches.1.0`` where they have none of their own).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client.errors import ConfigError, ModelError, did_you_mean
from client.fields import check_keys, describe, find_config, join, parse, read_yaml
from client.model.graph import InputSpec, Model, Op, Param
from client.model.layers import LAYERS, Add, Concat, Embedding, Layer, ParamSpec, Shape
from client.model.losses import Loss


def load_model(path: Path) -> Model:
    """A model from a file, or by the name of a shipped one."""
    try:
        found = path.is_file()
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}") from None
    if not found:
        path = find_config(str(path), "models", path.parent, str(path))
    return build_model(read_yaml(path), str(path))


def build_model(
    value: dict[str, Any], where: str, loss: Loss | None = None, frozen: Sequence[str] = ()
) -> Model:
    """A model from the mapping of its YAML; ModelError or ConfigError naming ``where``.

    Its output must fit ``loss``, if one is given. ``frozen``: names of layers or blocks.
    """
    check_keys(value, ("name", "input", "layers"), where)
    for key in ("name", "input", "layers"):
        if key not in value:
            raise ConfigError(f"{where}: the key '{key}' is missing")
    if not isinstance(value["name"], str):
        raise ConfigError(f"{join(where, 'name')}: found {describe(value['name'])}, needs text")
    spec = parse(InputSpec, value["input"], join(where, "input"))
    builder = _Builder(spec)
    layers = _list(value["layers"], join(where, "layers"))
    x, names = 0, []
    for i, entry in enumerate(layers):
        at = f"{join(where, 'layers')}[{i}]"
        name = _name(entry, str(i), at)
        x = builder.layer(entry, name, x, block=i, where=at)
        names.append(name)
    model = Model(value["name"], spec, tuple(builder.tensors), builder.placed(), tuple(names))
    if not model.params:
        raise ModelError(f"{where}: the model has no parameters to train")
    if loss is not None:
        try:
            loss.check_output(model.output_shape)
        except ModelError as e:
            raise ModelError(f"{where}: {e}") from None
    return _freeze(model, frozen, where) if frozen else model


def _freeze(model: Model, frozen: Sequence[str], where: str) -> Model:
    """The model with the operations of these layers and blocks frozen."""
    inside: dict[str, set[str]] = {}  # names of layers and blocks -> operations
    for op in model.ops:
        parts = op.name.split(".")
        for i in range(1, len(parts) + 1):
            inside.setdefault(".".join(parts[:i]), set()).add(op.name)
    with_params = {op.name for op in model.ops if op.params}
    known = [name for name, ops in inside.items() if ops & with_params]
    for name in frozen:
        if name not in known:
            raise ConfigError(
                f"{where}: train.frozen: found {describe(name)}, allowed: {', '.join(known)}"
                f"{did_you_mean(name, known)}"
            )
    chosen = set().union(*(inside[name] for name in frozen))
    ops = tuple(dataclasses.replace(op, frozen=op.name in chosen) for op in model.ops)
    if not any(op.trained for op in ops):
        raise ConfigError(f"{where}: train.frozen: leaves no parameters to train")
    return dataclasses.replace(model, ops=ops)


class _Builder:
    def __init__(self, spec: InputSpec) -> None:
        self.vocabulary = spec.vocabulary
        self.tensors: list[Shape] = [spec.shape]
        self.ops: list[Op] = []
        self.num_params = self.num_buffers = 0  # elements
        self.names: set[str] = set()

    def placed(self) -> tuple[Op, ...]:
        """The operations, their buffers behind all parameters."""
        return tuple(
            dataclasses.replace(
                op,
                buffers=tuple(
                    dataclasses.replace(b, offset=self.num_params + b.offset) for b in op.buffers
                ),
            )
            for op in self.ops
        )

    def layer(self, entry: Any, name: str, x: int, block: int, where: str) -> int:
        """Append the operations of one YAML entry; returns the number of the output tensor."""
        kind = entry if isinstance(entry, str) else entry.get("type")
        allowed = [*LAYERS, "residual", "concat"]
        if kind not in allowed:
            raise ConfigError(
                f"{where}.type: found {describe(kind)}, allowed: {', '.join(allowed)}"
                f"{did_you_mean(str(kind), allowed)}"
            )
        if kind == "residual":
            return self.residual(entry, name, x, block, where)
        if kind == "concat":
            return self.concat(entry, name, x, block, where)
        settings = {}
        if isinstance(entry, dict):
            settings = {k: v for k, v in entry.items() if k not in ("type", "name")}
            known = [f.name for f in dataclasses.fields(LAYERS[kind])]
            check_keys(settings, ("type", "name", *known), where)
        return self.append(parse(LAYERS[kind], settings, where), name, (x,), block, where)

    def residual(self, entry: Any, name: str, x: int, block: int, where: str) -> int:
        """body(x) + shortcut(x); without a shortcut, x itself is added."""
        if not isinstance(entry, dict) or "body" not in entry:
            raise ConfigError(f"{where}: a residual block needs the key 'body', a list of layers")
        check_keys(entry, ("type", "name", "body", "shortcut"), where)
        ends = [
            self.branch(entry.get(key, []), name, key, x, block, join(where, key))
            for key in ("body", "shortcut")
        ]
        if ends[0] == x:
            raise ModelError(f"{where}.body: a residual block needs at least one layer")
        return self.append(Add(), name, (ends[0], ends[1]), block, where)

    def concat(self, entry: Any, name: str, x: int, block: int, where: str) -> int:
        """Channels of all branches, one after the other; an empty branch gives x itself."""
        branches = entry.get("branches") if isinstance(entry, dict) else None
        at = join(where, "branches")
        if not isinstance(branches, list) or len(branches) < 2:
            raise ConfigError(
                f"{at}: found {describe(branches)}, needs two lists of layers or more"
            )
        check_keys(entry, ("type", "name", "branches"), where)
        ends = [
            self.branch(layers, name, f"branches.{i}", x, block, f"{at}[{i}]")
            for i, layers in enumerate(branches)
        ]
        shapes = [self.tensors[end] for end in ends]
        if any(shape[1:] != shapes[0][1:] for shape in shapes):
            found = ", ".join(map(str, shapes))
            raise ModelError(f"{at}: they give shapes {found}; all but the channels must be equal")
        if set(ends) == {x}:
            raise ModelError(f"{at}: at least one branch needs a layer")
        channels = tuple(shape[0] for shape in shapes)
        return self.append(Concat(channels), name, tuple(ends), block, where)

    def branch(self, layers: Any, name: str, key: str, x: int, block: int, where: str) -> int:
        """A list of layers beside others, inside the layer ``name``."""
        for i, child in enumerate(_list(layers, where)):
            at = f"{where}[{i}]"
            own = _name(child, f"{key}.{i}", at)
            x = self.layer(child, f"{name}.{own}", x, block, at)
        return x

    def append(
        self, layer: Layer, name: str, inputs: tuple[int, ...], block: int, where: str
    ) -> int:
        shapes = [self.tensors[i] for i in inputs]
        if name in self.names:
            raise ModelError(f"{where}.name: the name '{name}' stands twice")
        self.names.add(name)
        if isinstance(layer, Add) and shapes[0] != shapes[1]:
            raise ModelError(
                f"{where}: body gives shape {shapes[0]}, shortcut gives {shapes[1]}; "
                "they must be equal"
            )
        try:
            if isinstance(layer, Embedding) or (self.vocabulary is not None and 0 in inputs):
                layer = self.embedding(layer, inputs)
            output = layer.output_shape(shapes[0])
            params = _in_a_row(layer.params(shapes[0]), name, self.num_params)
            buffers = _in_a_row(layer.buffers(shapes[0]), name, self.num_buffers)
        except ModelError as e:
            raise ModelError(f"{where}: {e}") from None
        self.num_params += sum(p.size for p in params)
        self.num_buffers += sum(b.size for b in buffers)
        self.tensors.append(output)
        number = len(self.tensors) - 1
        self.ops.append(Op(layer, name, len(self.ops), inputs, number, params, block, buffers))
        return number

    def embedding(self, layer: Layer, inputs: tuple[int, ...]) -> Embedding:
        """The layer that reads the input's tokens, with a row of weights for each of them."""
        if not isinstance(layer, Embedding):
            raise ModelError(
                f"input.vocabulary: tokens go to an embedding layer, found {layer.kind}"
            )
        if self.vocabulary is None or inputs != (0,):
            raise ModelError(
                "embedding needs tokens: it reads the model's input, which says "
                "input.vocabulary, the number of different tokens"
            )
        rows = layer.num_embeddings or self.vocabulary
        if rows < self.vocabulary:
            raise ModelError(
                f"embedding: num_embeddings: found {rows}, needs at least the input's "
                f"vocabulary ({self.vocabulary})"
            )
        return dataclasses.replace(layer, num_embeddings=rows)


def _in_a_row(specs: tuple[ParamSpec, ...], name: str, offset: int) -> tuple[Param, ...]:
    params = []
    for spec in specs:
        rest = (spec.fan_in, spec.value, spec.normal, spec.variance)
        param = Param(f"{name}.{spec.suffix}", spec.shape, offset, *rest)
        offset += param.size
        params.append(param)
    return tuple(params)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: found {describe(value)}, needs a list of layers")
    for i, entry in enumerate(value):
        if not isinstance(entry, str | dict):
            raise ConfigError(
                f"{where}[{i}]: found {describe(entry)}, needs the name of a layer or a mapping"
            )
    return value


def _name(entry: Any, default: str, where: str) -> str:
    name = entry.get("name", default) if isinstance(entry, dict) else default
    if not isinstance(name, str) or not name or ("." in name and name != default):
        raise ConfigError(f"{where}.name: found {describe(name)}, needs text without dots")
    return name
