"""A pretend CUDA device: tensors that say that they are on it, compute on the host, and refuse to mix with the host's.

So what forgets to move a tensor fails as it would on a GPU. Kernels are stood in for by their torch twins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from qpdsl.executor.engine import launched_step
from qpdsl.executor.engine.batch import staging
from qpdsl.executor.engine.model import families, heads
from qpdsl.executor.engine.step import backends, sampler
from qpdsl.executor.engine.step.sampler import DeviceSampler
from qpdsl.executor.kernels import layers, paged_attention
from qpdsl.executor.kernels.data.token_draws import Drawn, Filters, TokenDraws
from qpdsl.executor.kernels.data.weights import FloatWeight
from qpdsl.executor.kernels.plain.head_twins import allowed
from qpdsl.executor.requests.request import SamplingParams
from tests.support.executor.fake_device import FakeLane

CUDA = torch.device("cuda", 0)
_GIB = 1 << 30
# What may have tensors of both devices: copies, and what takes places on the host for a tensor of a device.
_CROSSING = {"copy_", "to", "cpu", "cuda", "__getitem__", "__setitem__", "index", "index_put_", "type_as", "__set__"}


class CudaTensor(torch.Tensor):
    """A tensor on the device."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(function, args, kwargs or {})


def on_cuda(tensor: torch.Tensor) -> CudaTensor:
    """The same numbers, on the device."""
    with torch._C.DisableTorchFunctionSubclass():
        made: CudaTensor = tensor.detach().as_subclass(CudaTensor)
        return made


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a function of torch. Raises RuntimeError where it would mix tensors of both devices."""
    name = getattr(function, "__name__", "")
    tensors = [*_tensors(args), *_tensors(kwargs.values())]
    there = any(isinstance(tensor, CudaTensor) for tensor in tensors)
    if there and name not in _CROSSING:
        for tensor in tensors:
            if not isinstance(tensor, CudaTensor) and tensor.dim():
                raise RuntimeError(f"{name}: expected all tensors to be on the same device, cuda:0 and cpu")
    if there and name == "__getitem__" and not isinstance(tensors[0], CudaTensor):
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    if there and name == "numpy":
        raise TypeError("can't convert cuda:0 device type tensor to numpy")
    owner = getattr(function, "__self__", None)
    if there and name == "__get__" and owner is torch.Tensor.device:
        return CUDA
    if there and name == "__get__" and owner is torch.Tensor.is_cuda:
        return True
    if there and name == "get_device":
        return 0
    place, args = _asked(name, args)
    if kwargs.get("device") is not None:
        place = kwargs["device"]
    if "device" in kwargs and _is_cuda(place):
        kwargs = {**kwargs, "device": "cpu"}
    if name == "cpu":
        place = "cpu"
    # Whose results follow the tensor that is written to, or that asks.
    first = args[0] if args and isinstance(args[0], torch.Tensor) else None
    goes = isinstance(first, CudaTensor) if name in _CROSSING else there
    if place is not None:
        goes = _is_cuda(place)
    kwargs.pop("pin_memory", None)
    if name == "mm" and (wide := kwargs.pop("out_dtype", None)) is not None:
        # A host's product rounds its sums.
        args = tuple(on_host(part).to(wide) for part in args)
    with torch._C.DisableTorchFunctionSubclass():
        result = function(*args, **kwargs)
    # A copy to where a tensor is already is the tensor itself, and so is what is changed in place.
    if isinstance(result, torch.Tensor) and any(result is tensor for tensor in tensors):
        if isinstance(result, CudaTensor) == goes:
            return result
        result = result.clone() if name in ("to", "cpu") else result
    return _placed(result, goes)


def _tensors(parts: Iterable[Any]) -> Iterator[torch.Tensor]:
    for part in parts:
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, list | tuple):
            yield from _tensors(part)


def _asked(name: str, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The device that `to` names among its arguments, and these with the host in its place."""
    if name != "to":
        return None, args
    for place, part in enumerate(args[1:], 1):
        if isinstance(part, str | torch.device):
            return part, (*args[:place], "cpu", *args[place + 1 :]) if _is_cuda(part) else args
        if isinstance(part, torch.Tensor):
            return ("cuda" if isinstance(part, CudaTensor) else "cpu"), args
    return None, args


def _is_cuda(place: Any) -> bool:
    return place is not None and torch.device(place).type == "cuda"


