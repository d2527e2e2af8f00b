"""Oracle: joint training from scratch on the data of all classes so far. The upper bound of section 4.2.2."""

from __future__ import annotations

from dmc.methods.base import Learned, Lesson, Method
from dmc.training.supervised import train


class Oracle(Method):
    name, title = "oracle", "Oracle"
    sees_everything = True

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        like = before.specialists[0]
        joint = train(
            lesson.data,
            lesson.folder / "joint",
            arch=str(like.arch),
            preprocessing=like.preprocessing,
            schedule=lesson.specialist,
            seed=lesson.seed,
            resume=True,
        )
        return Learned([joint])
