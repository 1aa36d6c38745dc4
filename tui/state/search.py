"""The candidates of one row of the input, as a tree: what each wrote, what it is worth, and what became of it."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

from qpdsl.executor.events.events import Aside, CandidateRecord, Compared, Expanded, GivenUp, Path, Selected, Valued
from qpdsl.grammar.words import SEARCH_PRIOR, SEARCHED_COLUMNS

# A candidate is known by both: a row that is looked at beside the others takes the paths that they will take.
Key = tuple[Aside, Path]
Fate = Literal[
    "answer", "finished", "kept", "open", "dropped", "agreed", "outvoted", "no vote", "duplicate", "joined",
    "given up", "unfinished", "failed", "copy", "beside",
]  # fmt: skip
# Of several copies of a finished candidate the first of these is its own fate.
_BEST = get_args(Fate)
# What an operator makes of the rows that it does not keep, where they are not pruned.
_LEFT: Mapping[str, Fate] = {"Vote": "outvoted", "Distinct": "duplicate", "Join": "joined"}
# Operators whose rows stand in an order, so that there is a cut.
_ORDERED = "TopK"
# The operator that copies rows by their shares, by which it is ranked; in older traces, by the copies.
_RESAMPLED = "Split"
# The name of an aside begins with it that is a way of a program under a budget: its rows are the program's.
_WAY = "way "
# Figures of rows, and no answers.
_OF_SEARCHES = (*SEARCHED_COLUMNS, SEARCH_PRIOR)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(slots=True, eq=False)
class CandidateNode:
    """One candidate. `score` is its latest score, `left` what it is where an operator dropped it.

    `heads`: it is where rows begin that an operator looks at beside the others. `candidate` is None where no event was
    about it, as for the arm of a branch. `matches` are those that it played: the other one, and the chance to beat it.
    """

    path: Path
    aside: Aside = ()
    parent: CandidateNode | None = None
    heads: bool = False
    candidate: CandidateRecord | None = None
    round: int = 0
    scores: dict[str, float | None] = field(default_factory=dict)
    values: dict[str, str | float | bool | None] = field(default_factory=dict)
    matches: list[tuple[CandidateNode, float]] = field(default_factory=list)
    kept: bool = False
    left: Fate | None = None
    answer: bool = False
    children: list[CandidateNode] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return self.aside, self.path

    @property
    def score(self) -> float | None:
        return next(reversed(self.scores.values()), None)

    @property
    def copied(self) -> bool:
        """Whether it wrote nothing, and is the row above it once more."""
        return not self.heads and (self.candidate is None or (not self.candidate.finish and not self.candidate.tokens))

    @property
    def copies(self) -> int:
        """How many copies of it go on."""
        return sum(child.copied and child.aside == self.aside for child in self.children)

    @property
    def unnamed(self) -> bool:
        """Whether it is but an index in a path. Paths of rollouts begin with one below 0."""
        told = self.heads or self.candidate is not None or self.scores or self.values
        return not told and self.left is None and self.path[-1] >= 0

    @property
    def writer(self) -> CandidateNode:
        """The candidate that wrote what this one stands for: it itself, unless it is a copy of one."""
        node = self
        while node.copied and node.parent is not None:
            node = node.parent
        return node if node.candidate is not None else self

    @property
    def record(self) -> CandidateRecord:
        return self.candidate or CandidateRecord(path=self.path)

    def line(self) -> list[CandidateNode]:
        """The nodes from the first step to this one."""
        line, node = [], self
        while node.parent is not None:
            line.append(node)
            node = node.parent
        return line[::-1]


class SearchTree:
    """All candidates of one instance, and the selections among them in order, each with the name of its operator.

    `ended`: how the instance did, None while it runs.
    """

    def __init__(self) -> None:
        self.root = CandidateNode(())
        self.selections: list[tuple[Selected, str]] = []
        self.ended: Literal["done", "failed"] | None = None
        self.given_up = 0
        self._nodes: dict[Key, CandidateNode] = {((), ()): self.root}
        self._spans: dict[tuple[str, int], tuple[float, float]] = {}
        self._answered: CandidateNode | None = None

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self._nodes) - 1

    @property
    def fates(self) -> Counter[Fate]:
        """What became of how many candidates, without copies and what was looked at aside."""
        fates = Counter(self.fate(node) for node in self.nodes() if not node.copied or node.left == "given up")
        del fates["beside"]
        return fates

    @property
    def spent(self) -> Counter[str]:
        """The tokens that were sampled for it, by what became of them in the end."""
        answer = set() if self.answering is None else {node.key for node in self.answering.line()}
        spent: Counter[str] = Counter()
        for node in self.nodes():
            if node.record.tokens and not node.copied:
                spent["answer" if node.key in answer else self.fate(node)] += node.record.tokens
        return spent

    def node(self, path: Path, aside: Aside = ()) -> CandidateNode:
        """The node of a path. It is created where no event was about it."""
        node = self._nodes.get((aside, path)) or self._above(path, aside)
        for end in range(len(node.path) + 1, len(path) + 1):
            node = self._add(CandidateNode(path[:end], aside, node))
        return node

    def get(self, key: Key) -> CandidateNode | None:
        return self._nodes.get(key)

    def expanded(self, event: Expanded) -> None:
        for candidate in event.candidates:
            node = self.node(candidate.path, event.aside)
            node.candidate = candidate
            node.round = event.rounds[-1] + 1 if event.rounds else 0

    def valued(self, event: Valued) -> None:
        for path, value in zip(event.paths, event.values, strict=False):
            node = self.node(path, event.aside)
            if not event.scores or isinstance(value, str):
                node.values[event.column] = value
                continue
            # The latest score comes last.
            node.scores.pop(event.column, None)
            node.scores[event.column] = value
            if value is not None:
                place = event.column, node.round
                least, most = self._spans.get(place, (value, value))
                self._spans[place] = min(least, value), max(most, value)

    def compared(self, event: Compared) -> None:
        for one, other, chance in zip(event.firsts, event.seconds, event.chances, strict=False):
            first, second = self.node(one, event.aside), self.node(other, event.aside)
            first.matches.append((second, chance))
            second.matches.append((first, 1 - chance))

    def selected(self, event: Selected, operator: str) -> None:
        """`operator` is the name of its kind."""
        self.selections.append((event, operator))
        for path in event.kept:
            self.node(path, event.aside).kept = True
        left = _LEFT.get(operator, "dropped")
        won = event.keys[: len(event.kept)]
        for place, path in enumerate(event.dropped, len(event.kept)):
            node = self.node(path, event.aside)
            node.left = left
            if left == "outvoted" and event.keys:
                counted = not event.weights or event.weights[place] is not None
                node.left = "no vote" if not counted else "agreed" if event.keys[place] in won else left

    def given_up_on(self, event: GivenUp) -> None:
        for path in event.paths:
            self.node(path, event.aside).left = "given up"
            self.given_up += 1

    def answered(self, path: Path, aside: Aside = ()) -> None:
        """The answer was read from the row there: where that is a copy, from the candidate that wrote it."""
        self.unanswered()
        row = self.node(path, aside)
        if row.parent is not None:
            self._answered = row
            row.writer.answer = True
            row.writer.values |= row.values

    @property
    def is_answered(self) -> bool:
        return self._answered is not None

    @property
    def answering(self) -> CandidateNode | None:
        """The candidate that wrote the answer."""
        return None if self._answered is None else self._answered.writer

    def unanswered(self) -> None:
        if self._answered is not None:
            self._answered.writer.answer = False
            self._answered = None

    def fate(self, node: CandidateNode) -> Fate:
        """What became of a candidate, as far as is known."""
        if node.answer:
            return "answer"
        if node.left is not None and not (node.left == "dropped" and node.record.finished and node.kept):
            return node.left
        if node.copied:
            return "copy"
        if node.aside and not node.aside[-1].startswith(_WAY):
            return "beside"
        below = [child for child in node.children if child.aside == node.aside]
        copies = [fate for child in below if child.copied and (fate := self.fate(child)) != "copy"]
        if node.record.finished and copies:
            return min(copies, key=_BEST.index)
        goes_on = bool(below)
        if self.ended == "failed" and not goes_on:
            return "failed"
        if node.record.finished:
            return "finished"
        if self.ended is not None and not goes_on and not node.kept:
            return "unfinished"
        return "kept" if node.kept or goes_on else "open"

    def ranked_row(self, node: CandidateNode) -> CandidateNode:
        """The row by which a candidate was decided about at last: a copy of it, where that gave the answer."""
        return self._answered if node.answer and self._answered is not None else node

    def part(self, node: CandidateNode) -> float | None:
        """Where its score lies in its round, from 0 to 1; scores that are shares lie where they are."""
        column, score = next(reversed(node.scores.items()), ("", None))
        return part_of(score, self._spans.get((column, node.round), (0.0, 1.0)))

    @property
    def scaled(self) -> bool:
        """Whether some scores are no shares, so that bars are scaled to their round."""
        return any(not is_share(span) for span in self._spans.values())

    def nodes(self) -> Iterator[CandidateNode]:
        return (node for node in self._nodes.values() if node.parent is not None)

    def _above(self, path: Path, aside: Aside) -> CandidateNode:
        """The known node with the longest part of a path, which is made where rows begin to be looked at aside."""
        for length in range(len(path), -1, -1):
            if (node := self._nodes.get((aside, path[:length]))) is not None:
                return node
        outside = self._above(path, aside[:-1])
        return self._add(CandidateNode(outside.path, aside, outside, heads=True))

    def _add(self, node: CandidateNode) -> CandidateNode:
        assert node.parent is not None
        node.parent.children.append(node)
        self._nodes[node.key] = node
        return node


def is_share(span: tuple[float, float]) -> bool:
    return span[0] >= 0 and span[1] <= 1


def part_of(score: float | None, span: tuple[float, float]) -> float | None:
    """Where a score lies between the least and the greatest, from 0 to 1."""
    if score is None or is_share(span):
        return score
    least, most = span
    return (score - least) / (most - least) if most > least else 1.0


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate's place in one selection, and what it was ranked by, where that is a number."""

    node: CandidateNode
    kept: bool
    key: float | None


