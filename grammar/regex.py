"""The regex dialect: what Python's `re` and llguidance's engine both take and mean the same by.

No look-around, no back-references, no atomic or possessive groups.
"""

from __future__ import annotations

import re

from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.source import Span

MAX_NESTING = 64
_FLAGS = re.compile(r"\(\?[imsx]*(?:-[imsx]+)?[:)]")
_QUANTIFIER = re.compile(r"[*+?]|\{\d*,?\d*\}")
_NAMED = re.compile(r"\(\?P<[A-Za-z_][A-Za-z0-9_]*>")
_OUTSIDE = {
    "(?=": "look-ahead",
    "(?!": "look-ahead",
    "(?<=": "look-behind",
    "(?<!": "look-behind",
    "(?P=": "a back-reference",
    "(?(": "a conditional group",
    "(?>": "an atomic group",
    "(?#": "a comment",
}


def check(pattern: str, start: int) -> Diagnostic | None:
    """What is wrong with the pattern whose first character is at offset `start` of the source, if anything is."""
    if not pattern:
        return Diagnostic("QP118", "the regex is empty", Span(start - 1, start + 1))
    outside = _outside(pattern)
    if outside is not None:
        what, at, end = outside
        message = f"{what} is outside the regex dialect"
        notes = ("the dialect has no look-around, no back-references, no possessive or atomic groups",)
        return Diagnostic("QP119", message, Span(start + at, start + end), notes=notes)
    try:
        re.compile(pattern)
    except re.error as error:
        at = min(error.pos or 0, len(pattern) - 1)
        return Diagnostic("QP118", f"the regex does not compile: {error.msg}", Span(start + at, start + at + 1))
    except (OverflowError, RecursionError):
        return Diagnostic("QP118", "the regex is too large to compile", Span(start, start + len(pattern)))
    return None


def _outside(pattern: str) -> tuple[str, int, int] | None:
    """The first construct that one of the two engines lacks, and where it stands."""
    index, depth, in_class, quantified = 0, 0, False, False
    while index < len(pattern):
        char, here = pattern[index], index
        was_quantified, quantified = quantified, False
        if char == "\\":
            following = pattern[index + 1 : index + 2]
            if not in_class and following.isdigit() and following != "0":
                return "a back-reference", here, here + 2
            index += 2
        elif in_class:
            if char == "[" or pattern[index : index + 2] in ("--", "&&", "~~", "||"):
                return f"an unescaped `{char}` in a character class", here, here + 1
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
                return f"nesting over {MAX_NESTING} deep", here, here + 1
            if pattern[index + 1 : index + 2] == "?":
                found = _group(pattern, index)
                if found:
                    return found
                index += 1
            index += 1
        else:
            depth -= char == ")"
            quantifier = _QUANTIFIER.match(pattern, index)
            if quantifier and was_quantified and quantifier[0] == "+":
                return "a possessive quantifier", here - 1, here + 1
            quantified = quantifier is not None and not was_quantified
            index = quantifier.end() if quantifier else index + 1
    return None


def _group(pattern: str, index: int) -> tuple[str, int, int] | None:
    for opening, what in _OUTSIDE.items():
        if pattern.startswith(opening, index):
            return what, index, index + len(opening)
    if _FLAGS.match(pattern, index) or _NAMED.match(pattern, index):
        return None
    return f"`{pattern[index : index + 3]}`", index, min(index + 3, len(pattern))
