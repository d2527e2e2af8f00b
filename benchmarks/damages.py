"""Ways to damage a file, each in place and by chance; which of them suit a file depends on what it holds."""

from __future__ import annotations

import io
import json
import os
import random
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Damage = Callable[[Path, random.Random], None]
NEST = 100_000
SECRET = "secret-of-the-user"  # in the name of a file that no command names
ODD: tuple[Any, ...] = (None, True, -1, 0, 2**70, 1e300, "", "x\ny", "../" + SECRET, [], {}, [0, 0], [-1, 0], {"a": 1})


def write_table(path: Path, cells: list[dict[str, Any]]) -> None:
    """Write a table of images in the hub's format, the first half of class a, the others of class b."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    labels = [int(2 * i >= len(cells)) for i in range(len(cells))]
    # Not by datasets, which opens the paths that cells name.
    pq.write_table(pa.Table.from_pydict({"image": cells, "label": labels}, features.arrow_schema), path)


def write_tar(path: Path, count: int, odd: tarfile.TarInfo | None = None) -> None:
    """Write so many images, and perhaps an odd member before the last of them."""
    content = io.BytesIO()
    Image.new("RGB", (20, 20), "#406080").save(content, "PNG")
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w:") as tar:
        for i in range(count):
            if odd and i == count - 1:
                tar.addfile(odd, Zeros(odd.size) if odd.isreg() else None)
            info = tarfile.TarInfo(f"{i}.png")
            info.size = len(content.getvalue())
            tar.addfile(info, io.BytesIO(content.getvalue()))


def outside(path: Path, draw: random.Random) -> str:
    """Name a file that lies outside of what the user named."""
    up = next(parent for parent in path.parents if (parent / f"{SECRET}.png").exists())
    return draw.choice((str(up / f"{SECRET}.png"), os.path.relpath(up / f"{SECRET}.png", path.parent)))


def flipped(path: Path, draw: random.Random) -> None:
    """Flip one to eight bits."""
    content = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 8)):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def cut_off(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.choice((0, 1, draw.randrange(len(content)), len(content) - 1))])


def random_bytes(path: Path, draw: random.Random) -> None:
    path.write_bytes(draw.randbytes(draw.choice((1, 100, 10_000))))


def pipe(path: Path, draw: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def a_folder(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def linked_away(path: Path, draw: random.Random) -> None:
    """Put a link in the place of the file: to an endless device, a file of the system, itself, or nothing."""
    path.unlink()
    path.symlink_to(draw.choice(("/dev/zero", "/etc/hostname", path.name, "../../nowhere", "/")))


ANY: tuple[Damage, ...] = (flipped, flipped, cut_off, random_bytes, pipe, linked_away, a_folder)


def places_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the paths of all values in JSON content."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, part in inner for place in places_in(part, (*at, key)))]


def replaced(value: Any, place: tuple[Any, ...], odd: Any) -> Any:
    if not place:
        return odd
    target = value
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = odd
    return value


def odd_value(text: str, draw: random.Random) -> str:
    """Change a value somewhere in a JSON text, or leave it out."""
    value = json.loads(text)
    place = draw.choice(places_in(value)) if draw.random() < 0.8 else ()
    if place and isinstance(place[-1], str) and draw.random() < 0.2:
        target = value
        for key in place[:-1]:
            target = target[key]
        del target[place[-1]]
        return json.dumps(value)
    return json.dumps(replaced(value, place, draw.choice(ODD)))


def other_types(path: Path, draw: random.Random) -> None:
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = draw.randrange(len(lines))
    lines[number] = odd_value(lines[number], draw)
    path.write_text("\n".join(lines) + "\n")


def nested(path: Path, draw: random.Random) -> None:
    path.write_text(draw.choice(("[" * NEST + "]" * NEST, '{"a":' * NEST + "1" + "}" * NEST, "[" * NEST)))


def odd_header(path: Path, draw: random.Random) -> None:
    """Change the JSON header of safetensors, and its length with it."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = odd_value(content[8:end].decode(), draw).encode()
    length = len(header) if draw.random() < 0.8 else draw.choice((0, 2**40, 2**63))
    path.write_bytes(length.to_bytes(8, "little") + header + content[end:])


def odd_state(path: Path, draw: random.Random) -> None:
    """Save a checkpoint again, with a part missing or of another type."""
    import torch

    state = torch.load(path, weights_only=True)
    part = draw.choice([*state, "position"])
    inner = state[part]
    odd = draw.choice((*ODD, torch.zeros(3), torch.zeros(2, dtype=torch.int8), "absent", "inner", "inner", "inner"))
    if odd == "absent":
        del state[part]
    elif odd == "inner" and isinstance(inner, dict) and inner:
        inner[draw.choice(list(inner))] = draw.choice((*ODD, torch.zeros(3), torch.zeros(1).to_sparse()))
    else:
        state[part] = odd
    torch.save(draw.choice((state, state, state, [state], odd)), path)


def odd_array(path: Path, draw: random.Random) -> None:
    arrays = (np.zeros(3), np.zeros((3, 3), "U3"), np.full((4, 4), np.nan), np.zeros((0, 0), np.int64), np.zeros(()))
    np.save(path, draw.choice((*arrays, np.full((6, 6), -1), np.array([{"a": 1}], dtype=object))), allow_pickle=True)


