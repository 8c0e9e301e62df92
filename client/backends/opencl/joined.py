"""Many variants of kernels as one source.

Most of what a small program costs to build comes before its first line: the compiler reads the
declarations of all functions of OpenCL C for each of them. So what a step needs is one program. A
variant, a source with its defines, becomes a section of it: its macros are defined before its text
and taken back behind it, and what it defines gets names of its own, by macros as well.

That rests on how `kernels/*.cl` are written, which a test holds: functions and types are defined at
the beginning of a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import kernels
from client.backends.opencl.launch import Define, Launch

CONVOLUTIONS = (
    "conv",
    "conv1d",
    "conv1x1",
    "conv_batch",
    "conv_channels",
    "conv_flat",
    "conv_halved",
    "depthwise",
)

HEADERS: Mapping[str, tuple[str, ...]] = {
    "dropout": ("common.h", "random.h"),
    **dict.fromkeys(CONVOLUTIONS, ("common.h", "conv.h")),
}
"""Sources that are put before another one; ``common.h`` alone where nothing is said."""

_FUNCTION = re.compile(r"^(?:inline|__kernel)\s[^(;]*?\b(\w+)\(", re.MULTILINE)
_TYPE = re.compile(r"^typedef\s.*\b(\w+);", re.MULTILINE)
_MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)
_KERNEL = re.compile(r"^__kernel(?=\s+void\s+(\w+)\()", re.MULTILINE)


@dataclass(frozen=True)
class Variant:
    """A kernel, and what it is built with."""

    source: str  # kernels/<source>.cl
    kernel: str
    defines: tuple[tuple[str, Define], ...] = ()

    @classmethod
    def of(cls, launch: Launch) -> Variant:
        return cls(launch.source, launch.kernel, launch.defines)


@dataclass(frozen=True)
class Joined:
    """One source, and the names that kernels have in it."""

    text: str
    names: Mapping[Variant, str]


def files_of(source: str) -> tuple[str, ...]:
    """A source and what is put before it."""
    return (*HEADERS.get(source, ("common.h",)), source)


def join(variants: Iterable[Variant]) -> Joined:
    """Variants as sections of one source. Kernels of theirs that nobody wants are left out."""
    sections: dict[tuple[str, tuple[tuple[str, Define], ...]], set[str]] = {}
    names: dict[Variant, str] = {}
    for variant in variants:
        section = (variant.source, variant.defines)
        sections.setdefault(section, set()).add(variant.kernel)
        names[variant] = _numbered(variant.kernel, list(sections).index(section))
    lines: list[str] = []
    for number, ((source, defines), wanted) in enumerate(sections.items()):
        lines += _section(source, defines, wanted, number)
    return Joined("\n".join([*lines, ""]), names)


def _section(
    source: str, defines: tuple[tuple[str, Define], ...], wanted: set[str], number: int
) -> list[str]:
    texts = {name: kernels.source(name) for name in files_of(source)}
    lines = [f"#define {name} {value}" for name, value in defines]
    undefined = dict.fromkeys(name for name, _ in defines)
    for text in texts.values():
        for name in (*_FUNCTION.findall(text), *_TYPE.findall(text)):
            lines.append(f"#define {name} {_numbered(name, number)}")
            undefined[name] = None
        undefined |= dict.fromkeys(_MACRO.findall(text))
    for name, text in texts.items():
        lines += [f'#line 1 "{name}.cl"', _KERNEL.sub(partial(_kept, wanted=wanted), text)]
    return [*lines, *(f"#undef {name}" for name in undefined)]


def _kept(kernel: re.Match[str], wanted: set[str]) -> str:
    """The first word of a kernel; one that nobody wants becomes a function that nobody calls."""
    return "__kernel" if kernel[1] in wanted else "static inline"


def _numbered(name: str, number: int) -> str:
    return f"{name}_{number}"
