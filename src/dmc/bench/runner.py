"""Feed methods one group at a time. A cell is one method on one class order: independent and idempotent."""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from filelock import Timeout
from torch import Tensor, nn

from dmc.bench.comparison import CODE, FAILED, GROUPS, MADE, ComparisonFolder
from dmc.bench.datasets import require
from dmc.bench.engines import Engine
from dmc.bench.streams import ClassStream, needed_data, open_stream, validation
from dmc.bench.tuning import tuned
from dmc.classes import counted, listed
from dmc.config import RESUMED
from dmc.data.sources import Source
from dmc.data.subsets import ListedImages
from dmc.device import pick_device
from dmc.errors import DmcError, first_line
from dmc.files import write_text
from dmc.locks import IDLE, locked, sweep
from dmc.methods import METHODS, OWN_FILES, Learned, Lesson, Method, method_named
from dmc.methods.importance import ImportanceMethod, Regularised, Tracker
from dmc.models.model import Model
from dmc.recipes.profile import strength_for
from dmc.seeds import seed_for
from dmc.training.labeled import fit_labeled
from dmc.training.loop import DIVERGED
from dmc.training.run_folder import made

log = logging.getLogger("dmc")


@dataclass(frozen=True)
class Bench(ComparisonFolder):
    """A comparison whose cells are run here."""

    def open(self, order: int, with_aux: bool = False) -> ClassStream:
        """Open the data in this class order; auxiliary images only if they are needed."""
        stream = open_stream(self.stream, self.group_size, order, self.profile, self.data_root, with_aux)
        return validation(stream) if self.validating else stream

    def run_all(self, methods: Sequence[Method], orders: Iterable[int], engine: Engine) -> None:
        """Run every cell that is not finished; log why a cell fails, and go on with the others."""
        self.claim_folder()
        sweep(self.folder, *self.folder.glob("order-*"), idle=IDLE)
        engine.run(self.cells(methods, orders))

    def cells(self, methods: Sequence[Method], orders: Iterable[int]) -> list[Cell]:
        """Give the cells that are not finished; refuse a user's method that is not the one they were begun with."""
        for method in methods:
            self._require_same_code(method.name)
        own = {name: OWN_FILES[name].path for name in METHODS if name in OWN_FILES}
        wanted = [Cell(self, method.name, order, own) for order in orders for method in methods]
        return [cell for cell in wanted if not self.finished(cell.method, cell.order)]

    def _require_same_code(self, name: str) -> None:
        """Refuse a user's file that has changed: one row would be made of two methods."""
        if name not in OWN_FILES:
            return
        path, code = OWN_FILES[name]
        trials = self.folder.glob(f"tuning/order-*/{name}/*/order-*/{name}/{CODE}")
        for copy in sorted([*self.folder.glob(f"order-*/{name}/{CODE}"), *trials]):
            if copy.read_text("utf-8") != code:
                raise DmcError(
                    f"{path} has changed since {copy.parent} was begun with it: remove that folder (and tuning/, if "
                    "there is one), or choose another one for the comparison"
                )

    def complete(self, methods: Sequence[Method], orders: Iterable[int]) -> bool:
        """Tell whether nothing is left to run, so that no data is needed."""
        return bool(methods) and all(self.finished(method.name, order) for order in orders for method in methods)

    def require_runnable(self, methods: Sequence[Method], opened: ClassStream | None = None) -> None:
        """Refuse, before anything trains, what would go wrong in every cell."""
        if not methods:
            raise DmcError("no method is named; `all` stands for every method")
        kind = self.profile.task
        for method in methods:
            if not method.serves(kind.model):
                raise DmcError(f"{method.name} cannot train {kind.singular}s, which {self.stream} needs: leave it out")
        with_aux = any(method.needs_aux(self.profile) for method in methods)
        require(needed_data(self.stream, self.profile, with_aux), self.data_root)
        stream = opened or self.open(0, with_aux)
        first, last = stream.groups[0], stream.groups[-1]
        if len(stream.groups) < 2:
            raise DmcError(f"all {len(first)} classes are in the first group: choose smaller groups")
        demanding = [m.name for m in methods if len(last) < min(m.least_classes, kind.least_classes)]
        if demanding:
            raise DmcError(
                f"the last group has one class, and {', '.join(demanding)} would train a softmax on it alone: "
                "choose groups of another size, or leave them out"
            )
        if len(last) != len(first) and not self.profile.groups:
            log.info(f"the last group has {counted(last)}")
        profile = self.profile.below(self.data_root)
        for network, group in {profile.new_network: last, profile.network: first}.items():  # mostly the same
            kind.untrained(stream.train.keep(group), network, profile.preprocessing, None, seed=0)

    def run_cell(self, method: Method, order: int) -> str:
        """Run what is left of a cell; return why it ended early, or an empty string."""
        if self.finished(method.name, order):
            return ""
        folder = self.cell_folder(method.name, order)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with locked(folder / ".lock", timeout=0):
                sweep(folder, *folder.glob("**/"))
                (folder / FAILED).unlink(missing_ok=True)  # of an earlier try
                self._learn_all(method, order, folder)
        except Timeout:
            return "another process is working on it"
        except Exception as error:  # torch has its own (out of memory), and a user's method may raise any
            told = isinstance(error, DmcError)
            reason = first_line(error) if told else f"{type(error).__name__}: {first_line(error)}"
            write_text(folder / FAILED, f"{reason}\n" if told else f"{reason}\n\n{traceback.format_exc()}")
            return reason if told else f"{reason} ({folder / FAILED} has more)"
        return ""

    def _learn_all(self, given: Method, order: int, folder: Path) -> None:
        """Teach the method one group after the other, and measure and save what it learned after each."""
        stream, begun = self.open(order, given.needs_aux(self.profile)), self.groups(order)
        if begun and begun != [list(group) for group in stream.groups]:
            raise DmcError(f"{self.folder} was begun with other classes (see {GROUPS}): choose another folder")
        write_text(folder.parent / GROUPS, json.dumps(stream.groups, indent=2) + "\n")
        self._require_same_code(given.name)  # which this process may have loaded later than another
        if given.name in OWN_FILES:
            write_text(folder / CODE, OWN_FILES[given.name].code)
        for i, _ in enumerate(stream.groups):
            method = deepcopy(given)  # so that it remembers nothing but what it returns
            place = folder / f"group-{i}"
            if (place / self.measurement.file).exists():
                continue
            started = time.monotonic()
            lesson = self.lesson(stream, method, order, i)
            if i == 0:
                taught = method.begin(self.first(stream, order), lesson)
            else:
                taught = method.learn(self.load(folder / f"group-{i - 1}" / "learned"), lesson)
            if not isinstance(taught, Learned):
                raise DmcError(f"{method.name} gives a {type(taught).__name__} back, not Learned([model])")
            taught.save(place / "learned")
            learned = self.load(place / "learned")  # only what was saved goes on, as after a kill
            require_budget(method, learned)
            model, names = method.predictor(learned), stream.so_far(i)
            asked = [name for name in names if name in model.classes.names] if method.is_part else names
            unknown = [name for name in asked if name not in model.classes.names]
            if unknown:
                raise DmcError(f"the model of {method.name} does not know {listed(unknown, 5)} after group {i}")
            kind = self.profile.task
            measured = kind.measure(model, stream.test, names, asked)
            how = made(started) | {"precision": self.profile.precision}
            write_text(place / MADE, json.dumps(how, indent=2) + "\n")
            measured.save(place)  # last: it marks the group as finished
            log.info(f"{method.name}, order {order}: {kind.metric} {measured.of(asked):.1%} of {len(asked)} classes")

    def load(self, folder: Path) -> Learned:
        """Load what was learned; networks that the profile names may be code."""
        return Learned.load(folder, [self.profile.network.arch, self.profile.new_network.arch])

    def strength(self, method: Method, order: int) -> float:
        """Give the strength of a method's regulariser: as set, tuned, or the appendix's; 0 where it has none."""
        if method.name in self.strengths:
            return self.strengths[method.name]
        usual = strength_for(method.name, self.group_size, method.strength)
        if not (self.tune and usual):
            return usual
        folder = self.folder / "tuning" / f"order-{order}" / method.name
        return tuned(method.name, usual, folder, lambda strength, place: self._trial(method, order, strength, place))

    def _trial(self, method: Method, order: int, strength: float, folder: Path) -> float | None:
        """Give the accuracy on held-out training images of the first two groups; None if the training diverged."""
        common, strengths = self.folder / "tuning", {method.name: strength}
        trial = replace(self, folder=folder, common=common, tune=False, strengths=strengths, validating=True)
        reason = trial.run_cell(method, order)
        found = trial.finished(method.name, order)
        if found is None and not reason.startswith(DIVERGED):  # what may succeed another time is no verdict
            raise DmcError(f"strength {strength:g} could not be tried: {reason}")
        return found.final if found else None

    def lesson(self, stream: ClassStream, method: Method, order: int, i: int) -> Lesson:
        """Give all that a method may see. Its images are in a list of their own, from which no way leads to others."""
        names = stream.so_far(i) if method.sees_everything else stream.groups[i]
        data = stream.train.keep(names)
        return Lesson(
            data=ListedImages(data, data.records()),
            aux=stream.aux if method.needs_aux(self.profile) else None,
            profile=self.profile.below(self.data_root),
            strength=self.strength(method, order),
            seed=self.seed(order, "group", i),
            folder=self.cell_folder(method.name, order) / f"group-{i}",
            shared=self.shared_folder(order, i, names),
        )

    def seed(self, order: int, *place: str | int) -> int:
        """Give a seed; where the profile names the groups, it is the order, and all that differs between orders."""
        return order if self.profile.groups else seed_for(order, *place) % 2**31

    def first(self, stream: ClassStream, order: int) -> Learned:
        """Give the first group's model, trained once for each order and watched by the trackers of all methods."""
        names = stream.groups[0]
        folder = self.first_folder(order, names)
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".first-lock"):  # another process may be training it
            sweep(*folder.glob("learned/**/"))
            if not (folder / "learned" / "learned.json").exists():
                self._train_first(stream.train.keep(names), order, folder)
        return self.load(folder / "learned")

    def _train_first(self, data: Source, order: int, folder: Path) -> None:
        """Train the first group's model, and save it with the notes of all trackers."""
        seed, profile, kind = self.seed(order, "first"), self.profile.below(self.data_root), self.profile.task
        start = kind.untrained(data, profile.network, profile.preprocessing, None, seed).to(pick_device())
        trackers = every_tracker(start.module, kind.model)
        plain = kind.supervised(start, data.classes)
        objective = Regularised(start, data.classes, trackers) if trackers else plain
        trained = fit_labeled(
            start,
            data,
            objective,
            profile.specialist,
            seed=seed,
            out=folder / "run",
            how=RESUMED,
            settings={"weights": profile.network.weights},
        )
        Learned([trained], objective.notes()).save(folder / "learned")