def _placed(result: Any, goes: bool) -> Any:
    if isinstance(result, torch.Tensor):
        return on_cuda(result) if goes else on_host(result)
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*(_placed(part, goes) for part in result))
    if isinstance(result, list | tuple):
        return type(result)(_placed(part, goes) for part in result)
    return result


class _Mode(TorchFunctionMode):
    """Makes tensors on the device where somebody asks for it."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(function, args, kwargs or {})


def _moved(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """`Module.to` for a device."""
    place = next((part for part in (*args, kwargs.get("device")) if isinstance(part, str | torch.device)), None)
    if not _is_cuda(place):
        return _move(module, *args, **kwargs)
    moved: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                # Tied weights stay one.
                own = moved.setdefault(id(weight), torch.nn.Parameter(on_cuda(weight), requires_grad=False))
                part._parameters[name] = own
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else on_cuda(buffer)
    return module


_move = torch.nn.Module.to


def _weight_of(module: torch.nn.Module) -> Any:
    """`stored_weight` of a linear layer that was moved: its weights have a type of their own here."""
    weight = getattr(module, "weight", None)
    if isinstance(module, torch.nn.Linear) and isinstance(weight, CudaTensor):
        return FloatWeight(weight.detach())
    return _stored_weight(module)


_stored_weight = heads.stored_weight


def _sample(
    logits: torch.Tensor,
    draws: TokenDraws,
    bits: torch.Tensor | None = None,
    lines: torch.Tensor | None = None,
    filters: Filters | None = None,
) -> Drawn:
    """The kernel that samples, by the host's sampler."""
    given = [logits, *draws, *(part for part in (bits, lines) if part is not None)]
    given += [] if filters is None else [filters.top_k, filters.top_p, filters.min_p, filters.slots]
    assert all(isinstance(part, CudaTensor) for part in given), "the kernel reads what lies on the device"
    rows = on_host(logits)[on_host(draws.rows).long()]
    if bits is not None and lines is not None:
        rows = rows.masked_fill(~allowed(on_host(bits), on_host(lines), 0, rows.shape[1]), float("-inf"))
    params = [SamplingParams(temperature) for temperature in draws.temperatures.tolist()]
    if filters is not None:
        bounds = zip(*(part.tolist() for part in (filters.top_k, filters.top_p, filters.min_p)), strict=True)
        params = [
            SamplingParams(own.temperature, k or None, p if p < 1 else None, least or None)
            for own, (k, p, least) in zip(params, bounds, strict=True)
        ]
    keys = [key % (1 << 64) for key in draws.keys.tolist()]
    drawn = sampler.sample(rows, params, keys, draws.positions.tolist())
    gaps = torch.where(drawn.near_ties, 0.0, float("inf"))
    return on_cuda(drawn.tokens), on_cuda(drawn.logprobs), on_cuda(gaps)


class _Event:
    """An event that is over at once."""

    def __init__(self, enable_timing: bool = False) -> None:
        pass

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: _Event) -> float:
        return 0.0


@contextmanager
def pretend_cuda() -> Iterator[FakeLane]:
    """In the block there is such a device, 80 GiB of which are free."""
    lane = FakeLane()
    with pytest.MonkeyPatch.context() as patch, _Mode():
        for module in (paged_attention, layers):
            patch.setattr(module, "on_device", lambda tensor: False)
        patch.setattr(backends, "on_device", lambda tensor: isinstance(tensor, CudaTensor))
        patch.setattr(backends, "_device_sampler", lambda staging: DeviceSampler(staging, _sample))
        for module in (heads, families):
            patch.setattr(module, "stored_weight", _weight_of)
        patch.setattr(staging, "lane_to", lambda device: lane if device.startswith("cuda") else None)
        patch.setattr(launched_step, "_event", _Event)
        patch.setattr(backends, "CudaRecorder", lambda: None)
        patch.setattr(backends, "_compile", lambda run, tell: run())
        patch.setattr(backends, "launch_bytes", lambda device: 1 << 20)
        patch.setattr(torch.nn.Module, "to", _moved)
        for name, value in {
            "is_available": lambda: True,
            "device": lambda device: nullcontext(),
            "mem_get_info": lambda device=None: (80 * _GIB, 80 * _GIB),
            "synchronize": lambda device=None: None,
            "reset_peak_memory_stats": lambda device=None: None,
            "memory_allocated": lambda device=None: 0,
            "max_memory_allocated": lambda device=None: 0,
            "get_device_capability": lambda device=None: (9, 0),
            "empty_cache": lambda: None,
        }.items():
            patch.setattr(torch.cuda, name, value)
        yield lane
