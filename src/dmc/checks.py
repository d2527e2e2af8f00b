"""What `dmc check` tells about a consolidation, in a form that JSON can hold."""

from __future__ import annotations

from typing import Any, TypedDict


class AuxCheck(TypedDict):
    """The auxiliary images of a consolidation."""

    name: str
    images: int
    size: int  # in pixels, as they are held
    held_in_memory: bool
    tried: int  # images that were decoded to see whether they can be
    undecodable: int  # of these
    first_undecodable: str  # and why; "none" if all can be
    held_out: int  # images that are not trained on
    selected: int | None  # images that are chosen of the others; None: all are trained on


class TimeCheck(TypedDict):
    """How long a consolidation takes."""

    epochs: int
    images: int
    images_per_second: float
    seconds: int


class CostCheck(TypedDict):
    """What a consolidation costs besides time."""

    teachers_gflops: float  # to ask all teachers about one image
    student_gflops: float  # for the student's step on one image
    gflops_per_second: float  # as measured
    total_gflops: float  # of the whole run
    image_bytes: int  # of all images as they are held, or streamed once
    cache: str | None  # the folder that keeps the teachers' answers
    cache_bytes: int  # that they take there
    asking_epochs: int  # passes in which the teachers are asked; the others read the cache


class Check(TypedDict):
    """What can be said about a consolidation before it trains, in a form that JSON can hold."""

    task: str  # the hub's word for what the models do
    teachers: list[dict[str, Any]]
    side_by_side: dict[str, Any]  # what the teachers answer together, by the kind of model
    student: dict[str, Any]
    shared: list[str]  # classes that several teachers know
    aux: AuxCheck
    cost: CostCheck
    estimate: TimeCheck
