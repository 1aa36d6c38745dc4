"""Gumbel-max sampling on a CPU as LLVM code: the token, its log-probability and the gap to the runner-up.

All ids get the noise in float32 first, within a slack. Only those that could still be first or second get it in
float64, as it is defined. So a row costs some fifty vector operations for
sixteen ids, and a handful of logarithms in float64.
"""

from __future__ import annotations

from functools import cache, partial

import torch
from llvmlite import ir

from qpdsl.executor.kernels.llvm.gumbel import F64, NoiseCode, least_candidate, natural_log
from qpdsl.executor.kernels.llvm.jit.builder import F32, I32, I64, KernelCode, Value
from qpdsl.executor.kernels.llvm.jit.compile import Library, vector_width


class RowSampler:
    """Draws rows of `vocabulary` logits. Raises LookupError where the machine has no vectors."""

    def __init__(self, vocabulary: int) -> None:
        width = vector_width()
        if not width:
            raise LookupError("no vectors")
        self._library = _library(vocabulary, width)
        self._function = self._library["sample"]
        self._vocabulary = vocabulary
        self._scratch = torch.empty(-(-vocabulary // (4 * width)) * 4 * width, dtype=torch.float32)

    def __call__(
        self, logits: torch.Tensor, temperature: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draws a token for each row of `logits` float32 [B, V], as `triton/sample.py` does on a GPU.

        `temperature` float32 [B], 0 for the largest logit; `keys` and `positions` int64 [B], keys of 64 bits. Returns
        tokens int64, log-probabilities at temperature 1 float32, and the gaps between the best and the second best
        perturbed score float32, each [B].
        """
        logits = logits.contiguous()
        count = logits.shape[0]
        tokens = torch.empty(count, dtype=torch.int64)
        logprobs, gaps = torch.empty(count, dtype=torch.float32), torch.empty(count, dtype=torch.float32)
        tensors = (logits, temperature, keys, positions, tokens, logprobs, gaps, self._scratch)
        self._function(*(tensor.data_ptr() for tensor in tensors), count)
        return tokens, logprobs, gaps


@cache
def _library(vocabulary: int, width: int) -> Library:
    return Library({"sample": partial(emit_sample, vocabulary=vocabulary, width=width)})


def emit_sample(module: ir.Module, name: str, vocabulary: int, width: int) -> None:
    """Arguments: those of `RowSampler` and its results, scratch float32 [V rounded up to four vectors], and B."""
    addresses = ("logits", "temperature", "keys", "positions", "tokens", "logprobs", "gaps", "scratch")
    code = KernelCode(module, name, (*addresses, "@count"), width)
    with code.loop(0, code.arguments["count"]) as row:
        _Row(code, vocabulary, row).emit()
    code.end()


class _Row:
    """The code for one row."""

    def __init__(self, code: KernelCode, vocabulary: int, row: Value) -> None:
        self._code, self._vocabulary, self._row = code, vocabulary, row
        self._logits = code.at(code.arguments["logits"], code.times(row, vocabulary))
        self._scratch = code.arguments["scratch"]
        self._size = -(-vocabulary // (4 * code.width)) * 4 * code.width
        builder = code.builder
        temperature = builder.load(code.at(code.arguments["temperature"], row), typ=F32)
        self._noisy = builder.fcmp_ordered(">", temperature, ir.Constant(F32, 0.0))
        self._divisor = builder.select(self._noisy, temperature, ir.Constant(F32, 1.0))
        key, position = (code.integer(code.arguments[name], row, I64) for name in ("keys", "positions"))
        self._noise = NoiseCode(code, key, position)

    def emit(self) -> None:
        code = self._code
        peak = self._copied()
        log_total = self._log_total(peak)
        top = code.variable(code.vector, peak)
        with code.builder.if_then(self._noisy):
            top.set(self._perturbed())
        self._choose(least_candidate(code, code.folded(top.get(), 1, code.maximum)), log_total)

    def _copied(self) -> Value:
        """Copies the logits to the scratch, with -inf after them. Returns their maximum, in every lane."""
        code, builder = self._code, self._code.builder
        lowest = code.constant(float("-inf"))
        whole = self._vocabulary // code.width * code.width
        for at in range(self._size - code.width, whole - 1, -code.width):
            code.store(lowest, code.at(self._scratch, at))
        with code.loop(whole, self._vocabulary) as at:
            builder.store(builder.load(code.at(self._logits, at), typ=F32), code.at(self._scratch, at))
        peak = code.variable(code.vector, lowest)
        with code.loop(0, whole, code.width) as at:
            values = code.load(code.at(self._logits, at))
            code.store(values, code.at(self._scratch, at))
            peak.set(code.maximum(peak.get(), values))
        with code.loop(whole, self._size, code.width) as at:
            peak.set(code.maximum(peak.get(), code.load(code.at(self._scratch, at))))
        return code.folded(peak.get(), 1, code.maximum)

    def _log_total(self, peak: Value) -> Value:
        """ln Σ e^logit, float64."""
        code, builder = self._code, self._code.builder
        total = code.variable(code.vector, code.constant(0.0))
        with code.loop(0, self._size, code.width) as at:
            powers = code.exp(builder.fsub(code.load(code.at(self._scratch, at)), peak))
            total.set(builder.fadd(total.get(), powers))
        rest = builder.fpext(code.lane(code.total(total.get()), 0), F64)
        return builder.fadd(builder.fpext(code.lane(peak, 0), F64), natural_log(code, rest))

    def _perturbed(self) -> Value:
        """Writes the perturbed scores to the scratch, within the slack. Returns their maximum, lane by lane."""
        code, builder, width = self._code, self._code.builder, self._code.width
        top = code.variable(code.vector, code.constant(float("-inf")))
        divisor = code.splat(self._divisor)
        lanes = ir.Constant(code.integers, [*range(width)])
        with code.loop(0, self._size, 4 * width) as first:
            block = builder.trunc(builder.lshr(first, code.number(2)), I32)
            for index, noise in enumerate(self._noise.near(builder.add(code.splat(block), lanes))):
                place = code.at(self._scratch, code.add(first, index * width))
                score = builder.fadd(builder.fdiv(code.load(place), divisor), noise)
                code.store(score, place)
                top.set(code.maximum(top.get(), score))
        return top.get()

    def _choose(self, least: Value, log_total: Value) -> None:
        """Compares the ids that could be first or second, in their order, and stores the results of the row."""
        code, builder, row = self._code, self._code.builder, self._row
        leaders = Leaders(code)
        with code.loop(0, self._size, code.width) as first:
            near = builder.fcmp_ordered(">=", code.load(code.at(self._scratch, first)), least)
            mask = builder.bitcast(near, ir.IntType(code.width))
            any_near = builder.icmp_unsigned("!=", mask, ir.Constant(mask.type, 0))
            last = code.least(code.add(first, code.width), self._vocabulary)
            with builder.if_then(any_near, likely=False), code.loop(first, last) as at:
                score = builder.load(code.at(self._scratch, at), typ=F32)
                with builder.if_then(builder.fcmp_ordered(">=", score, code.lane(least, 0))):
                    raw = builder.load(code.at(self._logits, at), typ=F32)
                    leaders.compare(at, exact_score(code, raw, self._divisor, self._noisy, self._noise, at))
        token = leaders.token.get()
        chosen = builder.fpext(builder.load(code.at(self._logits, token), typ=F32), F64)
        logprob = builder.fptrunc(builder.fsub(chosen, log_total), F32)
        builder.store(token, code.at(code.arguments["tokens"], row, I64))
        builder.store(logprob, code.at(code.arguments["logprobs"], row))
        builder.store(builder.fsub(leaders.best.get(), leaders.second.get()), code.at(code.arguments["gaps"], row))


class Leaders:
    """The best and the second best score so far, float32, and the id of the best; of equal ones the first wins."""

    def __init__(self, code: KernelCode) -> None:
        self._builder = code.builder
        lowest = ir.Constant(F32, float("-inf"))
        self.best, self.second = code.variable(F32, lowest), code.variable(F32, lowest)
        self.token = code.variable(I64, code.number(0))

    def compare(self, token: Value, score: Value) -> Value:
        """Takes the id in; ids come in their order. Returns whether it is the best now."""
        builder = self._builder
        before = self.best.get()
        wins = builder.fcmp_ordered(">", score, before)
        runner = builder.select(wins, before, score)
        higher = builder.fcmp_ordered(">", runner, self.second.get())
        self.second.set(builder.select(higher, runner, self.second.get()))
        self.best.set(builder.select(wins, score, before))
        self.token.set(builder.select(wins, token, self.token.get()))
        return wins


def exact_score(code: KernelCode, raw: Value, divisor: Value, noisy: Value, noise: NoiseCode, token: Value) -> Value:
    """The score float32 of an id int64 of the logit `raw`, with its noise where the draw is `noisy`."""
    builder = code.builder
    score = code.variable(F32, builder.fdiv(raw, divisor))
    with builder.if_then(noisy):
        perturbed = builder.fadd(builder.fpext(score.get(), F64), noise.exact(builder.trunc(token, I32)))
        score.set(builder.fptrunc(perturbed, F32))
    return score.get()