@dataclass(frozen=True, slots=True)
class Votes:
    """What one answer got: its total weight, from so many rows; `answer` is None for rows without a vote."""

    answer: str | None
    total: float
    rows: int


@dataclass(frozen=True)
class Ranking:
    """One selection, of a group where rows stand in groups: its candidates, those that were kept first, then by key."""

    selection: Selected
    kind: str
    ranked: tuple[Ranked, ...]

    @property
    def operator(self) -> str:
        return self.selection.operator

    @property
    def round(self) -> int:
        return self.selection.rounds[-1] + 1 if self.selection.rounds else 0

    @property
    def kept(self) -> int:
        return len(self.selection.kept)

    @property
    def copies(self) -> bool:
        """Whether it gave out copies of its candidates, by their shares."""
        return self.kind == _RESAMPLED

    @cached_property
    def span(self) -> tuple[float, float]:
        """The least and the greatest key."""
        keys = [one.key for one in self.ranked if one.key is not None]
        return (min(keys), max(keys)) if keys else (0.0, 1.0)

    @property
    def cuts(self) -> bool:
        """Whether what was kept stands above what was not, by its key."""
        kept, dropped = self.ranked[: self.kept], self.ranked[self.kept :]
        return self.kind == _ORDERED and bool(kept and dropped) and _order(kept[-1]) >= _order(dropped[0])

    @property
    def tally(self) -> tuple[Votes, ...]:
        """The votes by answer, the most first, of answers with equal ones the winner's; empty where it is no vote."""
        selection = self.selection
        if self.kind != "Vote" or not selection.keys:
            return ()
        totals: dict[str | None, float] = {}
        rows: Counter[str | None] = Counter()
        weights = selection.weights or (1.0,) * len(selection.keys)
        for key, weight in zip(selection.keys, weights, strict=False):
            answer = None if key is None or weight is None else str(key)
            totals[answer] = totals.get(answer, 0.0) + (weight or 0.0)
            rows[answer] += 1
        # The winner comes first in the keys, and sorting is stable.
        order = sorted(totals, key=lambda answer: (answer is None, -round(totals[answer], 6)))
        return tuple(Votes(answer, totals[answer], rows[answer]) for answer in order)

    def place(self, node: CandidateNode) -> int | None:
        return next((place for place, one in enumerate(self.ranked, 1) if one.node is node), None)


