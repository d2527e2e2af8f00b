"""What the site has besides the pages in docs/: results and guides, the notebook, and the command line's reference.

MkDocs calls the functions `on_...` (mkdocs.yml names this file); https://www.mkdocs.org/user-guide/configuration/#hooks.
Links are written for the repository's pages; here they are turned to where the same files are on the site.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.main import get_command

from dmc.cli import app

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")
ROW = re.compile(r"(?m)^\| \[(.+?)\]\((\S+)\) \|")
CODE = re.compile(r"(?s)(```.*?```|`[^`\n]+`)")
MATH = re.compile(r"(?s)\$\$(.+?)\$\$|\$(?!\s)([^$\n]+?)(?<!\s)\$")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the results in the navigation, in the groups and by the names that their own index gives them."""
    for part in config.nav or []:
        if "Results" in part:
            part["Results"] = _results((ROOT / "results" / "README.md").read_text(encoding="utf-8"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that lie elsewhere, and the pages that are made."""
    for path in (*(ROOT / "results").iterdir(), *(ROOT / name for name in GUIDES)):
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    files.append(File.generated(config, "cli.md", content=command_line()))
    files.append(File.generated(config, "notebook.md", content=notebook(ROOT / "docs" / "merge.ipynb")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to the repository's files into links of the site, and formulas into MathML, outside of code."""
    here = PurePosixPath(page.file.src_uri)
    home = PurePosixPath("docs") / here if (ROOT / "docs" / here).exists() else here

    def linked(found: re.Match[str]) -> str:
        target = os.path.normpath(home.parent / found[1])
        target = "docs/notebook.md" if target == "docs/merge.ipynb" else target
        return os.path.relpath(target.removeprefix("docs/"), here.parent)

    parts = CODE.split(markdown)
    parts[::2] = [MATH.sub(_formula, LINK.sub(linked, part)) for part in parts[::2]]
    return "".join(parts)


def _results(index: str) -> list[Any]:
    """Turn the index of results into navigation: its sections, and the pages that begin their tables' rows."""
    groups = index.split("\n## ")[1:]
    pages = [[{title.replace("`", ""): f"results/{file}"} for title, file in ROW.findall(group)] for group in groups]
    titles = [group.splitlines()[0] for group in groups]
    overview = {"All of them": "results/README.md"}
    return [overview, *({title: found} for title, found in zip(titles, pages, strict=True))]


def _formula(found: re.Match[str]) -> str:
    """Write a formula as MathML, which browsers draw without scripts."""
    block, inline = found.groups()
    return convert(block, display="block") if block else convert(inline)


def command_line() -> str:
    """Write the reference of the command line from its commands."""
    top: Any = get_command(app)
    parts = [
        "# Command line",
        top.help,
        "`dmc COMMAND --help` shows the same; [all settings](settings.md) in one place.",
    ]
    for name, command in top.commands.items():
        parts += [f"## dmc {name}", command.help, *_parameters(command)]
    return "\n\n".join(parts)


def _parameters(command: Any) -> Iterator[str]:
    """List what a command takes: its arguments, then its options."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    for title, found in (("argument", arguments), ("option", options)):
        if found:
            rows = [f"| {_names(p)} | {_cell(p.help or '')} |" for p in found]
            yield "\n".join([f"| {title} | |", "|---|---|", *rows])


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _cell(text: str) -> str:
    """Fit a text into a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def notebook(path: Path) -> str:
    """Write a notebook as Markdown, with what its cells showed when it was run."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_shown(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts)


def _shown(output: Any) -> str:
    """Write what a cell showed: a picture, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="what the cell above draws" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    return f"```text\n{''.join(output.get('text') or data.get('text/plain', ''))}\n```"
