"""Loaders, which cut images into batches: held in memory if the images fit, streamed if not.

A batch depends on the seed and the step alone: asked for step 1,000, a loader gives the batch that a run from step 0
would see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, nullcontext
from itertools import count, islice

import torch
from torch import Tensor

from dmc.config import NetworkConfig
from dmc.data.batch import Batch
from dmc.data.decode import MOST_SKIPPED, Decoded, Skipped, Transform, decoded
from dmc.data.scratch import Scratch, room
from dmc.data.sources import Record, Source
from dmc.errors import DmcError
from dmc.progress import progress
from dmc.seeds import seed_for

ENOUGH = 1000  # images of a stream to see before judging how many are broken
BATCHES_AHEAD = 2  # of a stream, which are decoded while a step computes
MEMORY = NetworkConfig().memory_bytes  # bytes of pixels that are held at once; all of ImageNet32x32 fits


class ImageLoader(ABC):
    """Images cut into batches.

    A pass over n images has ceil(n / batch size) batches of nearly equal size, so that no batch is ever a single image
    left over (batch norm cannot train on one).
    """

    skipped: Skipped
    count: int  # of images in a pass

    def steps(self, batch_size: int) -> int:
        """Give the number of batches in a pass."""
        return -(-self.count // batch_size)

    def bounds(self, step: int, batch_size: int) -> tuple[int, int]:
        """Give where the batch of a step begins and ends within its pass."""
        steps = self.steps(batch_size)
        i = step % steps
        return i * self.count // steps, (i + 1) * self.count // steps

    def shuffled(self, seed: int, batch_size: int, first_step: int) -> Iterator[Tensor]:
        """Give the indices of each batch's images, without end, for loaders that can reach any image."""
        step, steps = first_step, self.steps(batch_size)
        while True:
            generator = torch.Generator().manual_seed(seed_for(seed, "order", step // steps))
            order_N = torch.randperm(self.count, generator=generator)
            for places in self.arranged(order_N, batch_size, generator)[step % steps :]:
                yield places
                step += 1

    def arranged(self, order_N: Tensor, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """Cut one pass, whose images are in this order, into batches."""
        return [order_N[slice(*self.bounds(i, batch_size))] for i in range(self.steps(batch_size))]

    @abstractmethod
    def batches(self, seed: int, batch_size: int, first_step: int = 0) -> Iterator[Batch]:
        """Give shuffled batches without end, pass after pass, from `first_step` on."""

    @abstractmethod
    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Give the batches of one pass, in stored order."""


class TensorLoader(ImageLoader):
    """Images of one shape, held as one uint8 tensor."""

    def __init__(self, images_N3HW: Tensor, labels_N: Tensor, skipped: Skipped) -> None:
        self.images_N3HW, self.labels_N, self.skipped = images_N3HW, labels_N, skipped
        self.count = len(images_N3HW)

    def batches(self, seed: int, batch_size: int, first_step: int = 0) -> Iterator[Batch]:
        for places in self.shuffled(seed, batch_size, first_step):
            yield Batch(self.images_N3HW[places], self.labels_N[places])

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        for step in range(self.steps(batch_size)):
            part = slice(*self.bounds(step, batch_size))
            yield Batch(self.images_N3HW[part], self.labels_N[part])


class ListLoader(ImageLoader):
    """Images of different shapes, held as a list. Tall and wide ones are batched apart, which saves padding."""

    def __init__(self, framed: list[tuple[Record, Tensor]], transform: Transform, skipped: Skipped) -> None:
        self.framed, self.transform, self.skipped = framed, transform, skipped
        self.count = len(framed)
        self.tall_N = torch.tensor([image.shape[1] > image.shape[2] for _, image in framed])

    def batches(self, seed: int, batch_size: int, first_step: int = 0) -> Iterator[Batch]:
        for places in self.shuffled(seed, batch_size, first_step):
            yield self.transform.batch([self.framed[i] for i in places.tolist()])

    def arranged(self, order_N: Tensor, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """Cut one pass into batches of tall or of wide images, and shuffle the batches."""
        by_shape_N = order_N[self.tall_N[order_N].int().argsort(stable=True)]
        batches = super().arranged(by_shape_N, batch_size, generator)
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        for step in range(self.steps(batch_size)):
            yield self.transform.batch(self.framed[slice(*self.bounds(step, batch_size))])


class StreamLoader(ImageLoader):
    """Images that are decoded when they are needed and then discarded.

    A batch is a fixed stretch of the shuffled records. An image that cannot be decoded is missing from its batch, and
    none takes its place, so that a resumed run can find its position by counting records.
    """

    def __init__(
        self, source: Source, transform: Transform, workers: int | None = None, share: tuple[int, int] = (0, 1)
    ) -> None:
        """`share` is this process's number and how many there are; each has its own part of every batch.

        `workers` threads decode. Neither changes the order of the images.
        """
        self.source, self.transform, self.workers, self.share = source, transform, workers, share
        self.skipped = Skipped(source.name)
        self.count = len(source)

    def own_bounds(self, step: int, batch_size: int) -> tuple[int, int]:
        """Give where this process's part of a batch begins and ends within the pass."""
        rank, processes = self.share
        start, stop = self.bounds(step, batch_size)
        first, end = (start + (stop - start) * r // processes for r in (rank, rank + 1))
        if first == end:
            raise DmcError(f"a batch of {stop - start} images is too small for {processes} processes")
        return first, end

    def _own(self, seed: int, batch_size: int, first_step: int) -> Iterator[Record]:
        """Give this process's records of each step, without end; the others are passed over undecoded."""
        steps = self.steps(batch_size)
        for number in count(first_step // steps):
            records = self.source.records(seed_for(seed, "order", number))
            at = 0
            for step in range(max(first_step, number * steps), (number + 1) * steps):
                start, stop = self.own_bounds(step, batch_size)
                yield from islice(records, start - at, stop - at)
                at = stop

    def _cut(self, images: Iterator[Decoded], batch_size: int, first_step: int) -> Iterator[Batch]:
        """Cut this process's images into batches; stop if too many are broken."""
        seen, broken = 0, 0
        for step in count(first_step):
            start, stop = self.own_bounds(step, batch_size)
            taken = list(islice(images, stop - start))
            seen += len(taken)
            for record, image in taken:
                if image is None:
                    self.skipped.add(record.name)
                    broken += 1
            if seen >= min(ENOUGH, self.count // self.share[1]):
                self.skipped.check(broken, seen)
            good = [(record, image) for record, image in taken if image is not None]
            if not good:  # leaving the batch out would shift every later step
                raise DmcError(f"none of {len(taken)} images in a row can be decoded, from {taken[0][0].name} on")
            yield self.transform.batch(good)

    def batches(self, seed: int, batch_size: int, first_step: int = 0) -> Iterator[Batch]:
        most = room(self.share[1]) if self.transform.one_shape else 0
        keeping = Scratch(self.count, self.transform.size, most) if most else nullcontext()
        with keeping as scratch:
            records = self._own(seed, batch_size, first_step)
            ahead = BATCHES_AHEAD * batch_size // self.share[1]
            with closing(decoded(records, self.transform, self.workers, scratch, ahead)) as images:
                yield from self._cut(images, batch_size, first_step)

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        good = _decodable(self.source, self.transform, self.skipped, self.workers)
        for step in range(self.steps(batch_size)):
            start, stop = self.bounds(step, batch_size)
            framed = list(islice(good, stop - start))
            if framed:
                yield self.transform.batch(framed)


def fits(source: Source, transform: Transform, memory: int) -> bool:
    """Tell whether all images of a source, once resized, fit into `memory` bytes."""
    return len(source) * transform.bytes_per_image <= memory


def open_loader(source: Source, transform: Transform, memory: int = MEMORY, workers: int | None = None) -> ImageLoader:
    """Open a loader that holds the images if they fit into `memory` bytes, and streams them if not."""
    if fits(source, transform, memory):
        return held_loader(source, transform)
    return StreamLoader(source, transform, workers)


def held_loader(source: Source, transform: Transform, most_skipped: float = MOST_SKIPPED) -> ImageLoader:
    """Read all images into memory; refuse a source of which more than a share of `most_skipped` is broken."""
    skipped = Skipped(source.name, most_skipped)
    return (
        held_as_tensor(source, transform, skipped) if transform.one_shape else held_as_list(source, transform, skipped)
    )


def held_as_tensor(source: Source, transform: Transform, skipped: Skipped) -> TensorLoader:
    """Read images that the transform gives one shape into a tensor."""
    images_N3HW = torch.empty((len(source), 3, transform.size, transform.size), dtype=torch.uint8)
    labels: list[int] = []
    with progress(len(source), "reading images") as bar:
        for record, image in _decodable(source, transform, skipped):
            images_N3HW[len(labels)] = image
            labels.append(record.label)
            bar.update()
    return TensorLoader(images_N3HW[: len(labels)], torch.tensor(labels), skipped)


def held_as_list(source: Source, transform: Transform, skipped: Skipped) -> ListLoader:
    """Read images of different shapes into a list."""
    framed = []
    with progress(len(source), "reading images") as bar:
        for record, image in _decodable(source, transform, skipped):
            framed.append((record._replace(image=b""), image))
            bar.update()
    return ListLoader(framed, transform, skipped)


def _decodable(
    source: Source, transform: Transform, skipped: Skipped, workers: int | None = None
) -> Iterator[tuple[Record, Tensor]]:
    """Give the images that can be decoded. Whether too many cannot is judged at the end: they may all lie together."""
    good, broken = set(), set()
    for record, image in decoded(source.records(), transform, workers):
        if image is None:
            skipped.add(record.name)
            broken.add(record.label)
        else:
            good.add(record.label)
            yield record, image
    skipped.check(len(skipped), len(source))
    for label in broken - good if source.classes else ():
        raise DmcError(f"no image of class {source.classes[label]!r} in {source.name} can be decoded")
