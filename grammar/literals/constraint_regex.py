"""Regexes as llguidance takes them, such that it holds an output to what the matcher means by them.

Only sets of characters, repeats and alternatives are left, which every engine reads alike. The pattern always covers
the whole text, so nothing depends on what anchors mean there.
"""

from __future__ import annotations

from qpdsl.grammar.literals.characters import spelled
from qpdsl.grammar.literals.regex_tree import (
    ANYTHING,
    Begin,
    Either,
    End,
    Group,
    Repeat,
    Sequence,
    Take,
    Tree,
    parse,
)

# A class that holds no character.
_NOTHING = r"[^\U00000000-\U0010ffff]"


def whole(pattern: str) -> str:
    """The texts that a checked pattern matches from beginning to end."""
    return _spelled(parse(pattern))


def anywhere(pattern: str) -> str:
    """The texts in which a checked pattern matches somewhere, with `^` and `$` around, as JSON Schema searches."""
    return f"^(?:{_spelled(_open(_open(parse(pattern), at_end=False), at_end=True))})$"


def _open(tree: Tree, *, at_end: bool) -> Tree:
    """The tree with anything before what it begins with, or behind what it ends with, but where an anchor stands."""
    match tree:
        case Begin() if not at_end:
            return tree
        case End() if at_end:
            return tree
        case Group(item=item):
            return _open(item, at_end=at_end)
        case Either(arms=arms):
            return Either(tuple(_open(arm, at_end=at_end) for arm in arms))
        case Sequence(items=items) if items:
            # The dialect has no anchor behind something that can be empty, so only the outermost item counts.
            if at_end:
                return Sequence((*items[:-1], _open(items[-1], at_end=True)))
            return Sequence((_open(items[0], at_end=False), *items[1:]))
    return Sequence((tree, ANYTHING) if at_end else (ANYTHING, tree))


def _spelled(tree: Tree) -> str:
    match tree:
        case Take(ranges=ranges):
            return spelled(ranges) if ranges else _NOTHING
        case Sequence(items=items):
            return "".join(map(_spelled, items))
        case Either(arms=arms):
            return f"(?:{'|'.join(map(_spelled, arms))})"
        case Repeat(item=item, least=least, most=most):
            return f"(?:{_spelled(item)}){{{least},{'' if most is None else most}}}"
        case Group(item=item):
            return f"(?:{_spelled(item)})"
    # An anchor: the pattern covers the whole text.
    return ""