def ranking_of(tree: SearchTree, node: CandidateNode) -> Ranking | None:
    """The selection that dropped the node, else the first of several candidates that kept it, else None."""
    passed, node = None, tree.ranked_row(node)
    for selection, kind in tree.selections:
        if selection.aside != node.aside:
            continue
        if node.path in selection.dropped:
            return _ranking(tree, selection, kind)
        if passed is None and node.path in selection.kept and len(selection.kept) + len(selection.dropped) > 1:
            passed = selection, kind
    return None if passed is None else _ranking(tree, *passed)


@dataclass(frozen=True)
class LostAnswer:
    """Where a row that came to a wrong answer had a right one: the candidate, and the selection that dropped it.

    `place`: its place in the order by which rows were cut, from 1; None where they were not cut by one.
    """

    node: CandidateNode
    ranking: Ranking

    @property
    def place(self) -> int | None:
        return self.ranking.place(self.node) if self.ranking.kind == _ORDERED else None


def right_candidates(tree: SearchTree, reference: str, answer: str | None) -> list[CandidateNode]:
    """The candidates that have the right answer: in a column in which the one that gave the `answer` has that.

    Of a row that has no answer any column counts.
    """
    if answer is not None:
        return [node for node, right in graded_candidates(tree, reference, answer) if right]
    return [
        node
        for node in tree.nodes()
        if any(same_answer(value, reference) for name, value in node.values.items() if name not in _OF_SEARCHES)
    ]


