"""What an operator decides and what a rule saves, in few words: from what their runs counted, and from nothing else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from qpdsl.tui.state.plan import OperatorTotals, PlanLine, PlanTree
from qpdsl.tui.state.run_state import RunState

# An estimate this many times off is worth a word, where nobody knows how problems differ; one this near to it never is.
_OFF, _NEAR = 2.0, 1.1
# So many problems say how they differ.
_ENOUGH = 5
# So far the middle 95% of a normal distribution reach, in standard deviations.
_WIDE = 1.96


def part(counts: Mapping[str, int], some: str, of: str) -> float | None:
    """One count as a share of another; None where there was nothing to count."""
    return counts.get(some, 0) / counts[of] if counts.get(of) else None


def decisions(totals: OperatorTotals) -> Iterator[str]:
    """What a whole operator decided, the weightiest first."""
    counts = totals.counts
    if (small := part(counts, "filter_sure", "filter_draws")) is not None:
        yield f"small {small:.0%}"
    if (small := part(counts, "contrast_alone", "contrast_draws")) is not None:
        yield f"one plausible id {small:.0%}"
    if counts["exits"]:
        yield f"exits {counts['exits'] / (counts['exits'] + counts['full']):.0%}"
    if (differs := part(counts, "differed", "shadowed")) is not None:
        yield f"differs {differs:.1%}"
    for name, drafted in (("draft", "drafted"), *((one[:-8], one) for one in counts if one.endswith("_drafted"))):
        accepted = part(counts, drafted.replace("drafted", "accepted"), drafted)
        if accepted is not None and not drafted.startswith("would"):
            yield f"{name}s kept {accepted:.0%}"
    if (forced := part(counts, "forced", "draws")) is not None and forced > 0:
        yield f"forced {counts['forced'] / (counts['forced'] + counts['draws']):.0%}"
    if counts["given_up"]:
        yield f"given up {counts['given_up']:,}" + (f" of {counts['samples']:,}" if counts["samples"] else "")
    for ahead, used in sorted((name, f"{name}_used") for name in counts if name.endswith("_ahead")):
        if counts[ahead]:
            yield f"ahead used {counts[used] / counts[ahead]:.0%}"
    if (known := part(counts, "steps_known", "steps")) is not None:
        yield f"known {known:.0%}"
    if (known := part(counts, "texts_known", "texts")) is not None and known > 0:
        yield f"texts known {known:.0%}"
    if totals.cached_share:
        yield f"cached {totals.cached_share:.0%}"
    if counts["saved_calls"]:
        yield f"calls saved {counts['saved_calls']:,}"
    if counts["retries"]:
        yield f"sent again {counts['retries']:,}"
    if counts["replayed"]:
        yield f"replayed {counts['replayed']:,}"
    if counts["near_ties"]:
        yield f"near ties {counts['near_ties']:,}"


def rounds(state: RunState, line: PlanLine) -> tuple[float, int] | None:
    """Of a loop: how many rounds it took in the mean, and the most; None where it is none, or has not ended yet."""
    totals, inner = state.operators.get(line.id), [name for name in state.operators if name.startswith(f"{line.id}.")]
    if line.operator != "Repeat" or totals is None or not totals.runs or not inner:
        return None
    return state.operators[inner[0]].runs / (totals.runs + totals.now), max(
        state.operators[inner[0]].by_round, default=0
    )


@dataclass(frozen=True, slots=True)
class Expectation:
    """What was expected of an operator for a problem, and what it does, `whole` where it does nothing more.

    `between`: where that lies with a probability of 95%, if problems differ as those before; None where none told.
    """

    expected: float
    actual: float
    whole: bool
    between: tuple[float, float] | None = None

    @property
    def mark(self) -> str:
        """`×12 over`, where they part: by more than problems differ, else by a lot."""
        if not self.actual or not self.expected:
            return ""
        off = self.actual / self.expected
        low, high = self.between or (self.expected / _OFF, self.expected * _OFF)
        parts = self.actual >= high if off > 1 else self.whole and self.actual <= low
        return (
            f"×{max(off, 1 / off):.2g} {'over' if off > 1 else 'under'}"
            if parts and not 1 / _NEAR < off < _NEAR
            else ""
        )


def expectation(state: RunState, line: PlanLine, what: Literal["rows", "tokens"] = "rows") -> Expectation | None:
    """None where nothing was expected of it, or it has done nothing yet."""
    whole, totals = state.estimate, state.operators.get(line.id)
    own = None if whole is None else whole.operators.get(line.id)
    if whole is None or own is None or totals is None or not totals.runs or not state.started:
        return None
    problems = state.started + state.missed_rows
    if what == "rows":
        expected, deviation, actual = own.rows, own.rows_deviation, totals.rows_out
    elif own.prompt_tokens is None or own.sampled_tokens is None:
        return None
    else:
        expected, deviation, actual = own.prompt_tokens + own.sampled_tokens, own.tokens_deviation, totals.tokens
    between = None
    if deviation is not None and whole.seen >= _ENOUGH:
        wide = _WIDE * deviation * math.sqrt(1 / (whole.seen - 1) + 1 / problems)
        between = max(expected - wide, 0.0), expected + wide
    return Expectation(expected, actual / problems, not state.running, between)


@dataclass(frozen=True, slots=True)
class RuleEffect:
    """What a rule did: `operators` that it made, by id, and `saved` amounts as (how many, of what, of how many or 0).

    `seconds` is what these would have taken at the pace of the run, None where that is not known. `counted` is told
    where the rule only declares what runs count of it; `counts` says whether anything is counted of it.
    """

    name: str
    operators: tuple[str, ...]
    saved: tuple[tuple[int, str, int], ...]
    seconds: float | None
    counted: tuple[str, ...] = ()
    counts: bool = True

    @property
    def without(self) -> str:
        """What is told of it where nothing was counted."""
        return "nothing saved yet" if self.counts else "leaves nothing to count"

    @property
    def words(self) -> str:
        told = [f"saved {some:,}{f' of {of:,}' if of else ''} {what}" for some, what, of in self.saved]
        told = told or [*self.counted]
        about = [f"about {self.seconds:.2g} s"] if self.seconds else []
        return ", ".join([*told, *about])


Saved = tuple[int, str, int]


def _prompts(counts: Mapping[str, int], totals: OperatorTotals) -> Iterator[Saved]:
    yield totals.cached_tokens, "prompt tokens", totals.prompt_tokens


def _counted(some: str, what: str, of: str = "") -> Callable[[Mapping[str, int], OperatorTotals], Iterator[Saved]]:
    def saved(counts: Mapping[str, int], totals: OperatorTotals) -> Iterator[Saved]:
        yield counts.get(some, 0), what, counts.get(of, 0)

    return saved


def _steps(counts: Mapping[str, int], totals: OperatorTotals) -> Iterator[Saved]:
    yield counts.get("steps_known", 0), "steps judged", counts.get("steps", 0)
    yield counts.get("shared_scores", 0), "scores of other rows", 0


def _read(counts: Mapping[str, int], totals: OperatorTotals) -> Iterator[Saved]:
    if counts.get("text_tokens"):
        yield counts["text_tokens"] - counts.get("new_tokens", 0), "tokens read again", counts["text_tokens"]
    else:
        yield from _prompts(counts, totals)


def _drafts(counts: Mapping[str, int], totals: OperatorTotals) -> Iterator[Saved]:
    yield sum(value for name, value in counts.items() if name.endswith("accepted")), "forwards", 0


def _heads(counts: Mapping[str, int], totals: OperatorTotals) -> Iterator[Saved]:
    sparse = counts.get("rows_steps", 0) + counts.get("union_steps", 0)
    yield sparse, "forwards with the whole head", sparse + counts.get("dense_steps", 0)


# What of the counts a rule saved, where it declares nothing itself (`Effect` in `planner/plan/rule.py`). Others leave
# nothing to count: what they saved never began.
_SAVED: Mapping[str, Callable[[Mapping[str, int], OperatorTotals], Iterator[Saved]]] = {
    "share_prefixes": _prompts,
    "prefix_first": _counted("server_cached", "prompt tokens at the server"),
    "incremental_score": _read,
    "score_cache": _steps,
    "score_ahead": _counted("given_up", "samples drawn to their end", "samples"),
    "jump_forward": _counted("forced", "forwards"),
    "draft_tokens": _drafts,
    "defer_layers": _counted("skipped", "layers"),
    "filter_in_runs": _counted("filter_sure", "draws of the large model"),
    "speculative_calls": _counted("saved_calls", "calls"),
    "sparse_logits": _heads,
}


def effects(state: RunState) -> list[RuleEffect]:
    """The rules that made the plan, in their order, each with what it has saved so far."""
    plan = state.plan
    if plan is None:
        return []
    names = dict.fromkeys((*plan.rules, *(name for line in plan.lines for name in line.rules)))
    return [_effect(state, plan, name) for name in names]


def _effect(state: RunState, plan: PlanTree, name: str) -> RuleEffect:
    made = tuple(line.id for line in plan.lines if name in line.rules)
    saved: Counter[str] = Counter()
    of: Counter[str] = Counter()
    for id_ in made:
        totals = state.operators.get(id_, OperatorTotals())
        for some, what, whole in _SAVED[name](totals.counts, totals) if name in _SAVED else ():
            saved[what] += some
            of[what] += whole
    told = tuple((some, what, of[what]) for what, some in saved.items() if some)
    declared = _declared(state, name)
    counts = name in _SAVED or any(declared)
    return RuleEffect(name, made, told, _seconds(state, told), tuple(_told(state, *declared)), counts)


def _declared(state: RunState, name: str) -> tuple[str, str, str]:
    """The part, the whole and the words of what a rule declares that runs count of it; a trace may hold anything."""
    record = None if state.begun is None else state.begun.rules.get(name)
    told = record if isinstance(record, dict) else {}
    return str(told.get("part", "")), str(told.get("whole", "")), str(told.get("words", ""))


def _told(state: RunState, part: str, whole: str, words: str) -> Iterator[str]:
    """That in words, over all operators: it may be counted around one."""
    counts = sum((totals.counts for totals in state.operators.values()), Counter[str]())
    of = counts[whole] if whole else counts[part] + counts["samples"]
    if part and counts[part]:
        yield f"{counts[part]:,} of {of:,} {words}"


def _seconds(state: RunState, saved: tuple[Saved, ...]) -> float | None:
    """What tokens and forwards would have taken, at the pace of the models of this process."""
    models = state.models.values()
    tokens = sum(model.prefill_tokens + model.decode_tokens for model in models)
    drawn, busy = sum(model.decode_tokens for model in models), sum(model.busy for model in models)
    seconds = 0.0
    for some, what, _ in saved:
        if what in ("prompt tokens", "tokens read again") and tokens:
            seconds += some * busy / tokens
        elif what == "forwards" and drawn:
            # A forward draws for all sequences of its batch.
            seconds += some * busy / drawn
    return seconds or None


# What becomes of candidates' tokens, in the order in which it is told.
_FATES = (
    ("answer", "in the answer"),
    ("agreed", "voted for it"),
    ("finished", "kept beside it"),
    ("kept", "kept beside it"),
    ("open", "kept beside it"),
    ("beside", "looked at aside"),
)


def kept_or_thrown(state: RunState) -> list[tuple[str, int]]:
    """The sampled tokens of rows that have ended, by what became of them."""
    words = dict(_FATES)
    told: Counter[str] = Counter(dict.fromkeys(dict.fromkeys(words.values()), 0))
    for fate, tokens in state.spent.items():
        told[words.get(fate, "thrown away")] += tokens
    return [(word, tokens) for word, tokens in told.items() if tokens]


def by_round(state: RunState) -> list[tuple[int, int]]:
    """The tokens of each round of the outermost loops."""
    told: Counter[int] = Counter()
    for line in state.plan.lines if state.plan else ():
        if not line.holds and line.id in state.operators:
            told.update(state.operators[line.id].by_round)
    return sorted((number, tokens) for number, tokens in told.items() if tokens)


def by_model(state: RunState) -> list[tuple[str, int, int]]:
    """The tokens that each model read and drew: of ours what it computed, of servers' what they were sent."""
    local = [(model.name, model.prefill_tokens, model.decode_tokens) for model in state.models.values()]
    remote = [
        (name, server.latest.prompt_tokens or 0, server.latest.sampled_tokens) for name, server in state.servers.items()
    ]
    return [*local, *remote]


