"""YAML -> frozen dataclasses. A complaint names file, key path, what was found, what is allowed."""

from __future__ import annotations

import dataclasses
import re
import sys
import types
import typing
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Union

import yaml

from client.errors import ConfigError, did_you_mean


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ConfigError if it cannot be read or is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder, needs a YAML file") from None
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror or _one_line(e)}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: cannot be read: {_one_line(e)}") from None
    value = parse_yaml(text, str(path))
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: needs a mapping (key: value), found {describe(value)}")
    return value


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text; ConfigError naming ``where`` if it is none."""
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as e:
        raise ConfigError(f"{where}: not YAML: {_one_line(e)}") from None
    except (RecursionError, ValueError, OverflowError) as e:  # too deep; a date that is none
        raise ConfigError(f"{where}: not YAML that can be read: {_one_line(e)}") from None
    _Plain(where).check(value)
    return value


MAX_DEPTH = 50
MAX_VALUES = 100_000
MAX_BITS = 4096  # Python writes out no number of more than 4300 digits


class _Plain:
    """Refuses what YAML can say and no experiment means: dates and the like, numbers that no field
    holds, mappings that hold themselves, aliases that multiply beyond all memory."""

    def __init__(self, where: str) -> None:
        self._where = where
        # by id: number of values with aliases written out, depth
        self._known: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()

    def check(self, value: Any) -> tuple[int, int]:
        """(number of values, depth) of a value; ConfigError if it is not plain."""
        if value is None or isinstance(value, bool | float | str):
            return 1, 0
        if isinstance(value, int):
            if value.bit_length() > MAX_BITS:
                raise ConfigError(
                    f"{self._where}: found a whole number of {value.bit_length()} bits, "
                    f"allowed: at most {MAX_BITS}"
                )
            return 1, 0
        if not isinstance(value, dict | list):
            kind = type(value).__name__
            raise ConfigError(
                f"{self._where}: found the {kind} {describe(str(value))}, "
                "allowed: text (in quotes), numbers, true, false, lists, mappings"
            )
        if id(value) in self._open:
            raise ConfigError(f"{self._where}: an anchor (&) holds an alias (*) of itself")
        if id(value) not in self._known:
            self._open.add(id(value))
            items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            inner = [self.check(v) for v in items]
            self._open.remove(id(value))
            size = 1 + sum(n for n, _ in inner)
            depth = 1 + max((d for _, d in inner), default=0)
            if size > MAX_VALUES or depth > MAX_DEPTH:
                raise ConfigError(
                    f"{self._where}: holds more than {MAX_VALUES} values, or more than "
                    f"{MAX_DEPTH} within each other"
                )
            self._known[id(value)] = size, depth
        return self._known[id(value)]


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice and reads 1e-3 as a number (YAML 1.2)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # "<<: *name" brings keys that may be given again
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool | None):
                raise yaml.constructor.ConstructorError(
                    None, None, f"a key must be plain text, found {key!r}", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def describe(value: object) -> str:
    """A found value, short, for a message."""
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _type_name(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_name(a) for a in args)
    if origin is typing.Literal:
        return ", ".join(str(a) for a in args)
    if origin is tuple:
        if args[-1] is Ellipsis:
            return f"a list, each {_type_name(args[0])}"
        return f"a list of {len(args)}, each {_type_name(args[0])}"
    if origin is list:
        return f"a list, each {_type_name(args[0])}"
    if kind is type(None):
        return "null"
    return _TYPE_NAMES.get(kind, "a mapping")


def _origin(kind: Any) -> Any:
    return typing.get_origin(kind) or kind


def convert(value: Any, kind: Any, where: str) -> Any:
    """``value`` from YAML as type ``kind``; ConfigError naming ``where`` if it does not fit."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        mappings = [arm for arm in args if dataclasses.is_dataclass(arm)]
        if isinstance(value, dict) and len(mappings) == 1 and dict not in map(_origin, args):
            return convert(value, mappings[0], where)  # what is wrong in it is told
        for arm in args:
            try:
                return convert(value, arm, where)
            except ConfigError:
                continue
    elif origin is typing.Literal:
        if value in args:
            return value
        raise ConfigError(
            f"{where}: found {describe(value)}, allowed: {_type_name(kind)}"
            f"{did_you_mean(str(value), map(str, args))}"
        )
    elif origin is tuple and isinstance(value, list):
        if args[-1] is Ellipsis:
            return tuple(convert(v, args[0], f"{where}[{i}]") for i, v in enumerate(value))
        if len(value) == len(args):
            return tuple(convert(v, args[i], f"{where}[{i}]") for i, v in enumerate(value))
    elif origin is list and isinstance(value, list):
        return [convert(v, args[0], f"{where}[{i}]") for i, v in enumerate(value)]
    elif origin is dict and isinstance(value, dict):
        if typing.get_origin(args[0]) is typing.Literal:
            check_keys(value, typing.get_args(args[0]), where)
        else:
            for key in value:
                if not isinstance(key, args[0]):
                    raise ConfigError(f"{where}: found the key {describe(key)}, needs text")
        return {k: convert(v, args[1], join(where, str(k))) for k, v in value.items()}
    elif dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return parse(kind, value, where)
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= sys.float_info.max:  # so is what is no number at all
            raise ConfigError(f"{where}: found {describe(value)}, needs a finite number")
        return float(value)
    elif kind is int and isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > 64:
            raise ConfigError(f"{where}: found {describe(value)}, must be within 64 bits")
        return value
    elif kind in (str, bool, type(None)) and isinstance(value, kind):
        return value
    raise ConfigError(f"{where}: found {describe(value)}, needs {_type_name(kind)}")