def graded_candidates(tree: SearchTree, reference: str, answer: str) -> Iterator[tuple[CandidateNode, bool]]:
    """The candidates whose answers are known, and whether these are right: equal texts, and equal numbers, are.

    Where nothing read the answer of a finished candidate it is the last number of its text, as long as that is the
    answer in the text of the candidate that gave the row's.
    """
    columns: set[str] = set()
    by_number = False
    if tree.answering is not None:
        columns = {name for name, value in tree.answering.values.items() if same_answer(value, answer)}
        by_number = same_answer(_last_number(tree.answering), answer)
    for node in tree.nodes():
        if read := [node.values[name] for name in columns if name in node.values]:
            yield node, any(same_answer(value, reference) for value in read)
        elif by_number and node.record.finished and not node.copied and (number := _last_number(node)) is not None:
            yield node, same_answer(number, reference)


def _last_number(node: CandidateNode) -> str | None:
    return next(iter(_NUMBER.findall(node.record.step)[-1:]), None)


def lost_answer(tree: SearchTree, reference: str, answer: str | None) -> LostAnswer | None:
    """The right candidate that came nearest to being kept where it was dropped; None where there is none."""
    found: list[LostAnswer] = []
    rights = {node.key: node for node in right_candidates(tree, reference, answer)}
    for selection, kind in tree.selections:
        dropped = [node for path in selection.dropped if (node := rights.get((selection.aside, path))) is not None]
        if dropped:
            ranking = _ranking(tree, selection, kind)
            found += [LostAnswer(node, ranking) for node in dropped]
    return min(found, key=lambda one: (one.place or len(one.ranking.ranked)) - one.ranking.kept, default=None)


def same_answer(value: str | float | bool | None, answer: str) -> bool:
    if value is None or isinstance(value, bool):
        return False
    if str(value).strip() == answer.strip():
        return True
    with contextlib.suppress(ValueError):
        return float(str(value).replace(",", "")) == float(answer.replace(",", ""))
    return False


