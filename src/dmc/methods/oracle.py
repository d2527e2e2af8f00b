"""Oracle: joint training from scratch on the data of all classes so far. The upper bound of section 4.2.2."""

from __future__ import annotations

from dmc.methods.base import Learned, Lesson, Method, joint_model


class Oracle(Method):
    name, title = "oracle", "Oracle"
    sees_everything = True

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        return Learned([joint_model(lesson)])