T = typing.TypeVar("T")


def parse(cls: type[T], value: Any, where: str) -> T:
    """A frozen dataclass from a mapping; its ``__post_init__`` may raise ConfigError as well."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: found {describe(value)}, needs a mapping")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    check_keys(value, fields, where)
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in value:
            raise ConfigError(f"{where}: the key '{name}' is missing")
    kwargs = {k: convert(v, hints[k], join(where, k)) for k, v in value.items()}
    try:
        return cls(**kwargs)
    except ConfigError as e:
        names_a_key = re.split(r"[.:]", str(e))[0] in fields  # as "batch: found 0, …" does
        raise type(e)(join(where, str(e)) if names_a_key else f"{where}: {e}") from None


def check_keys(value: Mapping[Any, Any], allowed: typing.Iterable[str], where: str) -> None:
    """ConfigError for the first key that is not allowed."""
    names = list(allowed)
    for key in value:
        if key not in names:
            raise ConfigError(
                f"{join(where, str(key))}: unknown key; allowed: {', '.join(names) or 'none'}"
                f"{did_you_mean(str(key), names)}"
            )


def join(where: str, key: str) -> str:
    """``file.yaml: a`` + ``b`` -> ``file.yaml: a.b``."""
    return f"{where}.{key}" if ": " in where else f"{where}: {key}"


def find_config(name: str, folder: str, beside: Path, where: str) -> Path:
    """The file that ``name`` stands for: beside the experiment, or among the shipped configs."""
    shipped = Path(str(files("configs")))
    file = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    for root in (beside, shipped):
        for candidate in (root / file, root / folder / file):
            try:
                if candidate.is_file():
                    return candidate
            except OSError as e:
                raise ConfigError(f"{where}: {file}: {e.strerror or _one_line(e)}") from None
    known = shipped_names(folder)
    raise ConfigError(
        f"{where}: no file '{file}' beside the experiment or among the shipped configs"
        f" ({folder}/: {', '.join(known) or 'none'}){did_you_mean(name, known)}"
    )


def shipped_names(folder: str) -> list[str]:
    """Names of the shipped configs of a folder (models, data, …), in order."""
    return sorted(p.stem for p in Path(str(files("configs")), folder).glob("*.yaml"))


def overlay(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` laid over ``below``: mappings key by key, everything else replaced."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        result[key] = overlay(old, value) if both else value  # type: ignore[arg-type]
    return result
