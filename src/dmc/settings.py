"""What a set of settings is: frozen, checked, and worded in one line where it is wrong.

This file imports no torch: the command line reads settings to show its help.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from dmc.errors import DmcError, nearest

SHOWN = 60  # characters of a wrong value that its error shows
# Limits beyond which a number is a slip, and would overflow somewhere or fill the memory.
MANY, LARGE, GIB = 10**9, 1e9, 1e6


def option(default: Any, text: str, *, usual: str = "", flag: str = "", word: str = "", **limits: Any) -> Any:
    """Declare a setting that is an option of the command line.

    `usual` describes the default in words, for the help; without it the help shows the default's value. `flag` is the
    option's name, if that differs from the field's. `word` is one that a yes-or-no setting takes besides.
    """
    return Field(
        default=default, description=text, json_schema_extra={"usual": usual, "flag": flag, "word": word}, **limits
    )


def keyword(default: Any, text: str, **limits: Any) -> Any:
    """Declare a setting that is a keyword argument in Python only."""
    return Field(default=default, description=text, **limits)


class Config(BaseModel):
    """A frozen set of settings. Unknown names and impossible values are one-line errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    whose: ClassVar[str] = ""  # the only kind of model with these settings: "classifiers"; empty: all kinds have them

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise DmcError(_in_words(error, type(self))) from None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Check settings that a user gave, and make a configuration of them."""
        cls.refuse_foreign(given)
        return cls(**given)

    @classmethod
    def refuse_foreign(cls, names: Iterable[str]) -> None:
        """Refuse settings that only another kind of model has."""
        for name in names:
            owners = {job.whose for job in _below(Config) if name in job.model_fields and not _mixes_kinds(job)}
            if name not in cls.model_fields and owners and not owners & {"", cls.whose}:
                raise DmcError(f"{name} is a setting of {min(owners)}")

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Copy the settings with some of them changed, and check them again."""
        return self.of({name: getattr(self, name) for name in type(self).model_fields} | dict(changes))

    @classmethod
    def taken_from(cls, given: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Split settings into this class's own, checked, and the others."""
        own = {name: value for name, value in given.items() if name in cls.model_fields}
        return cls.of(own), {name: value for name, value in given.items() if name not in own}


def _mixes_kinds(job: type[Config]) -> bool:
    """Tell whether a class has settings of several kinds of models, as a benchmark's profile has."""
    return len({base.whose for base in job.__mro__ if issubclass(base, Config)} - {""}) > 1


def _below(owner: type[Config]) -> Iterator[type[Config]]:
    """Give every subclass, direct or not."""
    for below in owner.__subclasses__():
        yield below
        yield from _below(below)


def _in_words(error: ValidationError, owner: type[Config]) -> str:
    """Word the first error: `epochs 0 should be greater than or equal to 1`."""
    wrong = error.errors()[0]
    *outer, last = map(str, wrong["loc"]) if wrong["loc"] else ("",)
    name, text = ".".join([*outer, last]), str(wrong["msg"]).removeprefix("Value error, ")
    if not name:  # several settings that do not go together
        return text
    if wrong["type"] == "extra_forbidden":
        known = [] if outer else [*owner.model_fields]
        elsewhere = [".".join([*outer, field]) for job in _below(Config) for field, _ in settings_of(job)]
        return f"there is no setting {name!r}{nearest(name, [*known, *(one for one in elsewhere if one != name)])}"
    hint = ""
    if wrong["type"] == "literal_error":
        words = str(wrong["ctx"]["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
        hint = nearest(str(wrong["input"]), words)
    given = repr(wrong["input"])
    given = given if len(given) <= SHOWN else f"{given[:SHOWN]}..."
    return f"{name} {given} {text.replace('Input should', 'should')}{hint}"


def options_of(*owners: type[Config]) -> Iterator[tuple[str, FieldInfo]]:
    """Give each setting of some jobs that is an option of the command line, once."""
    return ((name, field) for name, field in settings_of(*owners) if field.json_schema_extra)


def settings_of(*owners: type[Config]) -> Iterator[tuple[str, FieldInfo]]:
    """Give each setting of some jobs that a user may give, once."""
    found = {name: field for owner in owners for name, field in owner.model_fields.items() if field.description}
    return iter(found.items())
