"""transformers' image processors: find the preprocessing that does the same, and write one.

There are dozens of classes of processors, with settings that mean different things in each. So a processor is tried
out: what it makes of a black, a white and a colourful image tells what it does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dmc.data.decode import CenterCrop
from dmc.data.detection_batch import LONGEST
from dmc.data.fitting import Fit
from dmc.data.preprocess import CropMode, Interpolation, Preprocessing
from dmc.device import per_channel
from dmc.documents import AnyObject, read_json
from dmc.errors import DmcError, first_line
from dmc.model_config import Side

FILE = "preprocessor_config.json"
FILTERS: dict[int, Interpolation] = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # by Pillow's numbers
Process = Callable[[Image.Image], Tensor]
log = logging.getLogger("dmc")


class ProcessorConfig(AnyObject):
    """preprocessor_config.json: what takes time and memory is bounded."""

    size: Side | dict[str, Side] | None = None
    crop_size: Side | dict[str, Side] | None = None
    crop_pct: float | None = None
    resample: int = 2


def preprocessing_of(folder: Path, name: str) -> Preprocessing:
    """Find the preprocessing that does what a folder's image processor does; refuse a processor that does more."""
    if not (folder / FILE).exists():
        raise DmcError(f"{name} has no {FILE}: save its image processor beside it, which says what it wants to see")
    told = read_json(folder / FILE, ProcessorConfig)
    process = _processor(folder, name)
    low_3HW, high_3HW = (process(Image.new("RGB", (32, 32), colour)) for colour in ("black", "white"))
    size, width = low_3HW.shape[1:]
    if size != width:
        raise DmcError(f"{name} sees images of {size}x{width} pixels, and dmc's are square")
    interpolation = FILTERS.get(told.resample, "bicubic")
    if told.resample not in FILTERS:
        log.warning(f"{name}: dmc has not the filter by which it resizes images, and takes {interpolation} instead")
    mean, std = _normalisation(low_3HW, high_3HW, name)
    tried = [Preprocessing(size, mean, std, interpolation, *crop) for crop in _crops(told, size)]
    picture = _picture(size)
    wanted_3HW = process(picture)
    differences = [_difference(wanted_3HW, one, picture) for one in tried]
    least = min(differences)
    if not least <= 1.5 + 128 / size:  # of 255: rounded values, and a picture that is moved by half a pixel
        raise DmcError(
            f"{name}: its image processor does more than resize, crop and normalise, so dmc cannot show it images as "
            f"it wants them (pixels would differ by {least:.0f} of 255 on average)"
        )
    return tried[differences.index(least)]


def detector_preprocessing_of(folder: Path, name: str) -> tuple[Preprocessing, Fit]:
    """Find what a folder's image processor does for a detector, by what becomes of a square and of a wide image.

    It stretches them to one shape, fits the longer side (and may pad the rest), or resizes the shorter side.
    """
    if not (folder / FILE).exists():
        raise DmcError(f"{name} has no {FILE}: save its image processor beside it, which says what it wants to see")
    told = read_json(folder / FILE, ProcessorConfig)
    process = _processor(folder, name)
    shown: dict[int, tuple[int, int]] = {}  # height and width of what there is of the image, by its width
    for width in (32, 48):
        low_3HW, high_3HW = (process(Image.new("RGB", (width, 32), colour)) for colour in ("black", "white"))
        corner = slice(None), slice(1), slice(1)  # there may be padding elsewhere, which is neither black nor white
        mean, std = _normalisation(low_3HW[corner], high_3HW[corner], name)
        inside_HW = (high_3HW > low_3HW).all(dim=0)
        shown[width] = int(inside_HW.any(dim=1).sum()), int(inside_HW.any(dim=0).sum())
    side, (height, width) = max(shown[32]), shown[48]
    fit: Fit = "stretch" if height == width else "letterbox" if abs(width - side) <= 1 else "frame"
    size = min(height, width) if fit == "frame" else side
    return Preprocessing(size, mean, std, FILTERS.get(told.resample, "bicubic")), fit


def _processor(folder: Path, name: str) -> Process:
    """Make the processor, which is a function of an image."""
    from transformers import AutoImageProcessor

    def process(image: Image.Image) -> Tensor:
        with blaming(f"{name}: its image processor cannot be used"):
            pixels_N3HW: Tensor = processor(image, return_tensors="pt")["pixel_values"]
            if pixels_N3HW.ndim != 4 or pixels_N3HW.shape[:2] != (1, 3):
                raise ValueError(f"it makes {tuple(pixels_N3HW.shape)} of an image")
            return pixels_N3HW[0].float()

    with blaming(f"{name}: its image processor cannot be used"):
        processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return process


