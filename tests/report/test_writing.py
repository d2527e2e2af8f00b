"""Reports of real runs: what they show is what was measured, and nothing goes wrong with bad input."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dmc as library
from dmc.data.thumbnails import encoded
from dmc.distill.teachers import Teachers
from dmc.errors import DmcError
from dmc.evaluation.classification import evaluate
from dmc.exhibits import AnyExhibit, Confusions, Facts, Gallery, LineChart, Page, Table
from dmc.report.writing import page_of, report_at_end
from dmc.training.findings import SavedFindings
from tests.conftest import Answer, load_specialist, tiny, write_images

Dmc = Callable[..., Answer]
TEACHERS = (["cat", "dog"], ["dog", "<b>bird"])


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with two teachers that share a class, labeled test images, and their merger."""
    folder = tmp_path_factory.mktemp("merged")
    places = [tiny(names, seed).save(folder / f"t{seed}") for seed, names in enumerate(TEACHERS)]
    for colour, name in enumerate(("cat", "dog", "<b>bird")):
        write_images(folder / "test" / name, 5 + colour, seed=colour, colour=colour)
    aux = write_images(folder / "aux", 210, size=16)
    library.consolidate(places, aux, folder / "run", epochs=2, batch_size=96, report=False)
    return folder


def shown(page: Page, kind: type[AnyExhibit], title: str = "") -> AnyExhibit:
    found = (one for section in page.sections for one in section.shown if isinstance(one, kind))
    return next(one for one in found if not title or title in getattr(one, "title", title))


def facts(page: Page) -> dict[str, str]:
    """Give all facts of a page; of those with the same name, the first."""
    shown = [one.rows for section in page.sections for one in section.shown if isinstance(one, Facts)]
    return {key: text for rows in reversed(shown) for key, text in rows.items()}


def test_a_consolidation_shows_what_went_in_and_what_came_out(merged: Path) -> None:
    page = page_of(merged / "run", None)
    assert page.title == "Consolidation: run"
    teachers = shown(page, Table, "Teachers")
    assert isinstance(teachers, Table)
    assert [[getattr(cell, "value", cell) for cell in row] for row in teachers.rows] == [
        ["1: t0", "cifar_resnet8", 2, 1, "cat; dog"],
        ["2: t1", "cifar_resnet8", 2, 1, "dog; <b>bird"],
    ]
    assert facts(page)["classes that several teachers know"] == "dog"
    assert facts(page)["auxiliary images"].startswith("210 in ")
    assert facts(page)["auxiliary images"].endswith("; 21 of them were not trained on")
    loss = shown(page, LineChart)
    logged = [json.loads(line) for line in (merged / "run" / "metrics.jsonl").read_text().splitlines()]
    assert isinstance(loss, LineChart)
    assert [(list(line.x), list(line.y)) for line in loss.lines] == [([1, 2], [line["loss"] for line in logged])]
    sheet = shown(page, Gallery)
    assert isinstance(sheet, Gallery)
    assert len(sheet.exhibits) == 21
    saved = SavedFindings.model_validate_json((merged / "run" / "report.json").read_text())
    by_teachers, by_student = (sum(count) for count in zip(*saved.answers.values(), strict=True))
    assert by_teachers == by_student == saved.images == 21
    never = [name for name, (times, _) in saved.answers.items() if not times]
    assert facts(page)["classes that the images never suggest"].startswith(f"{len(never)} of 3" if never else "none")


