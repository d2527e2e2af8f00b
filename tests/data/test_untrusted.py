"""Data files from strangers: nothing is opened that the user did not name, and what is wrong is told in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dmc.errors import DmcError
from dmc.files import read_bytes, read_text


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
        with pytest.raises(DmcError, match=f"^cannot read .*: {reason}$"):
            read_text(tmp_path / name, limit)
