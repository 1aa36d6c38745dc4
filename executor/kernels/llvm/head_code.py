"""An output head and its draws as LLVM code: from hidden states to tokens, a block of ids at a time.

A block's logits stay in the cache of a core: they are multiplied, finished, masked, summed up and compared, and then
the next block takes their place. The panels of the head are given as a list, so the same code computes all ids or only
the panels that hold an allowed one. Either way a draw has the same bits: an id that is masked adds exactly nothing to
the sum of its block, sums of blocks are added in the order of the blocks, and the best of the ids does not depend on
how they are shared out to threads.
"""

from __future__ import annotations

from llvmlite import ir

from qpdsl.executor.kernels.llvm.kernel_code import F32, I8, I16, I32, I64, POINTER, KernelCode, Value, Variable
from qpdsl.executor.kernels.llvm.sample import (
    F64,
    WIDEST_GAP,
    Leaders,
    NoiseCode,
    exact_score,
    least_candidate,
    natural_log,
)
from qpdsl.executor.kernels.plain.philox import GUMBEL_MAX

# Ids whose exponentials are summed together. Their logits, of up to some hundred rows, fit the cache of a core.
BLOCK = 1024
# Panels whose noise is made together: a block of four ids to each lane of a vector.
TOGETHER = 4
# What a thread finds for each draw.
FOUND = ("best", "second", "chosen", "top")


def block_row(width: int) -> int:
    """Floats of a row of a block's logits, with what the product and the draw may touch after the last panel."""
    return BLOCK + TOGETHER * width


def emit_draw(module: ir.Module, name: str, width: int) -> None:
    """Computes and draws from a thread's blocks of ids.

    Draws come in groups. A group has panels of its own in the list, and rows of its own in x. Arguments, in order:
    x            float32 [T, inputs]
    weights, bytes, bias, sums, listed: arguments of `emit_listed`
    starts       int64 [blocks + 1], the places in the list at which the panels of each block begin
    groups       int64 [blocks], the group that each block belongs to
    first_block, first_row, first_draw: int64 [groups + 1], where the blocks, rows and draws of each group begin
    finish       float32 [2]: what logits are multiplied with, and their soft-cap, 0 for none
    rows         int64 [D], the row that each draw reads, counted from the first of its group
    temperature  float32 [D], 0 for the largest logit
    keys, positions: int64 [D]
    masks        int64 [D], the address of the bits of each draw, a bit for each id
    sizes        int64 [D + 1], where the blocks of each draw begin in `peaks` and `totals`
    peaks        float32, the largest logit of each block of each draw
    seconds      float32, the next largest one, -inf where there is none
    totals       float32, the sum of exponentials relative to the largest, or to 0 where it is -inf
    room         float32 [threads, room_row], workspace for the logits of a group's rows and two rows more
    found        float32 [threads, 4, D], by these threads: the two best scores, the logit of the best; and workspace
    tokens       int64 [threads, D], the id of the best
    multiply     the address of the code of `emit_listed`
    inputs
    sum_groups   numbers in a row of `sums`
    room_row
    draws        D
    vocabulary
    thread       the number of this thread
    from, to     its first block, and the block to stop before
    """
    pointers = (
        *("x", "weights", "bias", "sums", "listed", "starts", "groups", "first_block", "first_row", "first_draw"),
        *("finish", "rows", "temperature", "keys", "positions", "masks", "sizes", "peaks", "seconds"),
        *("totals", "room", "found", "tokens"),
    )
    numbers = ("@multiply", "@bytes", "@inputs", "@sum_groups", "@room_row", "@draws", "@vocabulary")
    code = KernelCode(module, name, (*pointers, *numbers, "@thread", "@from", "@to"), width)
    given, builder = code.arguments, code.builder
    thread, draws = given["thread"], given["draws"]
    own = {
        "room": code.at(given["room"], builder.mul(thread, given["room_row"])),
        "tokens": code.at(given["tokens"], builder.mul(thread, draws), I64),
    }
    for number, result in enumerate(FOUND):
        own[result] = code.at(given["found"], builder.mul(code.add(code.times(thread, len(FOUND)), number), draws))
    lowest = ir.Constant(F32, float("-inf"))
    with code.loop(0, draws) as draw:
        for result in FOUND:
            builder.store(lowest, code.at(own[result], draw))
        builder.store(code.number(0), code.at(own["tokens"], draw, I64))
    end = code.integer(given["starts"], given["to"], I64)
    with code.loop(given["from"], given["to"]) as block:
        first = code.integer(given["starts"], block, I64)
        last = code.integer(given["starts"], code.add(block, 1), I64)
        group = code.integer(given["groups"], block, I64)
        row = code.integer(given["first_row"], group, I64)
        rows = builder.sub(code.integer(given["first_row"], code.add(group, 1), I64), row)
        multiply_block(code, own["room"], row, rows, (first, last, end))
        finish_block(code, own["room"], rows, builder.sub(last, first))
        work = code.at(own["room"], code.times(rows, block_row(width)))
        in_group = builder.sub(block, code.integer(given["first_block"], group, I64))
        begin = code.integer(given["first_draw"], group, I64)
        with code.loop(begin, code.integer(given["first_draw"], code.add(group, 1), I64)) as draw:
            _Draw(code, own, work, draw, in_group, first, last).emit()
    code.end()


