"""EWC: the Fisher diagonal at the end of each lesson says how far a weight may move.

Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks" (PNAS 2017), Eq. 3. The Fisher is the
mean over images of squared gradients of log p(y|x) with y drawn from the model's own answer, among the classes that
competed in training; it adds up over lessons around the newest weights. The penalty here has no factor 1/2, so the
strength is half of Eq. 3's lambda.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dmc.data.sources import Source
from dmc.methods.base import Learned, Lesson
from dmc.methods.importance import ImportanceMethod, Weights, added_up, mean_over_images
from dmc.models.specialist import Specialist
from dmc.seeds import seed_for


def likelihood_of_a_draw(model: Specialist, data: Source) -> Callable[[Tensor], Tensor]:
    """Make a function from one image's logits to log p(y|x), where y is drawn from p over the data's classes."""
    columns = [model.classes.require(name) for name in data.classes]

    def of_image(logits_K: Tensor) -> Tensor:
        log_p_C = logits_K[columns].log_softmax(dim=0)
        noise_C = -torch.rand_like(log_p_C).log().neg().log()  # the largest of log p + Gumbel noise is a draw from p
        drawn = (log_p_C.detach() + noise_C).argmax()
        return log_p_C.gather(0, drawn.unsqueeze(0)).squeeze(0)

    return of_image


class EWC(ImportanceMethod):
    name, title = "ewc", "EWC"
    strength = 50.0  # 100, as REWC has it, halved: there is no factor 1/2 here

    def importance(self, learned: Learned, lesson: Lesson) -> Weights:
        model, data = learned.specialists[0], lesson.data
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(lesson.seed, "fisher"))
            drawn = likelihood_of_a_draw(model, data)
            fisher = mean_over_images(model, data, drawn, lambda _, gradient_N: gradient_N.square())
        return added_up(fisher, learned.notes)
