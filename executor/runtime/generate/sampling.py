"""The requests that one run of a `generate` makes to the engine, as its strategy says.

How the tokens of a `generate` came about, as counts: what EXPLAIN ANALYZE tells and the statistics keep.

Allowed ids are counted in buckets, so that their median and their tail can be told without keeping every step. What
n-grams would have drafted is counted where nothing drafts, since the planner may draft by them where that pays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qpdsl.executor.events.events import Path, Routed
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.request import (
    Finish,
    GenerateRequest,
    Mask,
    Priority,
    Sample,
    SampleConstraint,
    Watch,
    WatchAround,
)
from qpdsl.executor.requests.routing import ARMS
from qpdsl.executor.runtime.generate.continuation import Continuation, GenerateOptions, thought_tokens
from qpdsl.executor.runtime.generate.thought import ThoughtWatch
from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.executor.runtime.instance.instance import Instance, OnToken, RowError, Usage, check_rows
from qpdsl.executor.text.constraint import ConstraintError
from qpdsl.executor.text.detokenizer import Tokens
from qpdsl.executor.text.stop import StopWatch
from qpdsl.executor.text.text_mask import text_masks
from qpdsl.grammar.literals.early_match import EarlyMatcher, early_matcher
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import DecodePlan
from qpdsl.planner.plan.ops import DRAFTED
from qpdsl.planner.plan.physical import GenerateStrategy
from qpdsl.planner.plan.reads import is_same_for_all
from qpdsl.planner.values.value import Value

# A number of allowed ids is counted by so many of its leading bits.
_BITS = 5
_GRAM = 2
# So much of a prompt is looked into for n-grams.
_PROMPT = 512


def count_steps(counts: Counter[str], samples: Sequence[Sample], decode: DecodePlan) -> None:
    """Counts the steps of samples, as far as the decode plan has parts that they tell something of."""
    for sample in samples:
        steps = sample.steps
        counts["draws"] += steps.draws
        counts["rounds"] += steps.rounds
        if decode.drafts:
            counts["drafted"] += steps.drafted
            counts["accepted"] += steps.accepted
            counts[f"{decode.draft}_drafted"] += steps.drafted
            counts[f"{decode.draft}_rounds"] += steps.rounds
            counts[f"{decode.draft}_draws"] += steps.draws
            counts[f"{decode.draft}_accepted"] += steps.accepted
            counts[f"{decode.draft}_rejected"] += steps.rejected
        for variant in decode.variants:
            for name in variant.counts:
                counts[name] += getattr(steps, name)
            for name in variant.rare:
                if of_steps := getattr(steps, name):
                    counts[name] += of_steps
        for arm, forwards in steps.arms:
            counts[f"{arm}_steps"] += forwards
        for ids in steps.allowed:
            counts[f"allowed_{bucket(ids)}"] += 1


def routed_words(counts: Counter[str]) -> str:
    """How often a router took each way, to compute the head or to draw at an exit; empty where there was no choice."""
    steps: dict[str, int] = {arm: counts[f"{arm}_steps"] for arm in ARMS}
    steps = steps if any(steps.values()) else {"exit": counts["exits"] + counts["refined"], "full": counts["full"]}
    total = sum(steps.values())
    return " · ".join(f"{arm} {own / total:.0%}" for arm, own in steps.items() if own)


def bucket(ids: int) -> int:
    """The number under which steps with so many allowed ids are counted: itself up to 31, else at most 6% less."""
    shift = max(ids.bit_length() - _BITS, 0)
    return ids >> shift << shift


def count_undrafted(counts: Counter[str], prompt: Sequence[int], tokens: Sequence[int]) -> None:
    """Counts the rounds in which a sample would have been drawn with n-grams from itself and its prompt as drafts."""
    text = (*prompt[-_PROMPT:], *tokens)
    start = len(text) - len(tokens)
    follows: dict[tuple[int, ...], int] = {}
    known = _GRAM
    at, rounds, drafted = start, 0, 0
    while at < len(text):
        while known < at:
            follows[text[known - _GRAM : known]] = known
            known += 1
        proposed = follows.get(text[at - _GRAM : at])
        accepted = 0
        if proposed is not None:
            length = min(DRAFTED, at - proposed)
            drafted += length
            while accepted < length and at + accepted < len(text) and text[proposed + accepted] == text[at + accepted]:
                accepted += 1
        rounds += 1
        at += accepted + 1
    counts.update(would_draws=len(tokens), would_rounds=rounds, would_drafted=drafted)


SampleWatch = StopWatch | ThoughtWatch


class TokenCounter:
    """Counts the tokens of samples that may be given up before they end; none of a model whose tokens are not known.

    `limits`: some may be given up on account of others.
    """

    limits = False

    def __init__(self, model: TextModel) -> None:
        self._known = model.own_tokens
        self._watches: list[SampleWatch | WatchAround | _Counter] = []

    def watch(self, own: SampleWatch | None, path: Path) -> Watch:
        """What counts one more sample, by its path: the watch that it has anyway, if it has one."""
        watch = own or _Counter()
        self._watches.append(watch)
        return watch

    @property
    def total(self) -> int:
        return sum(watch.pushed for watch in self._watches) if self._known else 0

    def count_rest(self, ended: Sequence[Sample], usage: Usage) -> None:
        """Counts the tokens of the samples that have not ended, and the thoughts that they are in."""
        done = {id(sample.watch) for sample in ended}
        rest = [watch for watch in self._watches if id(watch) not in done] if self._known else []
        usage.sampled_tokens += sum(watch.pushed for watch in rest)
        own = (watch.own if isinstance(watch, WatchAround) else watch for watch in rest)
        thoughts = [watch for watch in own if isinstance(watch, ThoughtWatch)]
        if thoughts:
            unended = [watch.thought_tokens for watch in thoughts if watch.place != "answer"]
            usage.counts["thought_tokens"] += sum(watch.thought_tokens for watch in thoughts)
            usage.counts.update(thoughts_given_up=len(unended), thought_tokens_given_up=sum(unended))


class _Counter:
    """An engine `Watch` that only counts."""

    def __init__(self) -> None:
        self.pushed = 0

    def push(self, token: int) -> bool:
        self.pushed += 1
        return False


@dataclass(frozen=True, slots=True)
class Sampling:
    """A `generate` with its model and its strategy, for the rows of one round.

    `options` are the same for all rows, None where they read columns. `mask` holds samples to the constraint. `leave`
    says when a draw may leave the model early. `drafting` says where tokens are proposed from. `until` ends a sample
    once it has matched, as `strategy` says. `on_token` is called with a sample's text as it grows.
    """

    op: ops.Generate
    model: TextModel
    options: GenerateOptions | None
    strategy: GenerateStrategy
    instance: Instance
    mask: Callable[[], Mask] | None
    leave: EarlyExit | None
    drafting: Drafting | None
    until: EarlyMatcher | None
    on_token: OnToken | None

    @classmethod
    def of(cls, op: ops.Generate, instance: Instance, strategy: GenerateStrategy) -> Sampling:
        """Raises RowError where an option's value or a constraint does not do."""
        model = instance.services.models[op.model.name]
        options, leave = None, None
        if all(is_same_for_all(value, instance.arguments) for _, value in op.options):
            options = GenerateOptions.of({name: instance.option(value) for name, value in op.options}, op, model)
        if strategy.decode.exits_early and isinstance(op.via, ops.Amortized):
            leave = _early_exit(op.via, strategy.decode, instance)
        until = early_matcher(strategy.until.pattern) if strategy.until is not None else None
        mask = _mask(op, model) if strategy.decode.masked else None
        drafting = _drafting(op, strategy.decode, model, instance) if strategy.decode.drafts else None
        on_token = instance.services.on_token
        return cls(op, model, options, strategy, instance, mask, leave, drafting, until, on_token)

    def distinct(self, continuation: Continuation) -> int:
        """How many samples of a row are drawn; the others are copies."""
        options = continuation.options
        alike = options.params.greedy and self.op.first_tokens == "drawn"
        return 1 if self.strategy.collapse and alike else options.count

    def mask_of(self, continuation: Continuation) -> Callable[[], Mask] | None:
        """What makes the masks of a row's samples; None where every id may come. Raises RowError."""
        rules, marks = continuation.options.params.processors, self.model.thought_marks
        if not self.model.own_tokens or not (rules.without or rules.min_tokens):
            return self.mask
        ends = self.model.eos
        if self.op.only == "thought" and marks is not None:
            ends |= marks.ends
        try:
            banned = self.model.banned(rules.without)
        except ConstraintError as error:
            raise RowError(f"`without` with model `{self.model.name}`: {error}") from error
        return text_masks(banned, rules.min_tokens, continuation.turn.text, ends)

    def watched(self, continuation: Continuation) -> bool:
        """Whether anything depends on a sample's text while it grows."""
        follows = continuation.options.stop is not None or self.until is not None or self.on_token is not None
        return follows or continuation.turn.thinks

    def continuations(self, rows: Sequence[Row]) -> list[Continuation | None]:
        """What each row goes on from, None for one that does not go on. Raises RowError."""
        named = self.op.options if self.options is None else ()
        given = [(name, self.instance.values(value, rows)) for name, value in named]
        # The columns of a finished row are those of its end, and its options are not asked for.
        options = [
            None
            if row.generated.finished
            else self.options or self._options({name: values[number] for name, values in given})
            for number, row in enumerate(rows)
        ]
        check_rows(sum(1 if own is None else own.count for own in options))
        return [None if own is None else self.continuation(row, own) for row, own in zip(rows, options, strict=True)]

    def _options(self, values: Mapping[str, Value]) -> GenerateOptions:
        return GenerateOptions.of(values, self.op, self.model)

    def continuation(self, row: Row, options: GenerateOptions) -> Continuation | None:
        """What a row goes on from under these options, None for one that does not go on. Raises RowError."""
        return Continuation.of(self.op, row, self.model, options, self.instance)

    def child(self, continuation: Continuation, index: int, sample: Sample) -> Row:
        """The row that a sample makes, by its number."""
        row = continuation.child(index, sample, self.op, self.model)
        if self.on_token is not None:
            if isinstance(sample.watch, StopWatch | ThoughtWatch):
                sample.watch.flush()
            rest = self.model.detokenizer.tail(row.generated.tokens[row.generated.thought.begins :])
            self.instance.unshown[row.path] = self.op.stage, rest, row.generated.thought.open
        return row

    def count(self, continuation: Continuation, samples: Sequence[Sample]) -> None:
        """Counts the samples of a row: tokens where they were drawn, near ties as if each copy had been."""
        distinct = samples[: self.distinct(continuation)]
        usage, lengths = self.instance.usage, [sample.size for sample in distinct]
        usage.sampled_tokens += sum(lengths) - self.drawn_before(continuation, distinct)
        usage.near_ties += sum(sample.near_ties for sample in samples)
        counts = usage.counts
        self.count_steps(continuation, distinct)
        counts["going"] += 1
        counts["samples"] += len(lengths)
        counts["context"] += len(continuation.prompt)
        counts["longest"] = max(counts["longest"], *lengths)

    def drawn_before(self, continuation: Continuation, samples: Sequence[Sample], first: int = 0) -> int:
        """The tokens of those samples of a row, from a number on, that an earlier way of the program drew already."""
        instance = self.instance
        shared = self.strategy.share and self.strategy.decode.whole
        if instance.drawn_before is None or not shared or not self._repeats():
            return 0
        options, tokens = continuation.options, 0
        ends = (
            options.stop,
            continuation.limit,
            self.op.constraint,
            self.op.via,
            self.strategy.until,
            continuation.thought,
            continuation.floor,
        )
        for index, sample in enumerate(samples, first):
            alike = options.params.greedy and self.op.via is None and self.op.first_tokens == "drawn"
            key = 0 if alike else continuation.keys[index]
            mark = (self.model.name, continuation.prompt, options.params, *ends, key)
            instance.drawn.add(mark)
            tokens += sample.size if mark in instance.drawn_before else 0
        return tokens

    def _repeats(self) -> bool:
        """Whether the engine gives the same sample again, so that it need not draw it twice."""
        return self.instance.services.engine.capabilities(self.model.name).repeats == "exact"

    def count_steps(self, continuation: Continuation, samples: Sequence[Sample]) -> None:
        """Counts how the tokens of distinct samples of a row came about, those of thoughts apart."""
        decode, counts = self.strategy.decode, self.instance.usage.counts
        if thought := sum(map(thought_tokens, samples)):
            counts["thought_tokens"] += thought
        if self.op.until is not None:
            counts["under_bar"] += sum(sample.finish == "until" for sample in samples)
        if not decode.whole:
            return
        count_steps(counts, samples, decode)
        if decode.routed and not self.instance.baseline and (choice := routed_words(counts)):
            services = self.instance.services
            choice += f" · state {services.exit_state(self.model.name)}" if decode.routes_exits else ""
            services.events.emit(Routed(operator=self.instance.operator, choice=choice))
        if not decode.drafts and decode.constraint == "none" and samples:
            count_undrafted(counts, continuation.prompt, samples[0].tokens)

    def watch(self, continuation: Continuation, index: int) -> StopWatch | ThoughtWatch:
        """Follows the text of the sample of that number, and of its copies."""
        turn, paths, detokenizer = continuation.turn, continuation.paths, self.model.detokenizer
        own = paths if self.distinct(continuation) < len(paths) else paths[index : index + 1]
        stop = continuation.options.stop

        def answer(earlier: Tokens, leading: bool) -> StopWatch:
            until = None if self.until is None else self.until.search()
            return StopWatch(detokenizer, stop, self._shows(own), until, earlier, leading=leading)

        if not turn.thinks:
            return answer(turn.text, turn.begins)
        alone, marks = self.op.only is not None, self.model.thought_marks
        assert marks is not None

        def thought(earlier: Tokens, leading: bool) -> StopWatch | None:
            stops, shows = stop if alone else None, self._shows(own, thought=True)
            if stops is None and shows is None:
                return None
            return StopWatch(detokenizer, stops, shows, None, earlier, leading=leading)

        return ThoughtWatch(marks, turn.place, turn.earlier, thought, answer)

    def beyond(self, continuation: Continuation) -> int:
        """For how many tokens a sample of a row is to go on past its stop; 0 where it ends there."""
        options, goes_on = continuation.options, not continuation.turn.thinks
        return self.strategy.beyond if goes_on and options.params.greedy and options.stop is not None else 0

    def ended_by(self, continuation: Continuation) -> tuple[object, ...]:
        """What the watches of a row's samples end them by."""
        stop, until = continuation.options.stop, None if self.strategy.until is None else self.strategy.until.pattern
        turn = continuation.turn
        thought = (turn.place, self.op.only) if turn.thinks else None
        if stop is None and until is None and thought is None:
            return ()
        # Behind other tokens the first one can have another text.
        ends = stop, until, bool(continuation.earlier), thought
        beyond = self.beyond(continuation)
        return (*ends, continuation.limit, beyond) if beyond else ends

    def requests(
        self,
        continuation: Continuation,
        priority: Priority = 0,
        counter: TokenCounter | None = None,
        part: range | None = None,
    ) -> list[GenerateRequest]:
        """The requests for the distinct samples of a row, in their order: one for all, or one a sample.

        `counter` counts their tokens. `part` are the numbers of the samples, where not all are asked for.
        """
        part = range(self.distinct(continuation)) if part is None else part
        if self.strategy.share:
            keys = continuation.keys[part.start : part.stop]
            return [self._request(continuation, keys, part.start, priority, counter)]
        return [self._request(continuation, (continuation.keys[index],), index, priority, counter) for index in part]

    def with_copies(self, continuation: Continuation, distinct: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """All samples of a row, from the distinct ones."""
        return distinct * (continuation.options.count // self.distinct(continuation))

    def _request(
        self,
        continuation: Continuation,
        keys: tuple[int, ...],
        first: int,
        priority: Priority,
        counter: TokenCounter | None,
    ) -> GenerateRequest:
        watched = self.watched(continuation)
        beyond = self.beyond(continuation)
        stop, limit = continuation.options.stop, continuation.limit

        def watch(index: int) -> Watch:
            own = self.watch(continuation, first + index)
            if beyond and isinstance(own, StopWatch):
                return BeyondWatch(own, limit, beyond)
            if counter is None:
                return own
            return counter.watch(own if watched else None, continuation.paths[first + index])

        return GenerateRequest(
            continuation.prompt,
            keys,
            continuation.options.params,
            limit if continuation.full else min(limit + beyond, self.model.max_positions - len(continuation.prompt)),
            self.model.eos,
            watch if watched or counter is not None else None,
            self.mask_of(continuation),
            drawn=continuation.drawn,
            exit=self.leave,
            priority=priority,
            cached=self.strategy.share,
            jump=self.strategy.decode.constraint == "jump",
            sparse=self.strategy.decode.head in ("sparse", "deferred"),
            draft=self.drafting,
            route=self.instance.services.routing if self.strategy.decode.routes_heads else None,
            # Who watches is told them where that takes no longer.
            logprobs=self.strategy.logprobs or (self.instance.watched and not self.model.screens),
            figures=self.strategy.figures,
            floor=continuation.floor,
            rank=first if self.op.first_tokens == "likeliest" and not continuation.drawn else None,
            constraint=_constraint(self.op, self.model) if self.mask is not None else None,
            stops=() if stop is None or stop.least or beyond else stop.texts,
            lead=self.strategy.lead and not first and len(keys) > 1,
            thought=continuation.thought,
            # Where a sample is given up depends on the others, so that nobody else can use it.
            ended_by=None if counter is not None and counter.limits else self.ended_by(continuation),
        )

    def _shows(self, paths: Sequence[Path], *, thought: bool = False) -> Callable[[str], None] | None:
        """What shows a piece of text to whoever listens, as that of these rows."""
        listener = self.on_token
        if listener is None:
            return None

        def show(piece: str) -> None:
            for path in paths:
                listener(path, self.op.stage, piece, thought)

        return show


def _constraint(op: ops.Generate, model: TextModel) -> SampleConstraint:
    """What the output is held to; a call as the model writes calls."""
    held = op.constraint
    assert held is not None
    if held.tools and not model.tool_format.is_plain:
        most = held.most_calls or 1
        source = model.tool_format.grammar(held.tools, model.tokenizer, or_text=held.or_text, most=most)
        return SampleConstraint("grammar", source, held.tools, held.or_text, most)
    return SampleConstraint(held.kind, held.source)


def _mask(op: ops.Generate, model: TextModel) -> Callable[[], Mask]:
    assert op.constraint is not None
    held = _constraint(op, model)
    try:
        return model.constrainer.masks(held.kind, held.source)
    except ConstraintError as error:
        raise RowError(f"`as {op.constraint.name}` with model `{model.name}`: {error}") from error


def _early_exit(via: ops.Amortized, decode: DecodePlan, instance: Instance) -> EarlyExit:
    """What the requests say of an early exit: what the program does, and whether later layers may wait.

    They run for drafts anyway, which are checked by all layers.
    """
    margin, certify = instance.number("margin", via.margin), instance.number("certify", via.certify)
    layer, rerank = instance.number("layer", via.layer), instance.number("rerank", via.rerank)
    return EarlyExit(
        margin or 0.0,
        None if layer is None else int(layer),
        via.head,
        None if rerank is None else int(rerank),
        certify,
        deferred=decode.head == "deferred" and not decode.drafts,
        shadow=instance.shadow,
        route=instance.services.exit_routing if decode.routes_exits else None,
    )


def _drafting(op: ops.Generate, decode: DecodePlan, model: TextModel, instance: Instance) -> Drafting:
    """What the requests say of drafts: the method that the plan names, and the rest as the program has it."""
    draft = op.draft
    if draft is None:
        return Drafting(decode.draft, length=ops.DRAFTED)
    assert decode.draft == draft.method != "none"
    drafter = draft.model
    if draft.method == "model" and drafter is not None:
        drafter = instance.services.models[drafter].name
    corpus = (model.corpus(draft.texts),) if draft.texts else ()
    return Drafting(draft.method, drafter, draft.tokens, draft.branches, corpus=corpus)


class BeyondWatch:
    """An engine `Watch` that lets a sample go on for `beyond` tokens past the stop of its `own` watch.

    Without a stop the sample ends after `limit` tokens, as it would by itself. `length` is how many of its tokens are
    its own, None where neither has come.
    """

    def __init__(self, own: StopWatch, limit: int, beyond: int) -> None:
        self.own = own
        self.length: int | None = None
        self.pushed = 0
        self._limit, self._beyond = limit, beyond
        self._stopped = False

    @property
    def finish(self) -> Finish:
        """Why its own tokens end; for one that has a `length`."""
        return "stop" if self._stopped else "length"

    def push(self, token: int) -> bool:
        self.pushed += 1
        if self.length is not None:
            return self.pushed >= self.length + self._beyond
        self._stopped = self.own.push(token)
        if not self._stopped and self.pushed < self._limit:
            return False
        self.length = self.pushed
        return not self._stopped or not self._beyond
