"""The plan as a tree of lines, and what each of its operators has done so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from qpdsl.executor.events.events import OperatorDone
from qpdsl.tui.state.engine import Series

# Operators one after and inside another that are shown. A trace may hold anything.
_DEEPEST = 400


@dataclass(slots=True)
class ToolTotals:
    """Values that a tool gave: those `made` by a call, the others were known; `failed` of all, and their `seconds`."""

    values: int = 0
    made: int = 0
    failed: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class OperatorTotals:
    """Sums over all runs of an operator; `now` counts the instances that are in it, `regret` that of its router.

    `counts` are those of the events, by their names there (`executor/events/operator_counts.py`). `by_round` are its
    tokens by the round of the outermost loop, from 1. In `series` a step is a run, and sequences are the rows it made.
    """

    runs: int = 0
    rows_in: int = 0
    rows_out: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0
    now: int = 0
    choice: str | None = None
    regret: float | None = None
    counts: Counter[str] = field(default_factory=Counter)
    by_round: Counter[int] = field(default_factory=Counter)
    series: Series = field(default_factory=Series)
    tools: dict[str, ToolTotals] = field(default_factory=dict)

    def add(self, event: OperatorDone) -> None:
        """Takes what its runs were over time, and by round."""
        bucket = self.series.at(event.at)
        bucket.prefill += event.prompt_tokens
        bucket.decode += event.sampled_tokens
        bucket.sequences += event.rows_out
        bucket.seconds += event.seconds
        bucket.steps += 1
        if event.rounds:
            self.by_round[event.rounds[0] + 1] += event.prompt_tokens + event.sampled_tokens

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.sampled_tokens

    @property
    def cached_share(self) -> float | None:
        """The share of prompt tokens that were cached; None where there were no prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True, slots=True)
class PlanLine:
    """A line of the tree: an operator, or the head of an arm (`id` is then empty).

    `branch` are the strokes before the text. `estimate` is the number of rows that one instance makes, None where it is
    not known. `rules` are the rewrites that made the node. `holds` is true if its time is that of operators inside it.
    `repeats`: what comes again of what its models give, as in EXPLAIN.
    """

    id: str
    branch: str
    text: str
    operator: str
    implementation: str
    equivalence: str
    estimate: float | None
    columns: Mapping[str, str]
    rules: tuple[str, ...]
    holds: bool
    repeats: str = "exact"


@dataclass(frozen=True)
class PlanTree:
    """The lines of a plan, last operator first, as EXPLAIN shows it."""

    name: str
    source: str
    within: str
    models: Mapping[str, str]
    lines: tuple[PlanLine, ...]
    parameters: tuple[tuple[str, str], ...]
    rules: tuple[str, ...] = ()
    repeats: str = "exact"

    def line(self, operator: str) -> PlanLine | None:
        """The line of an operator, by its id."""
        return self._by_id.get(operator)

    @cached_property
    def _by_id(self) -> dict[str, PlanLine]:
        return {line.id: line for line in self.lines if line.id}

    @cached_property
    def verifiers(self) -> frozenset[str]:
        """The models that judge, and write nothing."""
        return frozenset(self._asked_by("score") - self._asked_by("generate"))

    def _asked_by(self, word: str) -> set[str]:
        texts = (line.text.split() for line in self.lines)
        names = {words[1].strip('"') for words in texts if len(words) > 1 and words[0] == word}
        return {self.models.get(name, name) for name in names}

    @property
    def permits(self) -> tuple[str, str]:
        """What the program permits its plan to change: a word and what follows it, as `within` and `loss(0.02)`."""
        return ("lossy", "by its via") if self.within == "lossy" else ("within", self.within)

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> PlanTree:
        operators = _records(plan.get("operators"))
        parameters = tuple(
            (str(parameter.get("name")), "given" if parameter.get("value") is None else str(parameter.get("value")))
            for parameter in _records(plan.get("parameters"))
        )
        return cls(
            str(plan.get("program", "")),
            str(plan.get("source", "")),
            str(plan.get("within", "")),
            _texts(plan.get("models")),
            tuple(_chain(operators, "", "", _DEEPEST)) if operators else (),
            parameters,
            tuple(map(str, rules)) if isinstance(rules := plan.get("rules"), list) else (),
            str(plan.get("repeats", "exact")),
        )


def _chain(chain: Sequence[Mapping[str, Any]], first: str, rest: str, depth: int) -> Iterator[PlanLine]:
    *before, last = chain
    yield _line(last, first)
    if depth == 0:
        yield _head("… and more", f"{rest}└ ")
        return
    below: list[tuple[str, Sequence[Mapping[str, Any]]]] = [("", [op]) for op in reversed(_records(last.get("body")))]
    arms = last.get("arms")
    arms = [_records(arm) for arm in arms] if isinstance(arms, list) else []
    below += zip(_heads(last, len(arms)), arms, strict=True)
    for index, (head, inner) in enumerate(below):
        closes = index == len(below) - 1 and not before
        lead, under = ("└ ", "  ") if closes else ("├ ", "│ ")
        if head:
            yield _head(head if inner else f"{head}: the rows as they are", rest + lead)
            lead, under = f"{under}└ ", f"{under}  "
        if inner:
            yield from _chain(inner, rest + lead, rest + under, depth - 1)
    if before:
        yield from _chain(before, f"{rest}└ ", f"{rest}  ", depth - 1)


def _heads(op: Mapping[str, Any], arms: int) -> list[str]:
    """What the arms of an operator are called, as in EXPLAIN; a trace of an older version may not say it."""
    names = op.get("arm_names")
    if isinstance(names, list) and len(names) == arms:
        return [str(name) for name in names]
    if op.get("operator") == "If" and arms <= 2:
        return ["where it holds", "else"][:arms]
    return [f"arm {number}" for number in range(1, arms + 1)]


def _records(value: Any) -> list[Mapping[str, Any]]:
    """The records of a list: a trace may hold anything."""
    return [record for record in value if isinstance(record, dict)] if isinstance(value, list) else []


def _texts(value: Any) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}


def _line(op: Mapping[str, Any], branch: str) -> PlanLine:
    rows, rules = op.get("rows"), op.get("rules")
    return PlanLine(
        str(op.get("id", "")),
        branch,
        str(op.get("text", "")),
        str(op.get("operator", "")),
        str(op.get("implementation", "")),
        str(op.get("equivalence", "")),
        float(rows) if isinstance(rows, (int, float)) else None,
        _texts(op.get("columns")),
        tuple(map(str, rules)) if isinstance(rules, list) else (),
        bool(op.get("body") or op.get("arms")),
        str(op.get("repeats", "exact")),
    )


def _head(text: str, branch: str) -> PlanLine:
    return PlanLine("", branch, text, "", "", "", None, {}, (), True)
