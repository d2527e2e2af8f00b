"""LwF.MC: iCaRL's training without exemplars; at test time the network itself answers.

Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning" (CVPR 2017), section 4: the multi-class
version of LwF, which is what the DMC paper's figures call LwF.
"""

from __future__ import annotations

from dmc.methods.base import Learned, Lesson, Method, fitted, model_with_sigmoids, widened
from dmc.methods.icarl import SigmoidDistillation
from dmc.models.specialist import Specialist


class LwFMC(Method):
    name, title = "lwf.mc", "LwF.MC"
    kinds = (Specialist,)

    def begin(self, first: Learned, lesson: Lesson) -> Learned:
        return Learned([model_with_sigmoids(lesson)])

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        old, wide = widened(before, lesson)
        return Learned([fitted(wide, lesson, "lwf.mc", SigmoidDistillation(wide, old, lesson.data.classes))])
