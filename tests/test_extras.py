"""Without the extras' packages the main job works, and other jobs name in one line what is missing."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dmc.bench.digits import digits
from dmc.bench.readers import svhn
from dmc.data.annotations import Objects
from dmc.errors import DmcError
from dmc.evaluation.detection import DetectionEvaluation, coco_average_precision
from dmc.metrics.average_precision import AveragePrecision, Detections
from tests.conftest import Answer

ALL = ("faster_coco_eval", "scipy", "skimage", "sklearn")


def test_what_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ALL:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DmcError, match=r"^not installed: sklearn; pip install 'deep-model-consolidation\[bench\]'$"):
        digits(0, test=False)
    with pytest.raises(DmcError, match=r"^not installed: scipy; pip install 'deep-model-consolidation\[bench\]'$"):
        svhn([Path("train_32x32.mat")])


@pytest.mark.parametrize(
    ("verb", "missing", "extra"),
    [("demo", "skimage, sklearn", "demo"), ("bench digits", "sklearn", "bench")],
)
def test_the_verbs_that_draw_refuse_before_they_train(tmp_path: Path, verb: str, missing: str, extra: str) -> None:
    said = without_extras(f"sys.argv = 'dmc {verb} -o {tmp_path}/out'.split()\nfrom dmc.cli import main\nmain()")
    line = f"dmc: not installed: {missing}; pip install 'deep-model-consolidation[{extra}]'\n"
    assert (said.code, said.out, said.err) == (2, "", line)
    assert not (tmp_path / "out").exists()


def test_the_main_job_needs_no_extra() -> None:
    said = without_extras("import dmc.api, dmc.report.check, dmc.report.predictions, dmc.report.writing, dmc.tasks")
    assert (said.code, said.err) == (0, "")


def test_without_its_library_only_cocos_number_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    box = np.array([[0, 0, 9, 9]], np.float32)
    found = Detections(box, np.array([0.9], np.float32), np.array([0]))
    truth = Objects(box, np.array([0]), np.array([False]), 20, 20)
    coco = coco_average_precision([found], [truth], [0])
    assert all(math.isnan(value) for value in coco)
    assert "COCO's average precision is not available: not installed: faster_coco_eval; pip install" in caplog.text
    result = DetectionEvaluation({"cat": AveragePrecision(1.0, 1.0, 1)}, *coco, "scenes", 1, 0)
    assert (result.as_dict()["mean"], result.as_dict()["coco"], result.as_dict()["coco_50"]) == (1.0, None, None)
    assert result.as_text().splitlines()[-1] == "COCO AP not available"


def without_extras(code: str) -> Answer:
    """Run code in a Python that has none of the extras' packages."""
    hidden = f"import sys\nsys.modules.update(dict.fromkeys({ALL}))\n"
    said = subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True)
    return Answer(said.returncode, said.stdout, said.stderr)
