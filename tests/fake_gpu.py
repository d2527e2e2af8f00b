"""A pretended GPU: its tensors say that they are on cuda:0 and hold their numbers on the CPU.

So everything runs for real, and nothing has to be made up. An operation on tensors of two devices raises
`MixedDevicesError`, and whatever the host would wait for is counted with the line of code that asked for it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import pytest
import torch
import torchvision  # noqa: F401 (its operations)
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import clip_grad
from torch.utils._python_dispatch import TorchDispatchMode

import dmc.device
from dmc.seeds import seed_for
from dmc.training import loop
from dmc.training.run_folder import Position, Run

GPU = torch.device("cuda", 0)  # a tensor's device; `pick_device` gives "cuda", which is not equal to it
INSIDE = torch.device(
    "lazy", 0
)  # what torch's own code takes it for: without a driver, it differentiates nothing on cuda
aten = torch.ops.aten

COPYING = {aten._to_copy.default, aten.copy_.default, aten._foreach_copy_.default}
TAKING = {aten.index.Tensor, aten._unsafe_index.Tensor}
STORING = {aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
WAITING = {  # for a number, or for the size of the answer
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
    torch.ops.torchvision.nms.default,
}


FREE = 2**34  # bytes of memory on a pretended GPU


class MixedDevicesError(Exception):
    """An operation was given tensors of two devices."""


class OnGpu(Tensor):
    """A tensor on the pretended GPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnGpu:
        made: OnGpu = Tensor._make_wrapper_subclass(
            cls, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype, device=INSIDE
        )
        made.held = held
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU

    def __tensor_flatten__(self) -> tuple[list[str], None]:  # with it, `Module.to` exchanges whole parameters
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(parts: Mapping[str, Tensor], *_: Any) -> OnGpu:
        return OnGpu(parts["held"])

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnGpu{tuple(self.shape)}"

    def tolist(self) -> Any:  # which torch has for its own tensors only
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:  # a file has what it holds
        return self.held.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        twin = self.detach().clone()
        return nn.Parameter(twin, self.requires_grad) if isinstance(self, nn.Parameter) else twin

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError(f"{func} is called where no GPU is pretended")


class PretendedGpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered there is a cuda:0, and it counts what the host waits for."""

    def __init__(self, doubles: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.doubles = doubles  # does it have double precision?
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE  # with it, torch looks for no driver
        self.reads: Counter[str] = Counter()  # of numbers that the host waits for, by line of code
        self.uploads: Counter[str] = Counter()  # copies to the device that the host waits for
        self.operations: Counter[Any] = Counter()
        self.steps = 0  # of trainings
        self.in_step = False
        self.waits_in_steps: Counter[str] = Counter()
        self.underway: list[tuple[Tensor, Tensor]] = []  # copies to the host that nobody has waited for
        self.pinned: list[Tensor] = []

    def __enter__(self) -> Self:
        self.lifting = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # so that `torch.tensor` asks here for its copy to the device
        torch._C._ensureCUDADeviceGuardSet()  # one that asks no driver
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch._C._set_only_lift_cpu_tensors(self.lifting)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors_in((*args, *kwargs.values()))
        here = any(isinstance(t, OnGpu) for t in given)
        asked = kwargs.get("device")
        there = here if asked is None else torch.device(asked).type in (GPU.type, INSIDE.type)
        if not (here or there):
            return func(*args, **kwargs)
        self.operations[func] += 1
        if func is aten.copy_.default:
            there = isinstance(args[0], OnGpu)
        if func in COPYING:
            non_blocking = kwargs.get("non_blocking") or (func is aten.copy_.default and args[2:] == (True,))
            if here and not there and non_blocking:
                return self._send(args[0], args[1].held)
            self._count_copy(given, there, non_blocking)
        elif here:
            require_one_device(func, args, given)
            self._count_waits(func, args)
        plain_kwargs = exchanged(kwargs, held) | {key: "cpu" for key in kwargs if key == "device"}
        plain_kwargs.pop("pin_memory", None)
        answer = func(*exchanged(args, held), **plain_kwargs)
        if not there:
            return answer
        if not self.doubles and has_doubles([answer]) and not has_doubles(given):
            raise TypeError(f"{func} would make a tensor of float64, which this GPU does not have, at {line()}")
        same = {id(t.held): t for t in given if isinstance(t, OnGpu)}  # an operation in place gives back what it got
        return exchanged(answer, lambda t: same[id(t)] if id(t) in same else OnGpu(t))

    def _send(self, there: Tensor, sent: Tensor) -> Tensor:
        """Begin a copy to the host; until an event says that it is complete, the host has other numbers."""
        self.underway.append((there, sent.clone()))
        return there.fill_(-77)

    def _count(self, counter: Counter[str]) -> None:
        """Count what the host waits for, by the line that asks for it."""
        asking = line()
        counter[asking] += 1
        if self.in_step:
            self.waits_in_steps[asking] += 1

    def _count_copy(self, given: Sequence[Tensor], there: bool, non_blocking: bool) -> None:
        """Count a copy between devices, unless it is one to the GPU that nobody waits for."""
        if not there:
            self._count(self.reads)
        elif not non_blocking and not all(isinstance(t, OnGpu) for t in given):
            self._count(self.uploads)

    def _count_waits(self, func: Any, args: Any) -> None:
        """Count an operation that needs numbers on the host, or an index that has to be copied first."""
        if func in TAKING | STORING:
            places = [t for t in args[1] if t is not None]
            filled = func in STORING and len(args[1]) == 1 and args[2].numel() == 1  # as masked_fill does
            if any(t.dtype in (torch.bool, torch.uint8) for t in places) and not filled:
                self._count(self.reads)
            if not all(isinstance(t, OnGpu) for t in places):
                self._count(self.uploads)
        elif func in WAITING:
            self._count(self.reads)


def require_one_device(func: Any, args: Any, given: Sequence[Tensor]) -> None:
    """Refuse what a GPU refuses. It takes a CPU's tensor if that is one number, or the index into one of its own."""
    strangers = [t for t in given if not isinstance(t, OnGpu)]
    if func in TAKING | STORING:
        strangers = [t for t in (args[0], *args[2:3]) if not isinstance(t, OnGpu) and isinstance(t, Tensor)]
    numbers = torch.Tag.pointwise in func.tags or func in STORING
    changed = args[0] if func._schema.is_mutable else None
    wrong = [t for t in strangers if t.ndim or not numbers or t is changed]
    if wrong:
        shapes = [f"{'cuda' if isinstance(t, OnGpu) else 'cpu'}{tuple(t.shape)}" for t in given]
        raise MixedDevicesError(f"{func}: {', '.join(shapes)} at {line()}")


def held(tensor: Tensor) -> Tensor:
    return tensor.held if isinstance(tensor, OnGpu) else tensor


