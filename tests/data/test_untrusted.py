"""Data files from strangers: nothing is opened that the user did not name, and what is wrong is told in one line."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from dmc.bench.coco import CocoImages
from dmc.bench.readers import CubImages, DownsampledImageNet, cifar_binary, mnist
from dmc.classes import read_names
from dmc.data.annotations import open_annotated, read_coco
from dmc.data.decode import CenterCrop, DecodeError, can_be_reduced, decode, decode_or_skip, decoded, open_image
from dmc.data.loader import StreamLoader, open_loader
from dmc.data.open import open_images, open_labeled
from dmc.data.pictures import pictures
from dmc.data.sources import Record, Source
from dmc.data.tables import HubImages
from dmc.data.untrusted import Below, Refused
from dmc.errors import DmcError
from dmc.files import read_bytes, read_text
from tests.conftest import write_images

SRC = Path(__file__).parents[2] / "src" / "dmc"


class Watch:
    """What is opened while it is on, by Python's own account; a socket is forbidden."""

    def __init__(self) -> None:
        self.opened: list[str] | None = None
        self.fetched: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.opened is None:
            return
        if event == "open" and not isinstance(arguments[0], int):
            self.opened.append(os.fsdecode(arguments[0]))
        elif event.startswith(("socket.", "urllib.", "subprocess.", "os.exec", "os.posix_spawn")):
            self.fetched.append(event)
            raise PermissionError(event)


