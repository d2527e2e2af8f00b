"""A classifier: any module that maps an image to one logit for each class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from dmc.config import Output
from dmc.data.decode import CenterCrop
from dmc.data.preprocess import Preprocessing
from dmc.device import index
from dmc.errors import DmcError, first_line
from dmc.imagenet import distinct, imagenet_names
from dmc.models.architectures import CLASSIFIERS
from dmc.models.model import Model


class Specialist(Model):
    """A classifier from any module that maps images to logits: `Specialist(net, ["cat", "dog"], Preprocessing(64))`.

    `output` says what the logits mean: `softmax` scores compete, `sigmoid` scores are independent log-odds.
    `arch` is the name that `dmc.models.create` builds the module from, which may be `net.py:make_network`; a model
    without it cannot be saved.
    """

    pipeline_tag, singular, library_name = "image-classification", "classifier", "timm"
    architectures = CLASSIFIERS

    @classmethod
    def untrained(
        cls,
        arch: str,
        names: Iterable[str],
        preprocessing: Preprocessing | None = None,
        output: Output = "softmax",
        seed: int = 0,
        weights: str | None = None,
    ) -> Self:
        """Make a classifier; `weights` are `imagenet`, a file's, or None: random, as a function of the seed."""
        return cls.built(arch, names, preprocessing, output, seed, weights)

    @classmethod
    def labels(cls, known: Sequence[str], given: Sequence[str] | None, width: int, name: str) -> Sequence[str]:
        """Choose the names that the user gave, those that came with the network, or ImageNet's."""
        if not given and not known and width != 1000:
            raise DmcError(f"{name} says nothing about its {width} classes: give classes=FILE")
        return given or distinct(known or imagenet_names())

    def check_head(self) -> None:
        """Pass a blank image through the network, which must accept its size and give one logit for each class."""
        size = self.preprocessing.size
        try:
            with torch.no_grad():
                logits = logits_in(self.module(self.blank()))
        except Exception as error:  # whatever a foreign module raises
            raise DmcError(f"{self.name} does not accept {size}x{size} images: {first_line(error)}") from None
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise DmcError(f"{self.name} does not map images to a vector of logits for each image")
        if logits.shape[1] != self.classes.width:
            raise DmcError(
                f"{self.name} has {self.classes.width} class names but its head has {logits.shape[1]} outputs"
            )

    @property
    def transform(self) -> CenterCrop:
        """How an image is resized and cropped in evaluation."""
        p = self.preprocessing
        return CenterCrop(p.size, p.interpolation, p.crop_pct, p.crop_mode)

    def blank(self) -> Tensor:
        size = self.preprocessing.size
        return self.preprocessing(torch.zeros((1, 3, size, size), dtype=torch.uint8, device=self.device))

    def logits(self, images_N3HW: Tensor) -> Tensor:
        """Give one logit for each class name, for uint8 RGB images of any square size."""
        return self.answered(self.preprocessing(images_N3HW.to(self.device)))

    def answered(self, seen_NCHW: Tensor) -> Tensor:
        """Give one logit for each class name, for images as the network sees them."""
        found = logits_in(self.module(seen_NCHW))
        if not isinstance(found, Tensor):
            raise DmcError(f"{self.name} gives a {type(found).__name__}, not a tensor of logits")
        logits_NK = found.float()
        return logits_NK if self.classes.whole else logits_NK[:, index(self.classes.columns, logits_NK.device)]

    def features(self, images_N3HW: Tensor) -> Tensor:
        """Give what the network feeds to its classification layer; it must have timm's interface."""
        if not hasattr(self.module, "forward_head"):
            raise DmcError(f"{self.arch or self.name} does not say what its features are; use a timm architecture")
        seen = self.preprocessing(images_N3HW.to(self.device))
        features_ND: Tensor = self.module.forward_head(self.module.forward_features(seen), pre_logits=True)  # type: ignore[operator]
        return features_ND

    def probabilities(self, images_N3HW: Tensor) -> Tensor:
        """Give the probability of each class, for uint8 RGB images of any square size."""
        with torch.no_grad():
            logits_NK = self.logits(images_N3HW)
            self.require_finite(logits_NK)
            return self.activated(logits_NK)

    def activated(self, logits_NK: Tensor) -> Tensor:
        """Turn logits into probabilities."""
        return logits_NK.softmax(dim=1) if self.output == "softmax" else logits_NK.sigmoid()


def logits_in(answer: Any) -> Any:
    """Take the logits out of an answer: Inception and GoogLeNet give more than that in training."""
    return getattr(answer, "logits", answer)
