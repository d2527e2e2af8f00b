"""The folder of one run: its configuration, its metrics, its checkpoint, and a lock while it is being written.

run.json                 the value of every setting; a resumed run must have the same
metrics.jsonl            a line for each epoch
checkpoint.pt            weights, optimizer and position: all that a resumed run needs
checkpoint-previous.pt   the checkpoint before, until the run is finished: for when a disk damages the last one
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from filelock import FileLock, Timeout
from pydantic import ValidationError
from torch import Tensor

from dmc.config import RunConfig
from dmc.documents import Document, RunRecord, read_json, short
from dmc.errors import DmcError, first_line
from dmc.files import OWN_FILES, read_bytes, replacing, require_free, system_reason, write_text
from dmc.locks import sweep
from dmc.model_config import ModelConfig
from dmc.models.model import AnyModel
from dmc.models.weights import load_weights, read_weights, weights_in
from dmc.processes import is_main, together
from dmc.schedule import Schedule
from dmc.training.checkpoint import Stateful, fill, read_checkpoint, require_same_form
from dmc.training.tracking import Tracking, remove_events

MAY_DIFFER = ("versions", "from")  # a teacher may have been moved: its fingerprint is what counts
PLACES = ("name", "weights")  # paths of images or of a file: on another machine they are in another folder
CHECKPOINT, PREVIOUS = "checkpoint.pt", "checkpoint-previous.pt"
log = logging.getLogger("dmc")


class MetricsLine(Document):
    """What is read of a line of metrics.jsonl."""

    step: int


@dataclass
class Position:
    """Where a run stands: the next step, the totals so far, and the sums of the current epoch."""

    step: int = 0
    images: int = 0
    seconds: float = 0.0
    loss_sums: dict[str, float | Tensor] = field(default_factory=dict)  # on the device, until they are read
    epoch_images: int = 0  # that the sums are over: of this process, until they are gathered

    def add(self, losses: dict[str, Tensor], own: int, whole: int) -> None:
        """Count a step on `own` of its `whole` images, with these mean losses. Does not wait for the device."""
        self.step += 1
        self.images += whole
        self.epoch_images += own
        for name, loss in losses.items():
            wide = torch.float32 if loss.device.type == "mps" else torch.float64  # MPS has no float64
            self.loss_sums[name] = self.loss_sums.get(name, 0.0) + loss.detach().to(wide) * own

    def gathered(self) -> Position:
        """Sum over all processes. The first one goes on with the sums, the others from zero: nothing counts twice.

        Waits for the device.
        """
        names = list(self.loss_sums)
        *sums, images = together().summed(*map(float, self.loss_sums.values()), self.epoch_images)
        totals = self if is_main() else replace(self)
        self.loss_sums, self.epoch_images = {}, 0
        totals.loss_sums, totals.epoch_images = dict(zip(names, sums, strict=True)), round(images)
        return totals

    @property
    def mean_loss(self) -> float:
        """The mean loss of the current epoch so far."""
        return float(self.loss_sums["loss"]) / self.epoch_images

    def end_epoch(self) -> dict[str, float]:
        """Give the epoch's mean losses and the run's totals, and begin the next epoch with empty sums."""
        means = {name: float(total) / self.epoch_images for name, total in self.loss_sums.items()}
        self.loss_sums, self.epoch_images = {}, 0
        return {"step": self.step, "images": self.images, "seconds": round(self.seconds, 3), **means}


class Run:
    """A run in its folder, as a context manager; `out=None` makes a temporary folder that is removed afterwards."""

    def __init__(
        self,
        out: str | Path | None,
        config: dict[str, Any],
        how: RunConfig = RunConfig(),  # noqa: B008 (frozen)
    ) -> None:
        self.temporary = out is None
        if self.temporary and how.track == "tensorboard":
            raise DmcError("tensorboard's events lie in the run's folder: name one (`out`)")
        self.tracking: Tracking | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="dmc-") if out is None and is_main() else out or "")
        self.config: dict[str, Any] = json.loads(json.dumps(config))
        self.how = how
        self.made_folders: list[Path] = []
        self.fresh = False

    def __enter__(self) -> Run:
        if is_main():
            self._take_folder()
        self.last_checkpoint = time.monotonic()
        together().agreed(None)  # the others wait until the folder is known to be free
        return self

    def _take_folder(self) -> None:
        """Lock the folder, and refuse one that holds another run."""
        self.made_folders = [p for p in (self.folder, *self.folder.parents) if not p.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(self.folder / ".lock", timeout=0)
            self.lock.acquire()
        except Timeout:
            raise DmcError(f"{self.folder} is in use by another run; wait for it or choose another folder") from None
        except OSError as error:
            raise DmcError(f"cannot write to {self.folder}: {error.strerror}") from None
        try:
            require_free(self.folder, self.how.resume)
            sweep(self.folder)
            self._settle_config()
        except (DmcError, OSError):
            self._leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not is_main():
            if isinstance(error, DmcError | OSError):  # the first process, which speaks for all, may not have it
                log.error(f"process {together().rank}: {error}")
            return
        if self.tracking:
            self.tracking.finish()
        learned = any((self.folder / name).exists() for name in (CHECKPOINT, PREVIOUS))
        if kind is not None and self.fresh and not learned:
            for name in OWN_FILES:  # leave nothing half-written
                (self.folder / name).unlink(missing_ok=True)
            remove_events(self.folder)
        if isinstance(error, KeyboardInterrupt):
            place = f"in {self.folder}" if learned and not self.temporary else "nowhere"
            error.add_note(f"what was learned is kept {place}")
        if (self.folder / "config.json").exists():  # the run is finished
            (self.folder / PREVIOUS).unlink(missing_ok=True)
        self._leave()

    def _leave(self) -> None:
        """Unlock the folder, and remove the folders that stay empty."""
        (self.folder / ".lock").unlink(missing_ok=True)  # before it is released: then it may be another run's
        self.lock.release()
        if self.temporary:
            shutil.rmtree(self.folder)
        for made in self.made_folders:
            if made.exists() and not any(made.iterdir()):
                made.rmdir()

    def _settle_config(self) -> None:
        """Write run.json; if the folder has one, refuse to go on with other settings."""
        path = self.folder / "run.json"
        if path.exists():
            started = read_json(path, RunRecord, f"{path} is damaged, so choose another folder: it").content
            if started.get("schedule") is not None:  # an earlier version's may lack settings that are new
                try:
                    started["schedule"] = Schedule(**started["schedule"]).model_dump(mode="json")
                except DmcError as error:
                    raise DmcError(f"{path} is damaged: it has a schedule in which {error}") from None
            difference = _first_difference(started, self.config)
            if difference:
                raise DmcError(f"{self.folder} was started with other settings: {difference}; resume with the same")
        else:
            self.fresh = True
            write_text(path, json.dumps(self.config, indent=2) + "\n")

    @property
    def finished(self) -> bool:
        """Whether the folder holds the run's result already, which is then logged."""
        found = together().agreed((self.folder / "config.json").exists())
        if found:
            log.info(f"{self.folder} is finished: nothing is trained again")
        return found

    def restore(self, parts: Mapping[str, Stateful], notes: dict[str, Tensor]) -> Position:
        """Fill the parts and notes from the checkpoint and give its position; without one, begin at step 0."""
        state = together().agreed(self._last_state() if is_main() else None)
        self._begin_tracking()
        if state is None:
            return Position()
        for name, part in parts.items():
            with self._blaming_checkpoint(name):
                fill(part, state.get(name))
        self._fill_notes(notes, state)
        position = Position(**state["position"])
        return position if is_main() else replace(position, loss_sums={}, epoch_images=0)

    def _begin_tracking(self) -> None:
        """Tell the tracker, if there is one, what is logged up to the checkpoint."""
        if self.how.track and is_main():
            path = self.folder / "metrics.jsonl"
            lines = read_bytes(path).splitlines() if path.exists() else []
            self.tracking = Tracking(self.how.track, self.folder, map(json.loads, lines))

    def _last_state(self) -> dict[str, Any] | None:
        """Read the last checkpoint that is whole, and cut off what was logged after it; give None if there is none."""
        newest, older, metrics = (self.folder / name for name in (CHECKPOINT, PREVIOUS, "metrics.jsonl"))
        if not newest.exists() and not older.exists():
            metrics.unlink(missing_ok=True)
            return None
        state = read_checkpoint(newest)
        if state is None and (state := read_checkpoint(older)) is not None:
            if newest.exists():  # it is not there if a kill came between the two moves of `checkpoint`
                step = state["position"]["step"]
                log.warning(f"{newest} is damaged: the run goes on from the checkpoint before it, at step {step}")
            older.replace(newest)  # before the next checkpoint puts a damaged one in its place
        if state is None:
            raise DmcError(f"{newest} is damaged, so the run cannot be resumed; choose another folder")
        if metrics.exists():  # lines written after the checkpoint will be written again
            kept = _lines_until(metrics, state["position"]["step"])
            write_text(metrics, "".join(f"{line}\n" for line in kept))
        return state

    def recall(self, notes: dict[str, Tensor]) -> None:
        """Fill these tensors with what the checkpoint keeps of them."""
        if notes:
            state = read_checkpoint(self.folder / CHECKPOINT)
            if state is None:
                raise DmcError(f"{self.folder / CHECKPOINT} is damaged or missing; remove {self.folder} and run again")
            self._fill_notes(notes, state)

    def _fill_notes(self, notes: dict[str, Tensor], state: Mapping[str, Any]) -> None:
        with self._blaming_checkpoint("notes"):
            require_same_form(notes, state["notes"])
            for name, note in notes.items():
                note.copy_(state["notes"][name])

    @contextmanager
    def _blaming_checkpoint(self, part: str) -> Iterator[None]:
        """Say in one line that a part of the checkpoint is not of this run."""
        try:
            yield
        except Exception as error:  # whatever torch makes of another network's
            place = self.folder / CHECKPOINT
            raise DmcError(f"{place} is not of this run: {part}: {first_line(error)}; choose another folder") from None

    def checkpoint(self, parts: Mapping[str, Stateful], notes: dict[str, Tensor], position: Position) -> None:
        """Write the present state as the checkpoint, and keep the one before.

        A kill leaves at least one of them whole, wherever it comes.
        """
        self.last_checkpoint = time.monotonic()
        if not is_main():
            return
        state = {
            **{name: part.state_dict() for name, part in parts.items()},
            "notes": notes,
            "position": asdict(position) | {"loss_sums": {k: float(total) for k, total in position.loss_sums.items()}},
        }
        newest = self.folder / CHECKPOINT
        with replacing(newest) as path:
            with path.open("wb") as file:  # given a path, torch would not tell that the disk is full
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            if newest.exists():
                newest.replace(self.folder / PREVIOUS)

    @property
    def checkpoint_due(self) -> bool:
        """Whether the last checkpoint is `checkpoint_every` seconds old."""
        return time.monotonic() - self.last_checkpoint >= self.how.checkpoint_every

    def log(self, **values: Any) -> None:
        """Add a line to metrics.jsonl, and tell it to the tracker."""
        if not is_main():
            return
        path = self.folder / "metrics.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise DmcError(f"cannot write {path}: {system_reason(error)}") from None
        if self.tracking:
            self.tracking.log(values)

    def result(self, model: AnyModel) -> AnyModel:
        """Fill a model of the same architecture and classes with the weights of the finished run."""
        config = self.folder / "config.json"
        blame = f"{config} is damaged, so choose another folder: it"
        model.provenance = read_json(config, ModelConfig, blame).own.provenance
        path = weights_in(self.folder, str(self.folder))
        load_weights(model.module, read_weights(path), path, model.require_arch(), model.classes.width)
        model.module.eval()
        model.name = str(self.folder)
        return model.to(model.device)  # in the memory format of training, so that what follows rounds the same way

    def finish(self, model: AnyModel) -> AnyModel:
        """Save the model in the run's folder and name it after that, unless the folder is temporary."""
        if not self.temporary:
            if is_main():
                model.save(self.folder)
            together().agreed(None)  # nobody reads it before it is whole
            model.name = str(self.folder)
        return model


