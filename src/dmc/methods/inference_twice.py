"""Inference twice: keep every specialist and ask all of them.

The normalised logits of classifiers are concatenated (Eq. 4): DMC distils from them, so they are its ceiling. At each
anchor of detectors, the most probable class of any of them counts (section 4.3). It needs one model for each group.
With a `scale`, the specialists are scaled as DMC's teachers would be, by what they answer to auxiliary images.
"""

from __future__ import annotations

from typing import Any

import torch

from dmc.data.loader import open_loader
from dmc.data.open import sample_of
from dmc.device import pick_device
from dmc.distill.teachers import Teachers
from dmc.methods.base import Learned, Lesson, Method, specialist_for
from dmc.recipes.profile import Profile
from dmc.tasks.classifier_consolidation import SAMPLE, sample


class InferenceTwice(Method):
    name, title = "inference-twice", "Inference twice"
    least_classes = 2

    def needs_aux(self, profile: Profile) -> bool:
        return profile.scale != "none"

    def learn(self, before: Learned, lesson: Lesson) -> Learned:
        learned = Learned([*before.specialists, specialist_for(lesson)])
        if lesson.aux is not None:
            teachers: Teachers = learned.model.to(pick_device())
            some = sample_of(lesson.aux, min(SAMPLE, len(lesson.aux)), lesson.seed)
            teachers.measure_scales(lesson.profile.scale, sample(open_loader(some, teachers.transform)))
            learned.notes = {"scales": torch.tensor(teachers.scales)} if teachers.scales else {}
        return learned

    def predictor(self, learned: Learned) -> Any:
        model = learned.model
        if learned.notes:
            model.scales = learned.notes["scales"].tolist()
        return model
