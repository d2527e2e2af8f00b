"""A comparison of methods: its settings, the folder of its cells, and what is measured there.

DIR/bench.json                                        the settings of the comparison
DIR/order-0/groups.json                               the classes of each group, so that a table needs no data
DIR/order-0/first/                                    the first group's model, shared by all methods
DIR/order-0/shared/group-1-of-10-classes/specialist/  a later group's own model, for methods that build on it
DIR/order-0/shared/10-classes-5e2f0c1a/               the two above where the profile names the groups, by classes
DIR/order-0/dmc/group-1/confusion.npy                 a finished group (of detectors: precisions.json)
DIR/order-0/dmc/group-1/made.json                     commit, versions, minutes
DIR/order-0/mine/method.py                            a copy of the user's file that the method came from
DIR/order-0/shared/answers/                           of teachers about auxiliary images, if the profile has `views`
DIR/tuning/                                           the same on two groups of validation data, for each strength
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, RootModel

from dmc.documents import AnyObject, read_json, read_result
from dmc.errors import DmcError
from dmc.files import digest, write_text
from dmc.methods import METHODS
from dmc.metrics.incremental import Groups, Measured, StreamScores, in_order_of_arrival, scores
from dmc.recipes.profile import Profile

MADE, GROUPS, FAILED, CODE = "made.json", "groups.json", "failed.txt", "method.py"


class SavedGroups(RootModel[list[Annotated[list[str], Field(min_length=1)]]]):
    """groups.json: the classes of each group."""

    model_config = ConfigDict(strict=True)


class Making(AnyObject):
    """made.json: how a group was made."""

    minutes: float


@dataclass(frozen=True)
class ComparisonFolder:
    """A stream of classes, how many arrive at a time, the settings, and the folder of the cells."""

    stream: str
    group_size: int
    profile: Profile
    folder: Path
    data_root: Path | None = None
    common: Path | None = None  # for models that comparisons share; None: the folder
    tune: bool = False  # choose strengths of regularisers on validation data, not the appendix's
    strengths: Mapping[str, float] = field(default_factory=dict)  # by method, used instead of any other
    validating: bool = False  # on two groups, tested on some of their training images

    def cell_folder(self, method: str, order: int) -> Path:
        return self.folder / f"order-{order}" / method

    def common_folder(self, order: int) -> Path:
        """Give the folder of the models that methods, and perhaps comparisons, share."""
        return (self.common or self.folder) / f"order-{order}"

    def shared_folder(self, order: int, i: int, names: Sequence[str]) -> Path:
        """Give the folder for models of these classes of group i, which all methods share.

        Its name has the number of classes: a shorter stream has the same groups, but its last one may be smaller.
        """
        shared = self.common_folder(order) / "shared"
        if not self.profile.groups:
            return shared / f"group-{i}-of-{len(names)}-classes"
        return shared / f"{len(names)}-classes-{digest(sorted(names))}"

    def first_folder(self, order: int, names: Sequence[str]) -> Path:
        """Give the folder of the first group's model; `names` are the group's classes, if the profile names them."""
        place = self.shared_folder(order, 0, names) if self.profile.groups else self.common_folder(order)
        return place / "first"

    @property
    def arrival(self) -> str:
        """How many classes arrive at a time, in words."""
        given = " + ".join(str(len(group)) for group in self.profile.groups)
        return f"{given} classes" if given else f"{self.group_size} classes at a time"

    def claim_folder(self) -> None:
        """Write down the settings of this comparison; refuse a folder that holds another one."""
        asked = {
            "stream": os.path.normpath(self.stream),  # which may be a folder
            "group_size": self.group_size,
            "profile": self.profile.identity,
            "tune": self.tune,
        }
        path, text = self.folder / "bench.json", json.dumps(asked, indent=2) + "\n"
        if not path.exists():
            there = [p.name for p in self.folder.iterdir()] if self.folder.is_dir() else []
            others = sorted(name for name in there if not name.startswith((".", "order-")))
            if others:
                raise DmcError(f"{self.folder} holds other files, such as {others[0]}; name a folder of its own")
            write_text(path, text)
        elif read_json(path, AnyObject).content != json.loads(text):
            raise DmcError(f"{self.folder} holds another comparison (see bench.json); choose another folder")

    def orders(self) -> list[int]:
        """Give the class orders that were begun."""
        found = (re.fullmatch(r"order-(\d{1,9})", path.name) for path in self.folder.glob("order-*"))
        return sorted(int(name[1]) for name in found if name)

    def finished(self, method: str, order: int) -> StreamScores | None:
        """Give the scores of a cell; None if it has not finished all groups."""
        groups = self.groups(order)
        places = [self.cell_folder(method, order) / f"group-{i}" for i in range(len(groups))]
        if not groups or not all((place / self.measurement.file).exists() for place in places):
            return None
        return scores([self.measured(method, order, i) for i in range(len(groups))], groups)

    @property
    def measurement(self) -> type[Measured]:
        """The class of what is measured after each group."""
        return self.profile.task.measurement

    def measured(self, method: str, order: int, i: int) -> Measured:
        """Give what was measured of the method after group i."""
        place, names = self.cell_folder(method, order) / f"group-{i}", in_order_of_arrival(self.groups(order)[: i + 1])
        return self.measurement.load(place, names)

    def groups(self, order: int) -> Groups:
        """Give the classes of each group; none before a cell of this order was begun."""
        path = self.folder / f"order-{order}" / GROUPS
        return read_result(path, SavedGroups).root if path.exists() else []

    def known_methods(self) -> list[str]:
        """Name the methods that have results here, also those of a user's file that is not loaded."""
        there = {path.parents[1].name for path in self.folder.glob(f"order-*/*/group-0/{self.measurement.file}")}
        return [*(name for name in METHODS if name in there), *sorted(there - METHODS.keys())]

    def made(self, method: str) -> list[dict[str, Any]]:
        """Tell how each group of a method was made, in all orders: commit, versions and minutes."""
        files = sorted(self.folder.glob(f"order-*/{method}/group-*/{MADE}"))
        return [read_result(file, Making).content for file in files]
