"""Groups of command-line options that several verbs share, each turned into one argument of the library."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import typer

from dmc.classes import read_names
from dmc.errors import DmcError
from dmc.files import require_free

if TYPE_CHECKING:
    from dmc.models.detector import Detector
    from dmc.models.specialist import Specialist

MODEL = (
    "A saved folder, timm:NAME, torchvision:NAME, hf-hub:OWNER/NAME, or WEIGHTS,arch=NAME,classes=FILE. More settings: "
    "size=32 mean=0.5/0.5/0.5 std=0.2/0.2/0.2 interpolation=bilinear crop_pct=0.875 output=sigmoid, with commas between"
)
DATA = "Labeled images: a folder per class, parquet, npz, hf-hub:OWNER/NAME; for detectors a VOC folder or COCO file"
Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA)]
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)]
Models = Annotated[list[str], typer.Argument(metavar="A B [C ...]", help=f"Two or more teachers. {MODEL}")]
AUX = "Unlabeled images: a folder, parquet, tar shards, npz, a glob, hf-hub:OWNER/NAME; repeat it to join several"
Aux = Annotated[list[str], typer.Option(help=AUX)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; accuracies and probabilities are fractions")]
Weights = Annotated[
    str, typer.Option(help="Initial weights: imagenet, random, a file, or auto: ImageNet's where they help")
]
Orders = Annotated[int, typer.Option(min=1, help="Class orders; order 0 is iCaRL's")]
ProfileName = Annotated[str, typer.Option(help="paper, lite or smoke")]
DataRoot = Annotated[Path | None, typer.Option(envvar="DMC_DATA", help="Where the data sets are")]
Download = Annotated[bool, typer.Option("--download", help="Download missing data where possible")]
Seed = Annotated[int, typer.Option(help="Seed of everything random")]
Memory = Annotated[float, typer.Option(min=0, help="GiB of pixels to hold; a larger set is streamed")]
Keep = Annotated[list[str] | None, typer.Option(help="Only these classes of the data: NAME,NAME,... or @FILE")]
Known = Annotated[bool, typer.Option("--known", help="Only the classes that the model knows")]
Rename = Annotated[
    list[str] | None, typer.Option(help="Give a class of the data the name that the model has for it: OLD=NEW")
]

VAL = "Labeled data to test on at the end, or none [default: the val/ or test/ beside train/, or every 10th image]"
Val = Annotated[str, typer.Option(help=VAL, show_default=False)]


def expands(**groups: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A verb's argument that is made from several options: `@expands(schedule=schedule_options)`.

    The verb shows the group's parameters as options of its own, and receives what the group returns.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        parameters = [p for p in inspect.signature(verb).parameters.values() if p.name not in groups]
        for group in groups.values():
            parameters += inspect.signature(group).parameters.values()

        @wraps(verb)
        def command(**given: Any) -> None:
            made = {
                name: group(**{p: given.pop(p) for p in inspect.signature(group).parameters})
                for name, group in groups.items()
            }
            verb(**given, **made)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


class RunOptions(TypedDict):
    out: Path
    resume: bool
    checkpoint_every: float


def run_options(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the result and its run")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue this folder's run after a stop of any kind")
    ] = False,
    checkpoint_every: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints")] = 30,
) -> RunOptions:
    if out == Path():
        raise DmcError("--out is empty or the current folder; name a folder for the result")
    require_free(out, resume)  # before anything is loaded
    return {"out": out, "resume": resume, "checkpoint_every": checkpoint_every}


def length_options(
    profile: Annotated[
        Literal["auto", "paper"],
        typer.Option(help="auto: what suits images and models; paper: the paper's settings and literal method"),
    ] = "auto",
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="A budget of time instead of --epochs, planned by the speed at the start; learn: half for each part",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the images [default: by their number; paper 50 or 200]")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Highest learning rate [default: 0.1, pretrained less; detectors 0.001]")
    ] = None,
    lr_shape: Annotated[
        Literal["steps", "one-cycle"] | None,
        typer.Option(help="Tenfold drops at 7/10 and 9/10 (paper), or warm-up and cosine [default: one-cycle]"),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images in a step [default: 32, many images and paper 128; detectors 12]")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(min=0, help="[default: 0.0001; detectors 0]")] = None,
    flip: Annotated[bool | None, typer.Option(help="Mirror half of the images [default: flip]")] = None,
) -> dict[str, Any]:
    """How long and how fast to train, as far as it is said."""
    changes = {"epochs": epochs, "lr": lr, "shape": lr_shape, "batch_size": batch_size}
    changes |= {"weight_decay": weight_decay, "flip": flip}
    given = {name: value for name, value in changes.items() if value is not None}
    return {"profile": profile, "minutes": minutes, **given}


def beginning(weights: str) -> str | None:
    """`--weights` as an argument of the library."""
    return None if weights == "random" else weights


def distillation_options(
    arch: Annotated[str | None, typer.Option(help="The student's architecture [default: the largest model's]")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Its input size [default: that model's]")] = None,
    loss: Annotated[Literal["l2", "l1", "kd"], typer.Option(help="Distance to the teachers' logits")] = "l2",
    temperature: Annotated[float | None, typer.Option(help="Temperature of kd [default: 2]")] = None,
    centring: Annotated[
        Literal["per-teacher", "none"] | None,
        typer.Option(help="Eq. 4's normalisation [default: per-teacher for softmax models, none for sigmoid]"),
    ] = None,
    scale: Annotated[
        Literal["none", "pool-std", "balanced", "auto"] | None,
        typer.Option(
            help="Classifiers: divide teachers' logits; auto: balanced where one drowns others [default: auto]"
        ),
    ] = None,
    balance: Annotated[
        bool | None,
        typer.Option(
            help="Classifiers: scale the student's outputs, so that no teacher's classes drown [default: yes]"
        ),
    ] = None,
    weights: Weights = "auto",
    anchors: Annotated[
        int | None, typer.Option(min=1, help="Detectors: anchors to distil in each image [default: 64]")
    ] = None,
    box_weight: Annotated[
        float | None, typer.Option(min=0, help="Detectors: lambda, the weight of the boxes' loss [default: 1]")
    ] = None,
    aux_limit: Annotated[
        str | None, typer.Option(help="Take a random sample of --aux: a number of images, or a share (0.25, 25%)")
    ] = None,
    seed: Seed = 0,
    memory: Memory = 4,
) -> dict[str, Any]:
    """What only one kind of model has is passed on only where it is given."""
    own = {"temperature": temperature, "scale": scale, "balance": balance, "anchors": anchors, "box_weight": box_weight}
    return {
        "arch": arch,
        "size": size,
        "loss": loss,
        "centring": centring,
        "weights": beginning(weights),
        "aux_limit": aux_limit,
        "seed": seed,
        "memory": int(memory * 2**30),
    } | {name: value for name, value in own.items() if value is not None}


def teacher_options(
    teachers: Models,
    keep: Annotated[
        list[str] | None, typer.Option(help="Only these classes of teacher N (1, 2, ...): N:NAME,NAME,... or N:@FILE")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option(help="Rename a class of teacher N, or of all that have it: [N:]OLD=NEW")
    ] = None,
) -> "list[Specialist | Detector]":
    """The teachers, cut down and renamed as asked."""
    from dmc.api import load

    loaded: list[Any] = [load(teacher) for teacher in teachers]
    wanted: dict[int, list[str]] = {}
    for text in keep or []:
        number, names = _numbered(text, len(loaded))
        if number is None:
            raise DmcError(f"--keep {text}: say which teacher, as in --keep 1:{text}")
        wanted.setdefault(number, []).extend(names_from([names]) or [])
    for number, kept in wanted.items():
        loaded[number] = loaded[number].keep(kept)
    for text in rename or []:
        number, pair = _numbered(text, len(loaded))
        old, new = _old_and_new(pair, text, "OLD=NEW or N:OLD=NEW")
        chosen = [number] if number is not None else [i for i, t in enumerate(loaded) if t.classes.meant_by(old)]
        if not chosen:
            raise DmcError(f"--rename {text}: no teacher has a class {old!r}")
        for i in chosen:
            loaded[i] = loaded[i].rename({old: new})
    return loaded


def _numbered(text: str, teachers: int) -> tuple[int | None, str]:
    """`2:cat,dog` to teacher index 1 and the rest."""
    head, colon, rest = text.partition(":")
    if not (colon and head.isdigit()):
        return None, text
    if not 1 <= int(head) <= teachers:
        raise DmcError(f"{text}: there are teachers 1 to {teachers}")
    return int(head) - 1, rest


def _old_and_new(pair: str, typed: str, form: str) -> tuple[str, str]:
    old, _, new = pair.partition("=")
    if not (old and new):
        raise DmcError(f"--rename {typed}: write {form}")
    return old, new


def new_names(pairs: list[str] | None) -> dict[str, str]:
    """`tabby=cat` as a mapping."""
    return dict(_old_and_new(pair, pair, "OLD=NEW") for pair in pairs or [])


def names_from(texts: list[str] | None) -> list[str] | None:
    """Class names as typed, with commas between, or those of `@FILE`; `Classes.keep` takes the texts apart."""
    if not texts:
        return None
    return [name for text in texts for name in (read_names(Path(text[1:])) if text.startswith("@") else [text])]
