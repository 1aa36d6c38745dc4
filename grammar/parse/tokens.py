"""The tokens of a source text, scanned before parsing: where strings, regexes and comments begin and end.

The parser has its own lexer. This scan finds the faults that a parser cannot explain well (a string that never closes,
a character that starts nothing), and gives `layout.py` what it needs to tell which newlines end a stage.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.parse import bad_tokens
from qpdsl.grammar.source import Source, Span
from qpdsl.grammar.words import RESERVED

Kind = Literal["word", "number", "string", "regex", "sign", "newline", "comment"]


class Token(NamedTuple):
    """A piece of the text, from offset `start` to `end`. A tuple, which is made quickly: a source has many."""

    kind: Kind
    text: str
    start: int
    end: int

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)


_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\f\r\ufeff]+)
  | (?P<newline>\n(?:[ \t\f\r\ufeff]*\n)*)
  | (?P<comment>\#[^\n]*)
  | (?P<string>\"\"\"(?:[^\\]|\\.)*?\"\"\"|"(?!"")(?:[^"\\\n]|\\[^\n])*")
  | (?P<foreign>[A-Za-z0-9_]*[^\W\x00-\x7f]\w*)
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<dots>\.\.)
  | (?P<number>\d\w*(?:\.(?!\.)\w*)?(?:(?<=[eE])[+-]\d+)?|\.\d\w*)
  | (?P<sign>->|[=!<>]=|[-+*/%=<>(){}\[\],:.|?])
  | (?P<open_text>\"\"\")
  | (?P<open>")
  | (?P<stray>&+|.)
    """,
    re.VERBOSE | re.DOTALL,
)
MAX_FAULTS = 20
_REGEX = re.compile(r"/(?:[^/\\\n]|\\[^\n])*/")
# What stands behind `model NAME =` without quotes.
_BARE_PLACE = re.compile(r"""[ \t]*([^\s"'#“”„«»‘’]+)""")
_QUOTED = re.compile(r"'((?:[^'\\\n]|\\[^\n])*)'")
_CLOSERS = frozenset(")]")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_TIME = re.compile(r"\d+(?:\.\d+)?(?:ms|s|min)")


def scan(source: Source, text: str) -> tuple[list[Token], list[Diagnostic]]:
    """All tokens of `text` (the source, perhaps with faulty parts blanked), and what is wrong with the first of them.

    A newline token is a run of newlines with nothing between them.
    """
    tokens: list[Token] = []
    faults: list[Diagnostic] = []
    last: Token | None = None
    head: Token | None = None
    offset = depth = 0
    while offset < len(text):
        if (
            last is not None
            and last.text == "="
            and head is not None
            and head.text == "model"
            and head in tokens[-3:-2]
        ):
            place = _BARE_PLACE.match(text, offset)
            if place is not None:
                last = Token("string", place[1], *place.span(1))
                tokens.append(last)
                faults.append(bad_tokens.bare_place(text, last.start, last.end))
                offset = last.end
                continue
        begins = head is None or (last is head and not depth) or head.text == "extract"
        if text[offset] == "/" and (begins or not _is_operand(last)):
            last, fault = _regex(text, offset)
            tokens.append(last)
            if fault and len(faults) < MAX_FAULTS:
                faults.append(fault)
            offset = last.end
            continue
        match = _TOKEN.match(text, offset)
        assert match is not None and match.lastgroup is not None
        kind, start, offset = match.lastgroup, offset, match.end()
        if kind == "space":
            continue
        fault = None
        if kind in ("open", "open_text"):
            long = kind == "open_text"
            offset = len(text) if long else bad_tokens.string_end(text, start, _line_end(text, start))
            fault = bad_tokens.unclosed_string(text, start, offset, long=long)
            kind = "string"
        elif kind == "number" and not _NUMBER.fullmatch(match[0]):
            before = [token.text for token in tokens[-6:] if token.kind not in ("newline", "comment")]
            time = before[-2:] == ["deadline", "("] and _TIME.fullmatch(match[0])
            fault = None if time else bad_tokens.odd_number(text, start, offset)
        elif kind == "foreign":
            fault = bad_tokens.foreign_name(text, start, offset)
            kind = "word"
        elif kind == "dots":
            kind = "sign"
        elif kind == "stray" and (quoted := _QUOTED.match(text, start)) is not None:
            offset, kind = quoted.end(), "string"
            fault = bad_tokens.single_quotes(text, start, offset)
        elif kind == "stray":
            fault = bad_tokens.stray(text, start, offset)
            kind = "sign"
        if fault and len(faults) < MAX_FAULTS:
            faults.append(fault)
        token = Token(kind, text[start:offset], start, offset)  # type: ignore[arg-type]
        tokens.append(token)
        if kind == "comment" or (kind == "newline" and depth):
            continue
        if kind == "word" and last is not None and last.text == "." and last.end == start:
            token = token._replace(kind="string")  # a field's name: no reserved word
        if kind == "sign":
            depth = 0 if token.text in "{}" else max(0, depth + (token.text in "([") - (token.text in ")]"))
        if kind == "newline" or token.text in ("|", "{", "}"):
            head = None
        elif head is None:
            head = token
        last = token
    return tokens, faults


def next_significant(tokens: list[Token]) -> list[int]:
    """For each index, the first one from there on that is not a newline."""
    following = [len(tokens)] * (len(tokens) + 1)
    for index in range(len(tokens) - 1, -1, -1):
        following[index] = following[index + 1] if tokens[index].kind == "newline" else index
    return following


def _is_operand(token: Token | None) -> bool:
    """Whether a `/` after this token divides."""
    if token is None:
        return False
    if token.kind == "word":
        return token.text not in RESERVED or token.text in ("true", "false", "none")
    return token.kind in ("number", "string") or token.text in _CLOSERS


def _line_end(text: str, start: int) -> int:
    """The end of the line, but for a `{` at its end: a block should not be lost with a faulty head."""
    end = text.find("\n", start)
    rest = text[start + 1 : len(text) if end < 0 else end].rstrip()
    return start + 1 + len(rest.removesuffix("{").rstrip())


def _regex(text: str, start: int) -> tuple[Token, Diagnostic | None]:
    """The regex that begins at `start`, and what is wrong with it."""
    match = _REGEX.match(text, start)
    if match and (end := bad_tokens.slash_end(text, match.end())):
        return Token("regex", text[start:end], start, end), bad_tokens.slash_in_regex(text, match.end(), end)
    if match:
        return Token("regex", match[0], start, match.end()), None
    end = _line_end(text, start)
    return Token("regex", text[start:end], start, end), bad_tokens.unclosed_regex(text, start, end)
