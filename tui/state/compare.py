"""This run beside a saved one: rows that flipped, how sure the difference is, and what changed in the plan."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from qpdsl.tui.state.plan import PlanTree
from qpdsl.tui.state.run_state import RowState, RunState

if TYPE_CHECKING:
    from qpdsl.runs.statistics import Interval, PairedResult

# So many runs of a program are read at the most until one has rows of this one.
_READ = 8
# Characters of an operator that tell it from others: EXPLAIN shortens what is longer.
_TOLD = 80


@dataclass(frozen=True, slots=True)
class OtherName:
    """A saved run in a list: `right` of `judged` rows. `started` is Unix time."""

    name: str
    program: str
    rows: int
    right: int
    judged: int
    grader: str = ""
    input: str = ""
    started: float = 0.0


@dataclass(frozen=True, slots=True)
class OtherRow:
    """A row of a saved run. `text` is what its answer was read from, empty where that was not saved."""

    id: str
    asked: str
    answer: str
    correct: bool | None
    tokens: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class OtherRun:
    """`plan` has a line for each operator, with how it ran after it; `facts` are seed, models and values."""

    name: str
    rows: Mapping[str, OtherRow]
    plan: tuple[tuple[str, str], ...]
    facts: Mapping[str, str] = field(default_factory=dict)


class OtherRuns(Protocol):
    """The saved runs of the user."""

    def names(self) -> list[OtherName]:
        """All of them, the newest first."""

    def read(self, name: str) -> OtherRun:
        """One of them. Raises an error that says why it cannot be read."""


@dataclass(frozen=True, slots=True)
class RowPair:
    """One row in both runs."""

    here: RowState
    there: OtherRow

    @property
    def graded(self) -> bool:
        return None not in (self.here.correct, self.there.correct)

    @property
    def flipped(self) -> bool:
        return self.graded and self.here.correct != self.there.correct

    @property
    def what(self) -> str:
        """What became of it here, in one word."""
        if self.flipped:
            return "gained" if self.here.correct else "lost"
        return "same" if (self.here.answer or "") == self.there.answer else "other answer"


@dataclass(frozen=True, slots=True)
class Beside:
    """The rows that both runs have ended, those that flipped first. `result` is None where none was graded in both."""

    saved: OtherRun
    pairs: tuple[RowPair, ...]
    result: PairedResult | None

    @property
    def gained(self) -> int:
        return 0 if self.result is None else self.result.gained

    @property
    def lost(self) -> int:
        return 0 if self.result is None else self.result.lost

    @property
    def tokens(self) -> float | None:
        """By which share of the tokens there this run takes more."""
        there = sum(pair.there.tokens for pair in self.pairs)
        return sum(pair.here.tokens for pair in self.pairs) / there - 1 if there else None


_ORDER = ("lost", "gained", "other answer", "same")


def common_rows(state: RunState, saved: OtherRun) -> list[RowPair]:
    """A row is the same where its id is, and what was asked, as far as both know it; it need not have ended here."""
    pairs = [RowPair(row, saved.rows[row.id]) for row in state.rows.values() if row.id in saved.rows]
    return [pair for pair in pairs if _alike(pair.here.asked, pair.there.asked)]


def knows_itself(state: RunState) -> bool:
    """Whether it is known which of the saved runs is this one: it is told before the first row ends."""
    return state.saved is not None or bool(state.done)


def others_of(state: RunState, names: Sequence[OtherName]) -> list[OtherName]:
    """The other runs that have rows, those of the same program first."""
    program = "" if state.begun is None else state.begun.program
    return sorted(
        (run for run in names if run.name != state.saved and run.rows), key=lambda run: run.program != program
    )


def alike(state: RunState, names: Sequence[OtherName]) -> list[OtherName]:
    """The last ones before this run, of the same program and grader over the same data, as many as are read."""
    begun = state.begun
    if begun is None:
        return []
    same = (begun.program, begun.grader)
    return [
        run
        for run in others_of(state, names)
        if (run.program, run.grader) == same
        and begun.input in ("", run.input)
        and not (begun.wall and run.started > begun.wall)
    ][:_READ]


def compared(state: RunState, saved: OtherRun) -> Beside:
    """The rows that have ended here, beside those of a saved run."""
    from qpdsl.runs.statistics import paired_test

    pairs = [pair for pair in common_rows(state, saved) if pair.here.ended is not None]
    graded = [pair for pair in pairs if pair.graded]
    result = None
    if graded:
        result = paired_test(
            [bool(pair.there.correct) for pair in graded], [bool(pair.here.correct) for pair in graded]
        )
    return Beside(saved, tuple(sorted(pairs, key=lambda pair: _ORDER.index(pair.what))), result)


def _alike(one: str, other: str) -> bool:
    one, other = one.rstrip("…"), other.rstrip("…")
    return one.startswith(other) or other.startswith(one)


def interval(right: int, judged: int) -> Interval:
    """Between which shares of right answers the true one lies, with 95%."""
    from qpdsl.runs.statistics import wilson

    return wilson(right, judged)


def first_difference(one: str, other: str) -> int:
    """At which character two texts part."""
    parted = (at for at, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs)
    return next(parted, min(len(one), len(other)))


def answer_text(state: RunState, row: RowState) -> str:
    """What the row's answer was read from, as far as it was seen; else the answer."""
    tree = state.trees.get(row.id)
    if tree is None or tree.answering is None:
        return row.answer or row.why or ""
    return "\n\n".join(node.record.step.strip() for node in tree.answering.line() if not node.copied)


