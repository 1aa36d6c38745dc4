"""Which lines have the host wait for a device, seen without one: they read a tensor of the device, or send one there.

Every function of torch is looked at. What the engine made from weights, from keys and values, or from what was sent, is
on the device; a stand-in computes it on the host, so kernels' stand-ins may read it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tests.support.paths import ROOT

_ENGINE = str(ROOT / "executor") + "/"
_KERNELS = _ENGINE + "kernels/"
# Functions that give the host what a tensor holds, or whose result has a size that it decides.
_READS = {"item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero", "__array__"}
_READS |= {"masked_select", "unique", "equal", "allclose"}
_MAKES = {"empty", "zeros", "ones", "full", "arange", "tensor", "as_tensor"}


class HostReads(TorchFunctionMode):
    """As a context, `lines` counts the lines of the engine that wait for the device, other than for a mark.

    `given` are tensors on the device. So is what is made from them, and what is made with a `device`.
    """

    def __init__(self, given: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.lines: Counter[str] = Counter()
        for tensor in given:
            _mark(tensor)

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        on_device = any(map(_is_marked, _tensors((args, kwargs))))
        sends = name in ("tensor", "as_tensor") and kwargs.get("device") is not None
        reads = on_device and (name in _READS or (name in ("__getitem__", "__setitem__") and _by_host(args[1])))
        if (reads or sends) and (line := _line()) is not None:
            self.lines[f"{line} {name}"] += 1
        result = func(*args, **kwargs)
        if (on_device and name not in ("cpu", "numpy")) or (name in _MAKES and kwargs.get("device") is not None):
            for tensor in _tensors(result):
                _mark(tensor)
        return result


def _by_host(index: Any) -> bool:
    """Whether an index must go to the device first, or be read to know how much it takes."""
    parts = index if isinstance(index, tuple) else (index,)
    lists = any(isinstance(part, list) or type(part).__module__ == "numpy" for part in parts)
    return lists or any(isinstance(part, torch.Tensor) and part.dtype is torch.bool for part in parts)


def _line() -> str | None:
    """The line of the engine that called; None where a stand-in of a kernel did."""
    frame = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.startswith(_ENGINE):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or frame.f_code.co_filename.startswith(_KERNELS):
        return None
    return f"{Path(frame.f_code.co_filename).relative_to(ROOT)}:{frame.f_lineno}"


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _mark(tensor: torch.Tensor) -> None:
    tensor._on_fake_device = True  # type: ignore[attr-defined]


def _is_marked(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter) or getattr(tensor, "_on_fake_device", False)
