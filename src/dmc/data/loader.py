"""Loaders, which cut images into batches: held in memory if the images fit, streamed if not.

A batch depends on the seed and the step alone: asked for step 1,000, a loader gives the batch that a run from step 0
would see. Of several processes each gets its own share of every batch, and all shares together are the batch that one
process would get.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from itertools import count, groupby, islice

import torch
from torch import Tensor

from dmc.config import NetworkConfig
from dmc.data.batch import Batch
from dmc.data.decode import MOST_SKIPPED, Decoded, DecodeError, Skipped, Transform, decoded
from dmc.data.scratch import Scratch, room
from dmc.data.sources import Record, Source
from dmc.errors import DmcError
from dmc.progress import progress
from dmc.seeds import seed_for

LEAST_ALIKE = 16  # images to make batches of that share a frame
ENOUGH = 1000  # images of a stream to see before judging how many are broken
BATCHES_AHEAD = 2  # of a stream, which are decoded while a step computes
MEMORY = NetworkConfig().memory_bytes  # bytes of pixels that are held at once; all of ImageNet32x32 fits

Share = tuple[int, int]  # of every batch: the process that gets it, and the number of processes
ALONE: Share = (0, 1)


class ImageLoader(ABC):
    """Images cut into batches.

    In training, a pass over n images has ceil(n / batch size) batches of nearly equal size, so that no batch is ever a
    single image left over (batch norm cannot train on one).
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
        """Give the indices of each whole batch's images, without end, for loaders that can reach any image."""
        step, steps = first_step, self.steps(batch_size)
        while True:
            generator = torch.Generator().manual_seed(seed_for(seed, "order", step // steps))
            order_N = torch.randperm(self.count, generator=generator)
            for indices in self.arranged(order_N, batch_size, generator)[step % steps :]:
                yield indices
                step += 1

    def arranged(self, order_N: Tensor, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """Cut one pass, whose images are in this order, into batches."""
        return [order_N[part] for part in even_parts(self.count, batch_size)]

    @abstractmethod
    def batches(self, seed: int, batch_size: int, first_step: int = 0, share: Share = ALONE) -> Iterator[Batch]:
        """Give a process's share of shuffled batches without end, pass after pass, from `first_step` on."""

    @abstractmethod
    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Give the batches of one pass, in stored order."""


class TensorLoader(ImageLoader):
    """Images of one shape, held as one uint8 tensor."""

    def __init__(self, images_N3HW: Tensor, labels_N: Tensor, skipped: Skipped) -> None:
        self.images_N3HW, self.labels_N, self.skipped = images_N3HW, labels_N, skipped
        self.ids_N: Tensor | None = None  # on the CPU, for batches that have to tell them; None: not made yet
        self.count = len(images_N3HW)

    def batches(self, seed: int, batch_size: int, first_step: int = 0, share: Share = ALONE) -> Iterator[Batch]:
        for indices in self.shuffled(seed, batch_size, first_step):
            positions_N = torch.tensor(own_part(len(indices), share))
            own = indices[positions_N]
            ids_N = None if self.ids_N is None else self.ids_N[own]
            own = own.to(self.images_N3HW.device, non_blocking=True)
            parts = self.images_N3HW[own], self.labels_N[own]
            yield Batch(*parts, positions_N=positions_N, whole=len(indices), ids_N=ids_N)

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        for part in even_parts(self.count, batch_size):
            yield Batch(self.images_N3HW[part], self.labels_N[part])


class ListLoader(ImageLoader):
    """Images of different shapes, held as a list. A shuffled batch has images that are padded to the same frame.

    So an image is padded alike in every pass, and little is wasted on padding.
    """

    def __init__(self, framed: list[tuple[Record, Tensor]], transform: Transform, skipped: Skipped) -> None:
        self.framed, self.transform, self.skipped = framed, transform, skipped
        self.count = len(framed)
        frames = common_frames([transform.frame(image) for _, image in framed])
        self.frames = sorted(set(frames))
        self.frame_N = torch.tensor([self.frames.index(frame) for frame in frames])

    def steps(self, batch_size: int) -> int:
        return sum(-(-count // batch_size) for count in self.frame_N.bincount().tolist())

    def batches(self, seed: int, batch_size: int, first_step: int = 0, share: Share = ALONE) -> Iterator[Batch]:
        for indices in self.shuffled(seed, batch_size, first_step):
            positions_N = torch.tensor(own_part(len(indices), share))
            own = [self.framed[i] for i in indices[positions_N].tolist()]
            batch = self.transform.batch(own, self.frames[int(self.frame_N[indices[0]])])
            yield replace(batch, positions_N=positions_N, whole=len(indices))

    def arranged(self, order_N: Tensor, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """Cut one pass into batches of images with the same frame, and shuffle the batches."""
        batches = []
        for i in range(len(self.frames)):
            alike = order_N[self.frame_N[order_N] == i]
            batches += [alike[part] for part in even_parts(len(alike), batch_size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        return by_frame(self.framed, self.transform, batch_size)


class StreamLoader(ImageLoader):
    """Images that are decoded when they are needed and then discarded.

    A batch is a fixed stretch of the shuffled records. An image that cannot be decoded is missing from its batch, and
    none takes its place, so that a resumed run can find its position by counting records.
    """

    def __init__(self, source: Source, transform: Transform, workers: int | None = None) -> None:
        """Let `workers` threads decode. They do not change the order of the images."""
        self.source, self.transform, self.workers = source, transform, workers
        self.skipped = Skipped(source.name)
        self.count = len(source)

    def _own(self, seed: int, batch_size: int, first_step: int, share: Share) -> Iterator[Record]:
        """Give this process's records of each step, without end; the others are passed over undecoded."""
        steps = self.steps(batch_size)
        for number in count(first_step // steps):
            records = self.source.records(seed_for(seed, "order", number))
            at = 0
            for step in range(max(first_step, number * steps), (number + 1) * steps):
                start, stop = self.bounds(step, batch_size)
                part = own_part(stop - start, share)
                yield from islice(records, start + part.start - at, start + part.stop - at)
                at = start + part.stop

    def _cut(self, images: Iterator[Decoded], batch_size: int, first_step: int, share: Share) -> Iterator[Batch]:
        """Cut this process's images into batches; stop if too many are broken."""
        seen, broken = 0, 0
        for step in count(first_step):
            start, stop = self.bounds(step, batch_size)
            part = own_part(stop - start, share)
            taken = list(islice(images, len(part)))
            seen += len(taken)
            for _, image in taken:
                if isinstance(image, DecodeError):
                    self.skipped.add(image)
                    broken += 1
            if seen >= min(ENOUGH, self.count // share[1]):
                self.skipped.check(broken, seen)
            good = [(record, image) for record, image in taken if isinstance(image, Tensor)]
            if not good:  # leaving the batch out would shift every later step
                raise DmcError(f"none of {len(taken)} images in a row can be decoded, from {taken[0][0].name} on")
            positions = [i for i, (_, image) in zip(part, taken, strict=True) if isinstance(image, Tensor)]
            yield replace(self.transform.batch(good), positions_N=torch.tensor(positions), whole=stop - start)

    def batches(self, seed: int, batch_size: int, first_step: int = 0, share: Share = ALONE) -> Iterator[Batch]:
        most = room(share[1]) if self.transform.one_shape else 0
        keeping = Scratch(self.count, self.transform.size, most) if most else nullcontext()
        with keeping as scratch:
            records = self._own(seed, batch_size, first_step, share)
            ahead = BATCHES_AHEAD * batch_size // share[1]
            with closing(decoded(records, self.transform, self.workers, scratch, ahead)) as images:
                yield from self._cut(images, batch_size, first_step, share)

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        good = _decodable(self.source, self.transform, self.skipped, self.workers)
        return by_frame(good, self.transform, batch_size)


def own_part(size: int, share: Share) -> range:
    """Give the positions of a process's share in a whole batch of this size."""
    rank, processes = share
    if size < processes:
        raise DmcError(f"a batch of {size} images is too small for {processes} processes")
    return range(size * rank // processes, size * (rank + 1) // processes)


def by_frame(framed: Iterable[tuple[Record, Tensor]], transform: Transform, batch_size: int) -> Iterator[Batch]:
    """Batch images in their order. Where the frame changes a batch ends.

    Some networks look at padding, and should answer about an image in a batch as they do about it alone.
    """
    for _, alike in groupby(framed, lambda one: transform.frame(one[1])):
        while batch := list(islice(alike, batch_size)):
            yield transform.batch(batch)


def even_parts(count: int, batch_size: int) -> list[slice]:
    """Cut `count` images into as few batches of nearly equal size as possible."""
    steps = -(-count // batch_size)
    return [slice(i * count // steps, (i + 1) * count // steps) for i in range(steps)]


def common_frames(frames: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Give images whose frame is rare a larger one that they share with others, so that no batch has few images."""
    count = Counter(frames)
    merged = {frame: frame for frame in count}
    while len(count) > 1 and min(count.values()) < LEAST_ALIKE:
        rare = min(count, key=lambda frame: (count[frame], frame))
        unions = {(max(rare[0], other[0]), max(rare[1], other[1])): other for other in count if other != rare}
        frame = min(unions, key=lambda union: (union[0] * union[1], union))
        together = {rare, unions[frame]}
        count[frame] = sum(count.pop(one) for one in together)
        merged = {own: frame if last in together else last for own, last in merged.items()}
    return [merged[frame] for frame in frames]


def fits(images: int, transform: Transform, memory: int) -> bool:
    """Tell whether so many images, once resized, fit into `memory` bytes."""
    return images * transform.bytes_per_image <= memory


def open_loader(source: Source, transform: Transform, memory: int = MEMORY, workers: int | None = None) -> ImageLoader:
    """Open a loader that holds the images if they fit into `memory` bytes, and streams them if not."""
    if fits(len(source), transform, memory):
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
        if isinstance(image, DecodeError):
            skipped.add(image)
            broken.add(record.label)
        else:
            good.add(record.label)
            yield record, image
    skipped.check(len(skipped), len(source))
    for label in broken - good if source.classes else ():
        raise DmcError(f"no image of class {source.classes[label]!r} in {source.name} can be decoded")
