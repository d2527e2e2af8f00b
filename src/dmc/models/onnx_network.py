"""Networks in ONNX files, as modules that onnxruntime runs: they can teach, but not learn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dmc.data.preprocess import Preprocessing
from dmc.errors import DmcError, first_line
from dmc.models.onnx_file import OnnxFile

QUIET = 4  # onnxruntime's level of messages that it prints to the terminal by itself: only what is fatal
LEAST = 1e-7  # what is less likely than that is as likely: fp32 knows no more about what is nearly certain


Answer = npt.NDArray[Any]  # one of a network's outputs


class OnnxModule(nn.Module, ABC):
    """A network that onnxruntime computes on the CPU, in fp32, with as many threads as torch."""

    digest: Tensor  # of the file: it stands for the weights in a model's fingerprint, and is on the model's device

    def __init__(self, file: OnnxFile, content: bytes, shown: Preprocessing) -> None:
        super().__init__()
        file.require_fitting(shown)
        self.path, self.input, self.weights_elsewhere = file.path, file.input, file.parameter_count
        self.session, self.batch = opened(file, content), file.input.batch
        self.register_buffer("digest", torch.frombuffer(bytearray(file.digest), dtype=torch.uint8))

    @abstractmethod
    def read(self, answers: list[Answer], images: int) -> Any:
        """Make sense of the outputs for so many images; raise any error if there is none."""

    def tried(self, size: int) -> list[Any]:
        """Answer noise; one image at a time if the file says that it takes any number but does not."""
        noise_2CHW = torch.rand(2, self.input.channels, size, size, generator=torch.Generator().manual_seed(0))
        try:
            return self.answered(noise_2CHW)
        except DmcError:
            if self.batch is not None:
                raise
            self.batch = 1
            return self.answered(noise_2CHW)

    def answered(self, images_NCHW: Tensor) -> list[Any]:
        """Give what is read from the outputs for as many images at a time as the network takes."""
        pixels = images_NCHW.detach().cpu()
        pixels = pixels.permute(0, 2, 3, 1) if self.input.channels_last else pixels
        pixels = pixels.round().clamp(0, 255) if self.input.dtype == np.uint8 else pixels
        array = np.ascontiguousarray(pixels.numpy()).astype(self.input.dtype)
        step = self.batch or len(array)
        return [self._asked(array[at : at + step], step) for at in range(0, len(array), step)]

    def _asked(self, images: npt.NDArray[Any], step: int) -> Any:
        """Ask about at most `step` images; where the file takes exactly so many, blank ones are added."""
        missing = step - len(images)
        padded = np.concatenate([images, np.zeros_like(images, shape=(missing, *images.shape[1:]))])
        try:
            answers = self.session.run(None, {self.input.name: padded})
            return self.read([np.asarray(answer) for answer in answers], step)[: len(images)]
        except DmcError:
            raise
        except Exception as error:  # onnxruntime has a dozen kinds; and an answer that has no row for each image
            raise DmcError(f"{self.path} cannot answer: {reason(error)}") from None


class OnnxNetwork(OnnxModule):
    """A classifier: maps normalised images to logits."""

    def __init__(self, file: OnnxFile, shown: Preprocessing) -> None:
        super().__init__(file, file.giving_logits(), shown)
        self.undo: Callable[[Tensor], Tensor] | None = None  # what turns its answers into logits
        answers_2K = torch.from_numpy(np.concatenate(self.tried(shown.size)))
        self.width = answers_2K.shape[1]
        if file.probabilities or sum_to_one(answers_2K):
            self.undo = log_odds if file.output == "sigmoid" else log_of

    def read(self, answers: list[Answer], images: int) -> npt.NDArray[np.float32]:
        (answer,) = answers
        return np.asarray(answer, dtype=np.float32).reshape(images, -1)

    def forward(self, images_NCHW: Tensor) -> Tensor:
        answers_NK = torch.from_numpy(np.concatenate(self.answered(images_NCHW))).to(images_NCHW.device)
        return answers_NK if self.undo is None else self.undo(answers_NK)


def opened(file: OnnxFile, content: bytes) -> Any:
    """Give a session of onnxruntime, which leaves the cores to others while it has nothing to do."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = QUIET
    try:
        return onnxruntime.InferenceSession(
            content,
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,  # it would announce that it tries the same again
        )
    except Exception as error:  # an unknown operator, a type or a shape that does not fit, damage
        raise DmcError(f"onnxruntime cannot run {file.path}: {reason(error)}") from None


def reason(error: Exception) -> str:
    """Give onnxruntime's own words, without its name and the number of the error."""
    return first_line(error).rpartition("[ONNXRuntimeError] : ")[2]


def sum_to_one(answers_NK: Tensor) -> bool:
    """Tell probabilities of competing classes by their sum, whichever operators made them."""
    if answers_NK.shape[1] < 2 or not (answers_NK >= 0).all():
        return False
    return bool(((answers_NK.sum(dim=1) - 1).abs() < 1e-3).all())


def log_odds(probabilities_NK: Tensor) -> Tensor:
    """Turn probabilities that were made by a sigmoid back into logits."""
    return probabilities_NK.logit(eps=LEAST)


def log_of(probabilities_NK: Tensor) -> Tensor:
    """Turn probabilities that were made by a softmax back into logits, but for a constant."""
    return probabilities_NK.clamp_min(LEAST).log()
