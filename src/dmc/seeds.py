"""Randomness without state: every draw is a function of the run's seed and of where it happens.

A step's crops depend on the step number and on nothing before it, so a resumed run has no generator to restore.
"""

from hashlib import blake2b


def seed_for(seed: int, *place: str | int) -> int:
    """Give the seed for one place in one run: `seed_for(0, "order", epoch)`."""
    return int.from_bytes(blake2b(repr((seed, *place)).encode(), digest_size=7).digest(), "big")
