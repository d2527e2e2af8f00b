"""A real server in a process of its own, asked by a browser and by programs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from struct import pack
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import dmc as library
from dmc.serving.limits import MOST_AT_ONCE
from tests.browser import Browser
from tests.conftest import tiny, write_images
from tests.detectors import untrained

RATE = 20
GRADIOS_OWN = "Method not implemented."  # gradio's client says so whenever it closes a connection


class Served(NamedTuple):
    url: str
    folder: Path
    process: subprocess.Popen[str]


class Got(NamedTuple):
    status: int
    body: Any
    headers: Any


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run `dmc serve` on two specialists, a merged model and a detector; end it with Ctrl-C."""
    folder = tmp_path_factory.mktemp("served")
    for names, seed, name in (("ab", 1, "a"), ("cd", 2, "b"), (["a", "b", "c", "<b>d</b>"], 3, "merged")):
        tiny(list(names), seed).save(folder / name)
    untrained("xy").save(folder / "found")
    write_images(folder / "photos", 2, size=48)
    models, limits = (
        ("a", "b", "merged", "found"),
        ("--max-rate", str(RATE), "--max-megabytes", "1", "--min-score", "0"),
    )
    command = [sys.executable, "-m", "dmc", "serve", *models, "--port", "0", "--examples", "photos", *limits]
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=usual, **pipes) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert found, process.communicate()
            yield Served(found[0], folder, process)
        finally:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    lines = said.splitlines()
    assert lines[-1] == "dmc: interrupted"
    assert set(lines[:-1]) <= {line for line in lines if line.startswith("dmc: the image: cannot be read: ")}


def post(served: Served, body: bytes, kind: str | None = "image/png") -> Got:
    """Send an image as another program would."""
    headers = {"Content-Type": kind} if kind else {}
    try:
        with urlopen(Request(f"{served.url}/api/predict", body, headers), timeout=20) as answer:
            return Got(answer.status, json.load(answer), answer.headers)
    except HTTPError as error:
        with error:
            return Got(error.code, json.load(error), error.headers)


def form(image: bytes, field: str = "image") -> tuple[bytes, str]:
    """Put a file into a form."""
    head = f'--edge\r\nContent-Disposition: form-data; name="{field}"; filename="x.png"\r\n\r\n'
    return head.encode() + image + b"\r\n--edge--\r\n", "multipart/form-data; boundary=edge"