def groups_beside(tree: SearchTree, ranking: Ranking) -> list[Ranking]:
    """The rankings of all groups that stood beside this one in the same round, itself among them; else none."""
    own = ranking.selection
    if own.group is None:
        return []
    return [
        _ranking(tree, selection, kind)
        for selection, kind in tree.selections
        if (selection.operator, selection.rounds, selection.aside) == (own.operator, own.rounds, own.aside)
    ]


def rankings(tree: SearchTree) -> Iterator[Ranking]:
    """All selections of a tree, in their order."""
    return (_ranking(tree, selection, kind) for selection, kind in tree.selections)


def _ranking(tree: SearchTree, selection: Selected, kind: str) -> Ranking:
    paths = (*selection.kept, *selection.dropped)
    ranked = []
    for place, path in enumerate(paths):
        node = tree.node(path, selection.aside)
        keys = selection.weights or selection.keys
        given = keys[place] if place < len(keys) else node.copies if kind == _RESAMPLED else node.score
        key = float(given) if isinstance(given, (int, float)) else None
        ranked.append(Ranked(node, place < len(selection.kept), key))
    if kind in (_ORDERED, _RESAMPLED, ""):
        ranked.sort(key=lambda one: (one.kept, _order(one)), reverse=True)
    return Ranking(selection, kind, tuple(ranked))


def _order(one: Ranked) -> float:
    return float("-inf") if one.key is None else one.key


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A node and the strokes before it. `others` are equal to it and have no line: leaves of the same end."""

    node: CandidateNode
    strokes: str
    others: tuple[CandidateNode, ...] = ()


def flattened(tree: SearchTree, turned: set[Key], *, living: bool) -> list[TreeLine]:
    """The nodes, parents before children; equal leaves below a node are one line.

    Of the nodes that are `turned` those below are left out, or of equal ones each has its line. `living` leaves out
    what was dropped with all below it, and what is aside.
    """
    lines: list[TreeLine] = []
    lives = _living(tree) if living else None
    # From the last to the first, as a stack gives them back.
    stack = _pushed(tree, tree.root, "", turned, lives, top=True)
    while stack:
        line, rest = stack.pop()
        lines.append(line)
        if line.node.key not in turned:
            stack.extend(_pushed(tree, line.node, rest, turned, lives))
    return lines


def _pushed(
    tree: SearchTree, node: CandidateNode, rest: str, turned: set[Key], lives: set[Key] | None, *, top: bool = False
) -> list[tuple[TreeLine, str]]:
    children = [_told(child) for child in node.children if lives is None or child.key in lives]
    equal: dict[object, list[CandidateNode]] = {}
    for child in children:
        equal.setdefault(_likeness(tree, child), []).append(child)
    groups = [group for own in equal.values() for group in ([[one] for one in own] if own[0].key in turned else [own])]
    entries = []
    for index, (child, *others) in enumerate(groups):
        closes = index == len(groups) - 1
        lead, under = ("", "") if top else ("└ ", "  ") if closes else ("├ ", "│ ")
        entries.append((TreeLine(child, rest + lead, tuple(others)), rest + under))
    return entries[::-1]


def _likeness(tree: SearchTree, node: CandidateNode) -> object:
    """What equal candidates have in common; a node with others below it, or without a text, is like none."""
    if node.children or node.candidate is None or not node.record.step or node.matches:
        return node.key
    return node.record.step, node.record.finished, tree.fate(node), node.score, tuple(node.values.items())


def _told(node: CandidateNode) -> CandidateNode:
    """The first node from here on that something is to be said of."""
    while node.unnamed and len(node.children) == 1:
        node = node.children[0]
    return node


def _living(tree: SearchTree) -> set[Key]:
    lives = (node for node in tree.nodes() if node.left is None and tree.fate(node) != "beside")
    return {above.key for node in lives for above in node.line()}
