"""Old classes: the first group's model alone, which all methods begin with. A row of the paper's detection tables."""

from __future__ import annotations

from dmc.methods.base import Learned, Lesson, Method


class OldClasses(Method):
    name, title = "old-classes", "Old classes"
    is_part = True

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        return before