@contextmanager
def blaming(complaint: str) -> Iterator[None]:
    """Turn anything that transformers raises into a one-line error, and let it neither log nor show its progress."""
    from transformers.utils import logging as theirs

    shown, verbosity = theirs.is_progress_bar_enabled(), theirs.get_verbosity()
    theirs.disable_progress_bar()
    theirs.set_verbosity_error()
    try:
        yield
    except Exception as error:  # whatever a configuration makes it raise
        raise DmcError(f"{complaint}: {type(error).__name__}: {first_line(error)}") from None
    finally:
        theirs.set_verbosity(verbosity)
        if shown:
            theirs.enable_progress_bar()


def _normalisation(low_3HW: Tensor, high_3HW: Tensor, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Find mean and std from what becomes of black and of white."""
    low_3, high_3 = (pixels_3HW.double().mean(dim=(1, 2)) for pixels_3HW in (low_3HW, high_3HW))
    if not (high_3 > low_3).all():
        raise DmcError(f"{name}: its image processor does not tell white from black")
    std_3 = 1 / (high_3 - low_3)
    return tuple(round(v, 6) for v in (-low_3 * std_3).tolist()), tuple(round(v, 6) for v in std_3.tolist())


def _crops(told: ProcessorConfig, size: int) -> list[tuple[float, CropMode]]:
    """Give the ways of cropping that the settings may mean."""
    resized = [told.size] if isinstance(told.size, int) else (told.size or {}).values()
    shares = dict.fromkeys([1.0, *(size / side for side in resized), told.crop_pct or 1.0])
    modes: tuple[CropMode, ...] = ("center", "squash")
    return [(share, mode) for share in shares if 0 < share <= 1 for mode in modes]


def _picture(size: int) -> Image.Image:
    """Draw a smooth picture, much wider than high, in which every place has another colour."""
    across, down = np.linspace(0, 255, 3 * size), np.linspace(0, 255, size)
    red, green = np.meshgrid(across, down)
    return Image.fromarray(np.stack([red, green, 255 - (red + green) / 2], axis=2).round().astype(np.uint8))


def _difference(wanted_3HW: Tensor, tried: Preprocessing, picture: Image.Image) -> float:
    """Give the mean difference of pixels between what a processor and a preprocessing make of a picture, of 255."""
    shaped_3HW = CenterCrop(tried.size, tried.interpolation, tried.crop_pct, tried.crop_mode)(picture)
    difference_3HW = (tried(shaped_3HW[None])[0] - wanted_3HW).abs() * per_channel(tried.std, torch.device("cpu"))[0]
    return 255 * float(difference_3HW.mean())


def as_detector_processor(preprocessing: Preprocessing, fit: Fit) -> dict[str, Any]:
    """Write what a detector sees as the settings of DETR's image processor."""
    side = preprocessing.size
    sizes = {
        "stretch": {"height": side, "width": side},
        "letterbox": {"max_height": side, "max_width": side},
        "frame": {"shortest_edge": side, "longest_edge": round(side * LONGEST)},
    }
    return {
        "image_processor_type": "DetrImageProcessor",
        "size": sizes[fit],
        "do_pad": fit == "letterbox",
        "pad_size": {"height": side, "width": side} if fit == "letterbox" else None,
        **_resized_and_normalised(preprocessing),
    }


def as_processor(preprocessing: Preprocessing) -> dict[str, Any]:
    """Write a preprocessing as the settings of CLIP's image processor, which takes its parts in the same order."""
    p = preprocessing
    resized = round(p.size / p.crop_pct)
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "size": {"height": resized, "width": resized} if p.crop_mode == "squash" else {"shortest_edge": resized},
        "do_center_crop": True,
        "crop_size": {"height": p.size, "width": p.size},
        **_resized_and_normalised(p),
    }


def _resized_and_normalised(preprocessing: Preprocessing) -> dict[str, Any]:
    """Give the settings that all processors have."""
    return {
        "do_resize": True,
        "resample": next(number for number, name in FILTERS.items() if name == preprocessing.interpolation),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
