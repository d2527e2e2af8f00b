"""ImageNet-1k's class names, as timm has them. The functions import timm themselves, since that takes seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Number the names that a label list repeats: ImageNet has two cranes, and the second becomes `crane (2)`."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(result)


@cache
def imagenet_names() -> tuple[str, ...]:
    """Give 'tench, Tinca tinca' and 999 more names, in the order of every model's outputs."""
    from timm.data import ImageNetInfo

    return distinct(ImageNetInfo("imagenet-1k").label_descriptions())


def name_of(wordnet_id: str) -> str | None:
    """Give the class of a WordNet id: `n02123045` is 'tabby, tabby cat'; None if ImageNet-1k does not have it."""
    from timm.data import ImageNetInfo

    ids = ImageNetInfo("imagenet-1k").label_names()
    return imagenet_names()[ids.index(wordnet_id)] if wordnet_id in ids else None