def multiply_block(code: KernelCode, out: Value, row: Value, rows: Value, places: tuple[Value, Value, Value]) -> None:
    """Logits of the rows from `row` on, of the panels at the given places in the list."""
    given = code.arguments
    kinds = (POINTER, I64, POINTER, I64, *[POINTER] * 4, *[I64] * 6)
    function = code.builder.inttoptr(given["multiply"], ir.FunctionType(ir.VoidType(), kinds).as_pointer())
    x = code.at(given["x"], code.builder.mul(row, given["inputs"]))
    sums = code.at(given["sums"], code.builder.mul(row, given["sum_groups"]))
    code.builder.call(
        function,
        [
            *(x, given["inputs"], given["weights"], given["bytes"], given["bias"], sums, given["listed"]),
            *(out, code.number(block_row(code.width)), rows, given["inputs"], *places),
        ],
    )


def finish_block(code: KernelCode, logits: Value, rows: Value, panels: Value) -> None:
    """Scales and caps a block's logits where there is anything to do."""
    builder, given = code.builder, code.arguments
    scale = builder.load(given["finish"], typ=F32)
    cap = builder.load(code.at(given["finish"], 1), typ=F32)
    capped = builder.fcmp_ordered("!=", cap, ir.Constant(F32, 0.0))
    scaled = builder.fcmp_ordered("!=", scale, ir.Constant(F32, 1.0))
    with builder.if_then(builder.or_(capped, scaled)), code.loop(0, rows) as row:
        start = code.at(logits, code.times(row, block_row(code.width)))
        with code.loop(0, code.times(panels, code.width), code.width) as at:
            place = code.at(start, at)
            value = code.variable(code.vector, builder.fmul(code.load(place), code.splat(scale)))
            with builder.if_then(capped):
                # c·tanh(s/c), of tanh(x) = 1 - 2 / (e^2x + 1).
                power = code.exp(builder.fdiv(builder.fmul(value.get(), code.constant(2.0)), code.splat(cap)))
                rest = builder.fdiv(code.constant(2.0), builder.fadd(power, code.constant(1.0)))
                value.set(builder.fmul(builder.fsub(code.constant(1.0), rest), code.splat(cap)))
            code.store(value.get(), place)


