"""Files of strangers: pipes, links, devices and archives."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from dmc.bench.readers import DownsampledImageNet, cifar_binary, mnist
from dmc.classes import read_names
from dmc.data.annotations import open_annotated, read_coco
from dmc.data.decode import CenterCrop, DecodeError, decode
from dmc.data.open import open_images
from dmc.data.pictures import pictures
from dmc.errors import DmcError
from dmc.files import read_bytes, read_text
from tests.conftest import write_images
from tests.data.hostile import at_most, png, reasons


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