WATCH = Watch()
sys.addaudithook(WATCH)  # there is no way to remove one, so it is on only within `watched`


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Give a context in which no socket, no program and no fsspec is opened; it gives the list of opened files."""

    def fsspec_open(name: str, *_: Any) -> None:
        WATCH.fetched.append(name)
        raise PermissionError(name)

    @contextmanager
    def watching() -> Iterator[list[str]]:
        monkeypatch.setattr("fsspec.open", fsspec_open)
        WATCH.opened, WATCH.fetched = [], []
        try:
            yield WATCH.opened
        finally:
            WATCH.opened = None
        assert WATCH.fetched == []

    return watching


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail instead of waiting for ever."""

    def stop(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"it takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def png(side: int = 4, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


def reasons(source: Source) -> list[str]:
    """Give, of each image in stored order, why it cannot be read, or nothing."""
    found = [decode_or_skip(record, CenterCrop(4)) for record in source.records()]
    return [image.reason if isinstance(image, DecodeError) else "" for image in found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an image, a link within it, a link out of it and a FIFO; there is an image outside of it, too."""
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    for path in (folder / "deep" / "good.png", tmp_path / "outside.png"):
        path.write_bytes(png())
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    (folder / "deep" / "inner.png").symlink_to("good.png")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo.png")
    return folder


def hostile(folder: Path) -> list[str]:
    """Names that lead out of a folder, or to what is not a file."""
    outside = folder.parent / "outside.png"
    return [
        "http://127.0.0.1:9/a.png",
        "s3://bucket/a.png",
        "git://host/a.png",
        "file:///etc/passwd",
        f"file://{outside}",
        "zip://a.png::http://127.0.0.1:9/a.zip",
        f"simplecache::file://{outside}",
        f"zip://a.png::{outside}",
        f"local://{outside}",
        str(outside),
        "/dev/zero",
        "../outside.png",
        "deep/../../outside.png",
        "link.png",
        "up/outside.png",
        "fifo.png",
        "no\0thing.png",
        "x" * 5000,
    ]


GOOD = ["deep/good.png", "deep/../deep/good.png", "deep/inner.png"]


def assert_only_good(source: Source, folder: Path, opened: Callable[[], Any]) -> None:
    """Read all images: first the good ones, then the hostile ones; no file but the good one is opened."""
    assert reasons(source)[0] == ""  # and all modules are imported
    with opened() as files, at_most(5):
        found = reasons(source)
    assert found[: len(GOOD)] == [""] * len(GOOD)
    assert all(found[len(GOOD) :])
    assert len(found) == len(GOOD) + len(hostile(folder))
    images = [file for file in files if Path(file).suffix in (".png", "") or "passwd" in file]
    assert {Path(file).resolve() for file in images} == {folder / "deep" / "good.png"}


@pytest.mark.parametrize("struct", [True, False])
def test_a_table_names_only_files_below_it(folder: Path, struct: bool, watched: Callable[[], Any]) -> None:
    names = [*GOOD, *hostile(folder)]
    cells = [{"bytes": None, "path": name} for name in names] if struct else names
    pq.write_table(pa.table({"image": cells}), folder / "a.parquet")
    source = open_images(f"{folder / 'a.parquet'},image=image")
    assert_only_good(source, folder, watched)
    assert f"'../outside.png' is not a file below {folder}" in reasons(source)
    with pytest.raises(DmcError, match=r"18 of 21 .*\(first: .*a\.parquet\[3\]: 'http://127.0.0.1:9/a.png' is not a"):
        open_loader(source, CenterCrop(4))


def test_a_voc_file_names_only_files_below_its_folder(tmp_path: Path, folder: Path, watched: Callable[[], Any]) -> None:
    voc = tmp_path / "voc"
    (voc / "Annotations").mkdir(parents=True)
    folder.rename(voc / "JPEGImages")
    names = [name for name in [*GOOD, *hostile(voc / "JPEGImages")] if "\0" not in name]
    (tmp_path / "data").symlink_to(voc)
    (voc / "outside.png").write_bytes(png())
    for i, name in enumerate(names):
        (voc / "Annotations" / f"{i:02}.xml").write_text(voc_xml(name))
    source = open_annotated(voc)
    with watched() as files, at_most(5):
        found = reasons(source)
    assert [bool(reason) for reason in found] == [name not in GOOD for name in names]
    assert {Path(file).resolve() for file in files if file.endswith(".png")} == {voc / "JPEGImages/deep/good.png"}
    (voc / "Annotations" / "00.xml").write_text(voc_xml("../outside.png", size=""))
    with pytest.raises(DmcError, match=r"cannot read the size of an image: '\.\./outside.png' is not a file below"):
        open_annotated(voc)


def test_a_voc_list_names_only_annotations_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "voc" / "Annotations").mkdir(parents=True)
    (tmp_path / "voc" / "ImageSets" / "Main").mkdir(parents=True)
    (tmp_path / "outside.xml").write_text(voc_xml("a.png"))
    (tmp_path / "voc" / "ImageSets" / "Main" / "train.txt").write_text("../../outside")
    with pytest.raises(DmcError, match=r"cannot read an annotation: '\.\./\.\./outside.xml' is not a file below"):
        open_annotated(tmp_path / "voc")


def test_a_coco_file_names_only_files_below_its_folder(folder: Path, watched: Callable[[], Any]) -> None:
    names = [*GOOD, *hostile(folder)]
    images = [{"id": i, "file_name": name, "width": 4, "height": 4} for i, name in enumerate(names)]
    path = coco_file(folder.parent / "a.json", images=images)
    assert_only_good(open_annotated(f"{path},images={folder}"), folder, watched)
    assert_only_good(CocoImages("coco", folder, names), folder, watched)


def test_cub_names_only_files_below_its_folder(tmp_path: Path, folder: Path, watched: Callable[[], Any]) -> None:
    folder.rename(tmp_path / "images")
    names = [name for name in hostile(tmp_path / "images") if "\0" not in name]
    files = {
        "images": ["deep/good.png", *names],
        "image_class_labels": ["1"] * (1 + len(names)),
        "bounding_boxes": ["0 0 4 4"] * (1 + len(names)),
        "train_test_split": ["1"] * (1 + len(names)),
        "classes": ["owl"],
    }
    for name, rows in files.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{i} {row}\n" for i, row in enumerate(rows)))
    source = CubImages(tmp_path, train=True)
    (tmp_path.parent / "outside.png").write_bytes(png())
    with watched(), at_most(5):
        assert [bool(reason) for reason in reasons(source)] == [False] + [True] * len(names)
    for broken in ("1 x 4 4", "0 0", "inf 0 4 4", ""):
        (tmp_path / "bounding_boxes.txt").write_text(f"0 {broken}\n")
        with pytest.raises(DmcError, match=r"the entries of image '0' do not fit together|each line must be an id"):
            CubImages(tmp_path, train=True)


def test_a_hub_dataset_names_only_its_own_files(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    asked: list[str] = []

    def fsspec_open(name: str, _: str) -> io.BytesIO:
        asked.append(name)
        return io.BytesIO(b"image")

    monkeypatch.setattr("fsspec.open", fsspec_open)
    hub = HubImages.__new__(HubImages)
    hub.repo = "owner/set"
    ours = ["hf://datasets/owner/set@1a/a.png", "zip://a.png::hf://datasets/owner/set@1a/a.zip"]
    theirs = ["hf://datasets/owner/settle@1a/a.png", "hf://datasets/owner/set@1a/../../b", "http://x::" + ours[0]]
    assert [hub._file(name) for name in ours] == [b"image", b"image"]
    assert all(isinstance(hub._file(name), Refused) for name in [*theirs, *hostile(folder)])
    assert asked == ours
    hub.repo = str(folder)
    assert [hub._file(name) for name in GOOD] == [folder / name for name in GOOD]
    assert all(isinstance(hub._file(name), Refused) for name in hostile(folder) if name not in {"fifo.png", "x" * 5000})
    assert asked == ours


def test_links_that_the_user_lists_are_followed(folder: Path) -> None:
    assert sorted(path.name for path in (r.image for r in open_images(folder).records())) == [  # type: ignore[union-attr]
        "good.png",
        "inner.png",
        "link.png",
    ]
    assert reasons(open_images(folder)) == ["", "", ""]


def test_a_program_is_not_an_image(tmp_path: Path, watched: Callable[[], Any]) -> None:
    """Pillow hands PostScript to Ghostscript, whatever the file is called."""
    (tmp_path / "a.jpg").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    )
    Image.init()
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.format == "EPS"
    with watched():
        assert reasons(open_images(tmp_path)) == ["it is not an image"]


@pytest.mark.parametrize("kind", ["JPEG", "MPO", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_all_usual_formats_are_read(kind: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (9, 9), (250, 250, 250)).save(buffer, kind)
    assert (decode(Record(buffer.getvalue(), -1, ""), CenterCrop(4)) > 240).all()


def test_images_are_opened_in_one_place() -> None:
    opens = {path.name for path in SRC.rglob("*.py") if re.search(r"Image\.open\(|ImageFile\(", path.read_text())}
    assert opens == {"decode.py"}


def test_nothing_waits_for_a_fifo(tmp_path: Path) -> None:
    def fifo(name: str) -> Path:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / name)
        return tmp_path / name

    write_images(tmp_path / "voc" / "JPEGImages", 1)
    fifo("list/ImageSets/Main/train.txt")
    fifo("list/Annotations/a.xml")
    not_regular = "not a regular file|holds no boxes|cannot read images"
    with at_most(10):
        for path in (fifo("a.parquet"), fifo("a.tar"), fifo("a.tar.gz"), fifo("a.npz"), fifo("a.json")):
            with pytest.raises(DmcError, match=not_regular):
                open_images(path)
        for path in (fifo("voc/Annotations/a.xml").parents[1], tmp_path / "list", tmp_path / "a.json"):
            with pytest.raises(DmcError, match=not_regular):
                open_annotated(path)
        with pytest.raises(DmcError, match="not a regular file"):
            read_coco(tmp_path / "a.json")
        with pytest.raises(DmcError, match="it is not a regular file"):
            read_names(fifo("names.txt"))
        (record,) = pictures(fifo("a.png"))
        with pytest.raises(DecodeError, match=r"a\.png: cannot be read: it is not a regular file"):
            decode(record, CenterCrop(4))
        bad = [fifo("train.bin")]
        for read in (lambda: cifar_binary(bad, bad, bad), lambda: mnist(bad), lambda: DownsampledImageNet(bad)):
            with pytest.raises(DmcError, match="not a regular file"):
                read()


@pytest.mark.parametrize("name", ["a.jpg", "a.tar.gz", "a.parquet"])
def test_a_link_to_a_folder_that_is_named_like_a_file_is_not_followed(tmp_path: Path, name: str) -> None:
    """It may lead to `/`, below which one could search for images for hours."""
    write_images(tmp_path / "real", 3)
    (tmp_path / name).symlink_to("real")
    (tmp_path / "folder.v2").symlink_to("real")
    for opening in (open_images, pictures):
        with pytest.raises(DmcError, match="is named like a file, and is a link to a folder"):
            opening(tmp_path / name)
        assert len(opening(tmp_path / "folder.v2")) == 3


def test_only_regular_files_of_a_bounded_size_are_read_whole(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "text").write_bytes("é\r\n".encode())
    (tmp_path / "latin").write_bytes("é".encode("latin-1"))
    assert read_text(tmp_path / "text") == "é\r\n"
    assert read_bytes(tmp_path / "text", limit=4) == b"\xc3\xa9\r\n"
    for name, limit, reason in (
        ("fifo", 10, "it is not a regular file"),
        ("absent", 10, "No such file or directory"),
        (".", 10, "it is not a regular file"),
        ("nul\0l", 10, "embedded null byte"),
        ("text", 3, "it has more than 3 bytes"),
        ("latin", 10, "it is not text in UTF-8"),
    ):
        with at_most(5), pytest.raises(DmcError, match=f"^cannot read .*: {reason}$"):
            read_text(tmp_path / name, limit)


Member = tuple[str, bytes, bytes]  # name, type, content


def write_tar(path: Path, members: list[Member], packed: bool = False, header: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz" if packed else "w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(content), "/etc/passwd" if kind in b"12" else ""
            info.pax_headers = header or {}
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_links_devices_and_giants_in_a_tar_are_counted(
    tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmc.data.readers.MOST_ENCODED", 1000)
    members: list[Member] = [
        ("good.png", tarfile.REGTYPE, png()),
        ("soft.png", tarfile.SYMTYPE, b""),
        ("hard.png", tarfile.LNKTYPE, b""),
        ("fifo.png", tarfile.FIFOTYPE, b""),
        ("device.png", tarfile.CHRTYPE, b""),
        ("folder.png", tarfile.DIRTYPE, b""),
        ("giant.png", tarfile.REGTYPE, os.urandom(1001)),
        ("large.png", tarfile.REGTYPE, png() + bytes(1000 - len(png()))),
    ]
    source = open_images(write_tar(tmp_path / "a.tar", members, packed))
    not_regular = ["it is not a regular file"] * 4
    assert reasons(source) == ["", *not_regular, "it has more than 1,000 bytes", ""]
    assert [name.rpartition(":")[2] for name in source.names()][-2:] == ["giant.png", "large.png"]


def test_a_small_archive_of_endless_zeros_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = [("notes.txt", tarfile.REGTYPE, bytes(2_000_000))]
    good: list[Member] = [("good.png", tarfile.REGTYPE, png())]
    bomb = write_tar(tmp_path / "a.tar.gz", zeros + good, packed=True)
    assert len(open_images(bomb)) == 1  # this much would do no harm
    monkeypatch.setattr("dmc.data.untrusted.MOST_ENCODED", 1_000_000)
    with pytest.raises(DmcError, match=r"a\.tar\.gz: it unpacks to more than 100 times its size"):
        open_images(bomb)
    assert len(open_images(write_tar(tmp_path / "a.tar", zeros + good))) == 1
    honest = [("notes.txt", tarfile.REGTYPE, os.urandom(2_000_000)), *good]
    assert len(open_images(write_tar(tmp_path / "b.tar.gz", honest, packed=True))) == 1


def test_headers_that_lead_a_tar_reader_astray(tmp_path: Path) -> None:
    good: list[Member] = [("good.png", tarfile.REGTYPE, png())]
    with at_most(10):
        for size in ("-1024", "-2048"):
            with pytest.raises(DmcError, match=r"a\.tar: "):
                open_images(write_tar(tmp_path / "a.tar", good * 3, header={"size": size}))
        hole = write_tar(tmp_path / "hole.tar", good, header={"GNU.sparse.map": "0,10", "GNU.sparse.size": "100"})
        assert reasons(open_images(hole)) == ["it is not a regular file"]
        header = tarfile.TarInfo("././@LongLink")
        header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2**40
        (tmp_path / "long.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
        with pytest.raises(DmcError, match=r"long\.tar: damaged after byte 0: impossible size"):
            open_images(tmp_path / "long.tar")
        header.size = 0
        (tmp_path / "chain.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) * 5000)
        with pytest.raises(DmcError, match=r"cannot read the tar shard .*chain\.tar"):
            open_images(tmp_path / "chain.tar")


def test_large_images_are_refused_by_their_size_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmc.data.decode.MOST_PIXELS", 99)
    monkeypatch.setattr("dmc.data.decode.MOST_REDUCED", 128 * 128 - 1)
    Image.new("RGB", (10, 10)).save(tmp_path / "a.png")
    Image.new("RGB", (11, 9)).save(tmp_path / "b.png")
    Image.new("RGB", (64, 64)).save(tmp_path / "c.jpg")
    Image.new("RGB", (64, 64)).save(tmp_path / "d.jpg", progressive=True)
    Image.new("RGB", (128, 128)).save(tmp_path / "e.jpg")
    too_large = "an image of {}x{} is too large to decode"
    assert reasons(open_images(tmp_path)) == [
        too_large.format(10, 10),
        "",
        "",
        too_large.format(64, 64),
        too_large.format(128, 128),
    ]
    (record,) = pictures(tmp_path / "c.jpg")
    with pytest.raises(DecodeError, match="64x64 is too large to decode"):  # a part is not decoded at a fraction
        decode(record._replace(part=(0, 0, 4, 4)), CenterCrop(4))
    monkeypatch.setattr("dmc.data.decode.MOST_ENCODED", 10)
    assert reasons(open_images(tmp_path / "b.png")) == ["it has more than 10 bytes"]


def test_a_jpeg_in_several_scans_is_not_taken_for_one_that_is_reduced() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64)).save(buffer, "JPEG")
    assert can_be_reduced(open_image(buffer))
    one_scan = buffer.getvalue()
    start = one_scan.index(b"\xff\xda") + 2
    first_of_three = one_scan[:start] + b"\x00\x08\x01\x01\x00\x00\x3f\x00" + one_scan[start + 12 :]
    assert not can_be_reduced(open_image(io.BytesIO(first_of_three)))


@pytest.mark.parametrize(("many", "at_once"), [(0, 1), (100, 4)])
def test_heavy_images_take_turns(many: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmc.data.decode.MANY_PIXELS", many)
    monkeypatch.setattr("dmc.data.decode.CHUNK", 1)
    now, most = [0], [0]

    class Counting(CenterCrop):
        def __call__(self, image: Image.Image) -> torch.Tensor:
            now[0] += 1
            most[0] = max(most[0], now[0])
            time.sleep(0.05)
            now[0] -= 1
            return super().__call__(image)

    assert len(list(decoded([Record(png(), -1, "")] * 8, Counting(4), workers=4))) == 8
    assert most[0] == at_once


def test_deep_pixels_are_scaled_within_their_own_memory() -> None:
    """The largest floats are scaled like any others: no product may overflow."""
    image = Image.fromarray(np.array([[0, 1.7e38], [3.4e38, 3.4e38]], np.float32))
    assert decode(Record(image, -1, ""), CenterCrop(2))[0].tolist() == [[0, 127], [255, 255]]


def write_table(path: Path, labels: Any, names: list[Any] | None = None) -> Path:
    """Write a table with a column of labels; with `names`, in the hub's format."""
    columns = {"image": [png()] * len(labels), "label": labels}
    table = pa.table(columns)
    if names is not None:
        feature = {"names": names, "_type": "ClassLabel"}
        info = {"info": {"features": {"image": {"_type": "Image"}, "label": feature}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize(
    ("labels", "names", "words"),
    [
        ([0.5, 1.5], None, "column 'label' holds no labels, which are whole numbers or texts"),
        ([[0], [1]], None, "column 'label' holds no labels"),
        ([{"a": 1}, {"a": 2}], None, "column 'label' holds no labels"),
        ([b"a", b"b"], None, "column 'label' holds no labels"),
        ([None, None], None, "column 'label' holds no labels"),
        (["a", "b\nc"], None, r"the class name 'b\\nc' has control characters"),
        (["a", ""], None, "a class is named ''"),
        ([0, 2], ["a", "b"], r"a\.parquet\[1\]: column 'label' holds 2, which is none"),
        ([0, -1], ["a", "b"], r"a\.parquet\[1\]: column 'label' holds -1, which is none"),
        ([0, None], ["a", "b"], r"a\.parquet\[1\]: column 'label' holds None"),
        ([0, 2**62], ["a", "b"], "holds 4611686018427387904, which is none"),
        ([0.0, 1.0], ["a", "b"], "column 'label' holds no labels"),
        ([[0], [1]], ["a", "b"], "column 'label' holds no labels"),
        ([0, 1], ["a", "a"], "a.parquet"),
        ([0, 1], [1, 2], "a class is named 1"),
        ([0, 1], [None, "a"], "a class is named None"),
        ([0, 1], [["a"], ["b"]], "a.parquet"),
        ([0, 1], ["a", "\x1b[31m"], "control characters"),
    ],
)
def test_labels_of_odd_types_in_a_table(tmp_path: Path, labels: Any, names: Any, words: str) -> None:
    path = write_table(tmp_path / "a.parquet", labels, names)
    with pytest.raises(DmcError, match=words) as error:
        list(open_labeled(f"{path},image=image,label=label").records())
    assert "\n" not in str(error.value)
    assert "a.parquet" in str(error.value)


@pytest.mark.parametrize("info", ["[]", "{", '{"info": 3}', '{"info": {"features": [1]}}', "[" * 100_000, "\ud800"])
def test_a_tables_header_of_odd_types(tmp_path: Path, info: str) -> None:
    table = pa.table({"image": [png()]}).replace_schema_metadata({"huggingface": info.encode("utf-8", "surrogatepass")})
    pq.write_table(table, tmp_path / "a.parquet")
    with at_most(10):
        try:
            seen = f"{len(open_images(tmp_path / 'a.parquet'))} image"
        except DmcError as error:
            seen = str(error)
    assert re.fullmatch(r"1 image|cannot read the header of .*a\.parquet: .+", seen)


def test_cells_that_are_no_images_are_counted(tmp_path: Path) -> None:
    for cells in ([5], [[1, 2]], [True], [1.5], [{"bytes": 10**12, "path": "a"}], [{"bytes": [1], "path": "a"}], [""]):
        pq.write_table(pa.table({"image": cells}), tmp_path / "a.parquet")
        assert all(reasons(open_images(f"{tmp_path}/a.parquet,image=image")))


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": [os.urandom(100) for _ in range(100)]}), path, compression="zstd")
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    with pytest.raises(DmcError, match=r"cannot read .*a\.parquet after row 0: .+"):
        list(open_images(path).records())


def test_a_table_of_more_rows_than_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"image": pa.nulls(1_000_000, pa.binary())}), tmp_path / "a.parquet")
    with pytest.raises(DmcError, match=r"its header says that \d+ bytes hold 1000000 rows"):
        open_images(tmp_path / "a.parquet")
    pq.write_table(pa.table({"image": [bytes(10**6)]}), tmp_path / "b.parquet", compression="zstd")
    assert len(open_images(tmp_path / "b.parquet")) == 1
    monkeypatch.setattr("dmc.data.untrusted.MOST_ENCODED", 10**5)
    with pytest.raises(DmcError, match=r"b\.parquet: it unpacks to more than 100 times its size"):
        open_images(tmp_path / "b.parquet")


def test_a_table_with_fewer_rows_than_its_header_says(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [png()] * 3}), tmp_path / "a.parquet")
    source = open_images(tmp_path / "a.parquet")
    pq.write_table(pa.table({"image": [png()] * 2}), tmp_path / "a.parquet")
    with pytest.raises(DmcError, match=r"a\.parquet has 2 rows, and not 3 as its header says"):
        list(source.records())


