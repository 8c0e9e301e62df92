"""The documents: commands that exist, options that exist, links and paths that lead somewhere."""

from __future__ import annotations

import dataclasses
import re
import shlex
import typing
from pathlib import Path

import click
import pytest
import typer

from client.config import DataConfig, DevicesConfig, FederationConfig, TrainConfig
from client.timing import PHASES
from server.commands import app

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
IDS = [str(d.relative_to(ROOT)) for d in DOCUMENTS]


def code(text: str) -> list[str]:
    """Lines of fenced and indented blocks, and code within a line."""
    found: list[str] = []
    fenced = False
    prose: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            found.append(line.strip())
        else:
            prose.append(line)
    return found + re.findall(r"`([^`]+)`", "\n".join(prose))


def commands(text: str) -> list[str]:
    """Command lines that begin with ``pocketfed``, without the prompt before them."""
    lines = [" ".join(line.removeprefix("$ ").split()) for line in code(text)]
    return [line for line in lines if line.startswith("pocketfed ")]


def complaint(line: str) -> str | None:
    """What a command line names that does not exist."""
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = typer.main.get_command(app)
    while isinstance(command, click.Group):
        if not words or words[0] == "--help":
            return None
        name = words.pop(0)
        if name not in command.commands:
            return f"{line}: no command {name!r}"
        command = command.commands[name]
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    for word in words:
        option = word.partition("=")[0]
        if option.startswith("-") and option not in options:
            return f"{line}: no option {option}"
    return None


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("pocketfed compare RUN --by node", None),
        ("pocketfed simulate x.yaml --set train.lr=1  # --not an option", None),
        ("pocketfed --help", None),
        ("pocketfed bench train --no-peer", None),
        ("pocketfed bench", None),
        ("pocketfed compair RUN", "no command 'compair'"),
        ("pocketfed data spilt mnist", "no command 'spilt'"),
        ("pocketfed compare RUN --per node", "no option --per"),
    ],
)
def test_the_check_itself(line: str, found: str | None) -> None:
    said = complaint(line)
    assert said == found if found is None else found in str(said)


def test_commands_are_found_wherever_they_stand() -> None:
    text = (
        "a `pocketfed model\nlenet5` b\n\n    $ pocketfed doctor\n\n```\npocketfed compare R\n```\n"
    )
    assert set(commands(text)) == {
        "pocketfed model lenet5",
        "pocketfed doctor",
        "pocketfed compare R",
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_every_command_exists(document: Path) -> None:
    lines = commands(document.read_text(encoding="utf-8"))
    assert [said for line in lines if (said := complaint(line))] == []


def test_every_command_is_named_somewhere() -> None:
    lines = [line for d in DOCUMENTS for line in commands(d.read_text(encoding="utf-8"))]
    named = {" ".join(line.split()[1:3]) for line in lines}
    top = typer.main.get_command(app)
    assert isinstance(top, click.Group)
    for name, command in top.commands.items():
        below = command.commands if isinstance(command, click.Group) else [""]
        for sub in below:
            wanted = f"{name} {sub}".strip()
            assert any(n == wanted or n.startswith(f"{wanted} ") for n in named), wanted


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_every_make_target_exists(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, flags=re.M))
    named = set()
    for line in code(document.read_text(encoding="utf-8")):
        if line.startswith("make "):
            named.add(line.split()[1])
    assert named - targets == set()


def anchors(document: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), flags=re.M)
    plain = [re.sub(r"[^\w\- ]", "", h.strip().lower()) for h in headings]
    return {h.replace(" ", "-") for h in plain}


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path) if path else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_files_that_are_named_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    pattern = (
        r"(?<![\w/.])(?:docs|configs|client|server|kernels|tests)/[\w/-]+\.(?:md|yaml|py|cl)\b"
    )
    named = set(re.findall(pattern, text))
    assert {name for name in named if not (ROOT / name).exists()} == set()


def keys(cls: type) -> list[str]:
    """Keys of a part of an experiment file; ``a.b`` for those of a part of the part."""
    found = []
    for f in dataclasses.fields(cls):
        kind = typing.get_type_hints(cls)[f.name]
        below = keys(kind) if dataclasses.is_dataclass(kind) else [""]
        found += [f"{f.name}.{key}".rstrip(".") for key in below]
    return found


@pytest.mark.parametrize("part", [DataConfig, TrainConfig, FederationConfig, DevicesConfig])
def test_every_key_of_an_experiment_is_documented(part: type) -> None:
    text = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    title = part.__name__.removesuffix("Config").lower()
    section = re.split(r"^## ", text, flags=re.M)
    (table,) = (s for s in section if s.startswith(f"{title}\n"))
    first_cells = re.findall(r"^\| (.+?) \|", table, flags=re.M)
    named = {key for cell in first_cells for key in re.findall(r"`([^`]+)`", cell)}
    assert named == set(keys(part))


def test_every_phase_of_a_round_is_documented() -> None:
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    assert [phase for phase in PHASES if f"`{phase}`" not in text] == []
