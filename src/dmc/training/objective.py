"""What is minimised: a batch's losses, computed through the network that the loop owns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from dmc.data.batch import Batch


class Objective(ABC):
    """What is minimised. The two hooks serve methods that accumulate something along the way."""

    name: ClassVar[str]  # in run.json: a run can be resumed only with the objective that it began with

    @abstractmethod
    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Compute the losses of a batch through the network that is trained, which the loop may have wrapped.

        `loss` is minimised; the other losses in the dict are only recorded. Nothing may wait for the device here.
        """

    def require_sound(self) -> None:  # noqa: B027 (optional)
        """Refuse answers that nobody could learn from. Waits for the device, so it is not called at each step."""

    def gradients_ready(self) -> None:  # noqa: B027 (optional)
        """Act on the gradients of `loss`, before the optimizer changes the weights."""

    def weights_stepped(self) -> None:  # noqa: B027 (optional)
        """Act on the weights that the optimizer has just changed."""

    def notes(self) -> dict[str, Tensor]:
        """Give the tensors that a resumed run needs besides the weights; resuming fills them in place."""
        return {}
