"""New classes: the specialist of the newest group alone. A row of the paper's detection tables."""

from __future__ import annotations

from dmc.methods.base import Learned, Lesson, Method, specialist_for


class NewClasses(Method):
    name, title = "new-classes", "New classes"
    is_part = True
    least_classes = 2

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        return Learned([specialist_for(lesson)])