def plan_lines(plan: PlanTree | None) -> tuple[tuple[str, str], ...]:
    """The operators of a plan, each with how it runs."""
    lines = plan.lines if plan is not None else ()
    return tuple(
        (f"{line.branch}{line.text}"[:_TOLD], "" if line.implementation == "rows" else line.implementation)
        for line in lines
    )


def explained_lines(text: str) -> tuple[tuple[str, str], ...]:
    """Likewise, of a plan as EXPLAIN shows it: columns are parted by two spaces, and estimates are left out."""
    told = []
    for line in text.splitlines()[1:]:
        if line.startswith("columns:"):
            break
        branch = line[: len(line) - len(line.lstrip(" │├└"))]
        operator, *others = [part.strip() for part in line[len(branch) :].split("  ") if part.strip()]
        how = " · ".join(part for other in others for part in other.split(" · ") if not _is_estimate(part))
        told.append((f"{branch}{operator}"[:_TOLD], how))
    return tuple(told)


def _is_estimate(part: str) -> bool:
    return part.startswith("est ") or part.endswith((" row", " rows"))


def plan_changes(
    here: Sequence[tuple[str, str]], there: Sequence[tuple[str, str]]
) -> list[tuple[str, str | None, str | None]]:
    """The plans side by side as (sign, here, there): `=`, `~` runs in another way, `+` is new here, `-` gone."""
    changes: list[tuple[str, str | None, str | None]] = []
    mine, theirs = [text for text, _ in here], [text for text, _ in there]
    matcher = difflib.SequenceMatcher(None, [_bare(text) for text in theirs], [_bare(text) for text in mine], False)
    for kind, first, end, start, stop in matcher.get_opcodes():
        if kind == "equal":
            for (text, how), (other, others_how) in zip(here[start:stop], there[first:end], strict=True):
                same = how == others_how
                changes.append(("=", text, other) if same else ("~", f"{text}  {how}", f"{other}  {others_how}"))
        else:
            changes += [("-", None, f"{text}  {how}".rstrip()) for text, how in there[first:end]]
            changes += [("+", f"{text}  {how}".rstrip(), None) for text, how in here[start:stop]]
    return changes


def _bare(text: str) -> str:
    return text.lstrip(" │├└").removeprefix("from ").rstrip("…")
