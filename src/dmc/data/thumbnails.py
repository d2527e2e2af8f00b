"""Small copies of images, for reports."""

from __future__ import annotations

from base64 import b64decode, b64encode
from io import BytesIO

from PIL import Image
from torch import Tensor

from dmc.data.decode import open_image
from dmc.errors import DmcError
from dmc.exhibits import Picture

SIDE = 96  # pixels, of the longer side at most


def thumbnail(pixels_3HW: Tensor) -> Picture:
    """Make a small JPEG of an image's uint8 pixels."""
    image = Image.fromarray(pixels_3HW.cpu().permute(1, 2, 0).contiguous().numpy())
    image.thumbnail((SIDE, SIDE))
    return encoded(image)


def encoded(image: Image.Image) -> Picture:
    """Encode an image as it is."""
    file = BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=85)
    return Picture(jpeg=b64encode(file.getvalue()).decode(), width=image.width, height=image.height)


def decoded(picture: Picture) -> Image.Image:
    """Decode a picture that was read from a file; refuse one that is not what it claims to be."""
    try:
        image = open_image(BytesIO(b64decode(picture.jpeg)))
        if image.size == (picture.width, picture.height):  # before its pixels take memory
            return image.convert("RGB")
    except Exception:  # broken files make PIL raise anything
        pass
    raise DmcError("has a picture that is no image of its size")
