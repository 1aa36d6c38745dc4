"""The regex dialect: what Python's `re` and llguidance's engine both accept.

A pattern means what Python means by it, and `constraint_regex.py` writes it so that llguidance means the same.

No look-around, no back-references, no atomic or possessive groups, no word boundaries; a brace that is no repetition
count is escaped. `^` stands only where nothing can come before it, and `$` only where nothing can come behind it: a
regex that constrains a model must match its whole output, so an anchor elsewhere could never match.

Sets of characters, as sorted ranges of code points, and which characters a part of a regex takes.

What `\\d`, `\\w`, `\\s` and case mean is Python's decision: its own engine is asked, once for each part. Half
characters (surrogates) are in no set, since no text holds them.

A regex of the dialect as a tree: the one reading that the matcher and llguidance are both given.

Python's own parser reads the pattern, and the sets below say which characters each part of it takes. What is left has
no flags, no escapes and no names: sets of characters, repeats, alternatives, the two anchors and group 1.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from re import _constants as sre
from re import _parser
from typing import Any

from qpdsl.grammar.diagnostic import Diagnostic, Edit
from qpdsl.grammar.source import Span

# First and last code points, in order, with a gap between each range and the next.
Ranges = tuple[tuple[int, int], ...]
LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
ANY: Ranges = ((0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, LAST))
# Flags that change which characters a part of a pattern takes.
FLAGS = re.IGNORECASE | re.DOTALL
_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}


def takes(op: Any, argument: Any, flags: int) -> Ranges:
    """The characters that an item of Python's parsed regex takes: a literal, a class, or `.`."""
    if op is sre.ANY:
        return ANY if flags & re.DOTALL else without(ANY, ((10, 10),))
    if op is sre.LITERAL:
        items, negated = [(sre.LITERAL, argument)], False
    elif op is sre.NOT_LITERAL:
        items, negated = [(sre.LITERAL, argument)], True
    else:
        negated = argument[0][0] is sre.NEGATE
        items = argument[1:] if negated else argument
    taken = union(chars for kind, value in items for chars in _plain(kind, value))
    if flags & re.IGNORECASE:
        taken = _either_case(tuple(_spelled(kind, value) for kind, value in items), taken)
    return without(ANY, taken) if negated else without(taken, (_SURROGATES,))


