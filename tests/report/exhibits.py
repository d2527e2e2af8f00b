"""One of everything that a report can show, with names that a page must not take for markup."""

from __future__ import annotations

import numpy as np
from PIL import Image

from dmc.data.thumbnails import encoded
from dmc.exhibits import (
    Answer,
    BarChart,
    Cell,
    Confusion,
    Confusions,
    Exhibit,
    Facts,
    Gallery,
    Line,
    LineChart,
    Marked,
    Page,
    Section,
    Table,
    count,
    percent,
)
from dmc.methods import METHODS

HOSTILE = "<script>hacked=1</script><img src=x onerror='hacked=1'>\"&\u202e"
NAMES = ["cat", "dog", HOSTILE, "a class with quite a long name, as ImageNet has"]
PICTURE = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8)))
COUNTS = np.array([[8, 1, 1, 0], [0, 10, 0, 0], [5, 0, 5, 0], [0, 0, 0, 0]])


def everything() -> Page:
    """Make a page with every kind of exhibit."""
    methods = list(METHODS)[:15]
    curves = [
        Line(METHODS[name].title, [2, 4, 6], [0.9, 0.8 - 0.02 * i, 0.75 - 0.03 * i], [0.02, 0.02, None], name)
        for i, name in enumerate(methods)
    ]
    lines = [Line("loss", [1, 2, 3], [20.0, 2.0, 0.2]), Line(HOSTILE, [1, 2, 3], [9.0, 1.0, 0.1])]
    rows: list[list[Cell]] = [
        ["b", percent(0.5), count(10)],
        ["a", percent(None), count(9)],
        [HOSTILE, percent(0.25, 0.01), count(1000)],
    ]
    answers = [Answer("student", HOSTILE, False), Answer("teacher 1", "dog 80%", True)]
    found = {"labels": [Marked(HOSTILE, None, (2, 2, 20, 20))], "student": [Marked("dog", 0.8, (0, 0, 30, 22))]}
    return Page(
        f"Everything {HOSTILE}",
        HOSTILE,
        [
            Section("Numbers", [
                Facts({HOSTILE: HOSTILE, "path": "/a/" + "long" * 40}),
                Table("", ["name", "share", "n"], rows),
            ]),
            Section("Curves", [LineChart("curves", "Methods", "classes", "accuracy, %", curves)], HOSTILE),
            Section("Losses", [LineChart("losses", "Losses", "epoch", "loss", lines, losses=True)]),
            Section("Bars", [BarChart("bars", HOSTILE, "share, %", ["one", "two"], [(n, [0.5, None]) for n in NAMES])]),
            Section("Confusion", [Confusions("confusion", "", [Confusion(HOSTILE, NAMES, NAMES, COUNTS)] * 2)]),
            Section("Pictures", [
                Gallery("sheet", "Sheet", [Exhibit(PICTURE)] * 9),
                Gallery("apart", "Apart", [Exhibit(PICTURE, HOSTILE, answers)] * 3),
                Gallery("scenes", "Scenes", [Exhibit(PICTURE, found=found)] * 2),
            ]),
        ],
        [HOSTILE],
    )  # fmt: skip