@cache
def versions() -> dict[str, str]:
    """Give the versions that a result may depend on, and the commit if dmc runs from a checkout."""
    packages = ("deep-model-consolidation", "torch", "torchvision", "timm", "numpy", "pillow")
    found = {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / ".git").exists() and shutil.which("git"):
        command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12"]
        described = subprocess.run(command, capture_output=True, text=True, check=False)
        found |= {"commit": described.stdout.strip()} if described.returncode == 0 else {}
    return found


def made(started: float) -> dict[str, Any]:
    """Describe how a result was made: the minutes since `started` (time.monotonic), threads and versions."""
    return {"minutes": round((time.monotonic() - started) / 60, 2), "threads": torch.get_num_threads(), **versions()}


def _lines_until(path: Path, last: int) -> list[str]:
    """Give the lines of metrics.jsonl up to a step."""
    lines = read_bytes(path).decode(errors="replace").splitlines()
    steps = [_step_of(line) for line in lines]
    damaged = steps[:-1].count(None)  # the last may be half a line, cut off by a kill
    if damaged:
        log.warning(f"{damaged} lines of {path} are damaged and left out")
    return [line for line, step in zip(lines, steps, strict=True) if step is not None and step <= last]


def _step_of(line: str) -> int | None:
    """Read the step from a line of metrics.jsonl; None if it is damaged."""
    try:
        return MetricsLine.model_validate_json(line).step
    except ValidationError:
        return None


def _first_difference(old: Any, new: Any, path: str = "") -> str:
    """Name the first setting in which two configurations differ, or give an empty text.

    Those in MAY_DIFFER are not compared, and of those in PLACES only the last part of each path.
    """
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            was, now = old.get(key), new.get(key)
            if key in PLACES and isinstance(was, str) and isinstance(now, str):
                was, now = (was, now) if _last_parts(was) != _last_parts(now) else ("", "")
            if key not in MAY_DIFFER and (found := _first_difference(was, now, f"{path}.{key}")):
                return found
        return ""
    return "" if old == new else f"{path.lstrip('.')} was {short(old)} and is now {short(new)}"


def _last_parts(places: str) -> list[str]:
    """Give the last part of a path, or of each path if several are joined by a plus."""
    return [Path(place).name for place in places.split(" + ")]
