"""Gumbel-max sampling on a CPU as LLVM code: the token, its log-probability and the gap to the runner-up.

All ids get the noise in float32 first, within a slack. Only those that could still be first or second get it in
float64, as it is defined. So a row costs some fifty vector operations for sixteen ids, and a handful of logarithms in
float64. The random words are those of `plain/philox.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import torch
from llvmlite import ir

from qpdsl.executor.kernels.llvm.compile import Library, vector_width
from qpdsl.executor.kernels.llvm.kernel_code import F32, I32, I64, KernelCode, Value
from qpdsl.executor.kernels.plain.philox import MULTIPLIERS, ROUNDS, WEYL

F64 = ir.DoubleType()
# More than twice the error of the float32 noise, plus `WIDEST_GAP`.
SLACK = 2e-2
# The part of a large score that float32 loses when the noise is added.
ROUNDING = 2.0**-22
# Ids whose exact scores lie so near to the best have noisy float32 scores within `SLACK` of the best of those.
WIDEST_GAP = 1e-2
# Below this u, -ln(1 - u) is computed as a series; above, 1 - u has bits enough for a logarithm.
_SERIES = 0.25


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
            last = code.least(code.add(first, code.width), self._vocabulary)
            with builder.if_then(code.any_lane(near), likely=False), code.loop(first, last) as at:
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


def natural_log(code: KernelCode, value: Value) -> Value:
    """The natural logarithm of a float64."""
    intrinsic = code.module.declare_intrinsic("llvm.log", [F64], ir.FunctionType(F64, [F64]))
    return code.builder.call(intrinsic, [value])


def least_candidate(code: KernelCode, highest: Value) -> Value:
    """The float32 score, in every lane, from which on an id could be first or second; `highest`: the best of them."""
    slack = code.fma(code.magnitude(highest), code.constant(ROUNDING), code.constant(SLACK))
    return code.builder.fsub(highest, slack)


class NoiseCode:
    """The noise of one draw, of its key and its position, int64."""

    def __init__(self, code: KernelCode, key: Value, position: Value) -> None:
        self._code = code
        builder = code.builder
        self._position = builder.trunc(position, I32)
        halves = (builder.trunc(key, I32), builder.trunc(builder.lshr(key, code.number(32)), I32))
        pairs = list(zip(halves, WEYL, strict=True))
        self._round_keys = [
            [builder.add(half, ir.Constant(I32, step * weyl & 0xFFFFFFFF)) for half, weyl in pairs]
            for step in range(ROUNDS)
        ]

    def near(self, blocks: Value) -> list[Value]:
        """Noise float32 within the slack, of the ids of `width` blocks of four: four vectors, of a quarter each."""
        code = self._code
        return [self._near(word) for word in _in_order(code, self._philox(blocks, code.splat(self._position)))]

    def exact(self, token: Value) -> Value:
        """The noise float64 of one id int32: -ln(-ln(1 - u)), where 1 - u is exact."""
        code, builder = self._code, self._code.builder
        words = self._philox(builder.lshr(token, ir.Constant(I32, 2)), self._position)
        which = builder.and_(token, ir.Constant(I32, 3))
        word = words[0]
        for index in range(1, 4):
            word = builder.select(builder.icmp_unsigned("==", which, ir.Constant(I32, index)), words[index], word)
        rest = builder.uitofp(builder.xor(word, ir.Constant(I32, -1)), F64)
        above = builder.fmul(builder.fadd(rest, ir.Constant(F64, 0.5)), ir.Constant(F64, 2.0**-32))
        return builder.fneg(natural_log(code, builder.fneg(natural_log(code, above))))

    def _near(self, word: Value) -> Value:
        code, builder = self._code, self._code.builder
        ones = ir.Constant(code.integers, [-1] * code.width)

        def fraction(bits: Value) -> Value:
            return builder.fmul(builder.fadd(builder.uitofp(bits, code.vector), code.constant(0.5)), unit)

        unit = code.constant(2.0**-32)
        below, above = fraction(word), fraction(builder.xor(word, ones))
        series = code.constant(0.25)
        for coefficient in (1 / 3, 0.5, 1.0):
            series = code.fma(series, below, code.constant(coefficient))
        small = builder.fcmp_ordered("<", below, code.constant(_SERIES))
        inner = builder.select(small, builder.fmul(series, below), builder.fneg(code.log(above)))
        return builder.fneg(code.log(inner))

    def _philox(self, c0: Value, c1: Value) -> list[Value]:
        """The four words of the blocks with counters (c0, c1, 0, 0): integers of 32 bits or vectors of them."""
        code, builder, kind = self._code, self._code.builder, c0.type
        vector = isinstance(kind, ir.VectorType)
        wide = ir.VectorType(I64, kind.count) if vector else I64

        def constant(of: ir.Type, value: int) -> Value:
            return ir.Constant(of, [value] * kind.count if vector else value)

        def product(value: Value, multiplier: int) -> tuple[Value, Value]:
            full = builder.mul(builder.zext(value, wide), constant(wide, multiplier))
            return builder.trunc(builder.lshr(full, constant(wide, 32)), kind), builder.trunc(full, kind)

        c2 = c3 = constant(kind, 0)
        for keys in self._round_keys:
            k0, k1 = (code.splat(key) if vector else key for key in keys)
            (high0, low0), (high1, low1) = product(c0, MULTIPLIERS[0]), product(c2, MULTIPLIERS[1])
            c0, c1 = builder.xor(builder.xor(high1, c1), k0), low1
            c2, c3 = builder.xor(builder.xor(high0, c3), k1), low0
        return [c0, c1, c2, c3]


def _in_order(code: KernelCode, words: Sequence[Value]) -> list[Value]:
    """Vectors of the words of neighbouring ids, from vectors of each block's first, second, third and fourth words."""

    def interleaved(first: Value, second: Value) -> list[Value]:
        pairs = [lane for index in range(code.width) for lane in (index, code.width + index)]
        return [code.shuffle(first, second, pairs[: code.width]), code.shuffle(first, second, pairs[code.width :])]

    even, odd = interleaved(words[0], words[2]), interleaved(words[1], words[3])
    return [vector for low, high in zip(even, odd, strict=True) for vector in interleaved(low, high)]
