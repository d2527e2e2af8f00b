"""The command line's options: a job's settings come from `dmc.config`, files, folders and classes are defined here."""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from dmc.classes import read_names
from dmc.config import RunConfig
from dmc.errors import DmcError
from dmc.files import require_own
from dmc.processes import is_main
from dmc.settings import Config, options_of

if TYPE_CHECKING:
    from dmc.models.model import Model

MOST_ORDERS = 10_000  # of classes, all of which are listed before the first one runs
MODEL = (
    "A saved folder, timm:NAME, torchvision:NAME, hf-hub:OWNER/NAME, transformers:OWNER/NAME, FILE.onnx, or "
    "WEIGHTS,arch=NAME,classes=FILE. More settings, separated by commas: size=32 mean=0.5/0.5/0.5 std=0.2/0.2/0.2 "
    "interpolation=bilinear crop_pct=0.875 output=sigmoid"
)
DATA = "Labeled images: a folder per class, parquet, npz, hf-hub:OWNER/NAME; for detectors a VOC folder or COCO file"
Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA)]
OneModel = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)]
Models = Annotated[list[str], typer.Argument(metavar="A B [C ...]", help=f"Two or more teachers. {MODEL}")]
AUX = "Unlabeled images: a folder, parquet, tar shards, npz, a glob, hf-hub:OWNER/NAME; repeat --aux to join several"
Aux = Annotated[list[str], typer.Option(help=AUX)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; accuracies and probabilities are fractions")]
Orders = Annotated[int, typer.Option(min=1, max=MOST_ORDERS, help="Number of class orders; order 0 is iCaRL's")]
ProfileName = Annotated[str, typer.Option(help="paper, night, lite or smoke")]
DataRoot = Annotated[Path | None, typer.Option(envvar="DMC_DATA", help="Folder of the data sets")]
Download = Annotated[bool, typer.Option("--download", help="Download missing data where possible")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the result and its run")]
Keep = Annotated[list[str] | None, typer.Option(help="Only these classes of the data: NAME,NAME,... or @FILE")]
Known = Annotated[bool, typer.Option("--known", help="Leave out classes that the model does not know")]
KeepOf = Annotated[
    list[str] | None, typer.Option(help="Only these classes of teacher N (1, 2, ...): N:NAME,NAME,... or N:@FILE")
]
RenameOf = Annotated[
    list[str] | None, typer.Option(help="Rename a class of teacher N, or of all that have it: [N:]OLD=NEW")
]
Rename = Annotated[
    list[str] | None, typer.Option(help="Give a class of the data the name that the model has for it: OLD=NEW")
]

VAL = "Labeled data to test on at the end, or none [default: the val/ or test/ beside train/, or every 10th image]"
Val = Annotated[str, typer.Option(help=VAL, show_default=False)]


def settings_of(*owners: type[Config]) -> list[inspect.Parameter]:
    """Make an option for each setting of some jobs that has a help text; one that is not typed is None."""
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(name, field))
        for name, field in options_of(*owners)
    ]


def _option(name: str, field: FieldInfo) -> Any:
    """Describe a setting for typer: type, limits, help and default."""
    extra: Any = field.json_schema_extra
    default = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    usual = extra["usual"] or ("" if default in ("None", "False") else default)
    limits = {kind: getattr(limit, kind) for limit in field.metadata for kind in ("ge", "le") if hasattr(limit, kind)}
    flag = f"--{extra['flag'] or name.replace('_', '-')}"
    if field.annotation in (bool, bool | None) and field.default is not False:  # what is off by default needs no --no-
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    kind: Any = str if field.annotation == int | float | str | None else field.annotation
    if extra["word"]:  # `Resuming` lets it be a flag all the same
        kind = Literal["no", "yes", extra["word"]]
    return Annotated[
        kind | None,
        typer.Option(
            flag,
            metavar=f"[{extra['word']}]" if extra["word"] else None,
            envvar=f"DMC_{name.upper()}" if extra["word"] else None,
            min=limits.get("ge"),
            max=limits.get("le"),
            help=f"{field.description}{f' [default: {usual}]' if usual else ''}",
            show_default=False,
        ),
    ]


