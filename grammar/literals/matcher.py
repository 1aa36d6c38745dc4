"""Searches a text for a regex, in time that grows no faster than the product of the lengths of text and pattern.

What is found is what Python's `re` finds: the leftmost match, and of those that begin there the first in the order in
which Python tries. There is no backtracking. A state, which is all threads at one point of a
text, is made once and cached with its successor at each character, so that most characters cost one look-up. Only from
where the match may begin is the text followed once more, with the places of the match and its group.

The tree is made a program of the kind that Pike's matcher runs: see Cox, "Regular Expression Matching: the Virtual
Machine Approach", 2009. Threads go through the instructions in order of priority, over all characters at once; the
order is that of Python's backtracking.

A loop ends, as in Python, behind a round that took nothing. So the body of a loop that can be empty is there twice: the
*idle* copy, where the round has taken nothing yet, and the *busy* one. Taking a character leads from the idle copy of
an instruction to behind the busy one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from qpdsl.grammar.literals.regex import (
    Alternation,
    Begin,
    CharacterSet,
    Concatenation,
    End,
    Group,
    Ranges,
    Repetition,
    Tree,
    has_group,
    nullable,
    parse,
    spelled,
    union,
)


@dataclass(slots=True)
class Taking:
    """Takes a character of the set, then goes on at `target`."""

    ranges: Ranges
    target: int


@dataclass(slots=True)
class Fork:
    """Goes on at each of `targets`, the first ranking first."""

    targets: list[int]


@dataclass(frozen=True, slots=True)
class Assert:
    """Goes on where the text begins (`begin`), else where it ends."""

    begin: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """Group 1 opens here, or closes (`closes`)."""

    closes: bool


class Matched:
    """The pattern has matched."""


Instruction = Taking | Fork | Assert | Mark | Matched
# Where a part of the tree stands, repeats written out.
_Place = tuple[int, ...]


def compiled(tree: Tree) -> list[Instruction]:
    """The program of a tree; it begins at the first instruction."""
    compiler = _Compiler()
    compiler.emit(tree, (), idle=False)
    compiler.program.append(Matched())
    for place, instruction in compiler.idle:
        instruction.target = compiler.busy[place]
    return compiler.program


@dataclass(slots=True)
class _Compiler:
    """`busy` says where each part of a pattern that takes a character goes on once a round has taken one."""

    program: list[Instruction] = field(default_factory=list)
    busy: dict[_Place, int] = field(default_factory=dict)
    idle: list[tuple[_Place, Taking]] = field(default_factory=list)

    def emit(self, tree: Tree, place: _Place, *, idle: bool) -> None:
        program = self.program
        match tree:
            case CharacterSet(ranges=ranges):
                taking = Taking(ranges, len(program) + 1)
                program.append(taking)
                if idle:
                    self.idle.append((place, taking))
                else:
                    self.busy[place] = taking.target
            case Concatenation(items=items):
                for index, item in enumerate(items):
                    self.emit(item, (*place, index), idle=idle)
            case Alternation(arms=arms):
                self._either(arms, place, idle)
            case Repetition():
                self._repeat(tree, place, idle)
            case Group(item=item):
                program.append(Mark(False))
                self.emit(item, (*place, 0), idle=idle)
                program.append(Mark(True))
            case Begin() | End():
                program.append(Assert(isinstance(tree, Begin)))

    def _either(self, arms: tuple[Tree, ...], place: _Place, idle: bool) -> None:
        choice = self._split()
        ends = []
        for index, arm in enumerate(arms):
            choice.targets.append(len(self.program))
            self.emit(arm, (*place, index), idle=idle)
            ends.append(self._split())
        for end in ends:
            end.targets.append(len(self.program))

    def _repeat(self, repeat: Repetition, place: _Place, idle: bool) -> None:
        for number in range(repeat.least):
            self.emit(repeat.item, (*place, number), idle=idle)
        # Rounds that may be left out; a loop has one, which leads back to its own beginning.
        choices: list[Fork] = []
        empties: list[Fork] = []
        for number in range(repeat.least, repeat.least + 1 if repeat.most is None else repeat.most):
            choices.append(self._split())
            choices[-1].targets.append(len(self.program))
            empties += self._round(repeat.item, (*place, number), idle)
        if repeat.most is None:
            self.program.append(Fork([choices[0].targets[0] - 1]))
        for choice in choices:
            choice.targets.insert(1 if repeat.greedy else 0, len(self.program))
        for empty in empties:
            empty.targets.append(len(self.program))

    def _round(self, item: Tree, place: _Place, idle: bool) -> list[Fork]:
        """A round that may be left out; returns what goes on behind the repeat if the round took nothing."""
        if not nullable(item):
            self.emit(item, place, idle=idle)
            return []
        self.emit(item, place, idle=True)
        empty = self._split()
        if not idle:
            self.emit(item, place, idle=False)
        return [empty]

    def _split(self) -> Fork:
        split = Fork([])
        self.program.append(split)
        return split


# Threads and successors in all cached states of a matcher, at up to about 100 bytes each.
_MAX_CACHED = 200_000
# Where a thread's match begins, and where its group 1 begins and ends; -1 for nowhere.
_Places = tuple[int, int, int]
_NOWHERE: _Places = (-1, -1, -1)
_Thread = tuple[int, _Places]


@dataclass(frozen=True, slots=True)
class Match:
    """The text that a pattern matched, and that of its group 1: None where the group took no part."""

    text: str
    group: str | None


@dataclass(slots=True, eq=False)
class State:
    """Threads in order of rank, as the instructions that they wait at.

    `matched`: a thread that ranked after them has matched. `idle`: all of them begin here.
    """

    threads: tuple[int, ...]
    matched: bool
    idle: bool
    successors: dict[str, State] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """Whether there is a match that no further text can change."""
        return self.matched and not self.threads


class Matcher:
    """A regex as a program. `grouped`: it has a group. `anchored_at_end`: it has a `$`.

    `start` is the state before a text. Raises ValueError or RegexTooLarge for a pattern that `regex.check` refuses.
    """

    def __init__(self, pattern: str) -> None:
        tree = parse(pattern)
        self._program: list[Instruction] = compiled(tree)
        self.grouped = has_group(tree)
        self.anchored_at_end = any(isinstance(part, Assert) and not part.begin for part in self._program)
        self._firsts = [
            [first for first, _ in instruction.ranges] if isinstance(instruction, Taking) else []
            for instruction in self._program
        ]
        self._states: dict[tuple[tuple[int, ...], bool, bool], State] = {}
        self._cached = 0
        self.start = self._state([], matched=False, begins=True)
        # From here a search skips to the next character that can begin a match.
        self._idle = self._state([], matched=False)
        self._beginning = self._first_character()

    def search(self, text: str) -> Match | None:
        """The first match in the text."""
        return next(self.all(text), None)

    def all(self, text: str) -> Iterator[Match]:
        """The matches in the text, from the left, that do not overlap.

        As in Python, what follows an empty one may begin at the same place, but is not empty there.
        """
        position, empty = 0, False
        while (since := self._found(text, position, behind_empty=empty)) is not None:
            first, last, group = self._first_match(text, since, position if empty else None)
            yield Match(text[first:last], group)
            position, empty = last, first == last

    def matches(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the text."""
        return self._found(text) is not None

    def after(self, state: State, char: str) -> State:
        """What a state becomes at a character, where the text does not end behind it."""
        successor = state.successors.get(char)
        if successor is None:
            if self._cached > _MAX_CACHED:
                self._forget()
            successor = state.successors[char] = self._step(state, char)
            self._cached += 1
        return successor

    def _found(self, text: str, position: int = 0, *, behind_empty: bool = False) -> int | None:
        """Where the first match from a place on begins at the earliest; None where there is no match.

        `behind_empty`: there was an empty one at the place itself.
        """
        length, end = len(text), self._end(text)
        state = self._idle if position else self.start
        if position >= end or behind_empty:
            state = self._state([], matched=False, begins=not position, ends=position >= end, filled=behind_empty)
        since = index = position
        while not state.matched and index < length:
            if state.idle and index > 0:
                begins = self._beginning.search(text, index) if self._beginning is not None else None
                index = since = max(index, min(length if begins is None else begins.start(), end - 1))
                if index == length:
                    break
            index += 1
            char = text[index - 1]
            state = self.after(state, char) if index < end else self._step(state, char, ends=True)
        return since if state.matched else None

    def _end(self, text: str) -> int:
        """The first place where a `$` holds, a place behind the text if the pattern has none."""
        if not self.anchored_at_end:
            return len(text) + 1
        return len(text) - text.endswith("\n")

    def _first_match(self, text: str, since: int, empty: int | None) -> tuple[int, int, str | None]:
        """Where the first match begins and ends, and the text of its group; not the empty one at the place `empty`."""
        found: tuple[int, _Places] | None = None
        end, index = self._end(text), since
        starts: list[_Thread] = [(0, (since, -1, -1))]
        while True:
            threads, places = self._closure(starts, index, begins=index == 0, ends=index >= end, filled=index == empty)
            if places is not None:
                found = index, places
            if index == len(text) or (found and not threads):
                break
            starts = self._moved(threads, text[index])
            index += 1
            if found is None:
                starts.append((0, (index, -1, -1)))
        assert found is not None
        last, (first, opened, closed) = found
        return first, last, text[opened:closed] if closed >= 0 else None

    def _step(self, state: State, char: str, *, ends: bool = False) -> State:
        moved = self._moved([(at, _NOWHERE) for at in state.threads], char)
        return self._state(moved, matched=state.matched, ends=ends)

    def _moved(self, threads: Iterable[_Thread], char: str) -> list[_Thread]:
        """The threads that take the character, behind it."""
        point, moved = ord(char), []
        for at, places in threads:
            instruction = self._program[at]
            assert isinstance(instruction, Taking)
            index = bisect_right(self._firsts[at], point) - 1
            if index >= 0 and point <= instruction.ranges[index][1]:
                moved.append((instruction.target, places))
        return moved

    def _state(
        self, moved: list[_Thread], *, matched: bool, begins: bool = False, ends: bool = False, filled: bool = False
    ) -> State:
        # Another match can begin here, unless there is one already: the leftmost ranks first.
        starts = moved if matched else [*moved, (0, _NOWHERE)]
        threads, places = self._closure(starts, -1, begins=begins, ends=ends, filled=filled)
        # A search that takes no empty match here may find one at the next place, which is not to be skipped.
        key = tuple(at for at, _ in threads), matched or places is not None, not moved and not filled
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = State(*key)
            self._cached += len(threads)
        return state

    def _closure(
        self, starts: list[_Thread], index: int, *, begins: bool, ends: bool, filled: bool
    ) -> tuple[list[_Thread], _Places | None]:
        """The threads that wait for a character once those of `starts` have gone on; those after a match are cut off.

        With them the places of the match, None where no thread has matched. `filled`: a match takes a character.
        """
        waiting: list[_Thread] = []
        seen: set[int] = set()
        stack = starts[::-1]
        while stack:
            at, places = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            match self._program[at]:
                case Taking():
                    waiting.append((at, places))
                case Fork(targets=targets):
                    stack.extend((target, places) for target in reversed(targets))
                case Mark(closes=closes):
                    start, opened, closed = places
                    stack.append((at + 1, (start, opened, index) if closes else (start, index, closed)))
                case Assert(begin=begin):
                    if begins if begin else ends:
                        stack.append((at + 1, places))
                case Matched():
                    if not filled:
                        return waiting, places
        return waiting, None

    def _first_character(self) -> re.Pattern[str] | None:
        """Finds a character that a match can begin with, None where there is none."""
        takes = union(span for at in self._idle.threads for span in self._ranges(at))
        return re.compile(spelled(takes)) if takes else None

    def _ranges(self, at: int) -> Ranges:
        instruction = self._program[at]
        return instruction.ranges if isinstance(instruction, Taking) else ()

    def _forget(self) -> None:
        self._states = {(state.threads, state.matched, True): state for state in (self.start, self._idle)}
        for state in self._states.values():
            state.successors.clear()
        self._cached = 0


@lru_cache(maxsize=256)
def matcher(pattern: str) -> Matcher:
    """The matcher of a checked pattern."""
    return Matcher(pattern)