class BlockDraw:
    """The code for one draw and one block of ids, of the panels from place `first` to before `last` in the list.

    `room`: the address of the logits of the rows; `work`: of two rows of numbers.
    """

    def __init__(self, code: KernelCode, room: Value, work: Value, draw: Value, first: Value, last: Value) -> None:
        self._code, self._draw, self._first, self._last = code, draw, first, last
        builder, given = code.builder, code.arguments
        row = code.integer(given["rows"], draw, I64)
        self._logits = code.at(room, code.times(row, block_row(code.width)))
        self._raw, self._scores = work, code.at(work, block_row(code.width))
        self._mask = builder.inttoptr(code.integer(given["masks"], draw, I64), POINTER)
        temperature = builder.load(code.at(given["temperature"], draw), typ=F32)
        self._noisy = builder.fcmp_ordered(">", temperature, ir.Constant(F32, 0.0))
        self._divisor = builder.select(self._noisy, temperature, ir.Constant(F32, 1.0))
        key, position = (code.integer(given[name], draw, I64) for name in ("keys", "positions"))
        self._noise = NoiseCode(code, key, position)

    def _panel(self, place: Value) -> Value:
        """The number of the panel at a place in the list, of the last for places after it."""
        code = self._code
        return code.integer(code.arguments["listed"], code.least(place, code.add(self._last, -1)), I32)

    def _at(self, base: Value, place: Value) -> Value:
        """The address of the numbers of a panel in a workspace."""
        code = self._code
        return code.at(base, code.times(code.builder.sub(place, self._first), code.width))

    def _masked(self) -> Value:
        """Copies the logits of the allowed ids, -inf for the others. Returns their maximum, in every lane."""
        code, builder, width = self._code, self._code.builder, self._code.width
        lowest = code.constant(float("-inf"))
        lanes = ir.Constant(code.integers, [*range(width)])
        vocabulary = code.splat(builder.trunc(code.arguments["vocabulary"], I32))
        peak = code.variable(code.vector, lowest)
        with code.loop(self._first, self._last, TOGETHER) as start:
            for number in range(TOGETHER):
                place = code.add(start, number)
                panel = self._panel(place)
                ids = builder.add(code.splat(builder.trunc(code.times(panel, width), I32)), lanes)
                allowed = builder.and_(self._bits(panel), builder.icmp_signed("<", ids, vocabulary))
                there = builder.icmp_signed("<", place, self._last)
                allowed = builder.select(there, allowed, ir.Constant(allowed.type, None))
                values = builder.select(allowed, code.load(self._at(self._logits, place)), lowest)
                code.store(values, self._at(self._raw, place))
                peak.set(code.maximum(peak.get(), values))
        return code.folded(peak.get(), 1, code.maximum)

    def _bits(self, panel: Value) -> Value:
        """Which ids of a panel the mask allows."""
        code, builder, width = self._code, self._code.builder, self._code.width
        kind = ir.IntType(width)
        if width >= 8:
            of = I16 if width == 16 else I8
            bits = builder.load(code.at(self._mask, panel, of), typ=of, align=1)
        else:
            byte = builder.load(code.at(self._mask, builder.lshr(panel, code.number(1)), I8), typ=I8)
            shift = builder.trunc(code.times(builder.and_(panel, code.number(1)), width), I8)
            bits = builder.trunc(builder.lshr(byte, shift), kind)
        return builder.bitcast(bits, ir.VectorType(ir.IntType(1), width))

    def _noised(self, scores: list[Variable], places: list[Value]) -> None:
        """Adds the noise of a draw to the scores of panels at neighbouring places, where it has some."""
        code, builder, width = self._code, self._code.builder, self._code.width
        lane_blocks = ir.Constant(code.integers, [lane % (width // 4) for lane in range(width)])
        with builder.if_then(self._noisy):
            panels = [builder.trunc(code.times(self._panel(place), width // 4), I32) for place in places]
            blocks = builder.add(self._quarters(panels), lane_blocks)
            for score, noise in zip(scores, self._noise.near(blocks), strict=True):
                score.set(builder.fadd(score.get(), noise))

    def _quarters(self, numbers: list[Value]) -> Value:
        """A vector of four numbers int32, each in a quarter of the lanes."""
        code, builder = self._code, self._code.builder
        vector = ir.Constant(code.integers, ir.Undefined)
        for index, number in enumerate(numbers):
            vector = builder.insert_element(vector, number, ir.Constant(I32, index))
        return code.shuffle(vector, vector, [lane // (code.width // 4) for lane in range(code.width)])


class _Draw(BlockDraw):
    """A draw that finds its best ids.

    `own`: the addresses of what the thread has found, and of the logits; `block`: counted from the first of its group.
    """

    def __init__(
        self,
        code: KernelCode,
        own: dict[str, Value],
        work: Value,
        draw: Value,
        block: Value,
        first: Value,
        last: Value,
    ) -> None:
        super().__init__(code, own["room"], work, draw, first, last)
        self._own = own
        self._size = code.add(code.integer(code.arguments["sizes"], draw, I64), block)

    def emit(self) -> None:
        code, given = self._code, self._code.arguments
        peak = self._masked()
        code.builder.store(code.lane(peak, 0), code.at(given["peaks"], self._size))
        top_place = code.at(self._own["top"], self._draw)
        top = self._scored(peak, code.broadcast(top_place))
        code.builder.store(code.lane(top, 0), top_place)
        self._choose(least_candidate(code, top))

    def _scored(self, peak: Value, before: Value) -> Value:
        """Stores the sum of the block's exponentials, its second largest logit, and its scores within the slack.

        Returns the best score of this block and those before it, of which `before` is the best, in every lane.
        """
        code, builder = self._code, self._code.builder
        lowest = code.constant(float("-inf"))
        # An infinite difference would be no number.
        base = builder.select(builder.fcmp_ordered("==", peak, lowest), code.constant(0.0), peak)
        total = code.variable(code.vector, code.constant(0.0))
        first, second = code.variable(code.vector, lowest), code.variable(code.vector, lowest)
        top = code.variable(code.vector, before)
        divisor = code.splat(self._divisor)
        # Below this, even the largest noise cannot make an id one of the first two.
        reach = builder.select(self._noisy, ir.Constant(F32, GUMBEL_MAX), ir.Constant(F32, 0.0))
        least = builder.fsub(least_candidate(code, before), code.splat(reach))
        with code.loop(self._first, self._last, TOGETHER) as start:
            places = [code.add(start, number) for number in range(TOGETHER)]
            raw = [code.load(self._at(self._raw, place)) for place in places]
            for values in raw:
                total.set(builder.fadd(total.get(), code.exp(builder.fsub(values, base))))
                second.set(code.maximum(second.get(), code.minimum(first.get(), values)))
                first.set(code.maximum(first.get(), values))
            scores = [code.variable(code.vector, builder.fdiv(values, divisor)) for values in raw]
            highest = code.largest([score.get() for score in scores])
            reaches = builder.fcmp_ordered(">=", highest, least)
            reaches = builder.and_(reaches, builder.fcmp_ordered(">", highest, lowest))
            with builder.if_else(code.any_lane(reaches)) as (some, none):
                with some:
                    self._noised(scores, places)
                    for score in scores:
                        top.set(code.maximum(top.get(), score.get()))
                with none:
                    for score in scores:
                        score.set(lowest)
            for place, score in zip(places, scores, strict=True):
                code.store(score.get(), self._at(self._scores, place))
        place = code.at(code.arguments["totals"], self._size)
        builder.store(code.lane(code.total(total.get()), 0), place)
        place = code.at(code.arguments["seconds"], self._size)
        builder.store(code.lane(self._second_largest(first.get(), second.get()), 0), place)
        return code.folded(top.get(), 1, code.maximum)

    def _second_largest(self, first: Value, second: Value) -> Value:
        """The second largest number of all lanes, in every lane, of the two largest of each."""
        code = self._code
        distance = code.width // 2
        while distance:
            order = [(lane + distance) % code.width for lane in range(code.width)]
            other = code.shuffle(first, first, order)
            second = code.maximum(second, code.shuffle(second, second, order))
            second = code.maximum(second, code.minimum(first, other))
            first = code.maximum(first, other)
            distance //= 2
        return second

    def _choose(self, least: Value) -> None:
        """Compares the block's ids that could be first or second with the best so far, in their order."""
        code, builder, own, draw = self._code, self._code.builder, self._own, self._draw
        places = {name: code.at(own[name], draw) for name in ("best", "second", "chosen")}
        places["tokens"] = code.at(own["tokens"], draw, I64)
        leaders = Leaders(code)
        leaders.best.set(builder.load(places["best"], typ=F32))
        leaders.second.set(builder.load(places["second"], typ=F32))
        leaders.token.set(builder.load(places["tokens"], typ=I64))
        chosen = code.variable(F32, builder.load(places["chosen"], typ=F32))
        lowest = ir.Constant(F32, float("-inf"))
        with code.loop(self._first, self._last) as place:
            near = builder.fcmp_ordered(">=", code.load(self._at(self._scores, place)), least)
            start = code.times(self._panel(place), code.width)
            with builder.if_then(code.any_lane(near), likely=False), code.loop(0, code.width) as lane:
                score = builder.load(code.at(self._at(self._scores, place), lane), typ=F32)
                candidate = builder.fcmp_ordered(">=", score, code.lane(least, 0))
                candidate = builder.and_(candidate, builder.fcmp_ordered(">", score, lowest))
                with builder.if_then(candidate):
                    token = code.add(start, lane)
                    raw = builder.load(code.at(self._at(self._raw, place), lane), typ=F32)
                    exact = exact_score(code, raw, self._divisor, self._noisy, self._noise, token)
                    wins = leaders.compare(token, exact)
                    chosen.set(builder.select(wins, raw, chosen.get()))
        builder.store(leaders.best.get(), places["best"])
        builder.store(leaders.second.get(), places["second"])
        builder.store(leaders.token.get(), places["tokens"])
        builder.store(chosen.get(), places["chosen"])


def emit_choose(module: ir.Module, name: str) -> None:
    """Merges what threads found. Arguments of the function, in order:

    found, tokens, peaks, seconds, totals, sizes: see `emit_draw`; threads have blocks in their order
    order        int64 [D], the place of each draw in the results
    token_out    int64
    logprob_out  float32, at temperature 1
    gap_out      float32, between the two best scores; infinite where it is wider than `WIDEST_GAP`
    margin_out   float32, between the two largest probabilities at temperature 1
    draws, threads
    """
    pointers = (
        *("found", "tokens", "peaks", "seconds", "totals", "sizes", "order"),
        *("token_out", "logprob_out", "gap_out", "margin_out"),
    )
    code = KernelCode(module, name, (*pointers, "@draws", "@threads"), 4)
    builder, given = code.builder, code.arguments
    with code.loop(0, given["draws"]) as draw:
        leaders = Leaders(code)
        chosen = code.variable(F32, ir.Constant(F32, float("-inf")))
        with code.loop(0, given["threads"]) as thread:
            start = code.times(thread, len(FOUND))
            best, second, logit = (
                builder.load(
                    code.at(given["found"], code.add(builder.mul(code.add(start, number), given["draws"]), draw)),
                    typ=F32,
                )
                for number in range(3)
            )
            token = code.integer(given["tokens"], code.add(builder.mul(thread, given["draws"]), draw), I64)
            wins = leaders.compare(token, best)
            chosen.set(builder.select(wins, logit, chosen.get()))
            higher = builder.fcmp_ordered(">", second, leaders.second.get())
            leaders.second.set(builder.select(higher, second, leaders.second.get()))
        out = code.integer(given["order"], draw, I64)
        peak, second, log_total = _totals(code, draw)
        logprob = builder.fsub(builder.fpext(chosen.get(), F64), log_total)
        likely = [_power(code, builder.fsub(builder.fpext(logit, F64), log_total)) for logit in (peak, second)]
        gap = builder.fsub(leaders.best.get(), leaders.second.get())
        near = builder.fcmp_ordered("<=", gap, ir.Constant(F32, WIDEST_GAP))
        gap = builder.select(near, gap, ir.Constant(F32, float("inf")))
        builder.store(leaders.token.get(), code.at(given["token_out"], out, I64))
        builder.store(builder.fptrunc(logprob, F32), code.at(given["logprob_out"], out))
        builder.store(gap, code.at(given["gap_out"], out))
        margin = builder.fptrunc(builder.fsub(*likely), F32)
        builder.store(margin, code.at(given["margin_out"], out))
    code.end()


def _power(code: KernelCode, value: Value) -> Value:
    """e to a float64."""
    return code.builder.call(code.module.declare_intrinsic("llvm.exp", [F64], ir.FunctionType(F64, [F64])), [value])


def _totals(code: KernelCode, draw: Value) -> tuple[Value, Value, Value]:
    """The two largest logits of a draw, float32, and ln Σ e^logit, float64.

    Blocks without an allowed id add exactly nothing.
    """
    builder, given = code.builder, code.arguments
    first, end = (code.integer(given["sizes"], place, I64) for place in (draw, code.add(draw, 1)))
    peak, second = (code.variable(F32, ir.Constant(F32, float("-inf"))) for _ in range(2))
    with code.loop(first, end) as at:
        here = builder.load(code.at(given["peaks"], at), typ=F32)
        higher = builder.fcmp_ordered(">", here, peak.get())
        # The lower one of the two largest, and the block's own second.
        for other in (builder.select(higher, peak.get(), here), builder.load(code.at(given["seconds"], at), typ=F32)):
            second.set(builder.select(builder.fcmp_ordered(">", other, second.get()), other, second.get()))
        peak.set(builder.select(higher, here, peak.get()))
    total = code.variable(F64, ir.Constant(F64, 0.0))
    with code.loop(first, end) as at:
        here = builder.load(code.at(given["peaks"], at), typ=F32)
        power = code.lane(code.exp(code.splat(builder.fsub(here, peak.get()))), 0)
        part = builder.load(code.at(given["totals"], at), typ=F32)
        total.set(builder.fadd(total.get(), builder.fmul(builder.fpext(power, F64), builder.fpext(part, F64))))
    log_total = builder.fadd(builder.fpext(peak.get(), F64), natural_log(code, total.get()))
    return peak.get(), second.get(), log_total
