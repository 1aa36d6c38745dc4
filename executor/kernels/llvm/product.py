"""The compiled matrix product as a function of tensors."""

from __future__ import annotations

from functools import cache, partial
from typing import TypeGuard

import torch

from qpdsl.executor.kernels.llvm.compile import TEAM, Function, Library
from qpdsl.executor.kernels.llvm.matmul_code import emit_group_sums, emit_matmul, panels_at_once
from qpdsl.executor.kernels.llvm.panels import GroupedPanels, Panels, PanelWeights

# What a thread multiplies at least: less is not worth waking one.
_WORK = 1 << 22
_ONE = torch.ones(1, dtype=torch.float32)


class Product:
    """y = x·Wᵀ + b for weights in panels. The code is shared by all weights of one form."""

    def __init__(self, weights: PanelWeights, bias: torch.Tensor | None = None) -> None:
        """`bias` float32 [outputs]."""
        self.weights = weights
        self.bias = torch.zeros(weights.outputs, dtype=torch.float32) if bias is None else bias.float().contiguous()
        self.code = MatmulCode.of(weights.panels, weights.width)
        self.groups = weights.inputs // weights.panels.group if _is_shifted(weights.panels) else 0

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [T, in] with neighbouring numbers in memory, to float32 [T, out]."""
        weights, count = self.weights, rows.shape[0]
        out = torch.empty(count, weights.outputs, dtype=torch.float32)
        stride = rows.stride(0) if count > 1 else weights.inputs
        sums = self.sums(rows, stride)
        threads = threads_for(count * weights.inputs * weights.outputs)
        bounds = parts(weights.count, threads, panels_at_once(weights.width))

        def run(thread: int) -> None:
            self.code.multiply(
                rows.data_ptr(),
                stride,
                weights.data.data_ptr(),
                weights.panel_bytes,
                self.bias.data_ptr(),
                sums.data_ptr(),
                out.data_ptr(),
                weights.outputs,
                count,
                weights.inputs,
                weights.outputs,
                bounds[thread],
                bounds[thread + 1],
                _ONE.data_ptr(),
                0,
            )

        TEAM.run(threads, run)
        return out

    def sums(self, rows: torch.Tensor, stride: int) -> torch.Tensor:
        """The sums of the groups of each row's inputs, float32 [T, groups]; empty where there are no offsets.

        `stride`: numbers from a row to the next.
        """
        sums = torch.empty(rows.shape[0], self.groups, dtype=torch.float32)
        if self.groups:
            self.code.sum_groups(rows.data_ptr(), stride, sums.data_ptr(), rows.shape[0], self.groups)
        return sums


class MatmulCode:
    """The compiled code for panels of one form; see `emit_matmul` and `emit_group_sums`."""

    def __init__(self, panels: Panels, width: int) -> None:
        emitters = {"multiply": partial(emit_matmul, panels=panels, width=width)}
        if _is_shifted(panels):
            emitters["sum"] = partial(emit_group_sums, width=width, group=panels.group)
        self.library = Library(emitters)
        self.multiply: Function = self.library["multiply"]
        self.sum_groups: Function = self.library["sum"] if "sum" in emitters else self.multiply

    @staticmethod
    @cache
    def of(panels: Panels, width: int) -> MatmulCode:
        return MatmulCode(panels, width)


def _is_shifted(panels: Panels) -> TypeGuard[GroupedPanels]:
    """Whether there are offsets, which are multiplied with the sums of groups of inputs."""
    return isinstance(panels, GroupedPanels) and panels.offset is not None


def threads_for(work: int) -> int:
    """How many threads share so many multiplications."""
    return min(torch.get_num_threads(), 1 + work // _WORK)


def parts(count: int, threads: int, step: int) -> list[int]:
    """The bounds of an even share of `count` panels for each thread; all but the last are multiples of `step`."""
    tiles = count // step
    return [tiles * thread // threads * step for thread in range(threads)] + [count]