def expands(*owners: type[Config]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of some jobs; it receives those that were typed as `settings`."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(verb).parameters.values() if p.name != "settings"]
        made = settings_of(*owners)

        @wraps(verb)
        def command(**given: Any) -> None:
            typed = {p.name: given.pop(p.name) for p in made}
            verb(**given, settings={name: value for name, value in typed.items() if value is not None})

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *made)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def as_typed(said: str, command: TyperCommand | None) -> str:
    """Name settings as the command has them: the library says `use_new=True`, a user types --use-new.

    Settings stand between backticks, or first, before a value that they should not have.
    """
    params = command.params if command else []
    options = {option.name: option for option in params if option.param_type_name == "option"}

    def typed(setting: re.Match[str]) -> str:
        name, value = setting[1] or setting[3], setting[2]
        if name not in options:
            return setting[0]
        on, *off = [one for one in (*options[name].opts, *options[name].secondary_opts) if one.startswith("--")]
        return off[-1] if value == "False" and off else on if value in (None, "True") else f"{on} {value}"

    return re.sub(r"`([a-z_]+)(?:=(\w+))?`|^([a-z_]+)(?= (?:\S+|'.*') should )", typed, said)


class Resuming(TyperCommand):
    """A command whose option --resume may stand alone, as a flag, or before the word auto."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        said: list[str] = []
        for word in args[:end]:
            if word == "auto" and said[-1:] == ["--resume=yes"]:
                said[-1] = "--resume=auto"
            else:
                said.append("--resume=yes" if word == "--resume" else word)
        return super().parse_args(ctx, [*said, *args[end:]])


def free_folder(out: Path, settings: Mapping[str, Any]) -> Path:
    """Refuse a folder that cannot hold the result, before anything is loaded."""
    if out == Path():
        raise DmcError("--out is empty or the current folder; name a folder for the result")
    if is_main():  # which may have begun to write to it before another process looks
        require_own(out, RunConfig.taken_from(settings)[0].resume)
    return out


def loaded_teachers(teachers: list[str], keep: list[str] | None, rename: list[str] | None) -> "list[Model]":
    """Load the teachers, then keep and rename their classes as the options say."""
    from dmc.api import load

    loaded = [load(teacher) for teacher in teachers]
    wanted: dict[int, list[str]] = {}
    for text in keep or []:
        number, names = _numbered("--keep", text, len(loaded))
        if number is None:
            raise DmcError(f"--keep {text!r}: say which classes of which teacher, as in --keep 1:{names or 'cat,dog'}")
        wanted.setdefault(number, []).extend(names_from([names]) or [])
    for number, kept in wanted.items():
        loaded[number] = loaded[number].keep(kept)
    for text in rename or []:
        number, pair = _numbered("--rename", text, len(loaded))
        old, new = _old_and_new(pair, text, "OLD=NEW or N:OLD=NEW")
        chosen = [number] if number is not None else [i for i, t in enumerate(loaded) if t.classes.meant_by(old)]
        if not chosen:
            raise DmcError(f"--rename {text}: no teacher has a class {old!r}")
        for i in chosen:
            loaded[i] = loaded[i].rename({old: new})
    return loaded


def _numbered(option: str, text: str, teachers: int) -> tuple[int | None, str]:
    """Split `2:cat,dog` into the teacher's index, 1, and the rest; without a number the index is None."""
    head, colon, rest = text.partition(":")
    if not (colon and head.isdigit()):
        return None, text
    if not 1 <= int(head) <= teachers:
        raise DmcError(f"{option} {text}: there are teachers 1 to {teachers}")
    return int(head) - 1, rest


def _old_and_new(pair: str, typed: str, form: str) -> tuple[str, str]:
    """Split `OLD=NEW`; the error shows what was typed, and the form that it should have."""
    old, _, new = pair.partition("=")
    if not (old and new):
        raise DmcError(f"--rename {typed}: write {form}")
    return old, new


def new_names(pairs: list[str] | None) -> dict[str, str]:
    """Turn texts such as `tabby=cat` into a mapping of old to new names."""
    return dict(_old_and_new(pair, pair, "OLD=NEW") for pair in pairs or [])


def names_from(texts: list[str] | None) -> list[str] | None:
    """Give class names as they were typed, or those in `@FILE`; `Classes.keep` splits texts at commas."""
    if not texts:
        return None
    return [name for text in texts for name in (read_names(Path(text[1:])) if text.startswith("@") else [text])]
