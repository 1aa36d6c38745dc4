"""When the first match of a regex in a text can no longer change, whatever text follows.

A regex becomes a program of the kind that Pike's matcher runs (Cox, "Regular Expression Matching: the Virtual Machine
Approach", 2009): threads in order of priority, over all characters at once. The order is that of Python's backtracking,
so the match that Python finds is that of the thread which ranks first. Once a thread has matched, those that rank after
it do not count; once no thread that ranks before it is left, the match stands. "is 1" may yet become "is 12", since the
thread that takes one more digit ranks before the one that ends.

What the analysis is not sure of it leaves alone: `$`, look-around, back-references, loops whose body can be empty.
States of threads are kept with what they become at each character, so that a text costs one look-up a character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from re import _constants as sre
from re import _parser
from typing import Any

_MOST_INSTRUCTIONS = 4000
_MOST_STATES = 20_000
# Flags that change which characters a part of a pattern takes.
_CHARACTER_FLAGS = re.IGNORECASE | re.ASCII | re.DOTALL
_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}


class _Unsure(Exception):
    """The pattern holds something that the analysis does not follow."""


@dataclass(frozen=True, slots=True)
class _Take:
    """Takes a character, then goes on with the next instruction."""

    takes: Callable[[str], bool]


@dataclass(slots=True)
class _Split:
    """Goes on at each of `targets`, the first ranking first."""

    targets: list[int]


class _Begin:
    """Holds at the beginning of the text."""


class _Match:
    """The pattern has matched."""


_Instruction = _Take | _Split | _Begin | _Match


@dataclass(frozen=True, slots=True)
class _State:
    """Threads in order of rank, as the instructions that they wait at; `matched`: one that ranked after them has."""

    threads: tuple[int, ...]
    matched: bool


@dataclass(slots=True)
class Pattern:
    """A regex whose matches this module can follow; `search` makes one search of it."""

    program: list[_Instruction]
    _next: dict[tuple[_State, str], _State] = field(default_factory=dict)

    def search(self) -> Search:
        """A search over a text that comes in pieces."""
        return Search(self, _State(*self._reached([0], beginning=True)))

    def after(self, state: _State, character: str) -> _State:
        """What a state becomes at a character."""
        known = self._next.get((state, character))
        if known is None:
            if len(self._next) >= _MOST_STATES:
                self._next.clear()
            known = self._next[state, character] = self._stepped(state, character)
        return known

    def _stepped(self, state: _State, character: str) -> _State:
        moved = []
        for at in state.threads:
            instruction = self.program[at]
            if isinstance(instruction, _Take) and instruction.takes(character):
                moved.append(at + 1)
        # Another match can begin behind the character, unless there is one already: the leftmost ranks first.
        starts = moved if state.matched else [*moved, 0]
        threads, matched = self._reached(starts, beginning=False)
        return _State(threads, matched or state.matched)

    def _reached(self, starts: Sequence[int], *, beginning: bool) -> tuple[tuple[int, ...], bool]:
        """The instructions at which threads that go on from `starts` wait, those after a match cut off."""
        waiting: list[int] = []
        seen: set[int] = set()
        stack = list(reversed(starts))
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            match self.program[at]:
                case _Split(targets=targets):
                    stack.extend(reversed(targets))
                case _Begin():
                    if beginning:
                        stack.append(at + 1)
                case _Match():
                    return tuple(waiting), True
                case _Take():
                    waiting.append(at)
        return tuple(waiting), False


@dataclass(slots=True)
class Search:
    """One search: text goes in, and `settled` says whether what follows can still change the first match."""

    pattern: Pattern
    state: _State

    @property
    def settled(self) -> bool:
        return self.state.matched and not self.state.threads

    def push(self, text: str) -> bool:
        """Takes more of the text; True where the match is settled."""
        for character in text:
            if self.settled:
                break
            self.state = self.pattern.after(self.state, character)
        return self.settled


@lru_cache(maxsize=256)
def followed(pattern: str) -> Pattern | None:
    """The pattern, to be followed; None where the analysis is not sure of it, or it can only match at the very end."""
    program: list[_Instruction] = []
    try:
        parsed = _parser.parse(pattern)
        if parsed.state.flags & (re.MULTILINE | re.LOCALE):
            return None
        _compile(parsed, parsed.state.flags, program)
    except (_Unsure, re.error, RecursionError, OverflowError):
        return None
    program.append(_Match())
    return Pattern(program)


def _compile(items: Any, flags: int, program: list[_Instruction]) -> None:
    """Appends the instructions of a part of a parsed pattern. Raises _Unsure."""
    for op, argument in items:
        if len(program) > _MOST_INSTRUCTIONS:
            raise _Unsure
        if op in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            program.append(_Take(_taker(_character(op, argument), flags & _CHARACTER_FLAGS)))
        elif op is sre.SUBPATTERN:
            _, added, removed, inner = argument
            _compile(inner, (flags | added) & ~removed, program)
        elif op is sre.BRANCH:
            _alternatives(argument[1], flags, program)
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, inner = argument
            _repeat(least, most, inner, op is sre.MAX_REPEAT, flags, program)
        elif op is sre.AT and argument in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
            program.append(_Begin())
        else:
            raise _Unsure


def _alternatives(arms: Any, flags: int, program: list[_Instruction]) -> None:
    split = _Split([])
    program.append(split)
    ends = []
    for arm in arms:
        split.targets.append(len(program))
        _compile(arm, flags, program)
        end = _Split([])
        program.append(end)
        ends.append(end)
    for end in ends:
        end.targets.append(len(program))


def _repeat(least: int, most: int, inner: Any, greedy: bool, flags: int, program: list[_Instruction]) -> None:
    # A loop whose body can be empty ends in ways that are the matcher's own.
    if most > 1 and inner.getwidth()[0] == 0:
        raise _Unsure
    for _ in range(least):
        _compile(inner, flags, program)
        if len(program) > _MOST_INSTRUCTIONS:
            raise _Unsure
    if most == sre.MAXREPEAT:
        loop = _Split([])
        start = len(program)
        program.append(loop)
        _compile(inner, flags, program)
        program.append(_Split([start]))
        _either(loop, start + 1, len(program), greedy)
        return
    options: list[tuple[_Split, int]] = []
    for _ in range(most - least):
        options.append((_Split([]), len(program) + 1))
        program.append(options[-1][0])
        _compile(inner, flags, program)
        if len(program) > _MOST_INSTRUCTIONS:
            raise _Unsure
    for option, start in options:
        _either(option, start, len(program), greedy)


def _either(split: _Split, more: int, end: int, greedy: bool) -> None:
    split.targets = [more, end] if greedy else [end, more]


def _character(op: Any, argument: Any) -> str:
    """A pattern for the one character that a part of a pattern takes."""
    if op is sre.ANY:
        return "."
    if op is sre.LITERAL:
        return _escaped(argument)
    if op is sre.NOT_LITERAL:
        return f"[^{_escaped(argument)}]"
    parts = []
    for kind, value in argument:
        if kind is sre.NEGATE:
            parts.append("^")
        elif kind is sre.LITERAL:
            parts.append(_escaped(value))
        elif kind is sre.RANGE:
            parts.append(f"{_escaped(value[0])}-{_escaped(value[1])}")
        elif kind is sre.CATEGORY and value in _CATEGORIES:
            parts.append(_CATEGORIES[value])
        else:
            raise _Unsure
    return f"[{''.join(parts)}]"


def _escaped(code: int) -> str:
    return f"\\U{code:08x}"


def _taker(character: str, flags: int) -> Callable[[str], bool]:
    """Python's own word on whether a character is taken."""
    matches = re.compile(character, flags).fullmatch
    return lambda one: matches(one) is not None
