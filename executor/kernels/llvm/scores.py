"""What becomes of the scores of attention before the softmax, as LLVM code, whichever way lanes are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from qpdsl.executor.kernels.llvm.kernel_code import KernelCode, Value

# Whether scores get slopes times distances, or times positions and rounded (see `Alibi`).
AlibiKind = Literal["distance", "rounded"] | None


@dataclass(frozen=True, slots=True)
class Scores:
    """What becomes of scores, and where keys lie: see `emit_attend`."""

    sinks: bool
    softcap: float | None
    trees: bool
    chunked: bool
    alibi: AlibiKind

    def least(self, code: KernelCode, count: Value) -> Value:
        """The first token that a query sees of the `count` up to its own."""
        builder, window = code.builder, code.arguments["window"]
        if self.chunked:
            return builder.mul(builder.sdiv(code.add(count, -1), window), window)
        return code.most(builder.sub(count, window), 0)

    def capped(self, code: KernelCode, scores: Value) -> Value:
        """c·tanh(s/c), of tanh(x) = 1 - 2 / (e^2x + 1)."""
        if self.softcap is None:
            return scores
        builder, cap = code.builder, self.softcap
        power = code.exp(builder.fmul(scores, code.constant(2.0 / cap)))
        rest = builder.fdiv(code.constant(2.0), builder.fadd(power, code.constant(1.0)))
        return builder.fmul(builder.fsub(code.constant(1.0), rest), code.constant(cap))

    def biased(self, code: KernelCode, scores: Value, slopes: Value, positions: Value, last: Value) -> Value:
        """With what `Alibi.bias` adds for keys at `positions`. `last`: those of the queries. All lane by lane."""
        builder = code.builder
        if self.alibi == "distance":
            positions = builder.sub(positions, last)
        bias = builder.fmul(slopes, builder.sitofp(positions, code.vector))
        if self.alibi == "rounded":
            bias = code.as_float(bias, torch.bfloat16)
        return builder.fadd(scores, builder.fmul(bias, code.broadcast(code.arguments["factor"])))
