"""The settings of every job, each defined once; those of a schedule are in `dmc.schedule`.

From these classes come the keyword arguments of the Python API, the command line's options with their help, what
`run.json` holds, the sections of a benchmark's profiles, and the tables in docs/settings.md. A field that has a help
text is an option of the command line. Every value is checked, also when an existing configuration is changed.

This file imports no torch: the command line reads it to show its help.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, ValidationInfo, field_validator, model_validator

from dmc.errors import DmcError
from dmc.extras import require_tracker
from dmc.schedule import SPECIALIST, Schedule
from dmc.settings import GIB, LARGE, MANY, SHOWN, Config, keyword, option, settings_of

LossName = Literal["l2", "l1", "kd"]
Recipe = Literal["usual", "best"]
Centring = Literal["per-teacher", "none"]
Scale = Literal["none", "pool-std", "balanced", "auto"]
Output = Literal["softmax", "sigmoid"]
Matching = Literal["auto", "anchors", "boxes"]
ProfileName = Literal["auto", "paper"]
# By accelerate's names, which are also those of their packages.
Tracker = Literal["tensorboard", "wandb", "mlflow", "comet_ml", "aim", "clearml", "swanlab", "trackio"]
KD_TEMPERATURE = 2.0  # where none is given
AUTO = "auto"  # initial weights: ImageNet's where they help and can be had


class Length(Config):
    """What the user said about the length and the schedule of training; the rest is chosen."""

    profile: ProfileName = option(
        "auto",
        "auto: settings that suit images and models; paper: the paper's settings and method (detectors: not centred)",
    )
    minutes: float | None = option(
        None, "Time budget instead of epochs, by the speed at the start; learn: half for each training", gt=0, lt=1e7
    )
    schedule: Schedule | None = keyword(None, "A whole schedule, to be used as it is")
    changes: Mapping[str, Any] = {}  # fields to change in the schedule, whichever is chosen
    share: float = 1.0  # the part of the minutes that this training gets

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.minutes is not None and "epochs" in self.changes:
            raise ValueError("give epochs or minutes, not both")
        if self.minutes is not None and self.schedule is not None:
            raise ValueError("give a schedule or minutes, not both")
        return self

    @classmethod
    def taken_from(cls, given: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Split off the settings of this class; fields of a schedule, such as `epochs`, become its `changes`."""
        changes = {name: value for name, value in given.items() if name in Schedule.model_fields}
        SPECIALIST.changed(changes)  # refuses impossible values before anything is opened
        own = {name: given[name] for name, _ in settings_of(cls) if name in given}
        rest = {name: value for name, value in given.items() if name not in {**changes, **own}}
        return cls.of({**own, "changes": changes}), rest


class RunConfig(Config):
    """The run folder: whether to resume its run, how often to write a checkpoint, who else gets its metrics."""

    resume: bool = option(
        False,
        "Continue the run in this folder after a stop of any kind, or begin it; DMC_RESUME=auto: for every command",
        word="auto",
    )
    checkpoint_every: float = option(30.0, "Seconds between checkpoints: the most that a kill can lose", ge=0)
    track: Annotated[Tracker | None, AfterValidator(require_tracker)] = option(
        None, "A tracker that gets the metrics, too; tensorboard writes into the run's folder"
    )

    report: bool = option(True, "Write report.html and its figures into the folder at the end", usual="report")

    @field_validator("resume", mode="before")
    @classmethod
    def _auto_is_yes(cls, given: Any) -> Any:
        """Take the word that job scripts have for a run that is continued if there is one."""
        return given == "auto" or given


RESUMED = RunConfig(resume=True)  # for whoever goes on with what is there: a demo, a cell of the benchmark


class NetworkConfig(Config):
    """The network to train, its initial weights, and the settings that every training has."""

    arch: str | None = option(
        None,
        "Architecture: cifar_resnetN (N = 6n+2), torchvision:NAME, transformers:NAME, a name of timm's, your "
        "FILE.py:FUNCTION; or a detector such as retinanet_resnet50_fpn",
        usual="one that suits the images; for a student, the largest teacher's",
    )
    size: int | None = option(
        None, "Input size in pixels", usual="one that suits the images, or that teacher's", ge=1, lt=8192
    )
    weights: str | None = option(
        AUTO, "Initial weights: imagenet, random, a file, or auto (ImageNet's where they help)"
    )  # None: random
    seed: int = option(0, "Random seed", gt=-(2**63), lt=2**63)
    memory: float = option(4.0, "GiB of decoded images to hold in memory; a larger set is streamed", ge=0, lt=GIB)
    workers: int | None = option(
        None, "Threads that decode streamed images", usual="as many as torch uses", ge=1, lt=1024
    )

    @field_validator("weights")
    @classmethod
    def _random_is_none(cls, weights: str | None) -> str | None:
        return None if weights == "random" else weights

    @property
    def memory_bytes(self) -> int:
        return int(self.memory * 2**30)


