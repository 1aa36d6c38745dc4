"""Searches a text for a regex, in time that grows no faster than the product of the lengths of text and pattern.

What is found is what Python's `re` finds: the leftmost match, and of those that begin there the first in the order in
which Python tries. There is no backtracking; see `regex_program.py`. A state, which is all threads at one point of a
text, is made once and cached with its successor at each character, so that most characters cost one look-up. Only from
where the match may begin is the text followed once more, with the places of the match and its group.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from qpdsl.grammar.literals.characters import Ranges, spelled, union
from qpdsl.grammar.literals.regex_program import Assert, Instruction, Mark, Matched, Split, Taking, compiled
from qpdsl.grammar.literals.regex_tree import parse

# Threads and successors in all cached states of a matcher, at up to about 100 bytes each.
_MOST_CACHED = 200_000
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

    `start` is the state before a text. Raises ValueError or TooLarge for a pattern that `regex.check` refuses.
    """

    def __init__(self, pattern: str) -> None:
        self._program: list[Instruction] = compiled(parse(pattern))
        self.grouped = any(isinstance(instruction, Mark) for instruction in self._program)
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
        """The matches in the text, from the left, that do not overlap. Behind an empty one a character is passed."""
        position = 0
        while position <= len(text) and (since := self._found(text, position)) is not None:
            first, last, group = self._first_match(text, since)
            yield Match(text[first:last], group)
            position = last if last > first else last + 1

    def matches(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the text."""
        return self._found(text) is not None

    def after(self, state: State, char: str) -> State:
        """What a state becomes at a character, where the text does not end behind it."""
        successor = state.successors.get(char)
        if successor is None:
            if self._cached > _MOST_CACHED:
                self._forget()
            successor = state.successors[char] = self._step(state, char)
            self._cached += 1
        return successor

    def _found(self, text: str, position: int = 0) -> int | None:
        """Where the first match from a place on begins at the earliest; None where there is no match."""
        length, end = len(text), self._end(text)
        state = self._idle if position else self.start
        if position >= end:
            state = self._state([], matched=False, begins=not position, ends=True)
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

    def _first_match(self, text: str, since: int) -> tuple[int, int, str | None]:
        """Where the first match begins and ends, and the text of its group."""
        found: tuple[int, _Places] | None = None
        end, index = self._end(text), since
        starts: list[_Thread] = [(0, (since, -1, -1))]
        while True:
            threads, places = self._closure(starts, index, begins=index == 0, ends=index >= end)
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

    def _state(self, moved: list[_Thread], *, matched: bool, begins: bool = False, ends: bool = False) -> State:
        # Another match can begin here, unless there is one already: the leftmost ranks first.
        starts = moved if matched else [*moved, (0, _NOWHERE)]
        threads, places = self._closure(starts, -1, begins=begins, ends=ends)
        key = tuple(at for at, _ in threads), matched or places is not None, not moved
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = State(*key)
            self._cached += len(threads)
        return state

    def _closure(
        self, starts: list[_Thread], index: int, *, begins: bool, ends: bool
    ) -> tuple[list[_Thread], _Places | None]:
        """The threads that wait for a character once those of `starts` have gone on; those after a match are cut off.

        With them the places of the match, None where no thread has matched.
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
                case Split(targets=targets):
                    stack.extend((target, places) for target in reversed(targets))
                case Mark(closes=closes):
                    start, opened, closed = places
                    stack.append((at + 1, (start, opened, index) if closes else (start, index, closed)))
                case Assert(begin=begin):
                    if begins if begin else ends:
                        stack.append((at + 1, places))
                case Matched():
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
