"""The page in a real browser: it is drawn without complaints, at any width, and can be sorted, switched and asked."""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dmc.errors import DmcError
from dmc.files import HOST
from dmc.report.page import as_html
from dmc.report.writing import FIGURES, save_page
from tests.browser import Browser
from tests.report.exhibits import HOSTILE, NAMES, everything


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_page(everything(), tmp_path_factory.mktemp("page"))


def test_the_page_needs_nothing_else_and_takes_no_name_for_markup(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<script>hacked" not in text
    assert "<img src=x" not in text
    assert "\u202e" not in text
    assert set(re.findall(r"(?:src|href)=\"([^#\"][^,\"]*)", text)) == {"data:image/jpeg;base64", "data:"}
    assert "http" not in re.sub(r"http-equiv|http://www.w3.org/2000/svg", "", text)


def test_figures_are_png_and_svg_without_markup_of_names(page: Path) -> None:
    drawn = sorted(path.name for path in (page.parent / FIGURES).iterdir())
    names = ["apart", "bars", "confusion", "curves", "losses", "scenes", "sheet"]
    assert drawn == sorted(f"{name}.{kind}" for name in names for kind in ("png", "svg"))
    for svg in (page.parent / FIGURES).glob("*.svg"):
        assert "<script" not in svg.read_text(encoding="utf-8")


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (400, True)])
def test_it_is_drawn_at_any_width(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width, dark=dark)
    assert browser.complaints() == []
    assert browser.overflows() == []
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return window.hacked") is None
    assert browser.run("return document.querySelector('h1').textContent").startswith("Everything <script>")
    drawn = browser.run(
        "return [...document.querySelectorAll('.chart')].map(box => box.querySelectorAll('svg[role=img] > *').length)"
    )
    assert len(drawn) == 3
    assert min(drawn) > 5
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper))) < 100) is dark


def test_a_table_is_sorted_by_the_head_that_is_clicked(browser: Browser, page: Path) -> None:
    browser.open(page)

    def sorted_by(column: int) -> list[str]:
        browser.run("document.querySelectorAll('th button')[arguments[0]].click()", column)
        shown: list[str] = browser.run(
            "return [...document.querySelectorAll('tbody tr')].map(row => row.cells[0].textContent[0])"
        )
        return shown

    assert sorted_by(0) == ["<", "a", "b"]
    assert sorted_by(0) == ["b", "a", "<"]
    assert sorted_by(1) == ["b", "<", "a"]  # 50, 25, and what is not known
    assert sorted_by(1) == ["<", "b", "a"]
    assert sorted_by(2) == ["<", "b", "a"]  # 1,000, 10, 9: as numbers
    assert browser.run("return document.querySelectorAll('th[aria-sort]').length") == 1


def test_methods_are_switched_off_and_on(browser: Browser, page: Path) -> None:
    browser.open(page)

    def chart() -> dict[str, Any]:
        found: dict[str, Any] = browser.run("""
            const box = document.querySelector('.chart'), names = [...box.querySelectorAll('text.name')];
            return {
                names: names.map(name => name.textContent), heights: names.map(name => +name.getAttribute('y')),
                bands: box.querySelectorAll('.band').length };
        """)
        return found

    def press(label: str) -> None:
        script = "[...document.querySelectorAll('.chips button')].find(b => b.textContent === arguments[0]).click()"
        browser.run(script, label)

    before = chart()
    assert (len(before["names"]), before["bands"]) == (15, 15)
    heights = sorted(before["heights"])
    assert min(b - a for a, b in itertools.pairwise(heights)) > 12  # no name covers another
    browser.run("document.querySelectorAll('.chips button')[3].click()")
    assert (len(chart()["names"]), chart()["bands"]) == (14, 14)
    press("none")
    assert chart()["names"] == []
    press("all")
    assert chart() == before


def test_a_cell_of_a_confusion_matrix_tells_names_and_counts(browser: Browser, page: Path) -> None:
    browser.open(page)
    said = browser.run("""
        const svg = document.querySelector('.matrices svg'), image = svg.querySelector('image').getBoundingClientRect();
        svg.dispatchEvent(new PointerEvent('pointermove', {
            clientX: image.left + image.width * 0.1, clientY: image.top + image.height * 0.6 }));
        return document.getElementById('tip').textContent;
    """)
    shown = HOSTILE.replace("\u202e", "\\u202e")
    assert said == f"class: {shown}\nanswer: {NAMES[0]}\n5 of 10 images (50.0%)"


def test_only_the_pages_own_script_may_run(browser: Browser, tmp_path: Path) -> None:
    """Even if a name slipped through, the page's policy would not run it."""
    html = as_html(everything(), "").replace("<main>", "<main><script>hacked = 1</script>")
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    browser.open(tmp_path / "page.html")
    assert browser.run("return window.hacked") is None
    assert any("Content Security Policy" in line for line in browser.complaints())


def test_what_a_killed_report_left_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while it draws leaves a folder of figures, named by its number."""
    with monkeypatch.context() as killed:
        killed.setattr("os.getpid", lambda: 2**22 + 1)
        killed.setattr("shutil.rmtree", lambda *_, **__: None)  # nothing is tidied up after a SIGKILL
        save_page(everything(), tmp_path)
    (left,) = tmp_path.glob(".*")
    assert left.name.startswith(f".{FIGURES}-")
    assert left.name.endswith(f".{2**22 + 1}@{HOST}.part")
    save_page(everything(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [FIGURES, "report.html"]


@pytest.mark.slow
@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_fails_at_any_write_leaves_the_report_before(
    why: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file is synced before it takes its place; here each sync fails in turn."""
    page = save_page(everything(), tmp_path)
    before = page.read_bytes()
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    save_page(everything(), tmp_path)
    assert len(synced) == len(list((tmp_path / FIGURES).iterdir())) + 1
    page.write_bytes(before)
    for last in (1, 2, len(synced)):
        left = iter(range(last - 1))

        def fail(_: int, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise OSError(why, os.strerror(why))

        monkeypatch.setattr("os.fsync", fail)
        said = "the disk is full" if why == errno.ENOSPC else os.strerror(why)
        with pytest.raises(DmcError, match=f"^cannot write {page}: {said}$"):
            save_page(everything(), tmp_path)
        assert page.read_bytes() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == [FIGURES, "report.html"]