def test_shards_may_not_disagree_about_labels(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", ["1", "b"])
    write_table(tmp_path / "b.parquet", [1, 2])
    with pytest.raises(DmcError, match="the class '1' is named twice"):
        open_labeled(f"{tmp_path}/*.parquet,label=label")
    write_table(tmp_path / "a.parquet", [0, 1], ["a", "b"])
    write_table(tmp_path / "b.parquet", ["a", "b"])
    with pytest.raises(DmcError, match=r"b\.parquet\[0\]: column 'label' holds 'a'"):
        list(open_labeled(f"{tmp_path}/*.parquet").labels())
    write_table(tmp_path / "a.parquet", ["1", "b"])
    write_table(tmp_path / "b.parquet", [[1], [2]])
    with pytest.raises(DmcError, match=r"b\.parquet\[0\]: column 'label' holds \[1\]"):
        open_labeled(f"{tmp_path}/*.parquet,label=label")


IMAGES = np.zeros((2, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"labels": [0.0, 1.0]}, "'labels' must be a list of whole numbers or texts, not float64"),
        ({"labels": [[0], [1]]}, r"'labels' must be a list .* of shape \(2, 1\)"),
        ({"labels": 1}, r"'labels' must be a list .* of shape \(\)"),
        ({"labels": np.array([None, {}], object)}, "Object arrays cannot be loaded"),
        ({"labels": [b"a", b"b"]}, "'labels' must be a list"),
        ({"labels": np.array([0, 1], "datetime64[s]")}, "'labels' must be a list"),
        ({"labels": [0, 1, 1]}, r"2 images but labels of shape \(3,\)"),
        ({"labels": [0, 2], "classes": ["a", "b"]}, "labels must lie between 0 and 1"),
        ({"labels": [0, -1], "classes": ["a", "b"]}, "labels must lie between 0 and 1"),
        ({"labels": np.array([0, 2**64 - 1], np.uint64), "classes": ["a", "b"]}, "labels must lie between 0 and 1"),
        ({"labels": [0, 1], "classes": [1, 2]}, "'classes' must be a list of texts, not int64"),
        ({"labels": [0, 1], "classes": [["a"], ["b"]]}, r"'classes' must be a list of texts, not <U1 of shape \(2, 1"),
        ({"labels": [0, 1], "classes": ["a", "a"]}, "the class 'a' is named twice"),
        ({"labels": [0, 1], "classes": ["a", "b\r"]}, "control characters"),
        ({"images": IMAGES.astype(float), "labels": [0, 1]}, "images must be uint8"),
        ({"images": np.uint8(3), "labels": [0, 1]}, "images must be uint8"),
    ],
)
def test_arrays_of_odd_types(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    np.savez(tmp_path / "a.npz", **{"images": IMAGES} | arrays)
    with pytest.raises(DmcError, match=words) as error:
        open_labeled(tmp_path / "a.npz")
    assert "a.npz" in str(error.value)
    assert "\n" not in str(error.value)


def npz(path: Path, header: str, content: bytes) -> Path:
    """Write an npz file whose array `images` has this header."""
    head = header.encode().ljust(118) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + content)
    return path


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 32, 32)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 4, 4)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (100, 4, 4)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (2, 4, 4)}",
        "{'descr': 7, 'fortran_order': False, 'shape': (2, 4, 4)}",
        "{'descr': '|u1'}",
        "[" * 9000,
        "__import__('os').system('true')",
    ],
)
def test_lying_headers_of_arrays(tmp_path: Path, header: str) -> None:
    with at_most(10), pytest.raises(DmcError, match=r"cannot read .*a\.npz: .+") as error:
        open_images(npz(tmp_path / "a.npz", header, bytes(32)))
    assert "\n" not in str(error.value)


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000, 32, 32)}"
    path = npz(tmp_path / "a.npz", header, bytes(1000 * 32 * 32))
    assert len(open_images(path)) == 1000
    monkeypatch.setattr("dmc.data.untrusted.MOST_ENCODED", 10**6)
    with pytest.raises(DmcError, match=r"a\.npz: it unpacks to more than 100 times its size"):
        open_images(path)


