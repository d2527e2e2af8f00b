"""Fixtures of several files of tests."""

from tests.data.hostile import folder, watched

__all__ = ["folder", "watched"]
