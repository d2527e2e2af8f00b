"""Write the report of a run, a comparison or a reproduction, or of several of them: one page, and its figures."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from importlib import metadata
from pathlib import Path

from dmc.errors import DmcError, first_line
from dmc.exhibits import Facts, Page, Section, Table
from dmc.files import system_reason, temporary_folder, write_text
from dmc.locks import IDLE, sweep
from dmc.report.bench_page import bench_page, is_bench
from dmc.report.reproduction_page import is_reproduction, reproduction_page
from dmc.report.run_page import is_run, run_page
from dmc.tasks.base import Place

PAGE, FIGURES = "report.html", "report-figures"
SEVERAL = "report"  # the folder for a report of several runs
log = logging.getLogger("dmc")


def write_report(
    runs: Sequence[str | Path],
    out: str | Path | None = None,
    data: Place | None = None,
    first: Sequence[Section] = (),
) -> Path:
    """Write report.html and its figures into a folder, and give the page's path; see `dmc.write_report`.

    `first` are sections to begin the page with.
    """
    folders = [Path(run) for run in runs]
    if not folders:
        raise DmcError("name a folder to report on")
    page = joined([page_of(folder, data) for folder in folders])
    if out is not None and is_run(Path(out)) and Path(out).resolve() not in [folder.resolve() for folder in folders]:
        raise DmcError(f"{out} is a run with a report of its own; name another folder")
    place = Path(out) if out is not None else folders[0] if len(folders) == 1 else Path(SEVERAL)
    return save_page(replace(page, sections=[*first, *page.sections]), place)


def report_at_end(
    folder: Path, out: Path | None = None, data: Place | None = None, first: Sequence[Section] = ()
) -> None:
    """Write the report of what has just been finished. If that fails, warn: what was learned must not be lost.

    A page that is newer than the model stays, since it may have been made with labeled data.
    """
    page, model = (out or folder) / PAGE, folder / "config.json"
    if page.exists() and model.exists() and page.stat().st_mtime > model.stat().st_mtime:
        return
    try:
        log.info(f"report: {write_report([folder], out, data, first)}")
    except Exception as error:  # also of matplotlib's
        log.warning(f"no report of {folder} could be written: {first_line(error)}")


def page_of(folder: Path, data: Place | None) -> Page:
    """Make the report of a folder, whatever has been written there."""
    if is_run(folder):
        return run_page(folder, data)
    if data is not None and folder.is_dir():
        raise DmcError(f"{folder} is no single run: labeled data is for those of train, consolidate and learn")
    if is_bench(folder):
        return bench_page(folder)
    if is_reproduction(folder):
        return reproduction_page(folder)
    if not folder.is_dir():
        raise DmcError(f"there is no folder {folder} to report on")
    runs = sorted(place.name for place in folder.iterdir() if is_run(place))
    advice = (
        f"name one of its runs, such as {runs[0]}"
        if runs
        else "name a folder that train, consolidate, learn, bench or reproduce has written"
    )
    raise DmcError(f"{folder} is no run: {advice}")


def joined(pages: Sequence[Page]) -> Page:
    """Put several reports on one page."""
    if len(pages) == 1:
        return pages[0]
    sections = [replace(section, title=f"{page.title}: {section.title}") for page in pages for section in page.sections]
    warnings = [f"{page.title}: {warning}" for page in pages for warning in page.warnings]
    return Page(f"{len(pages)} runs", "; ".join(page.title for page in pages), sections, warnings)


def save_page(page: Page, folder: Path) -> Path:
    """Write a page and its figures; if that is not possible, leave the folder as it was."""
    from dmc.report.page import as_html

    html = as_html(page, footer())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder, idle=IDLE)  # what a report that was killed has left
        figures = folder / FIGURES
        with temporary_folder(figures) as temporary:
            draw_all(page, temporary)
            figures.mkdir(exist_ok=True)
            for old in (old for kind in ("*.png", "*.svg") for old in figures.glob(kind)):
                old.unlink()  # of an earlier report
            for drawn in temporary.iterdir():
                drawn.replace(figures / drawn.name)
        write_text(folder / PAGE, html)
    except (OSError, DmcError) as error:  # the latter names a figure in the temporary folder
        why = system_reason(error) or system_reason(error.__context__)
        raise DmcError(f"cannot write {folder / PAGE}: {why}") from None
    return folder / PAGE


def draw_all(page: Page, folder: Path) -> None:
    """Draw every exhibit that is a figure; those with the same name are numbered."""
    from dmc.report.drawn_exhibits import draw

    used: Counter[str] = Counter()
    for shown in (shown for section in page.sections for shown in section.shown):
        if not isinstance(shown, Facts | Table):
            used[shown.name] += 1
            number = f"-{used[shown.name]}" if used[shown.name] > 1 else ""
            draw(replace(shown, name=f"{shown.name}{number}"), folder)


def footer() -> str:
    version = metadata.version("deep-model-consolidation")
    return f"Written by dmc {version} on {datetime.now().astimezone():%Y-%m-%d at %H:%M}."