def test_damaged_batches_of_imagenet(tmp_path: Path) -> None:
    good = np.zeros((2, 3072), np.uint8)
    for arrays, words in (
        ({"labels": [1, 2]}, "has no array 'data'"),
        ({"labels": 1, "data": good}, "'labels' has the wrong type or shape"),
        ({"labels": ["a", "b"], "data": good}, "'labels' has the wrong type or shape"),
        ({"labels": [1, 2], "data": good[:, :5]}, "'data' has the wrong type or shape"),
        ({"labels": [1, 2, 3], "data": good}, "'data' has 2 images, fewer than there are 'labels'"),
    ):
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(DmcError, match=words):
            list(DownsampledImageNet([tmp_path / "a.npz"]).records())


def voc_xml(filename: str, name: str = "cat", box: str = "1 1 3 3", size: str = "4", before: str = "") -> str:
    sides = "".join(f"<{s}>{n}</{s}>" for s, n in zip(("xmin", "ymin", "xmax", "ymax"), box.split(), strict=False))
    shape = f"<size><width>{size}</width><height>{size}</height></size>" if size else ""
    item = f"<object><name>{name}</name><bndbox>{sides}</bndbox></object>"
    return f"{before}<annotation><filename>{filename}</filename>{shape}{item}</annotation>"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": "9" * 400}, "a.xml: size: an image is at most"),
        ({"size": "9" * 5000}, "a.xml: Exceeds the limit"),
        ({"size": "nan"}, "a.xml: invalid literal for int"),
        ({"box": "1 1 x 3"}, "a.xml: could not convert string to float"),
        ({"name": "a&#10;b"}, r"the class name 'a\\nb' has control characters"),
        ({"before": '<!DOCTYPE a [<!ENTITY b "c">]>'}, "a.xml: a DTD"),
        ({"before": '<!DOCTYPE a SYSTEM "http://127.0.0.1:9/a.dtd">'}, "a.xml: a DTD"),
        ({"before": "<a>" * 100_000}, "a.xml: mismatched tag|a.xml: no element"),
    ],
)
def test_odd_annotations(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "a.xml").write_text(voc_xml("a.jpg", **changes))
    with at_most(10), pytest.raises(DmcError, match=words) as error:
        open_annotated(tmp_path)
    assert "\n" not in str(error.value)


