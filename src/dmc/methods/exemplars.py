"""A budgeted memory of old images, kept among a method's notes: `exemplars.CLASS` is a uint8 tensor, best first."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from dmc.data.loader import open_loader
from dmc.data.readers import ArrayImages
from dmc.data.sources import Source
from dmc.models.specialist import Specialist
from dmc.seeds import seed_for

PREFIX = "exemplars."
BUDGET = 2000  # K, as in iCaRL and in the paper


def of(notes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the exemplars by class, in sorted order: notes that were saved and loaded come in another one."""
    return {key.removeprefix(PREFIX): notes[key] for key in sorted(notes) if key.startswith(PREFIX)}


def as_notes(kept: Mapping[str, Tensor], per_class: int) -> dict[str, Tensor]:
    """Turn the first `per_class` exemplars of each class into notes."""
    return {f"{PREFIX}{name}": images_M3HW[:per_class] for name, images_M3HW in kept.items()}


def as_source(kept: Mapping[str, Tensor]) -> Source:
    """Turn exemplars into labeled images to train on."""
    images_M3HW = torch.cat(list(kept.values()))
    labels = [label for label, images in enumerate(kept.values()) for _ in images]
    return ArrayImages(images_M3HW.permute(0, 2, 3, 1).contiguous().numpy(), labels, list(kept), "exemplars")


def by_class(data: Source, model: Specialist) -> dict[str, Tensor]:
    """Read all images of each class, at the model's size."""
    batches = list(open_loader(data, model.transform).in_order(256))
    images_N3HW = torch.cat([batch.images_N3HW for batch in batches])
    labels_N = torch.cat([batch.labels_N for batch in batches])
    return {name: images_N3HW[labels_N == label] for label, name in enumerate(data.classes)}


def at_random(images_N3HW: Tensor, count: int, seed: int, name: str) -> Tensor:
    """Choose `count` images of the class `name` at random."""
    generator = torch.Generator().manual_seed(seed_for(seed, "exemplars", name))
    return images_N3HW[torch.randperm(len(images_N3HW), generator=generator)[:count]]


def herded(images_N3HW: Tensor, count: int, model: Specialist) -> Tensor:
    """Choose `count` images by herding, best first."""
    return images_N3HW[herding(unit_features(model, images_N3HW), count)]


def unit_features(model: Specialist, images_N3HW: Tensor) -> Tensor:
    """Give the features of images, scaled to length 1, as iCaRL compares them."""
    model.module.eval()
    with torch.no_grad():
        parts = [F.normalize(model.features(part)).cpu() for part in torch.split(images_N3HW, 256)]
    return torch.cat(parts)


def herding(features_ND: Tensor, count: int) -> list[int]:
    """Choose images by iCaRL's Algorithm 4: each brings the mean of the chosen closest to the mean of all."""
    mean_D = features_ND.mean(dim=0)
    chosen: list[int] = []
    sum_D = torch.zeros_like(mean_D)
    for k in range(1, min(count, len(features_ND)) + 1):
        distance_N = (mean_D - (features_ND + sum_D) / k).norm(dim=1)
        distance_N[chosen] = float("inf")
        chosen.append(int(distance_N.argmin()))
        sum_D += features_ND[chosen[-1]]
    return chosen