def bomb() -> bytes:
    """Begin a PNG that would unpack to 3.6 billion pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return pack(">I", len(data)) + name + data + pack(">I", zlib.crc32(name + data))

    header, pixels = pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0), zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_the_endpoint_says_what_predict_says(served: Served) -> None:
    photo = served.folder / "photos" / "000.png"
    plain, in_form = post(served, photo.read_bytes()), post(served, *form(photo.read_bytes()))
    assert plain.status == in_form.status == 200
    answers = plain.body["answers"]
    assert [a["model"] for a in answers] == ["a", "b", "merged", "found"]
    assert [a["kind"] for a in answers] == ["classifier", "classifier", "classifier", "detector"]
    assert [a["answer"] for a in answers] == [a["answer"] for a in in_form.body["answers"]]
    expected = library.predict(served.folder / "merged", photo)[0]
    assert list(answers[2]["answer"]["classes"]) == list(expected)
    assert answers[2]["answer"]["classes"] == pytest.approx(expected, rel=1e-5)
    first = library.predict(served.folder / "found", photo, min_score=0.0)[0][0]
    assert answers[3]["answer"]["objects"][0]["class"] == first.name
    assert answers[3]["answer"]["objects"][0]["box"] == pytest.approx(first.box, abs=0.1)


def test_the_schema_is_documented(served: Served) -> None:
    with urlopen(f"{served.url}/openapi.json") as answer:
        schema = json.load(answer)
    predict = schema["paths"]["/api/predict"]["post"]
    assert {"200", "400", "413", "415", "422", "429", "500"} == set(predict["responses"])
    assert set(predict["requestBody"]["content"]) == {"image/*", "application/octet-stream", "multipart/form-data"}
    known = schema["components"]["schemas"]
    assert {"Answers", "Answer", "ClassesAnswer", "ObjectsAnswer", "ObjectAnswer", "Refusal"} <= set(known)
    assert set(known["ObjectAnswer"]["properties"]) == {"class", "score", "box"}


@pytest.mark.parametrize(
    ("body", "kind", "status", "said"),
    [
        (b"nonsense", "image/png", 422, "the image: cannot be read: it is not an image"),
        (b"", "image/png", 400, "the image is empty: send"),
        (bomb(), "image/png", 422, "the image: cannot be read: Image size (3600000000 pixels) exceeds limit"),
        (bytes(100_000_000), "image/png", 413, "the image is too large: at most 1 MB are accepted"),
        (b"{}", "application/json", 415, "content type 'application/json' is not accepted: send an image's bytes"),
        (b"", "multipart/form-data", 400, "Missing boundary in multipart."),
        (*form(b"", "picture"), 400, "the form has no file in its field 'image': send"),
        (*form(b""), 400, "the image is empty: send"),
        (*form(bytes(2_000_000)), 413, "the image is too large: at most 1 MB are accepted"),
    ],
)
def test_a_bad_upload_gets_one_line(served: Served, body: bytes, kind: str, status: int, said: str) -> None:
    answer = post(served, body, kind)
    assert answer.status == status
    assert set(answer.body) == {"detail"}
    assert answer.body["detail"].startswith(said)
    assert "\n" not in answer.body["detail"]


def until(found: Callable[[], Any], seconds: float = 15) -> Any:
    """Wait until a function gives something."""
    end = time.monotonic() + seconds
    while not (it := found()):
        assert time.monotonic() < end, "the page does not show it"
        time.sleep(0.05)
    return it


def test_the_page_shows_all_answers_and_loads_nothing_from_elsewhere(served: Served, browser: Browser) -> None:
    browser.open(served.url, width=400)
    shown = "return [...document.querySelectorAll('.dmc-card')].map(card => card.innerText)"
    cards = until(lambda: browser.run(shown))
    assert [card.split("\n")[0] for card in cards] == ["a", "b", "merged", "found"]
    assert "<b>d</b>" in cards[2]  # as text

    (served.folder / "broken.png").write_bytes(b"nonsense")
    pick = browser.driver.find_element("css selector", "#image input[type=file]")
    pick.send_keys(str(served.folder / "broken.png"))
    error = "return document.querySelector('.toast-wrap, .toast-body')?.innerText"
    assert "the image: cannot be read: it is not an image" in until(lambda: browser.run(error))

    examples = until(lambda: browser.driver.find_elements("css selector", ".gallery-item"))
    assert len(examples) == 2
    browser.run("arguments[0].click()", examples[0])
    cards = until(lambda: browser.run(f"{shown}.filter(text => text.includes(' ms'))"))
    assert len(cards) == 4
    expected = library.predict(served.folder / "merged", served.folder / "photos" / "000.png")[0]
    best, probability = next(iter(expected.items()))
    assert f"{best}\n{100 * probability:.1f}%" in cards[2]
    assert "and 288 more" in cards[3]
    picture = "const it = document.querySelectorAll('.dmc-card')[3].querySelector('img'); return it.naturalWidth"
    assert browser.run(picture) == 480
    assert browser.overflows() == []
    assert [line for line in browser.complaints() if GRADIOS_OWN not in line] == []
    foreign = "performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith(location.origin))"
    assert browser.run(f"return {foreign}") == []


def test_the_browser_is_told_to_load_nothing_from_elsewhere(served: Served, browser: Browser) -> None:
    browser.open(served.url)
    asked = "const done = arguments[0]; fetch('http://localhost:9/').catch(e => done(e.message))"
    browser.driver.execute_async_script(asked)
    assert any("Content Security Policy" in line for line in browser.complaints())


@pytest.mark.slow
def test_under_load_it_answers_or_asks_to_wait(served: Served) -> None:
    """Fifty clients at once are more than wait in line: some are answered, the others told when to come again."""
    image = (served.folder / "photos" / "001.png").read_bytes()
    time.sleep(1)  # the bucket is full
    with ThreadPoolExecutor(50) as clients:
        answers = list(clients.map(lambda _: post(served, image), range(50)))
    counts = Counter(answer.status for answer in answers)
    assert set(counts) == {200, 429}
    assert counts[200] >= MOST_AT_ONCE
    refused = next(answer for answer in answers if answer.status == 429)
    wait = int(refused.headers["Retry-After"])
    assert wait == 1
    assert refused.body == {"detail": f"too many requests: try again in {wait} s"}
    time.sleep(wait)
    assert post(served, image).status == 200
    assert served.process.poll() is None