def test_a_billion_laughs_are_not_heard(tmp_path: Path) -> None:
    levels = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
    (tmp_path / "Annotations").mkdir()
    path = tmp_path / "Annotations" / "a.xml"
    path.write_text(voc_xml("a.jpg", "&l9;", before=f'<!DOCTYPE a [<!ENTITY l0 "ha">{levels}]>'))
    with at_most(5), pytest.raises(DmcError, match=r"a\.xml: a DTD"):
        open_annotated(tmp_path)


def test_boxes_that_are_not_finite_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "Annotations").mkdir()
    boxes = ["1 1 3 3", "1 1 inf 3", "-inf 1 3 3", "nan 1 3 3", "1 1 3", "1 1 1e39 3"]
    for i, box in enumerate(boxes):
        (tmp_path / "Annotations" / f"{i}.xml").write_text(voc_xml("a.jpg", box=box))
    found = [scene.objects.boxes_M4.tolist() for scene in open_annotated(tmp_path).images]
    assert found == [[[0, 0, 3, 3]], [], [], [], [], [[0, 0, 4, 3]]]
    assert "4 boxes have no area within their image and are left out" in caplog.text


def coco_file(path: Path, **changes: Any) -> Path:
    content: dict[str, Any] = {
        "images": [{"id": 1, "file_name": "a.png", "width": 4, "height": 4}],
        "annotations": [{"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 2, 2]}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    path.write_text(json.dumps(content | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": [{"id": 0, "file_name": 5}]}, r"images\.0\.file_name: Input should be a valid string"),
        ({"images": [{"id": [], "file_name": "a"}]}, r"images\.0\.id: Input should be a valid integer"),
        ({"images": [{"id": 0, "file_name": "a", "width": 1e300}]}, r"images\.0\.width: .+"),
        ({"images": [{"id": 0, "file_name": "a", "height": 2**21}]}, r"images\.0\.height: Input should be"),
        ({"images": ["a"]}, r"images\.0: Input should be"),
        ({"annotations": [[[]]]}, r"annotations\.0: Input should be"),
        ({"annotations": [{"image_id": 0, "category_id": 1, "bbox": "1234"}]}, r"annotations\.0\.bbox: Input should"),
        ({"annotations": [{"image_id": 0, "category_id": None, "bbox": [0, 0, 1, 1]}]}, r"annotations\.0\.category_id"),
        ({"categories": [{"id": 1, "name": {}}]}, r"categories\.0\.name: Input should be a valid string"),
        ({"categories": [{"id": 1, "name": "a\nb"}]}, r"the class name 'a\\nb' has control characters"),
    ],
)
def test_a_coco_file_of_odd_types(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    images = [{"id": 0, "file_name": "a.png", "width": 4, "height": 4}]
    (tmp_path / "a.png").write_bytes(png())
    path = coco_file(tmp_path / "a.json", **{"images": images} | changes)
    with pytest.raises(DmcError, match=words) as error:
        open_annotated(path)
    assert "a.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["[" * 10**6, '{"images": ' + "[" * 10**6, '{"a":' * 10**5, "\0", "NaN", '"\\ud800"'])
def test_deep_and_broken_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with at_most(10), pytest.raises(DmcError, match=r"a\.json is not a COCO annotation file: .+") as error:
        open_annotated(tmp_path / "a.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [b"\xff", b"a\nb", b"\x1b[31m", b"a\x7f", "a\u2028b".encode()])
def test_a_class_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path, name: bytes) -> None:
    for each in (b"a", name):
        write_images(tmp_path / os.fsdecode(each), 1)
    with pytest.raises(DmcError, match=r"the class name .* has control characters or is not UTF-8; rename it") as error:
        open_labeled(tmp_path)
    assert "\n" not in str(error.value)
    str(error.value).encode()


def test_class_names_of_all_languages_are_welcome(tmp_path: Path) -> None:
    names = ("Käfer", "نیم\u200cفاصله", "犬", "👩\u200d🔬", "a b")
    for name in names:
        write_images(tmp_path / name, 1)
    assert set(open_labeled(tmp_path).classes) == set(names)


def test_image_files_may_have_any_name(tmp_path: Path) -> None:
    write_images(tmp_path, 3)
    odd = tmp_path / os.fsdecode(b"\xff\xfe\n.png")
    odd.write_bytes(png())
    source = open_images(tmp_path)
    assert open_loader(source, CenterCrop(4)).count == 4
    stream = StreamLoader(source, CenterCrop(4))
    assert sum(len(batch.labels_N) for batch, _ in zip(stream.batches(0, 2), range(4), strict=False)) == 8
    odd.write_bytes(b"broken")
    assert reasons(source).count("it is not an image") == 1


def test_below_follows_a_folder_that_is_a_link_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert Below(tmp_path / "link")("a.png") == tmp_path / "link" / "a.png"
    assert isinstance(Below(tmp_path / "link")("../a.png"), Refused)


def test_hub_names_in_tables_are_those_of_the_hub(tmp_path: Path) -> None:
    """The format in which `write_table` writes class names is the one that `datasets` itself writes."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    theirs = json.loads(features.arrow_schema.metadata[b"huggingface"])
    write_table(tmp_path / "a.parquet", [0, 1], ["a", "b"])
    assert json.loads(pq.read_schema(tmp_path / "a.parquet").metadata[b"huggingface"]) == theirs
