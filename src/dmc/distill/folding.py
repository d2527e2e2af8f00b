"""Fold batch norms into the convolutions before them, so that inference takes fewer steps."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from dmc.errors import is_out_of_memory


def folded(module: nn.Module, example_N3HW: Tensor) -> nn.Module:
    """Give a folded copy for inference; the network itself if it has no norms, or cannot be folded.

    A pass over noise of the example's shape shows which norm follows which convolution, whatever the architecture. It
    does not show what happens in place between the two, nor where else a convolution's output goes (as before the first
    block of a pre-activation ResNet), so the copy's answer is compared with the network's.
    """
    if not any(map(_is_norm, module.modules())):
        return module
    generator = torch.Generator().manual_seed(0)
    noise_N3HW = torch.randn(example_N3HW.shape, generator=generator).to(example_N3HW)
    try:
        twin = copy.deepcopy(module).to(memory_format=torch.channels_last).eval()
        with torch.no_grad():
            pairs, answer = _conv_norm_pairs(twin, noise_N3HW)
            _fold_all(twin, pairs)
            return twin if _nearly_equal(answer, twin(noise_N3HW)) else module
    except Exception as error:  # weights that are pruned, parametrised or compiled refuse in ways of their own
        if is_out_of_memory(error):
            raise
        return module


def _is_norm(module: nn.Module) -> bool:
    """Tell a batch norm by its statistics: the frozen ones of torchvision and timm are not of torch's class."""
    statistics = (getattr(module, name, None) for name in ("running_mean", "running_var"))
    others = (hasattr(module, name) for name in ("weight", "bias", "eps"))
    return all(isinstance(one, Tensor) for one in statistics) and all(others)


def _conv_norm_pairs(module: nn.Module, images_N3HW: Tensor) -> tuple[list[tuple[nn.Conv2d, nn.Module]], Any]:
    """Find the pairs of a convolution and the norm that follows it; give them and the network's answer."""
    made_by: dict[int, nn.Conv2d] = {}
    outputs: list[Tensor] = []  # kept alive, so that no other tensor gets the same id
    pairs: list[tuple[nn.Conv2d, nn.Module]] = []

    def after_conv(conv: nn.Module, _: Any, output: Tensor) -> None:
        outputs.append(output)
        made_by[id(output)] = conv  # type: ignore[assignment]

    def before_norm(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        conv = made_by.get(id(inputs[0]))
        if conv is not None:
            pairs.append((conv, norm))

    hooks = [m.register_forward_hook(after_conv) for m in module.modules() if isinstance(m, nn.Conv2d)]
    hooks += [m.register_forward_pre_hook(before_norm) for m in module.modules() if _is_norm(m)]
    answer = module(images_N3HW)
    for hook in hooks:
        hook.remove()
    return pairs, answer


def _fold_all(module: nn.Module, pairs: list[tuple[nn.Conv2d, nn.Module]]) -> None:
    """Fold every pair in place, unless its convolution or norm is part of another pair, too."""
    convs, norms = ([id(m) for m in part] for part in zip(*pairs, strict=True)) if pairs else ([], [])
    replacements: dict[int, nn.Module] = {}
    for conv, norm in pairs:
        if convs.count(id(conv)) == 1 and norms.count(id(norm)) == 1:  # a head that several levels share is left alone
            _fold(conv, norm)
            replacements[id(norm)] = nn.Sequential(*norm.children())  # timm's norms carry an activation
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in replacements:
                setattr(parent, name, replacements[id(child)])


def _nearly_equal(answer: Any, other: Any) -> bool:
    """Compare two answers up to rounding.

    A classifier answers with one tensor, or with an object that has it as `logits`; a detector with several tensors.
    """
    answer, other = (getattr(one, "logits", one) for one in (answer, other))
    if isinstance(answer, tuple):
        return all(map(_nearly_equal, answer, other))
    if not isinstance(answer, Tensor):
        return bool(answer == other)
    return bool((answer - other).abs().max() <= 1e-3 * answer.abs().max())


def _fold(conv: nn.Conv2d, norm: Any) -> None:
    """Change a convolution's weights so that it computes what it and the norm did."""
    weight, bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    conv.weight, conv.bias = (nn.Parameter(p.detach(), requires_grad=False) for p in (weight, bias))