def odd_arrays(path: Path, draw: random.Random) -> None:
    images, labels = np.zeros((32, 16, 16, 3), np.uint8), np.arange(32) % 2
    odd = draw.choice(
        (
            {"images": images.astype(np.float64), "labels": labels},
            {"images": images[..., 0], "labels": labels},
            {"images": images[:, :0], "labels": labels},
            {"images": np.zeros((0, 16, 16, 3), np.uint8), "labels": labels},
            {"images": images, "labels": labels[:5], "classes": np.array(["a", "b"])},
            {"images": images, "labels": labels - 1, "classes": np.array(["a", "b"])},
            {"images": images, "labels": labels + 0.5, "classes": np.array(["a", "b"])},
            {"images": images, "labels": labels, "classes": np.array(5)},
            {"images": images, "labels": labels, "classes": np.array(["a", "a"])},
            {"images": images, "labels": labels[:, None], "classes": np.array(["a", "b"])},
            {"images": images, "labels": np.array([{}] * 32), "classes": np.array(["a", "b"])},
            {"images": np.array("text"), "labels": labels},
            {"labels": labels},
        )
    )
    np.savez(path, **odd)


def odd_table(path: Path, draw: random.Random) -> None:
    """Write a table with other columns, or with cells that name files elsewhere."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    where: tuple[str, ...] = (outside(path, draw), "http://127.0.0.1:9/x.png", "pipe.png", "/dev/zero", "s3://bucket/x")
    where += (f"file://{outside(path, draw)}", "zip://x.png::http://127.0.0.1:9/x.zip", "", "x\0y", "x\ny.png")
    if draw.random() < 0.6:
        if not (path.parent / "pipe.png").exists():
            os.mkfifo(path.parent / "pipe.png")
        write_table(path, [{"bytes": None, "path": draw.choice(where)}] * 8)
        return
    columns: tuple[dict[str, list[Any]], ...] = (
        {"image": [1, 2, 3], "label": [0, 1, 0]},
        {"image": [b"x", None, b""], "label": [0, 1, 5]},
        {"image": [b"x"] * 3, "label": [[0], [1], [2]]},
        {"image": [b"x"] * 3, "label": [0.5, float("nan"), 1e300]},
        {"image": [{"bytes": "text", "path": 3}] * 3, "label": ["a", "b", "a"]},
        {"image": [[b"x"]] * 3, "label": ["a", None, "b\n"]},
        {"image": [b"x"] * 3, "label": [{"deep": {"deep": 1}}] * 3},
        {"text": ["x", "y"]},
        {},
    )
    table = pa.table(draw.choice(columns))
    if draw.random() < 0.3:
        table = table.replace_schema_metadata({"huggingface": odd_value('{"info": {"features": {"image": {}}}}', draw)})
    pq.write_table(table, path)


def odd_members(path: Path, draw: random.Random) -> None:
    """Add a member that is no plain image: a link, a pipe, a device, a bomb, a name that leads elsewhere."""
    name = draw.choice(("odd.png", outside(path, draw), "/etc/odd.png", "x\n.png", "y" * 5000 + ".png"))
    odd = tarfile.TarInfo(name)
    odd.type = draw.choice((tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE))
    odd.linkname = draw.choice((outside(path, draw), "/dev/zero", "odd.png", "0.png"))
    odd.size = 0 if not odd.isreg() else 3 * 2**30 if path.suffix == ".gz" else 2**20  # in a gz, a few megabytes
    write_tar(path, 40, odd)


class Zeros(io.RawIOBase):
    """So many zeros."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        given = min(size if size >= 0 else self.left, self.left)
        self.left -= given
        return bytes(given)


def odd_xml(path: Path, draw: random.Random) -> None:
    text = path.read_text()
    tag = draw.choice(re.findall(r"<(\w+)>[^<]*</\1>", text))
    odd = draw.choice(("", "nan", "-5", "1e400", "x", outside(path, draw), "/dev/zero", "9" * 400, "&a;", "\n"))
    choices = (
        re.sub(rf"<{tag}>[^<]*</{tag}>", f"<{tag}>{odd}</{tag}>", text),
        re.sub(rf"<{tag}>[^<]*</{tag}>", "", text),
        "<annotation>" + "<object>" * NEST + "</object>" * NEST + "</annotation>",
        '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">'
        + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True))
        + "]><annotation><filename>&i;</filename></annotation>",
        f'<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/hostname">]><annotation>{text[12:].replace("3.png", "&a;")}',
    )
    path.write_text(draw.choice((choices[0], choices[0], *choices)))


def odd_text(path: Path, draw: random.Random) -> None:
    lines = ("\0", "\x1b[31mred", outside(path, draw), "/dev/zero", "a", "", "x" * 10**6, "a\tb", "nowhere", "-1")
    if draw.random() < 0.2:
        path.write_bytes(b"\xff\xfe\xfd\n")
    else:
        path.write_text("".join(f"{draw.choice(lines)}\n" for _ in range(draw.randint(1, 4))))


SPECIAL: dict[str, tuple[Damage, ...]] = {
    "bytes": (),
    "json": (other_types, other_types, other_types, other_types, nested),
    "safetensors": (odd_header, odd_header),
    "torch": (odd_state, odd_state, odd_state),
    "npy": (odd_array, odd_array),
    "npz": (odd_arrays, odd_arrays, odd_arrays),
    "parquet": (odd_table, odd_table, odd_table, odd_table),
    "tar": (odd_members, odd_members),
    "xml": (odd_xml, odd_xml, odd_xml),
    "text": (odd_text, odd_text),
}
