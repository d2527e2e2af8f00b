"""Batch norm over the whole batch of several processes, so that their number does not change what is learned.

torch's SyncBatchNorm is for GPUs only, and is another module, which would have to be put in place of those of timm,
torchvision and users. Here every call of batch norm is intercepted instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dmc.training.exchange import Exchange


class SyncedNorm(TorchFunctionMode):
    """Within this context, batch norm in training mode takes its statistics over all processes."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self.exchange = exchange

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and kwargs.get("training"):
            return synced_batch_norm(self.exchange, *args, **kwargs)
        return func(*args, **kwargs)


def synced_batch_norm(
    exchange: Exchange,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Do what `torch.nn.functional.batch_norm` does in training, over the batches of all processes together."""
    weight = x.new_ones(x.shape[1], dtype=torch.float32) if weight is None else weight
    bias = x.new_zeros(x.shape[1], dtype=torch.float32) if bias is None else bias
    normalised, mean_C, var_C, count = BatchNorm.apply(x, weight, bias, eps, exchange)
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean_C.to(running_mean.dtype), momentum)
            running_var.lerp_((var_C * count / (count - 1)).to(running_var.dtype), momentum)
    return normalised  # type: ignore[no-any-return]


class BatchNorm(torch.autograd.Function):
    """Batch norm whose statistics, and their gradients, are exchanged between the processes."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_C: Tensor, bias_C: Tensor, eps: float, exchange: Exchange
    ) -> tuple[Tensor, ...]:
        # Batch norm's own kernel: `var_mean` takes ten times as long over images that are channels last. The spare
        # statistics in fp32 make it answer in fp32, whatever the precision of the images.
        spare_C = torch.zeros_like(weight_C)
        mean_C, var_C = torch.batch_norm_update_stats(x, spare_C, spare_C.clone(), 0.0)
        own_3C = torch.stack([mean_C, var_C, torch.full_like(mean_C, x.numel() // x.shape[1])])
        mean_PC, var_PC, count_PC = torch.stack(exchange(own_3C), dim=1)
        count_C = count_PC.sum(dim=0)
        share_PC = count_PC / count_C
        mean_C = (share_PC * mean_PC).sum(dim=0)
        var_C = (share_PC * (var_PC + (mean_PC - mean_C).square())).sum(dim=0)
        ctx.save_for_backward(x, weight_C, mean_C, torch.rsqrt(var_C + eps), count_C)
        ctx.eps, ctx.exchange = eps, exchange
        normalised = torch.batch_norm(x, weight_C, bias_C, mean_C, var_C, False, 0.0, eps, False)
        ctx.mark_non_differentiable(mean_C, var_C, count_C)
        return normalised, mean_C, var_C, count_C

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_C, mean_C, scale_C, count_C = ctx.saved_tensors
        grad = grads[0]
        _, weight_grad_C, bias_grad_C = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight_C, None, None, mean_C, scale_C, True, ctx.eps, (False, True, True)
        )
        sums_P2C = torch.stack(ctx.exchange(torch.stack([weight_grad_C, bias_grad_C])))
        normalised_grad_C, grad_mean_C = sums_P2C.sum(dim=0) / count_C
        # weight * scale * (grad - mean(grad) - normalised x * mean(grad * normalised x)), as a * grad + b * x + c
        a_C = weight_C * scale_C
        b_C = -a_C * scale_C * normalised_grad_C
        c_C = -a_C * grad_mean_C - b_C * mean_C
        shape = (1, -1, *[1] * (x.dim() - 2))
        a, b, c = (part.to(x.dtype).view(shape) for part in (a_C, b_C, c_C))
        return torch.addcmul(c, x, b).addcmul_(grad, a), weight_grad_C, bias_grad_C, None, None
