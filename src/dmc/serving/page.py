"""The page: an image on the left, what every model says about it on the right."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
from gradio.data_classes import ImageData
from jinja2 import Environment, PackageLoader
from PIL import Image

from dmc.classes import counted, listed
from dmc.data.sources import UNLABELED, Record
from dmc.errors import DmcError
from dmc.files import read_bytes
from dmc.report.drawing import drawn_within
from dmc.serving.panel import Panel, Reply, Seat

SIDE = 480  # of a picture with boxes, in pixels
MOST_ROWS = 12  # of a card
KEPT = 600  # seconds that an upload stays on disk
CARDS = Environment(loader=PackageLoader("dmc.serving", "."), autoescape=True).get_template("cards.html")
TITLE = "Models, side by side"


class Card(NamedTuple):
    """What the page shows of one model."""

    name: str
    kind: str
    classes: str
    text: str
    time: str = ""
    scores: Sequence[tuple[str, float]] = ()
    more: int = 0  # scores that there is no room for
    picture: str = ""


def as_uploaded(payload: ImageData | None) -> str | None:
    """Hand an upload over as it is, where gradio would decode it: whether it can be read is decided by dmc alone."""
    return payload.path if payload else None


def page(panel: Panel, examples: Sequence[Path], max_bytes: int) -> gr.Blocks:
    """Lay out the page; nothing on it is fetched from elsewhere, and nothing is reported to anybody."""
    blank = CARDS.render(cards=[_card(seat) for seat in panel.seats])

    def answers(path: str | None) -> str:
        if path is None:
            return blank
        try:
            image = read_bytes(Path(path), max_bytes)
            return CARDS.render(cards=[_answered(reply, image) for reply in panel.ask(image)])
        except DmcError as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from None

    blocks = gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(KEPT, KEPT))
    with blocks:
        gr.Markdown(f"# {TITLE}")
        with gr.Row():
            with gr.Column(scale=1, min_width=300):
                image: Any = gr.Image(
                    type="filepath", label="Image", sources=["upload", "clipboard"], height=320, elem_id="image"
                )
                image.preprocess = as_uploaded
                gr.Examples(list(map(str, examples)), image, examples_per_page=12, cache_examples=False)
            with gr.Column(scale=2, min_width=300):
                said = gr.HTML(blank, padding=False)
        image.change(answers, image, said, api_visibility="private", show_progress="minimal")
    return blocks


def _card(seat: Seat) -> Card:
    return Card(seat.model.name, seat.task.singular, counted(seat.model.names), listed(seat.model.names))


def _answered(reply: Reply, image: bytes) -> Card:
    seat, answer, picture = reply.seat, reply.answer, ""
    scores = seat.task.answer_as_scores(answer)
    if seat.task.finds_boxes:
        picture = as_data(drawn_within(Record(image, UNLABELED, "the image"), answer, seat.model.names, SIDE))
    return _card(seat)._replace(
        text=seat.task.answer_as_text(answer),
        time=f"{reply.milliseconds:.0f} ms",
        scores=scores[:MOST_ROWS],
        more=len(scores[MOST_ROWS:]),
        picture=picture,
    )


def as_data(image: Image.Image) -> str:
    """Give a picture as an address that holds all of it."""
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return f"data:image/jpeg;base64,{b64encode(buffer.getvalue()).decode()}"
