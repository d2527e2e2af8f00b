"""The Python API's keyword arguments. Written by docs/write_settings.py: change dmc.config instead."""

from __future__ import annotations

from typing import Literal, TypedDict

from dmc.schedule import Schedule


class LengthKeywords(TypedDict, total=False):
    """What every training takes."""

    profile: Literal["auto", "paper"]
    minutes: float | None
    schedule: Schedule | None
    epochs: int
    lr: float
    shape: Literal["steps", "one-cycle"]
    drops: tuple[float, ...]
    algorithm: Literal["sgd", "adam"]
    batch_size: int
    momentum: float
    weight_decay: float
    clip: float | None
    pad: int | None
    flip: bool
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    compile: bool


class TrainKeywords(LengthKeywords, total=False):
    """What `train` takes."""

    resume: bool | Literal["auto"]
    checkpoint_every: float
    track: Literal["tensorboard", "wandb", "mlflow", "comet_ml", "aim", "clearml", "swanlab", "trackio"] | None
    report: bool
    arch: str | None
    size: int | None
    weights: str | None
    seed: int
    memory: float
    workers: int | None
    output: Literal["softmax", "sigmoid"] | None


class CheckKeywords(LengthKeywords, total=False):
    """What `check` takes."""

    loss: Literal["l2", "l1", "kd"]
    centring: Literal["per-teacher", "none"] | None
    arch: str | None
    size: int | None
    weights: str | None
    seed: int
    memory: float
    workers: int | None
    recipe: Literal["usual", "best"]
    aux_limit: int | float | str | None
    select: int | None
    from_teacher: bool | None
    held_out: int
    cache: str | None
    views: int
    cache_limit: float
    temperature: float | None
    scale: Literal["none", "pool-std", "balanced", "auto"] | None
    balance: bool | None
    anchors: int | None
    box_weight: float
    matching: Literal["auto", "anchors", "boxes"]


class ConsolidateKeywords(CheckKeywords, total=False):
    """What `consolidate` takes."""

    resume: bool | Literal["auto"]
    checkpoint_every: float
    track: Literal["tensorboard", "wandb", "mlflow", "comet_ml", "aim", "clearml", "swanlab", "trackio"] | None
    report: bool


class LearnKeywords(ConsolidateKeywords, total=False):
    """What `learn` takes."""

    specialist_epochs: int | None
    specialist_schedule: Schedule | None
    from_old: bool | None
    keep_specialists: bool
    use_new: bool | None
    use_labels: bool


class PredictKeywords(TypedDict, total=False):
    """What `predict` takes."""

    top: int
    min_score: float
