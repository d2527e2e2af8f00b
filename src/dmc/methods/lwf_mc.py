"""LwF.MC: iCaRL's training without exemplars, answered by the network itself.

Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning" (CVPR 2017), section 4: the multi-class
version of LwF, which is what the DMC paper's figures call LwF.
"""

from __future__ import annotations

from dmc.methods.base import Learned, Lesson, Method, new_classes
from dmc.methods.icarl import SigmoidDistillation
from dmc.training.supervised import fit_labeled


class LwFMC(Method):
    name, title = "lwf.mc", "LwF.MC"

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        old = before.specialists[0]
        wide = old.widened(new_classes(old.names, lesson.data))
        task = SigmoidDistillation(wide, old, lesson.data.classes)
        run = lesson.folder / "lwf.mc"
        schedule = lesson.profile.specialist
        return Learned([fit_labeled(wide, lesson.data, run, schedule, lesson.seed, resume=True, task=task)])
