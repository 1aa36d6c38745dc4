"""Regexes as llguidance takes them, such that it holds an output to what the matcher means by them.

Only sets of characters, repeats and alternatives are left, which every engine reads alike. The pattern always covers
the whole text, so nothing depends on what anchors mean there.
"""

from __future__ import annotations

from collections.abc import Callable

from qpdsl.grammar.literals.regex import (
    ANYTHING,
    Alternation,
    Begin,
    CharacterSet,
    Concatenation,
    End,
    Group,
    Ranges,
    Repetition,
    Tree,
    parse,
    spelled,
    without,
)

# A class that holds no character.
_NOTHING = r"[^\U00000000-\U0010ffff]"


def whole(pattern: str) -> str:
    """The texts that a checked pattern matches from beginning to end."""
    return _spelled(parse(pattern))


def anywhere(pattern: str) -> str:
    """The texts in which a checked pattern matches somewhere, with `^` and `$` around, as JSON Schema searches."""
    return f"^(?:{_spelled(_open(_open(parse(pattern), at_end=False), at_end=True), _in_json)})$"


def _open(tree: Tree, *, at_end: bool) -> Tree:
    """The tree with anything before what it begins with, or behind what it ends with, but where an anchor stands."""
    match tree:
        case Begin() if not at_end:
            return tree
        case End() if at_end:
            return tree
        case Group(item=item):
            return _open(item, at_end=at_end)
        case Alternation(arms=arms):
            return Alternation(tuple(_open(arm, at_end=at_end) for arm in arms))
        case Concatenation(items=items) if items:
            # The dialect has no anchor behind something that can be empty, so only the outermost item counts.
            if at_end:
                return Concatenation((*items[:-1], _open(items[-1], at_end=True)))
            return Concatenation((_open(items[0], at_end=False), *items[1:]))
    return Concatenation((tree, ANYTHING) if at_end else (ANYTHING, tree))


def _spelled(tree: Tree, adapted: Callable[[Ranges], Ranges] = lambda ranges: ranges) -> str:
    match tree:
        case CharacterSet(ranges=ranges):
            return spelled(adapted(ranges)) if ranges else _NOTHING
        case Concatenation(items=items):
            return "".join(_spelled(item, adapted) for item in items)
        case Alternation(arms=arms):
            return f"(?:{'|'.join(_spelled(arm, adapted) for arm in arms)})"
        case Repetition(item=item, least=least, most=most):
            return f"(?:{_spelled(item, adapted)}){{{least},{'' if most is None else most}}}"
        case Group(item=item):
            return f"(?:{_spelled(item, adapted)})"
    # An anchor: the pattern covers the whole text.
    return ""


def _in_json(ranges: Ranges) -> Ranges:
    """A class for texts inside JSON.

    llguidance takes `\\"` and `\\\\` for any class that holds all control characters. One that lacks what these stand
    for leaves the null character out.
    """
    control = ranges[0][0] == 0 and ranges[0][1] >= 0x1F
    quotes = all(any(first <= ord(char) <= last for first, last in ranges) for char in '"\\')
    return without(ranges, ((0, 0),)) if control and not quotes else ranges
