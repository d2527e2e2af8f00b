"""Reports of comparisons and of reproduced tables: every number is one that the summary or the paper has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dmc.bench.runner import Bench
from dmc.exhibits import Confusions, LineChart, Number, Page, Table
from dmc.metrics.incremental import Confusion
from dmc.recipes.profile import load_profile
from dmc.report.writing import page_of
from tests.conftest import Answer

GROUPS = {0: [["a", "b"], ["c"]], 1: [["b", "c"], ["a"]]}


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """Write the results of two methods on two class orders; the second has not finished its second order."""
    bench = Bench("digits", 2, load_profile("smoke", "digits"), tmp_path / "bench")
    bench.claim_folder()
    after_first = np.array([[9, 1], [2, 8]])  # 85%
    for order, groups in GROUPS.items():
        for method, right in (("dmc", 8), ("lwf", 4)):
            final = np.array([[right - order, 10 - right + order, 0], [0, right, 10 - right], [0, 0, 10]])
            for i, matrix in enumerate((after_first, final)):
                if (method, order, i) == ("lwf", 1, 1):
                    continue
                place = bench.cell_folder(method, order) / f"group-{i}"
                place.mkdir(parents=True)
                names = [name for group in groups[: i + 1] for name in group]
                Confusion(names, matrix).save(place)
        (bench.folder / f"order-{order}" / "groups.json").write_text(json.dumps(groups))
    return bench.folder


def charts(page: Page) -> dict[str, LineChart]:
    return {one.name: one for section in page.sections for one in section.shown if isinstance(one, LineChart)}


def test_a_comparison_has_its_table_curves_and_matrices(compared: Path) -> None:
    page = page_of(compared, None)
    assert page.subtitle == "digits, 2 classes at a time, profile smoke"
    results, _curves, confusion, _classes, unfinished = page.sections
    assert "mean nothing" in results.text
    (table,) = results.shown
    assert isinstance(table, Table)
    lwf, dmc = table.rows
    assert [cell.text if isinstance(cell, Number) else cell for cell in dmc[:3]] == ["DMC", "2", "85.0 ± 2.4"]
    assert [cell.text if isinstance(cell, Number) else cell for cell in lwf[:3]] == ["LwF", "1", "60.0"]
    assert set(charts(page)) == {"accuracy", "first-group", "forgetting"}
    accuracy, forgetting = charts(page)["accuracy"], charts(page)["forgetting"]
    assert accuracy.lines[1].method == "dmc"
    assert list(accuracy.lines[1].y) == pytest.approx([0.85, (26 / 30 + 25 / 30) / 2])
    assert list(accuracy.lines[1].spread) == pytest.approx([0, (1 / 30) / 2**0.5])
    assert list(forgetting.lines[0].y) == pytest.approx([0.45])
    assert list(forgetting.lines[1].y) == pytest.approx([(0.05 + 0.1) / 2])  # 85 - 80, and 85 - 75
    (matrices,) = confusion.shown
    assert isinstance(matrices, Confusions)
    assert [panel.title for panel in matrices.panels] == ["LwF", "DMC"]
    assert matrices.panels[1].rows == ("a", "b", "c")
    assert matrices.panels[1].counts.tolist() == [[8, 2, 0], [0, 8, 2], [0, 0, 10]]
    (going,) = unfinished.shown
    assert isinstance(going, Table)
    assert [[getattr(cell, "value", cell) for cell in row] for row in going.rows] == [["LwF", 1, 1, 2]]


def test_a_comparison_that_has_just_begun(compared: Path) -> None:
    for cell in compared.glob("order-*/*/group-1"):
        (cell / "confusion.npy").unlink()
    assert page_of(compared, None).sections[0].text == "No method has come to the end of a class order yet."


def test_reproduced_rows_stand_beside_the_papers(tmp_path: Path, dmc: Callable[..., Answer]) -> None:
    spread = {"mean": 0.5, "std": 0.01}
    row = {
        "setting": "", "row": "DMC", "method": "dmc", "profile": "lite with loss=l1", "orders": 2, "final": spread,
        "average incremental": spread, "classes": [10, 20], "accuracy": [0.8, 0.5], "spread": [0.1, 0.01],
        "published": {"average incremental": [59.1, 1.9]},
    }  # fmt: skip
    (tmp_path / "accuracy-g10-lite.json").write_text(json.dumps([row]))
    (section,) = page_of(tmp_path, None).sections
    table, chart = section.shown
    assert isinstance(table, Table)
    assert isinstance(chart, LineChart)
    place = list(table.columns).index("average incremental")
    cells = table.rows[0][place : place + 2]
    assert [cell.text for cell in cells if isinstance(cell, Number)] == ["50.0 ± 1.0", "59.1 ± 1.9"]
    assert table.columns[place + 1] == "published"
    assert "not the paper's settings" in section.text
    (tmp_path / "accuracy-g10-lite.json").write_text('[{"row": 3}]')
    said = dmc("report", tmp_path)
    assert said.code == 2
    assert "accuracy-g10-lite.json is damaged" in said.err


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"stream": "digits", "group_size": 2, "profile": {"name": "x", "y": 1}}']
)
def test_a_damaged_comparison_is_one_line(compared: Path, dmc: Callable[..., Answer], content: str) -> None:
    (compared / "bench.json").write_text(content)
    said = dmc("report", compared)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "bench.json is damaged" in said.err
    assert not (compared / "report.html").exists()
