"""The signs of a source text, found before parsing: where strings, regexes and comments begin and end.

The parser has its own lexer; this scan finds what a parser cannot say well (a string that never closes, a character
that starts nothing) and what `layout` needs to tell which newlines end a stage.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal as OneOf

from qpdsl.grammar.diagnostic import Diagnostic, Edit
from qpdsl.grammar.source import Source, Span
from qpdsl.grammar.words import RESERVED

Kind = OneOf["word", "number", "string", "regex", "sign", "newline", "comment"]


@dataclass(frozen=True, slots=True)
class Token:
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
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
  | (?P<sign>->|[=!<>]=|[-+*/%=<>(){}\[\],:.|])
  | (?P<open_text>\"\"\")
  | (?P<open>")
  | (?P<stray>.)
    """,
    re.VERBOSE | re.DOTALL,
)
MAX_FAULTS = 20
_REGEX = re.compile(r"/(?:[^/\\\n]|\\[^\n])*/")
_CLOSERS = frozenset(")]")
_LOOKALIKES = dict.fromkeys("“”„«»", '"') | dict.fromkeys("‘’", '"') | {"–": "-", "—": "-", "−": "-", "\u00a0": " "}
_ADVICE = {
    "'": 'strings stand in double quotes: `"…"`',
    ";": "stages end at a newline or `|`",
    "&": "write `and`",
    "!": "write `not`",
    "$": "a parameter is its bare name; in a string, `{name}`",
    "?": "an optional value is not part of the language as it is",
}


def scan(source: Source, text: str) -> tuple[list[Token], list[Diagnostic]]:
    """All tokens of `text` (the source, perhaps with faulty parts blanked), and what is wrong with the first of them.

    A newline token is a run of newlines with nothing between them.
    """
    tokens: list[Token] = []
    faults: list[Diagnostic] = []
    last: Token | None = None
    head: Token | None = None
    offset = 0
    while offset < len(text):
        if text[offset] == "/" and (head is None or last is head or head.text == "extract" or not _is_operand(last)):
            last, fault = _regex(text, offset)
            tokens.append(last)
            faults += fault[: MAX_FAULTS - len(faults)]
            offset = last.end
            continue
        match = _TOKEN.match(text, offset)
        assert match is not None and match.lastgroup is not None
        kind, start, offset = match.lastgroup, offset, match.end()
        if kind == "space":
            continue
        if kind in ("open", "open_text"):
            long = kind == "open_text"
            offset = len(text) if long else _line_end(text, start)
            fault = [_unclosed_string(text, start, offset, long=long)]
            faults += fault[: MAX_FAULTS - len(faults)]
            kind = "string"
        elif kind == "stray":
            if len(faults) < MAX_FAULTS:
                faults.append(_stray(text, start))
            continue
        token = Token(kind, text[start:offset], start, offset)  # type: ignore[arg-type]
        tokens.append(token)
        if kind == "comment":
            continue
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
    """The end of the line, less a `{` that closes it: a block should not be lost with a faulty head."""
    end = text.find("\n", start)
    rest = text[start + 1 : len(text) if end < 0 else end].rstrip()
    return start + 1 + len(rest.removesuffix("{").rstrip())


def _regex(text: str, start: int) -> tuple[Token, list[Diagnostic]]:
    match = _REGEX.match(text, start)
    if match:
        return Token("regex", match[0], start, match.end()), []
    end = _line_end(text, start)
    fault = Diagnostic(
        "QP106",
        "the regex that starts here is not closed on its line",
        Span(start, end),
        "no closing `/`",
        notes=("inside a regex, a slash is written `\\/`",),
        help="close it with `/`",
        edit=Edit(Span(end, end), "/"),
    )
    return Token("regex", text[start:end], start, end), [fault]


def _unclosed_string(text: str, start: int, end: int, *, long: bool) -> Diagnostic:
    if long:
        message, label = 'the `"""` that opens here is never closed', "opened here"
        return Diagnostic("QP105", message, Span(start, start + 3), label, help='close it with `"""`')
    return Diagnostic(
        "QP105",
        "the string that starts here is not closed on its line",
        Span(start, end),
        "no closing quote",
        notes=('a string over several lines stands in `"""…"""`',),
        help='close it with `"`',
        edit=Edit(Span(end, end), '"'),
    )


def _stray(text: str, start: int) -> Diagnostic:
    char, span = text[start], Span(start, start + 1)
    if char in _LOOKALIKES:
        plain = _LOOKALIKES[char]
        advice = "write a plain space" if plain == " " else f"write `{plain}`"
        shown = "U+00A0 (no-break space)" if plain == " " else f"`{char}`"
        return Diagnostic("QP104", f"unexpected character {shown}", span, help=advice, edit=Edit(span, plain))
    shown = f"`{char}`" if char.isprintable() and not char.isspace() else f"U+{ord(char):04X}"
    return Diagnostic("QP104", f"unexpected character {shown}", span, help=_ADVICE.get(char))