def union(sets: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in any order, that may overlap, as one set."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(sets):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """The characters of one set that are not in the other."""
    left: list[tuple[int, int]] = []
    for first, last in ranges:
        for cut_first, cut_last in others:
            if cut_last < first or cut_first > last:
                continue
            if cut_first > first:
                left.append((first, cut_first - 1))
            first = cut_last + 1
            if first > last:
                break
        if first <= last:
            left.append((first, last))
    return tuple(left)


def spelled(ranges: Ranges) -> str:
    """The set as a class that Python's `re` and Rust's `regex` read alike; `ranges` is not empty."""
    return "[" + "".join(_code(a) if a == b else f"{_code(a)}-{_code(b)}" for a, b in ranges) + "]"


def _code(point: int) -> str:
    char = chr(point)
    return char if char.isascii() and char.isalnum() else f"\\U{point:08x}"


def _spelled(kind: Any, value: Any) -> str:
    if kind is sre.CATEGORY:
        return _CATEGORIES[value]
    return _code(value) if kind is sre.LITERAL else f"{_code(value[0])}-{_code(value[1])}"


def _plain(kind: Any, value: Any) -> Ranges:
    if kind is sre.CATEGORY:
        return _category(_CATEGORIES[value])
    return ((value, value),) if kind is sre.LITERAL else ((value[0], value[1]),)


@cache
def _category(escape: str) -> Ranges:
    return without(ANY, _category(escape.lower())) if escape[1].isupper() else _scanned(escape)


@lru_cache(maxsize=256)
def _either_case(parts: tuple[str, ...], plain: Ranges) -> Ranges:
    """Case concerns cased characters alone; of the others those are taken that are `plain`ly in the class."""
    folded = re.compile(f"[{''.join(parts)}]", re.IGNORECASE)
    cased = _cased()
    taken = [(point, point) for point in cased if folded.match(chr(point))]
    return union([*without(plain, union((point, point) for point in cased)), *taken])


@cache
def _cased() -> tuple[int, ...]:
    text, block = _all_characters(), 256
    cased: list[int] = []
    for start in range(0, LAST + 1, block):
        piece = text[start : start + block]
        if piece.lower() != piece or piece.upper() != piece:
            cased += [ord(char) for char in piece if char.lower() != char or char.upper() != char]
    return tuple(cased)


def _scanned(escape: str) -> Ranges:
    """The characters that an escape takes."""
    return tuple((match.start(), match.end() - 1) for match in re.finditer(f"{escape}+", _all_characters()))


@cache
def _all_characters() -> str:
    """Every code point at its own index, surrogates too."""
    return array("I", range(LAST + 1)).tobytes().decode(f"utf-32-{sys.byteorder[0]}e", "surrogatepass")


# More characters than this in a pattern whose repeats are written out make it too large.
MAX_CHARACTERS = 5000


class RegexTooLarge(Exception):
    """The pattern, its repeats written out, takes more than `MAX_CHARACTERS` characters."""


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
class Repetition:
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


Tree = CharacterSet | Concatenation | Alternation | Repetition | Group | Begin | End
ANYTHING = Repetition(CharacterSet(ANY), 0, None, True)


@lru_cache(maxsize=256)
def parse(pattern: str) -> Tree:
    """The tree of a pattern of the dialect. Raises RegexTooLarge, and ValueError for what is outside the dialect."""
    try:
        parsed = _parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the regex does not compile: {error}") from error
    tree = _sequence(parsed, parsed.state.flags)
    if _size(tree) > MAX_CHARACTERS:
        raise RegexTooLarge
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
        case Repetition(item=item, least=least):
            return least == 0 or nullable(item)
        case Group(item=item):
            return nullable(item)
    return True


def only_text(tree: Tree) -> str | None:
    """The one text that the tree matches; None where there are several, or none."""
    match tree:
        case CharacterSet(ranges=((first, last),)) if first == last:
            return chr(first)
        case Concatenation(items=items):
            texts = [only_text(item) for item in items]
            return None if None in texts else "".join(filter(None, texts))
        case Repetition(item=item, least=least, most=most) if least == most:
            text = only_text(item)
            return None if text is None else text * least
        case Group(item=item):
            return only_text(item)
    return None


def has_group(tree: Tree) -> bool:
    """Whether group 1 stands in the tree, be it where it can never take part."""
    match tree:
        case Concatenation(items=parts) | Alternation(arms=parts):
            return any(map(has_group, parts))
        case Repetition(item=item):
            return has_group(item)
    return isinstance(tree, Group)


def _size(tree: Tree) -> int:
    match tree:
        case Concatenation(items=parts) | Alternation(arms=parts):
            return sum(map(_size, parts)) + 1
        case Repetition(item=item, least=least, most=most):
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
        return Repetition(_sequence(inner, flags), least, bound, op is sre.MAX_REPEAT)
    if op is sre.AT and argument in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
        return Begin()
    if op is sre.AT and argument is sre.AT_END:
        return End()
    raise ValueError("the regex is outside the dialect")


MAX_NESTING = 64
_FLAGS = re.compile(r"\(\?[imsx]*(?:-[imsx]+)?[:)]")
_QUANTIFIER = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
_UP_TO = re.compile(r"\{,(\d+)\}")
_NAMED = re.compile(r"\(\?P<[A-Za-z_][A-Za-z0-9_]*>")
_FOREIGN_GROUPS = {
    "(?=": "look-ahead",
    "(?!": "look-ahead",
    "(?<=": "look-behind",
    "(?<!": "look-behind",
    "(?P=": "a back-reference",
    "(?(": "a conditional group",
    "(?>": "an atomic group",
    "(?#": "a comment",
}
# Escapes that llguidance refuses, or reads otherwise than Python, and what may stand in their place.
_ESCAPES = {
    "B": ("`\\B`", None),
    "Z": ("`\\Z`", "$"),
    "z": ("`\\z`", "$"),
    "0": ("`\\0`", "\\x00"),
    "N": ("`\\N`", None),
    "<": ("an escaped `<`", "<"),
    ">": ("an escaped `>`", ">"),
}
_ANCHORS = "`^` stands where nothing can come before it, `$` where nothing can come behind it"
_LACKS = "the dialect has no look-around, no back-references, no possessive or atomic groups"
_BOTH = "the dialect is what Python's `re` and llguidance both take and mean the same by"
_NO_BOUNDARY = "leave it out, as `\\d+` and `\\w+` take all that they can; or write what stands there, such as `\\W`"
# The parts of a pattern that decide where an anchor may stand.
_PART = re.compile(
    r"""
    (?P<flags>\(\?[imsx-]+\))
  | (?P<open>\((?:\?(?:P<\w+>|[imsx-]*:))?)
  | (?P<close>\))
  | (?P<either>\|)
  | (?P<start>\^|\\A)
  | (?P<end>\$)
  | (?P<repeat>(?:[*+?]|\{\d+(?:,\d*)?\})\??)
  | (?P<atom>\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_FLAG_GROUP = re.compile(r"\(\?([imsx]*)(?:-[imsx]*)?[:)]")


@dataclass(frozen=True, slots=True)
class _Construct:
    """A construct outside the dialect: what it is, where in the pattern it stands, and what to write in its place."""

    what: str
    start: int
    end: int
    fix: str | None = None
    note: str = _LACKS
    help: str | None = None


def check(pattern: str, start: int) -> Diagnostic | None:
    """What is wrong with the pattern whose first character is at offset `start` of the source, if anything is."""
    if not pattern:
        return Diagnostic("QP118", "the regex is empty", Span(start - 1, start + 1))
    construct = _foreign_construct(pattern)
    if construct is not None:
        span = Span(start + construct.start, start + construct.end)
        fix = construct.fix
        return Diagnostic(
            "QP119",
            f"{construct.what} is outside the regex dialect",
            span,
            notes=(construct.note,),
            help=construct.help or (f"write `{fix}`" if fix else None),
            edit=Edit(span, fix) if fix else None,
        )
    anchor = _misplaced_anchor(pattern)
    if anchor is not None:
        what, place = anchor
        span = Span(start + place, start + place + 1)
        return Diagnostic("QP119", f"{what} is outside the regex dialect", span, notes=(_ANCHORS,))
    try:
        re.compile(pattern)
        parse(pattern)
    except re.error as error:
        at = min(error.pos or 0, len(pattern) - 1)
        return Diagnostic("QP118", f"the regex does not compile: {error.msg}", Span(start + at, start + at + 1))
    except (RegexTooLarge, OverflowError, RecursionError):
        return Diagnostic(
            "QP118",
            "the regex is too large",
            Span(start, start + len(pattern)),
            notes=(f"with its repeats written out, a regex takes at most {MAX_CHARACTERS:,} characters",),
            help="write a large count as `*` or `+`",
        )
    return None


def _foreign_construct(pattern: str) -> _Construct | None:
    """The first construct that one of the two engines lacks or means otherwise."""
    index, depth, in_class, quantified = 0, 0, False, False
    while index < len(pattern):
        char, here = pattern[index], index
        was_quantified, quantified = quantified, False
        if char == "\\":
            construct = _escape(pattern, index, in_class=in_class)
            if construct:
                return construct
            index += 2
        elif in_class:
            if char == "[" or pattern[index : index + 2] in ("--", "&&", "~~", "||"):
                return _Construct(f"an unescaped `{char}` in a character class", here, here + 1, f"\\{char}")
            in_class = char != "]"
            index += 1
        elif char == "[":
            in_class = True
            index += 2 if pattern[index + 1 : index + 2] == "^" else 1
            if pattern[index : index + 1] == "]":
                index += 1
        elif char == "(":
            depth += 1
            if depth > MAX_NESTING:
                return _Construct(f"nesting over {MAX_NESTING} deep", here, here + 1)
            if pattern[index + 1 : index + 2] == "?":
                construct = _group(pattern, index)
                if construct:
                    return construct
                index += 1
            index += 1
        else:
            depth -= char == ")"
            quantifier = _QUANTIFIER.match(pattern, index)
            if quantifier and was_quantified and quantifier[0] == "+":
                return _Construct("a possessive quantifier", here - 1, here + 1)
            if quantifier is None and char == "{":
                return _brace(pattern, index)
            quantified = quantifier is not None and not was_quantified
            index = quantifier.end() if quantifier else index + 1
    return None


def _escape(pattern: str, index: int, *, in_class: bool) -> _Construct | None:
    letter, end = pattern[index + 1 : index + 2], index + 2
    if letter.isdigit() and letter != "0":
        return _Construct("a back-reference", index, end)
    if letter == "b":
        return _Construct("`\\b`", index, end, None, _BOTH, None if in_class else _NO_BOUNDARY)
    if letter in _ESCAPES:
        what, fix = _ESCAPES[letter]
        return _Construct(what, index, end, fix, _BOTH)
    if letter == "A" and index > 0 and not in_class:
        return _Construct("`\\A` after the beginning", index, end, None, _BOTH)
    if letter > "\x7f":
        return _Construct(f"an escaped `{letter}`", index, end, letter, _BOTH)
    return None


def _brace(pattern: str, index: int) -> _Construct:
    """A `{` that begins no quantifier: Python takes it as itself, llguidance does not."""
    upto = _UP_TO.match(pattern, index)
    if upto and index > 0:
        return _Construct(f"`{upto[0]}`", index, upto.end(), f"{{0,{upto[1]}}}", _BOTH)
    return _Construct("a `{` that counts nothing", index, index + 1, "\\{", _BOTH)


def _group(pattern: str, index: int) -> _Construct | None:
    for opening, what in _FOREIGN_GROUPS.items():
        if pattern.startswith(opening, index):
            return _Construct(what, index, index + len(opening))
    if _FLAGS.match(pattern, index) or _NAMED.match(pattern, index):
        return None
    return _Construct(f"`{pattern[index : index + 3]}`", index, min(index + 3, len(pattern)))


@dataclass(slots=True)
class _Part:
    kind: str
    place: int
    repeated: bool = False


def _misplaced_anchor(pattern: str) -> tuple[str, int] | None:
    """The first anchor that llguidance refuses: a phrase that says what it is, and its place."""
    items = _parts(pattern)
    by_line = any("m" in match[1] for match in _FLAG_GROUP.finditer(pattern))
    anchors = [*_inner(items, "start", "open", "close"), *_inner(items[::-1], "end", "close", "open")]
    if by_line:
        anchors += [("an anchor for each line", item.place) for item in items if item.kind in ("start", "end")]
    return min(anchors, key=lambda anchor: anchor[1], default=None)


def _parts(pattern: str) -> list[_Part]:
    """The parts of the pattern; both ends of a group know whether it is repeated."""
    items: list[_Part] = []
    opened: list[_Part] = []
    group: _Part | None = None
    for match in _PART.finditer(pattern):
        kind = match.lastgroup or ""
        if kind == "repeat":
            for item in (*items[-1:], group):
                if item:
                    item.repeated = True
            group = None
            continue
        items.append(_Part(kind, match.start()))
        if kind == "open":
            opened.append(items[-1])
        group = opened.pop() if kind == "close" and opened else None
    return items


def _inner(items: list[_Part], anchor: str, opening: str, closing: str) -> Iterator[tuple[str, int]]:
    """The anchors that have something before them, in this reading direction, or that are repeated."""
    sign, where = ("^", "after the beginning") if anchor == "start" else ("$", "before the end")
    leading, outer, repeated = True, [True], [False]
    for item in items:
        if item.kind == anchor:
            if item.repeated or any(repeated):
                yield f"a repeated `{sign}`", item.place
            elif not leading:
                yield f"`{sign}` {where}", item.place
        elif item.kind == opening:
            outer.append(leading)
            repeated.append(item.repeated)
        elif item.kind == closing and len(outer) > 1:
            outer.pop()
            repeated.pop()
            leading = False
        elif item.kind == "either":
            leading = outer[-1]
        elif item.kind != "flags":
            leading = False
