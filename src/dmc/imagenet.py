"""ImageNet-1k's class names, as timm describes them. Importing timm takes seconds, so that happens inside."""

from __future__ import annotations

from functools import cache

from dmc.classes import distinct


@cache
def imagenet_names() -> tuple[str, ...]:
    """'tench, Tinca tinca' and 999 more, in the order of every model's outputs."""
    from timm.data import ImageNetInfo

    return distinct(ImageNetInfo("imagenet-1k").label_descriptions())


def name_of(wordnet_id: str) -> str | None:
    """`n02123045` is 'tabby, tabby cat'."""
    from timm.data import ImageNetInfo

    ids = ImageNetInfo("imagenet-1k").label_names()
    return imagenet_names()[ids.index(wordnet_id)] if wordnet_id in ids else None