class TrainConfig(NetworkConfig):
    """Settings for training a model on labeled images."""

    output: Output | None = None  # what the logits mean; only some kinds of models leave a choice


class ClassifierTrainConfig(TrainConfig):
    whose: ClassVar[str] = "classifiers"

    output: Output | None = option(
        None, "Classifiers: softmax if the classes compete, sigmoid if each is decided on its own", usual="softmax"
    )


class DistillationConfig(Config):
    """How the student is compared with its teachers."""

    loss: LossName = option("l2", "Loss between the student's and the teachers' logits")
    centring: Centring | None = option(
        None, "Centre each teacher's logits (Eq. 4)", usual="per-teacher for softmax models, none for sigmoid"
    )


class ClassifierDistillationConfig(DistillationConfig):
    whose: ClassVar[str] = "classifiers"

    temperature: float | None = option(
        None, "Classifiers: temperature of the kd loss", usual=f"{KD_TEMPERATURE:g}", gt=0, lt=LARGE
    )

    @field_validator("temperature")
    @classmethod
    def _of_kd(cls, temperature: float | None, said: ValidationInfo) -> float | None:
        if temperature is not None and said.data.get("loss") != "kd":
            raise ValueError("has no effect: it is for loss kd")
        return temperature

    scale: Scale | None = option(
        None,
        "Classifiers: how to scale the teachers' logits; auto: balanced if one teacher drowns others",
        usual="auto for softmax models, none for sigmoid",
    )
    balance: bool | None = option(
        None,
        "Classifiers: scale the trained student's outputs, so that no teacher's classes are drowned",
        usual="balance for softmax models",
    )


class DetectorDistillationConfig(DistillationConfig):
    whose: ClassVar[str] = "detectors"

    anchors: int | None = option(
        None, "Detectors: anchors to distil in each image", usual="64 (paper); through boxes 512", ge=1, lt=MANY
    )
    # lambda, for boxes coded as torchvision does: RetinaNet's with weights (1, 1, 1, 1)
    box_weight: float = option(1.0, "Detectors: weight of the box loss (lambda in Eq. 8)", ge=0, lt=LARGE)
    matching: Matching = option(
        "auto",
        "Detectors: teach anchor by anchor, or what teachers find, matched to the student's anchors by boxes",
        usual="anchors if all models have the same, else boxes",
    )


class ConsolidateConfig(NetworkConfig, DistillationConfig):
    """Settings for merging models with unlabeled images."""

    paper_form: ClassVar[Mapping[str, Any]] = {"held_out": 0}  # the paper trains on every image
    best_form: ClassVar[Mapping[str, Any]] = {}  # what recipe `best` sets
    best_lesson: ClassVar[Mapping[str, Any]] = {}  # and what it sets of `learn`

    recipe: Recipe = option(
        "usual",
        "best: from_teacher, for detectors 512 anchors; learn: use_new, for classifiers from_old",
    )
    aux_limit: int | float | str | None = option(
        None, "Use a random sample of the auxiliary images: a number of them, or a share (0.25, 25%)"
    )
    select: int | None = option(
        None,
        "Train on so many of the auxiliary images, those in which the teachers see most",
        usual="all",
        ge=1,
        lt=MANY,
    )
    from_teacher: bool | None = option(
        None,
        "Begin with the first teacher's weights, or the mean of all if they grew from the same; the paper begins anew",
        usual="no",
    )
    held_out: int = keyword(1024, "Auxiliary images that are not trained on, a tenth of all at most", ge=0, lt=MANY)
    cache: str | None = option(
        None, "Folder that keeps the teachers' answers, so that they are asked once; runs may share it", usual="none"
    )
    views: int = option(2, "With a cache: crops and flips of each image, one of which a pass sees", ge=1, lt=MANY)
    cache_limit: float = option(
        10.0, "GiB that the cache may take; answers not used for longest go first", gt=0, lt=GIB
    )

    @model_validator(mode="after")
    def _kept_answers(self) -> Self:
        usual = type(self).model_fields
        for name in ("views", "cache_limit") if self.cache is None else ():
            if getattr(self, name) != usual[name].default:
                raise ValueError(f"{name} has no effect: it is for a cache")
        return self

    @field_validator("cache")
    @classmethod
    def _a_folder(cls, cache: str | None) -> str | None:
        if cache is not None and not cache.strip():
            raise ValueError("is empty: name a folder")
        return cache

    @property
    def cache_bytes(self) -> int:
        return int(self.cache_limit * 2**30)

    @field_validator("aux_limit")
    @classmethod
    def _number_or_share(cls, limit: int | float | str | None) -> int | float | None:
        """Give a number of images as an int, and a share of them as a float."""
        text = str(limit)[:SHOWN]  # more digits than that are a slip, and Python refuses to read thousands of them
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = 0
        if limit is None or (text.isdecimal() and int(text) > 0):
            return None if limit is None else int(text)
        if not 0 < share <= 1:
            raise ValueError("is neither a number of images nor a share of them, such as 0.25 or 25%")
        return share


