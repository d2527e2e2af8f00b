"""Rules that hold for every file of the library, read from its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from docs.draw_house import DOCS, GUIDE, HOUSE, between, essential, heights, imports, pages, rooms


def library() -> Iterator[tuple[Path, ast.AST]]:
    """Give every node of the source outside the command line."""
    for path in sorted(HOUSE.rglob("*.py")):
        if "cli" not in path.relative_to(HOUSE).parts:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                yield path, node


def test_the_library_logs_and_never_prints() -> None:
    printing = [f"{path}:{n.lineno}" for path, n in library() if isinstance(n, ast.Name) and n.id == "print"]
    assert printing == []


def test_flags_and_arguments_are_named_only_by_the_command_line() -> None:
    texts = [(path, n) for path, n in library() if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    naming = [f"{path}:{n.lineno}" for path, n in texts if re.search(r"(?s)--[a-z].* | .*--[a-z]", str(n.value))]
    assert naming == []
    reading = [f"{path}:{n.lineno}" for path, n in library() if isinstance(n, ast.Attribute) and n.attr == "argv"]
    assert reading == []


def test_no_import_leads_back() -> None:
    """There are no cycles between modules, nor between rooms; imports within functions count, too."""
    graph = imports()
    assert heights(graph)["dmc.errors"] == 0
    house = between(graph, rooms(graph))
    assert max(heights(house), key=heights(house).__getitem__) == "cli"


def test_the_picture_of_the_house_is_current() -> None:
    """If this fails, run `python docs/draw_house.py`."""
    graph = imports()
    house = between(graph, rooms(graph))
    for path, text in pages(house).items():
        assert path.read_text(encoding="utf-8") == text
    arrows = {f"{upper} imports {lower}" for upper, below in essential(house).items() for lower in below}
    assert set(re.findall('id="([^"]+ imports [^"]+)"', (DOCS / "house.svg").read_text(encoding="utf-8"))) == arrows


def test_the_guide_names_files_that_are_there() -> None:
    named = re.findall(r"`((?:src|docs|tests)/[^`*]+)`", GUIDE.read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [name for name in named if not (DOCS.parent / name).exists()] == []
