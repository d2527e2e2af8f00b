"""EWC: the Fisher diagonal at the end of each lesson says how far a weight may move.

Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks" (PNAS 2017), Eq. 3. The Fisher is the
mean over images of squared gradients of log p(y|x) with y drawn from the model's own answer; it adds up over lessons
around the newest weights. The penalty here has no factor 1/2, so the strength is half of Eq. 3's lambda.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dmc.methods.base import Learned, Lesson
from dmc.methods.importance import ImportanceMethod, Weights, grown, mean_over_images
from dmc.seeds import seed_for


def log_likelihood_of_a_draw(logits_K: Tensor) -> Tensor:
    log_p_K = logits_K.log_softmax(dim=0)
    noise_K = -torch.rand_like(logits_K).log().neg().log()  # the largest of log p + Gumbel noise is a draw from p
    drawn = (log_p_K.detach() + noise_K).argmax()
    return log_p_K.gather(0, drawn.unsqueeze(0)).squeeze(0)


class EWC(ImportanceMethod):
    name, title = "ewc", "EWC"
    strength = 50.0

    def importance(self, learned: Learned, lesson: Lesson) -> Weights:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(lesson.seed, "fisher"))
            found = mean_over_images(
                learned.specialists[0], lesson.data, log_likelihood_of_a_draw, lambda _, gradient_N: gradient_N.square()
            )
        for name, value in found.items():
            if (before := learned.notes.get(f"importance.{name}")) is not None:
                found[name] = value + grown(before, value)
        return found
