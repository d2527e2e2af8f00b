"""The JSON files that dmc reads: each kind has one schema, and what does not fit it is told in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dmc.errors import DmcError
from dmc.files import read_text

AnyDocument = TypeVar("AnyDocument", bound=BaseModel)


class Document(BaseModel):
    """What dmc reads of a JSON file. It may hold more, which another version or another program has written."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class AnyObject(Document):
    """A JSON object with any names in it."""

    model_config = ConfigDict(extra="allow")

    @property
    def content(self) -> dict[str, Any]:
        """All that the file holds."""
        return self.model_dump(exclude_unset=True)


class BegunLooks(AnyObject):
    """What the network of a run sees."""

    size: int = Field(ge=1)


class BegunNetwork(AnyObject):
    """The network of a run."""

    arch: str | None = None
    preprocessing: BegunLooks | None = None


class BegunTask(AnyObject):
    """What a training on labels learns, and what it begins with."""

    weights: str | None = None


class RunRecord(AnyObject):
    """run.json: the settings of a run. The names here are those that a resumed run chooses its network by."""

    schedule: dict[str, Any] | None = None
    student: BegunNetwork | None = None
    model: BegunNetwork | None = None
    task: BegunTask | None = None
    weights: str | None = None


def read_json(path: Path, schema: type[AnyDocument], blame: str = "") -> AnyDocument:
    """Read a file, which must be there, through its schema; `blame` begins the error about one that does not fit."""
    return parsed(read_text(path), schema, blame or f"{path} is damaged: it")


def parsed(text: str, schema: type[AnyDocument], blame: str) -> AnyDocument:
    """Read a text of JSON through its schema; `blame` begins the error about one that does not fit."""
    try:
        return schema.model_validate_json(text)
    except ValidationError as error:
        raise DmcError(f"{blame} {_in_words(error)}") from None


def read_result(path: Path, schema: type[AnyDocument]) -> AnyDocument:
    """Read a file of a comparison, which is made again if it is removed."""
    return read_json(path, schema, f"{path} is damaged, so remove it and run again: it")


def _in_words(error: ValidationError) -> str:
    """Say what the first error is about: `has num_classes 'two', which should be a valid integer`."""
    wrong = error.errors(include_url=False)[0]
    place = " ".join(".".join(map(str, wrong["loc"])).split())
    text = wrong["msg"].removeprefix("Value error, ").replace("Input should", "should")
    if wrong["type"] == "json_invalid":
        return text.replace("Invalid JSON", "is no valid JSON")
    if wrong["type"] == "missing":
        return f"has no {place!r}"
    return f"has {place} {short(wrong['input'])}, which {text}" if place else text


def short(value: Any) -> str:
    """Give a value as text of at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
