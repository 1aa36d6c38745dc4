"""A regex of the dialect as a tree: the one reading that the matcher and llguidance are both given.

Python's own parser reads the pattern, and `characters.py` says which characters each part of it takes. What is left has
no flags, no escapes and no names: sets of characters, repeats, alternatives, the two anchors and group 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from re import _constants as sre
from re import _parser
from typing import Any

from qpdsl.grammar.literals.characters import ANY, FLAGS, Ranges, takes

# More characters than this in a pattern whose repeats are written out make it too large.
MOST_CHARACTERS = 5000


class TooLarge(Exception):
    """The pattern, its repeats written out, takes more than `MOST_CHARACTERS` characters."""


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Concatenation:
    """One after another; nothing at all where it is empty."""

    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    """One of several; the earlier ranks first."""

    arms: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """At least `least` and at most `most` times, any number where that is None; more ranks first if `greedy`."""

    item: Tree
    least: int
    most: int | None
    greedy: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Group 1 of the pattern."""

    item: Tree


@dataclass(frozen=True, slots=True)
class Begin:
    """Holds at the beginning of the text."""


@dataclass(frozen=True, slots=True)
class End:
    """Holds at the end of the text, and before a newline that ends it."""


Tree = CharacterSet | Concatenation | Alternation | Repeat | Group | Begin | End
ANYTHING = Repeat(CharacterSet(ANY), 0, None, True)


@lru_cache(maxsize=256)
def parse(pattern: str) -> Tree:
    """The tree of a pattern of the dialect. Raises TooLarge, and ValueError for what is outside the dialect."""
    try:
        parsed = _parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the regex does not compile: {error}") from error
    tree = _sequence(parsed, parsed.state.flags)
    if _size(tree) > MOST_CHARACTERS:
        raise TooLarge
    return tree


def whole_text(pattern: str) -> str:
    """A pattern that matches where this checked one matches the whole text: itself, where its anchors say so."""
    match parse(pattern):
        case Concatenation(items=(Begin(), *_, End())):
            return pattern
    return f"^(?:{pattern})$"


def nullable(tree: Tree) -> bool:
    """Whether the tree matches without taking a character."""
    match tree:
        case CharacterSet():
            return False
        case Concatenation(items=items):
            return all(map(nullable, items))
        case Alternation(arms=arms):
            return any(map(nullable, arms))
        case Repeat(item=item, least=least):
            return least == 0 or nullable(item)
        case Group(item=item):
            return nullable(item)
    return True


def _size(tree: Tree) -> int:
    match tree:
        case Concatenation(items=parts) | Alternation(arms=parts):
            return sum(map(_size, parts)) + 1
        case Repeat(item=item, least=least, most=most):
            return _size(item) * max(1, least, most or 0)
        case Group(item=item):
            return _size(item)
    return 1


def _sequence(items: Any, flags: int) -> Tree:
    trees = tuple(_item(op, argument, flags) for op, argument in items)
    return trees[0] if len(trees) == 1 else Concatenation(trees)


def _item(op: Any, argument: Any, flags: int) -> Tree:
    if op in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
        return CharacterSet(takes(op, argument, flags & FLAGS))
    if op is sre.SUBPATTERN:
        group, added, removed, inner = argument
        tree = _sequence(inner, (flags | added) & ~removed)
        return Group(tree) if group == 1 else tree
    if op is sre.BRANCH:
        return Alternation(tuple(_sequence(arm, flags) for arm in argument[1]))
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        least, most, inner = argument
        bound = None if most == sre.MAXREPEAT else most
        return Repeat(_sequence(inner, flags), least, bound, op is sre.MAX_REPEAT)
    if op is sre.AT and argument in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
        return Begin()
    if op is sre.AT and argument is sre.AT_END:
        return End()
    raise ValueError("the regex is outside the dialect")
