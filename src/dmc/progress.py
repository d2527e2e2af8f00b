"""A progress bar with rate and time left: after two seconds, on a terminal, and never otherwise."""

from typing import Any

from tqdm import tqdm


def progress(total: int | None, what: str, done: int = 0) -> "tqdm[Any]":
    """Counts images. Use as a context manager; call `update(n)`. Without a total there is a rate, but no time left."""
    return tqdm(
        total=total,
        initial=done,
        desc=what,
        unit=" images",
        unit_scale=total is None or total >= 10_000,
        delay=2,
        disable=None,
        leave=False,
        dynamic_ncols=True,
    )