@dataclass(frozen=True)
class Cell:
    """One method on one class order: a job for any process that sees the same files."""

    bench: Bench
    method: str
    order: int
    own_files: Mapping[str, Path]  # of users' methods by name: the first group's model is watched for all of them

    @property
    def name(self) -> str:
        """What log lines say of it."""
        return f"{self.method}, order {self.order}"

    @property
    def folder(self) -> Path:
        return self.bench.cell_folder(self.method, self.order)

    @property
    def awaits(self) -> Path:
        """The first group's model, which one cell trains while the others of its order wait."""
        return self.bench.first_folder(self.order, self.bench.profile.groups[0] if self.bench.profile.groups else ())

    def run(self) -> None:
        """Run what is left of it; log why it ended early."""
        for name, file in self.own_files.items():
            if name not in METHODS:  # in another process than the one that made the cell
                method_named(str(file))
        reason = self.bench.run_cell(METHODS[self.method], self.order)
        if reason:
            log.warning(f"{self.name}: {reason}")

    def failed(self, reason: str) -> None:
        """Write down and log why it was given up."""
        write_text(self.folder / FAILED, f"{reason}\n")
        log.warning(f"{self.name}: {reason}")


def require_none_failed(cells: Iterable[Cell]) -> None:
    """Refuse to call a comparison done if cells of it have failed."""
    failed = {cell.name: cell.folder / FAILED for cell in cells if (cell.folder / FAILED).exists()}
    if failed:
        reasons = (f"{name} ({path.read_text('utf-8').splitlines()[0]})" for name, path in failed.items())
        raise DmcError(f"failed, and not in the table: {'; '.join(reasons)}")


