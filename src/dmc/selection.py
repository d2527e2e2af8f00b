"""Choose the auxiliary images that teach most, by what the teachers see in them. Not in the paper.

The names of the chosen images are in the run's folder, so that a resumed run goes on with the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from dmc.data.batch import Batch
from dmc.data.decode import Transform, decoded
from dmc.data.sources import Source
from dmc.device import pick_device
from dmc.documents import Document, read_json
from dmc.errors import DmcError
from dmc.files import digest, write_text
from dmc.processes import is_main, together
from dmc.progress import progress

AT_RANDOM = 0.3  # of the images: what teachers are unsure about is a part of what they know
SELECTED = "selected.json"
SeenIn = Callable[[Batch], Tensor]  # tells how much of each class the teachers see in each image, N x T


class Selected(Document):
    """selected.json: the names of the images that were chosen, and their checksum."""

    names: list[str]
    checksum: str


def most_telling(seen_NT: Tensor, count: int, seed: int) -> list[int]:
    """Choose the images that show most of some class, as many for each class, and a share of the others at random."""
    places_NT = seen_NT.argsort(dim=0, descending=True, stable=True).argsort(dim=0)  # of the images, class by class
    order_N = places_NT.amin(dim=1).argsort(stable=True)
    telling = count - round(AT_RANDOM * count)
    others = order_N[telling:]
    drawn = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[: count - telling]
    return sorted([*order_N[:telling].tolist(), *others[drawn].tolist()])


def select(
    images: Source, count: int, transform: Transform, seen_in: SeenIn, at_once: int, seed: int, folder: Path
) -> Source:
    """Give `count` of the images: those that the folder names, or else those that teach most, which it then names.

    The teachers are asked about `at_once` images at a time.
    """
    images, path = images.with_stable_names(), folder / SELECTED
    if is_main() and not path.exists():
        names = _asked(images, count, transform, seen_in, at_once, seed)
        write_text(path, json.dumps({"checksum": digest(names), "names": names}, indent=0) + "\n")
    chosen = frozenset(together().agreed(_read(path) if is_main() else []))
    places = {place for place, name in enumerate(images.names()) if name in chosen}
    if len(places) != count:
        raise DmcError(f"{path} does not name {count:,} images of {images.name}: choose another folder")
    return images.at(places, f"{count:,} selected images of {images.name}")


def _read(path: Path) -> list[str]:
    """Read which images were chosen; refuse a file that was changed, since the student has seen others."""
    found = read_json(path, Selected)
    if digest(found.names) != found.checksum:
        raise DmcError(f"{path} is damaged: its names are not those that were selected; choose another folder")
    return found.names


def _asked(images: Source, count: int, transform: Transform, seen_in: SeenIn, at_once: int, seed: int) -> list[str]:
    """Ask the teachers about all images, and name those that teach most."""
    names: list[str] = []
    seen: list[Tensor] = []
    good = ((record, image) for record, image in decoded(images.records(), transform) if isinstance(image, Tensor))
    with progress(len(images), "selecting images") as bar:
        while framed := list(islice(good, at_once)):
            names += [record.name for record, _ in framed]
            seen.append(seen_in(transform.batch(framed).to(pick_device())).half().cpu())  # many images, many classes
            bar.update(len(framed))
    if len(names) < count:
        raise DmcError(f"only {len(names):,} images of {images.name} can be decoded: select fewer")
    return [names[i] for i in most_telling(torch.cat(seen), count, seed)]