@dataclass(frozen=True, slots=True)
class TokensSpent:
    """So many tokens went there: a `share` of all of their kind, None where that says nothing; `of` in words."""

    name: str
    tokens: int
    share: float | None
    of: str = ""


def spending(state: RunState) -> list[list[TokensSpent]]:
    """Where the tokens went: by operator, by round, by what became of them, by model, by what drew them."""
    lines = [line for line in (state.plan.lines if state.plan else ()) if line.id in state.operators and not line.holds]
    totals = [(line.text, state.operators[line.id]) for line in lines]
    told, fates = sum(own.tokens for _, own in totals), kept_or_thrown(state)
    # An operator in which a row failed tells of none: they are known once no row is in one.
    ended = state.failed + state.unanswered and not state.running
    whole = max(told, sum(row.tokens for row in state.rows.values())) if ended else told
    sampled = sum(tokens for _, tokens in fates) or 1
    counts = sum((own.counts for _, own in totals), Counter[str]())
    drawn = []
    if counts["filter_draws"] or counts["large_draws"]:
        stood = f"of {counts['filter_draws']:,} draws stood"
        drawn.append(TokensSpent("by the small one", counts["filter_sure"], None, stood))
        read = f"draws, {counts['large_tokens']:,} tokens read for them"
        drawn.append(TokensSpent("by the large one", counts["large_draws"], None, read))
    groups = [
        [TokensSpent("in all", whole, None)] if whole else [],
        [
            TokensSpent(
                text, own.tokens, own.tokens / whole, "" if state.replayed else f"{own.cached_tokens:,} from the cache"
            )
            for text, own in totals
            if own.tokens
        ]
        + [TokensSpent("in operators that failed", left, left / whole) for left in (whole - told,) if left],
        [TokensSpent(f"round {number}", tokens, tokens / whole) for number, tokens in by_round(state)],
        [TokensSpent(word, tokens, tokens / sampled, "of what was sampled") for word, tokens in fates],
        [TokensSpent(name, read, None, f"read, {own:,} drawn") for name, read, own in by_model(state)],
        drawn,
    ]
    return [group for group in groups if group]