def every_tracker(module: nn.Module, kind: type[Model]) -> list[Tracker]:
    """Make the trackers that methods for this kind of model need while the first group is learned."""
    regularisers = [m for m in METHODS.values() if isinstance(m, ImportanceMethod) and m.serves(kind)]
    found: dict[str, Tracker] = {}
    for tracker in (tracker for method in regularisers for tracker in method.trackers(module, {})):
        if type(found.setdefault(tracker.prefix, tracker)) is not type(tracker):
            names = f"{type(found[tracker.prefix]).__name__} and {type(tracker).__name__}"
            raise DmcError(f"{names} both have the prefix {tracker.prefix!r}: give the new one its own")
    return list(found.values())


def require_budget(method: Method, learned: Learned) -> None:
    """Refuse notes that hold more images than the method declared; files that it may write are not checked."""
    size = learned.specialists[0].preprocessing.size
    pixels = 3 * size**2
    of_weights = {weight.shape for weight in learned.specialists[0].module.parameters()}  # regularisers note these

    def of_images(note: Tensor) -> bool:  # bytes of any shape, or rows that have the size of images
        row = note[:1] if note.dim() > 1 else note  # or nothing but rows
        rows_of_images = note.numel() > 0 and row.numel() % pixels == 0
        return note.dtype == torch.uint8 or (rows_of_images and note.shape not in of_weights)

    kept = sum(-(-note.numel() // pixels) for note in learned.notes.values() if of_images(note))
    if kept > method.memory:
        raise DmcError(f"{method.name} keeps {kept} images but declared {method.memory}")