def test_on_labeled_data_it_shows_what_evaluate_measures(merged: Path) -> None:
    page = page_of(merged / "run", merged / "test")
    student = evaluate(load_specialist(merged / "run"), merged / "test")
    together = evaluate(Teachers([load_specialist(merged / f"t{i}") for i in (0, 1)]), merged / "test")
    table = shown(page, Table, "Accuracy of each class")
    assert isinstance(table, Table)
    found = {row[0]: [getattr(cell, "value", cell) for cell in (row[5], row[3], *row[1:3])] for row in table.rows}
    assert found == {
        "cat": ["1: t0", 5, student.per_class["cat"], together.per_class["cat"]],
        "dog": ["1: t0, 2: t1", 6, student.per_class["dog"], together.per_class["dog"]],
        "<b>bird": ["2: t1", 7, student.per_class["<b>bird"], together.per_class["<b>bird"]],
    }
    old, new = student.of(["cat", "dog"]), student.of(["dog", "<b>bird"])
    assert facts(page)["gap between the first and the last teacher's classes"] == f"{100 * (old - new):+.1f} points"
    alone = evaluate(load_specialist(merged / "t0"), merged / "test", known=True)
    groups = shown(page, Table, "each teacher's classes")
    assert isinstance(groups, Table)
    assert [getattr(cell, "value", cell) for cell in groups.rows[0]] == pytest.approx(
        ["1: t0", old, together.of(["cat", "dog"]), alone.of(["cat", "dog"]), 11]
    )
    matrices = shown(page, Confusions)
    assert isinstance(matrices, Confusions)
    for panel, result in zip(matrices.panels, (student, together), strict=True):
        assert list(panel.rows) == list(panel.columns) == ["cat", "dog", "<b>bird"]
        assert panel.counts.sum(axis=1).tolist() == [5, 6, 7]
        assert np.diag(panel.counts).sum() == pytest.approx(18 * result.accuracy)


