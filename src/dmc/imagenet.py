"""ImageNet-1k's class names, as timm describes them. Importing timm takes seconds, so that happens inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Public label lists repeat themselves (ImageNet has two cranes): the second becomes `crane (2)`."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(result)


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
