"""The JSON endpoint: an image in, what every model says out. FastAPI writes its schema, at /openapi.json."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field, create_model
from starlette.datastructures import UploadFile

from dmc.data.decode import DecodeError
from dmc.errors import DmcError
from dmc.serving.panel import Panel, Reply

PLAIN = ("image/", "application/octet-stream")
FORM = "multipart/form-data"
HOW = f"send an image's bytes as {PLAIN[0]}* or {PLAIN[1]}, or a form ({FORM}) with the file in its field 'image'"
BYTES = {"schema": {"type": "string", "format": "binary"}}
BODY = {
    "required": True,
    "content": {
        "image/*": BYTES,
        PLAIN[1]: BYTES,
        FORM: {"schema": {"type": "object", "required": ["image"], "properties": {"image": BYTES["schema"]}}},
    },
}


class Refusal(BaseModel):
    """Why a request was not answered."""

    detail: str = Field(description="The reason, in one line")


REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Refusal, "description": "No image was sent, or an empty one"},
    413: {"model": Refusal, "description": "The image has too many bytes"},
    415: {"model": Refusal, "description": "Neither an image's bytes nor a form"},
    422: {"model": Refusal, "description": "What was sent cannot be read as an image, or has too many pixels"},
    429: {"model": Refusal, "description": "Too many requests; the header Retry-After has the seconds to wait"},
    500: {"model": Refusal, "description": "A model failed"},
}


class AnyAnswer(BaseModel):
    """What one model says."""

    model: str = Field(description="The model, as it was named when the server was started")
    kind: str = Field(description="Its kind, such as classifier or detector")
    milliseconds: float = Field(description="The time that it took, with decoding")


def add_endpoint(app: FastAPI, panel: Panel) -> None:
    """Add `POST /api/predict`; the kinds of models on the panel decide the schema of its answers."""
    forms = {seat.task.answer_form: None for seat in panel.seats}
    answer: Any = create_model(
        "Answer", __base__=AnyAnswer, __doc__=AnyAnswer.__doc__, answer=(reduce(or_, forms), ...)
    )
    answers = create_model(
        "Answers", __doc__="What all models say, in the order in which they were named.", answers=(list[answer], ...)
    )

    @app.post("/api/predict", response_model=answers, responses=REFUSALS, openapi_extra={"requestBody": BODY})
    async def predict(request: Request) -> dict[str, Any]:
        """Ask every model about one image."""
        image = await _image_of(request)
        try:
            replies = await run_in_threadpool(panel.ask, image)
        except DecodeError as error:
            raise HTTPException(422, str(error)) from None
        except DmcError as error:
            raise HTTPException(500, str(error)) from None
        return {"answers": [_as_dict(reply) for reply in replies]}


def _as_dict(reply: Reply) -> dict[str, Any]:
    seat = reply.seat
    return {
        "model": seat.model.name,
        "kind": seat.task.singular,
        "milliseconds": round(reply.milliseconds, 1),
        "answer": seat.task.answer_as_dict(reply.answer),
    }


async def _image_of(request: Request) -> bytes:
    """Read the image, which is the body or a file in a form."""
    kind = request.headers.get("content-type", "").lower()
    if kind.startswith(FORM):
        image = await _file_in(request)
    elif kind.startswith(PLAIN):
        image = await request.body()
    else:
        raise HTTPException(415, f"content type {kind[:80]!r} is not accepted: {HOW}")
    if not image:
        raise HTTPException(400, f"the image is empty: {HOW}")
    return image


async def _file_in(request: Request) -> bytes:
    """Read the file in a form; one that cannot be read gets status 400 by itself."""
    async with request.form(max_files=1, max_fields=1) as form:
        file = form.get("image")
        if not isinstance(file, UploadFile):
            raise HTTPException(400, f"the form has no file in its field 'image': {HOW}")
        return await file.read()