def with_first_teacher(merged: Path, folder: Path, place: str) -> Path:
    """Copy the run, and let its run.json say that the first teacher is elsewhere."""
    shutil.copytree(merged / "run", folder)
    record = json.loads((folder / "run.json").read_text())
    record["teachers"][0]["from"] = place
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_teachers_that_are_gone_or_changed_are_left_out(
    merged: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for i, (place, reason) in enumerate(
        [("nosuch", "nosuch is not a folder here"), (str(merged / "t1"), "is not the teacher")]
    ):
        run = with_first_teacher(merged, tmp_path / f"{i}", place)
        page = page_of(run, merged / "test")
        assert page.sections[0].text.startswith("The teachers are left out: ")
        assert reason in page.sections[0].text
        assert reason in caplog.text
        assert "accuracy, teachers side by side" not in facts(page)
        accuracy = evaluate(load_specialist(run), merged / "test").accuracy
        assert facts(page)["accuracy, model"] == f"{accuracy:.1%}"


def test_nothing_written_in_a_file_is_fetched_or_run(
    merged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_first_teacher(merged, tmp_path / "run", "hf-hub:someone/something")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("something is fetched"))
    assert "is not a folder here" in page_of(run, merged / "test").sections[0].text


def test_a_run_that_is_still_going_and_one_of_an_earlier_version(merged: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(merged / "run", run)
    (run / "report.json").unlink()
    assert [section.title for section in page_of(run, None).sections] == ["What went in", "Training", "How it was made"]
    (run / "config.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(lines[0] + "\n" + lines[1][:20])  # it is just being written
    assert page_of(run, None).subtitle == "cifar_resnet8 with 3 classes, not finished: epoch 1 of 2"
    with pytest.raises(DmcError, match="is not finished: its model cannot be measured yet"):
        page_of(run, merged / "test")
    (run / "metrics.jsonl").unlink()
    assert "before the end of its first epoch" in page_of(run, None).subtitle


def test_the_verb_writes_the_page_and_its_figures(dmc: Dmc, merged: Path, tmp_path: Path) -> None:
    said = dmc("report", merged / "run", merged / "run", "-o", tmp_path / "out")
    assert (said.code, said.out) == (0, f"{tmp_path / 'out' / 'report.html'}\n")
    names = {path.name for path in (tmp_path / "out" / "report-figures").iterdir()}
    drawn = ("loss", "loss-2", "auxiliary-images", "auxiliary-images-2", "agreement-1", "agreement-1-2")
    assert names == {f"{name}.{kind}" for name in drawn for kind in ("png", "svg")}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report-figures", "report.html"]
    assert "<b>bird" not in (tmp_path / "out" / "report.html").read_text()


def test_what_is_no_run_is_one_line(dmc: Dmc, merged: Path, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        said = dmc("report", *arguments)
        assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
        return said.err

    assert f"there is no folder {tmp_path / 'nosuch'} to report on" in refused(tmp_path / "nosuch")
    assert f"{merged} is no run: name one of its runs, such as run" in refused(merged)
    (tmp_path / "empty").mkdir()
    assert "empty is no run: name a folder that train" in refused(tmp_path / "empty")
    assert "aux is no run" in refused(merged / "aux")
    assert list((tmp_path / "empty").iterdir()) == []
    (tmp_path / "file").touch()
    assert "cannot write" in refused(merged / "run", "-o", tmp_path / "file")
    assert "cannot write" in refused(merged / "run", "-o", "/proc/nosuch")
    assert "no such file or folder" in refused(merged / "run", "--data", tmp_path / "nosuch")
    for name, content in {
        "run.json": "{",
        "config.json": "[]",
        "report.json": '{"task": 3}',
        "metrics.jsonl": "x\ny\nz\n",
    }.items():
        run = tmp_path / f"damaged-{name}"
        shutil.copytree(merged / "run", run)
        (run / name).write_text(content)
        assert f"{name} is damaged: " in refused(run)
        assert not (run / "report.html").exists()


def test_damaged_lines_among_the_metrics_are_left_out(
    merged: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(merged / "run", run)
    first, second = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(f'{first}\n{{"epoch": \n{second}\n')
    assert "2 of 2" in facts(page_of(run, None))["epochs"]
    assert "1 lines of" in caplog.text


def test_a_picture_that_is_none_is_a_damaged_file(dmc: Dmc, merged: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(merged / "run", run)
    saved = json.loads((run / "report.json").read_text())
    for wrong in ({"jpeg": '"><script>'}, {"jpeg": "AAAA"}, {"width": 10**6}):
        saved["sheet"][0] = encoded(Image.new("RGB", (8, 8))).model_dump() | wrong
        (run / "report.json").write_text(json.dumps(saved))
        said = dmc("report", run)
        assert said.code == 2
        assert "damaged" in said.err
        assert said.err.count("\n") == 1


def test_a_training_writes_its_report_and_keeps_a_better_one(
    labeled_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dmc.report.writing.report_at_end", report_at_end)
    run = tmp_path / "run"

    def trained(**settings: object) -> library.Specialist:
        model = library.train(labeled_folder, run, arch="cifar_resnet8", size=16, epochs=1, **settings)  # type: ignore[arg-type]
        assert isinstance(model, library.Specialist)
        return model

    first = trained()
    assert (run / "report.html").exists()
    written = library.write_report(run, data=labeled_folder)
    stamp = written.stat().st_mtime_ns
    assert trained(resume=True).fingerprint == first.fingerprint
    assert written.stat().st_mtime_ns == stamp
    os.utime(written, (0, 0))  # looked at before the run had ended
    monkeypatch.setattr("dmc.report.writing.save_page", lambda *_: 1 / 0)
    assert trained(resume=True).fingerprint == first.fingerprint  # a report that fails is a warning
    assert "no report of" in caplog.text


def test_a_training_without_a_report(labeled_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmc.report.writing.report_at_end", report_at_end)
    settings = {"arch": "cifar_resnet8", "size": 16, "epochs": 1}
    library.train(labeled_folder, tmp_path / "run", report=False, **settings)  # type: ignore[arg-type]
    assert not (tmp_path / "run" / "report.html").exists()
    assert "report" not in json.loads((tmp_path / "run" / "run.json").read_text())