def exchanged(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change every tensor of an operation's arguments or answer, which may be in lists."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: exchanged(one, change) for key, one in value.items()}
    return type(value)(exchanged(one, change) for one in value) if isinstance(value, list | tuple) else value


def tensors_in(values: Sequence[Any]) -> list[Tensor]:
    """Give the tensors among an operation's arguments."""
    found = [t for value in values if isinstance(value, list | tuple) for t in value if isinstance(t, Tensor)]
    return [value for value in values if isinstance(value, Tensor)] + found


def has_doubles(values: Sequence[Any]) -> bool:
    return any(t.dtype == torch.float64 for t in tensors_in(values))


def line() -> str:
    """Give the innermost line that is neither torch's nor of this file, with its function."""
    frame = sys._getframe(1)
    while frame.f_back and (frame.f_code.co_filename == __file__ or "/torch/" in frame.f_code.co_filename):
        if frame.f_code.co_name == "_engine_run_backward":
            return "gradients"  # which line of the loss they belong to is not known
        frame = frame.f_back
    path = re.split("/(?:site-packages|src)/", frame.f_code.co_filename)[-1]
    return f"{path}:{frame.f_lineno} {frame.f_code.co_name}"


@contextmanager
def gpu(doubles: bool = True) -> Iterator[PretendedGpu]:
    """Pretend that there is a GPU, which `pick_device` then gives, and notice when a training makes a step.

    Without `doubles` it has no double precision, as Apple's.
    """
    pretended = PretendedGpu(doubles)
    add = Position.add

    class Event:
        """Happens when the copies that are under way are complete."""

        def __init__(self, device: str) -> None:
            self.copies: list[tuple[Tensor, Tensor]] = []

        def record(self) -> None:
            self.copies, pretended.underway = pretended.underway, []

        def synchronize(self) -> None:
            for there, sent in self.copies:
                there.copy_(sent)

    def step_begins(*place: Any) -> int:
        pretended.in_step = True
        pretended.steps += 1
        return seed_for(*place)

    def step_ends(*counted: Any) -> None:
        pretended.doubles = True  # it asks for Apple's by its name
        add(*counted)
        pretended.in_step, pretended.doubles = False, doubles

    def pin(tensor: Tensor) -> Tensor:
        pretended.pinned.append(tensor.clone())
        return pretended.pinned[-1]

    with pytest.MonkeyPatch.context() as patch, fresh_constants(), pretended:
        patch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
        patch.setattr(torch, "Event", Event)
        patch.setattr(torch.cuda, "mem_get_info", lambda _: (FREE, FREE))
        patch.setattr(clip_grad, "_has_foreach_support", lambda *_: True)  # as cuda's tensors have it
        patch.setattr(Tensor, "pin_memory", pin)
        patch.setattr(Tensor, "is_pinned", lambda tensor: any(tensor is one for one in pretended.pinned))
        patch.setattr(loop, "seed_for", step_begins)
        patch.setattr(Position, "add", step_ends)
        yield pretended


@contextmanager
def fresh_constants() -> Iterator[None]:
    """Forget the tensors that are made once for each device, before and after."""
    for made in (dmc.device.index, dmc.device.per_channel):
        made.cache_clear()
    yield
    for made in (dmc.device.index, dmc.device.per_channel):
        made.cache_clear()


class Answering(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers what torch's fake tensors cannot, since they have no numbers: each is 1, and a mask takes two rows."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default:
            return 1.0 if args[0].dtype.is_floating_point else 1
        if func is aten.nonzero.default:
            return taken(args[0])
        if func in TAKING | STORING:
            masks = [place is not None and place.dtype == torch.bool for place in args[1]]
            places = [taken(p).unbind(dim=1) if masked else (p,) for p, masked in zip(args[1], masks, strict=True)]
            args = (args[0], [one for several in places for one in several], *args[2:])
        if func is aten.allclose.default:
            return torch.isclose(*args[:2]).ndim > 0  # refuses two devices
        return func(*args, **(kwargs or {}))


def taken(mask: Tensor) -> Tensor:
    return mask.new_zeros((min(2, mask.numel()), mask.ndim), dtype=torch.long)


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Let torch pretend, with its own fake tensors on cuda: they have no numbers, but torch's own rules.

    Without a driver torch differentiates nothing on cuda, so gradients are made up. Nothing can be saved.
    """
    with pytest.MonkeyPatch.context() as patch, fresh_constants(), FakeTensorMode(), Answering():  # type: ignore[no-untyped-call]
        patch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
        patch.setattr(nn.Module, "_apply", apply_to_each)
        patch.setattr(Tensor, "backward", fill_gradients)
        patch.setattr(Run, "checkpoint", lambda *_: None)
        patch.setattr(torch.cuda, "mem_get_info", lambda _: (FREE, FREE))
        patch.setattr(loop, "on_device", lambda made, device: (batch.to(device) for batch in made))  # in this thread
        yield


def apply_to_each(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Do what `Module.to` does, which for fake tensors torch cannot do in place."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            part._parameters[name] = nn.Parameter(change(parameter.detach()), parameter.requires_grad)
        for name, buffer in list(part.named_buffers(recurse=False)):
            part._buffers[name] = change(buffer)
    return module


def fill_gradients(loss: Tensor) -> None:
    """Give a gradient to every weight that the loss depends on."""
    seen: set[Any] = set()
    nodes: list[Any] = [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
            if hasattr(node, "variable"):
                node.variable.grad = torch.zeros_like(node.variable)