class ClassifierConsolidateConfig(ConsolidateConfig, ClassifierDistillationConfig):
    whose: ClassVar[str] = "classifiers"
    # The paper's literal form (section 3.1): Eq. 4 and no more.
    paper_form: ClassVar[Mapping[str, Any]] = {"scale": "none", "balance": False, "held_out": 0}
    best_form: ClassVar[Mapping[str, Any]] = {"from_teacher": True}
    best_lesson: ClassVar[Mapping[str, Any]] = {"from_old": True, "use_new": True}


class DetectorConsolidateConfig(ConsolidateConfig, DetectorDistillationConfig):
    whose: ClassVar[str] = "detectors"
    best_form: ClassVar[Mapping[str, Any]] = {"from_teacher": True, "anchors": 512}
    best_lesson: ClassVar[Mapping[str, Any]] = {"use_new": True}

    held_out: int = keyword(
        96, "Auxiliary images that are not trained on, a tenth of all at most; classifiers: 1024", ge=0, lt=MANY
    )


class LearnConfig(Config):
    """Settings that `learn` has besides those of a consolidation: the new classes' specialist, and their images."""

    specialist_epochs: int | None = option(
        None, "Passes over the labeled images", usual="by the number of images; paper 200, detectors 100", ge=1, lt=MANY
    )
    specialist_schedule: Schedule | None = keyword(None, "A whole schedule for the specialist, to be used as it is")
    from_old: bool | None = option(
        None, "Begin the new classes' own model with the old model's weights, at half of the learning rate", usual="no"
    )
    keep_specialists: bool = option(
        False, "Keep every lesson's own model beside the merged one, and merge all of them at once", usual="no"
    )
    use_new: bool | None = option(
        None,
        "Let the new images join the auxiliary ones, without labels, as about a quarter of all",
        usual="no",
    )
    use_labels: bool = option(
        False,
        "Detectors: let the new scenes join with their labels, and with the old objects that the old model is sure of",
        usual="no",
    )

    def require_sense(self, length: Length, out: object) -> None:
        """Refuse what contradicts itself, before anything is loaded; `out` is the folder of the result."""
        if self.keep_specialists and out is None:
            raise DmcError("`keep_specialists` writes models into the folder of the result: name one (`out`)")
        if self.use_labels and self.use_new is False:
            raise DmcError("`use_labels` is about new scenes that join the auxiliary images: leave `use_new` to it")
        given = {"minutes": length.minutes, "specialist_schedule": self.specialist_schedule}
        for name, value in given.items():
            if value is not None and self.specialist_epochs is not None:
                raise DmcError(f"give `specialist_epochs` or `{name}`, not both")


class PredictConfig(Config):
    """Settings for predictions on single images."""


class ClassifierPredictConfig(PredictConfig):
    whose: ClassVar[str] = "classifiers"

    top: int = option(5, "Classifiers: how many classes to show", ge=1, lt=MANY)


class DetectorPredictConfig(PredictConfig):
    whose: ClassVar[str] = "detectors"

    min_score: float = option(0.3, "Detectors: lowest score to show", ge=0, le=1)
