"""The compiled matrix product as a function of tensors."""

from __future__ import annotations

from functools import cache, partial

import torch

from qpdsl.executor.kernels.llvm.compile import TEAM, Function, Library, multiplies_pairs
from qpdsl.executor.kernels.llvm.matmul_code import (
    emit_matmul,
    emit_prepare,
    panels_at_once,
    prepared_numbers,
    prepares,
)
from qpdsl.executor.kernels.llvm.panels import FloatPanels, Panels, PanelWeights

# What a thread multiplies at least: less is not worth waking one.
_WORK = 1 << 22
_ONE = torch.ones(1, dtype=torch.float32)


class Product:
    """y = x·Wᵀ + b for weights in panels. The code is shared by all weights of one form."""

    def __init__(self, weights: PanelWeights, bias: torch.Tensor | None = None, *, rounds: bool = False) -> None:
        """`bias` float32 [outputs].

        rounds: inputs of weights in bfloat16 may be rounded to it, and are where the machine is faster then
        """
        panels, fits = weights.panels, not weights.inputs % weights.width
        self.rounds = rounds and fits and multiplies_pairs() and panels == FloatPanels(torch.bfloat16)
        if self.rounds:
            panels = FloatPanels(torch.bfloat16, rounded=True)
        self.weights = weights
        self.bias = torch.zeros(weights.outputs, dtype=torch.float32) if bias is None else bias.float().contiguous()
        self.code = MatmulCode.of(panels, weights.width)
        self.prepared = prepared_numbers(panels, weights.inputs)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [T, in] with neighbouring numbers in memory, to float32 [T, out]."""
        weights, count = self.weights, rows.shape[0]
        out = torch.empty(count, weights.outputs, dtype=torch.float32)
        stride = rows.stride(0) if count > 1 else weights.inputs
        prepared = self.prepare(rows, stride)
        threads = threads_for(count * weights.inputs * weights.outputs)
        bounds = parts(weights.count, threads, panels_at_once(weights.width))

        def run(thread: int) -> None:
            self.code.multiply(
                rows.data_ptr(),
                stride,
                weights.data.data_ptr(),
                weights.panel_bytes,
                self.bias.data_ptr(),
                prepared.data_ptr(),
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

    def prepare(self, rows: torch.Tensor, stride: int) -> torch.Tensor:
        """What the code reads of each row's inputs beside them, float32 [T, prepared]; see `emit_prepare`.

        `stride`: numbers from a row to the next.
        """
        prepared = torch.empty(rows.shape[0], self.prepared, dtype=torch.float32)
        if self.prepared:
            self.code.prepare(rows.data_ptr(), stride, prepared.data_ptr(), rows.shape[0], self.prepared)
        return prepared


class MatmulCode:
    """The compiled code for panels of one form; see `emit_matmul` and `emit_prepare`."""

    def __init__(self, panels: Panels, width: int) -> None:
        emitters = {"multiply": partial(emit_matmul, panels=panels, width=width)}
        if prepares(panels):
            emitters["prepare"] = partial(emit_prepare, panels=panels, width=width)
        self.library = Library(emitters)
        self.multiply: Function = self.library["multiply"]
        self.prepare: Function = self.library["prepare" if "prepare" in emitters else "multiply"]

    @staticmethod
    @cache
    def of(panels: Panels, width: int) -> MatmulCode:
        return MatmulCode(panels, width)


def threads_for(work: int) -> int:
    """How many threads share so many multiplications."""
    return min(torch.get_num_threads(), 1 + work // _WORK)


def parts(count: int, threads: int, step: int) -> list[int]:
    """The bounds of an even share of `count` panels for each thread; all but the last are multiples of `step`."""
    tiles = count // step
    return [tiles * thread // threads * step for thread in range(threads)] + [count]
