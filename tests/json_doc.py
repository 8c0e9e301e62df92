"""docs/json.md as data: which keys each command's JSON object has, and of what type."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOC = Path(__file__).parent.parent / "docs" / "json.md"

_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "integer": (int,),
    "number": (int, float),
    "true or false": (bool,),
    "list of integer": (list,),
    "list of number": (list,),
}


def documented() -> dict[str, dict[str, str]]:
    """Command -> key path -> type, from the tables below the headings.

    A heading may name several commands that print the same.
    """
    result: dict[str, dict[str, str]] = {}
    for section in re.split(r"^## ", DOC.read_text(encoding="utf-8"), flags=re.M)[1:]:
        command, _, body = section.partition("\n")
        rows = re.findall(r"^\| `([^`]+)` \| ([^|]+?) \|", body, flags=re.M)
        assert len({key for key, _ in rows}) == len(rows), f"{command}: a key stands twice"
        result |= {name.strip(): dict(rows) for name in command.split(",")}
    return result


def assert_documented(command: str, value: dict[str, Any]) -> None:
    """The object has exactly the documented keys, each of its type."""
    keys = documented()[command]
    seen: set[str] = set()
    _walk(value, "", keys, seen)
    assert seen == set(keys), f"{command}: documented, but not printed: {set(keys) - seen}"


def _walk(value: Any, path: str, keys: dict[str, str], seen: set[str]) -> None:
    if path in keys:
        seen.add(path)
        _check_type(value, path, keys[path])
    elif isinstance(value, list):
        for item in value:
            _walk(item, f"{path}[]", keys, seen)
    elif isinstance(value, dict):
        for key, item in value.items():
            at = f"{path}.{key}" if path else key
            if not _known(at, keys):
                at = f"{path}.{{name}}"
            _walk(item, at, keys, seen)
    else:
        raise AssertionError(f"{path}: {value!r} is printed, but not documented")


def _known(path: str, keys: dict[str, str]) -> bool:
    return any(key == path or key.startswith((f"{path}.", f"{path}[")) for key in keys)


def _check_type(value: Any, path: str, kind: str) -> None:
    plain = kind.removesuffix(" or null")
    if value is None:
        assert kind != plain, f"{path}: null, documented as {kind}"
        return
    assert isinstance(value, _TYPES[plain]), f"{path}: {value!r}, documented as {kind}"
    assert isinstance(value, bool) == (plain == "true or false"), f"{path}: {value!r} is no {kind}"
    if plain.startswith("list of "):
        for item in value:
            _check_type(item, f"{path}[]", plain.removeprefix("list of "))
