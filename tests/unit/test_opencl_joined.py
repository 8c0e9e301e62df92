"""Variants of kernels as one source: what that rests on in `kernels/*.cl`, and what comes out."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

import kernels
from client.backends.opencl.joined import HEADERS, Variant, files_of, join

SOURCES = sorted(entry.name.removesuffix(".cl") for entry in files(kernels).iterdir()
                 if entry.name.endswith(".cl"))  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_what_a_file_defines_is_found(name: str) -> None:
    """All at the beginning of a line: functions, types and macros alone, in the known ways."""
    text = re.sub(r"//.*", "", kernels.source(name))
    begins = [line for line in text.splitlines() if re.match(r"[^\s#}]", line)]
    more = [  # a function's arguments may begin a line after their own preprocessor conditions
        line for line in begins
        if not re.match(r"(inline|__kernel|typedef)\s", line) and not line.endswith((" {", ","))
    ]  # fmt: skip
    assert not more
    functions = [line for line in begins if re.match(r"(inline|__kernel)\s", line)]
    assert all(re.match(r"(inline|__kernel) \w+ \w+\(", line) for line in functions)
    types = [line for line in begins if line.startswith("typedef")]
    assert all(re.fullmatch(r"typedef .*\b\w+;\s*", line) for line in types)


def test_headers_exist() -> None:
    assert {name for source in HEADERS for name in files_of(source)} <= set(SOURCES)


def test_each_section_has_its_defines_and_names_and_takes_them_back() -> None:
    variants = [
        Variant("conv", "conv_forward", (("CG", 3), ("VW", 4))),
        Variant("conv", "conv_forward", (("CG", 5), ("VW", 4))),
        Variant("reduce", "sum_partials", (("VW", 8),)),
    ]
    joined = join([*variants, variants[0]])
    assert list(joined.names) == variants
    assert len(set(joined.names.values())) == len(variants)
    defined: set[str] = set()
    values: dict[str, list[str]] = {}
    for word, name, value in re.findall(r"^\s*#\s*(define|undef) (\w+) ?(.*)$", joined.text, re.M):
        if word == "undef":
            defined.discard(name)
        else:
            defined.add(name)
            values.setdefault(name, []).append(value)
    assert not defined, "nothing reaches into the next section"
    assert values["CG"] == ["3", "5"]
    assert values["conv_forward"] == [joined.names[v] for v in variants[:2]]
    assert values["sum_partials"] == [joined.names[variants[2]]]


def test_kernels_that_nobody_wants_are_none() -> None:
    wanted = Variant("batchnorm", "batch_moments")
    found = re.findall(r"^__kernel\s+void\s+(\w+)", join([wanted]).text, re.M)
    assert found == ["batch_moments"]
    assert "static inline void batch_forward" in join([wanted]).text
