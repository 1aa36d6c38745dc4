"""The regex dialect: what Python's `re` and llguidance's engine both accept.

A pattern means what Python means by it, and `constraint_regex.py` writes it so that llguidance means the same.

No look-around, no back-references, no atomic or possessive groups, no word boundaries; a brace that is no repetition
count is escaped. `^` stands only where nothing can come before it, and `$` only where nothing can come behind it: a
regex that constrains a model must match its whole output, so an anchor elsewhere could never match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from qpdsl.grammar.diagnostic import Diagnostic, Edit
from qpdsl.grammar.literals.regex_tree import MOST_CHARACTERS, TooLarge, parse
from qpdsl.grammar.source import Span

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
    "b": ("`\\b`", None),
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
            help=f"write `{fix}`" if fix else None,
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
    except (TooLarge, OverflowError, RecursionError):
        return Diagnostic(
            "QP118",
            "the regex is too large",
            Span(start, start + len(pattern)),
            notes=(f"with its repeats written out, a regex takes at most {MOST_CHARACTERS:,} characters",),
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
