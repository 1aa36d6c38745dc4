"""When the first match of a regex in a text can no longer change, whatever text follows.

A regex becomes a program of the kind that Pike's matcher runs (Cox, "Regular Expression Matching: the Virtual Machine
Approach", 2009): threads in order of priority, over all characters at once. The order is that of Python's backtracking,
so Python finds the match of the thread that ranks first. Once a thread has matched, those that rank after it no longer
count; once no thread is left that ranks before it, the match is settled. "is 1" may still become "is 12", since the
thread that takes one more digit ranks before the one that ends.

Patterns that the analysis cannot follow have no matcher: those with `$`, look-around, back-references, or loops whose
body can be empty. Each state is cached with its successor at each character, so that a text costs one look-up a
character.
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


class _Unsupported(Exception):
    """The pattern holds something that the analysis cannot follow."""


@dataclass(frozen=True, slots=True)
class _Take:
    """Takes one character, then goes on with the next instruction."""

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
class EarlyMatcher:
    """A regex as a program; `search` begins a search for its first match."""

    program: list[_Instruction]
    _successors: dict[tuple[_State, str], _State] = field(default_factory=dict)

    def search(self) -> EarlySearch:
        """A search over a text that comes in pieces."""
        return EarlySearch(self, _State(*self._closure([0], beginning=True)))

    def after(self, state: _State, character: str) -> _State:
        """What a state becomes at a character."""
        successor = self._successors.get((state, character))
        if successor is None:
            if len(self._successors) >= _MOST_STATES:
                self._successors.clear()
            successor = self._successors[state, character] = self._step(state, character)
        return successor

    def _step(self, state: _State, character: str) -> _State:
        moved = []
        for at in state.threads:
            instruction = self.program[at]
            if isinstance(instruction, _Take) and instruction.takes(character):
                moved.append(at + 1)
        # Another match can begin behind the character, unless there is one already: the leftmost ranks first.
        starts = moved if state.matched else [*moved, 0]
        threads, matched = self._closure(starts, beginning=False)
        return _State(threads, matched or state.matched)

    def _closure(self, starts: Sequence[int], *, beginning: bool) -> tuple[tuple[int, ...], bool]:
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
class EarlySearch:
    """One search, fed with a text piece by piece."""

    matcher: EarlyMatcher
    state: _State

    @property
    def settled(self) -> bool:
        """Whether there is a match, and the text that follows can no longer change it."""
        return self.state.matched and not self.state.threads

    def push(self, text: str) -> bool:
        """Takes more of the text. Returns `settled`."""
        for character in text:
            if self.settled:
                break
            self.state = self.matcher.after(self.state, character)
        return self.settled


@lru_cache(maxsize=256)
def early_matcher(pattern: str) -> EarlyMatcher | None:
    """The matcher of a pattern; None where the analysis cannot follow it, or it can match only at the very end."""
    program: list[_Instruction] = []
    try:
        parsed = _parser.parse(pattern)
        if parsed.state.flags & (re.MULTILINE | re.LOCALE):
            return None
        _compile(parsed, parsed.state.flags, program)
    except (_Unsupported, re.error, RecursionError, OverflowError):
        return None
    program.append(_Match())
    return EarlyMatcher(program)


def _compile(items: Any, flags: int, program: list[_Instruction]) -> None:
    """Appends the instructions of a part of a parsed pattern. Raises _Unsupported."""
    for op, argument in items:
        if len(program) > _MOST_INSTRUCTIONS:
            raise _Unsupported
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
            raise _Unsupported


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
    # How a loop ends whose body can be empty depends on the regex engine.
    if most > 1 and inner.getwidth()[0] == 0:
        raise _Unsupported
    for _ in range(least):
        _compile(inner, flags, program)
        if len(program) > _MOST_INSTRUCTIONS:
            raise _Unsupported
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
            raise _Unsupported
    for option, start in options:
        _either(option, start, len(program), greedy)


def _either(split: _Split, more: int, end: int, greedy: bool) -> None:
    """Makes a split go on at `more` or `end`, the first of them ranking first where the repeat is greedy."""
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
            raise _Unsupported
    return f"[{''.join(parts)}]"


def _escaped(code: int) -> str:
    return f"\\U{code:08x}"


def _taker(pattern: str, flags: int) -> Callable[[str], bool]:
    """Whether a character is taken, decided by Python's own engine."""
    fullmatch = re.compile(pattern, flags).fullmatch
    return lambda character: fullmatch(character) is not None
