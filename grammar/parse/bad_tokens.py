"""Tokens that are not well formed: what is wrong with each, and what was likely meant."""

from __future__ import annotations

import re

from qpdsl.grammar.diagnostic import Diagnostic, Edit
from qpdsl.grammar.printable import shorten
from qpdsl.grammar.source import Span

_LOOKALIKES = dict.fromkeys("“”„«»", '"') | dict.fromkeys("‘’", '"') | {"–": "-", "—": "-", "−": "-", "\u00a0": " "}
_ADVICE = {
    "'": 'strings stand in double quotes: `"…"`',
    "&": "write `and`",
    "!": "write `not`",
    "$": "a parameter is its bare name; in a string, `{name}`",
}
_CONTINUED = re.compile(r'"(?:[^"\\\n]|\\.)*"', re.DOTALL)
# What follows a regex that goes on after a slash: no space or sign that may stand there, and one more slash.
_GOES_ON = re.compile(r"(?!(?:and|or)\b|\](?:[\s|)}\[\],]|$))[^\s|){}#,][^\n]*?/")
_RUN = re.compile(r"[^\s|]*/")
_BARE_SLASH = re.compile(r"\\.|(/)", re.DOTALL)


def unclosed_regex(text: str, start: int, end: int) -> Diagnostic:
    if text.endswith("/", 0, start):
        span, help = Span(start - 1, start + 1), "whole numbers are divided by `int(a / b)`"
        return Diagnostic("QP109", "there is no operator `//`", span, help=help)
    return Diagnostic(
        "QP106",
        "the regex that starts here is not closed on its line",
        Span(start, end),
        "no closing `/`",
        notes=("inside a regex, a slash is written `\\/`",),
        help="close it with `/`",
        edit=Edit(Span(end, end), "/"),
    )


def slash_end(text: str, end: int) -> int | None:
    """Where a regex likely ends whose first closing slash, right before `end`, seems to be a part of it."""
    match = _GOES_ON.match(text, end)
    run = _RUN.match(text, end)
    return max(match.end(), run.end() if run else 0) if match else None


def slash_in_regex(text: str, inner: int, end: int) -> Diagnostic:
    """The slash before `inner` closes the regex too early: that and all up to the last one need a backslash."""
    middle = text[inner - 1 : end - 1]
    mended = _BARE_SLASH.sub(lambda match: "\\/" if match[1] else match[0], middle)
    return Diagnostic(
        "QP106",
        "this slash ends the regex, and more of it follows",
        Span(inner - 1, inner),
        "the regex ends here",
        help="a slash inside a regex is written `\\/`",
        edit=Edit(Span(inner - 1, end - 1), mended),
    )


def string_end(text: str, start: int, line_end: int) -> int:
    """Where a string ends that its line does not close: a backslash at the line's end may carry it on."""
    match = _CONTINUED.match(text, start)
    if match is None or "\\\n" not in match[0]:
        return line_end
    last = text.find("\n", match.end())
    quotes = text.count('"', match.end(), last if last >= 0 else len(text))
    return match.end() if quotes % 2 == 0 else line_end


def unclosed_string(text: str, start: int, end: int, *, long: bool) -> Diagnostic:
    if long:
        message, label = 'the `"""` that opens here is never closed', "opened here"
        return Diagnostic("QP105", message, Span(start, start + 3), label, help='close it with `"""`')
    literal = text[start:end]
    help, edit = 'close it with `"`', Edit(Span(end, end), '"')
    if "\\\n" in literal:
        help, edit = "write a line end as `\\n`", Edit(Span(start, end), literal.replace("\\\n", "\\n"))
    elif (len(literal) - len(literal.rstrip("\\"))) % 2:
        help, edit = "a backslash itself is written twice", Edit(Span(end, end), '\\"')
    return Diagnostic(
        "QP105",
        "the string that starts here is not closed on its line",
        Span(start, end),
        "no closing quote",
        notes=('a string over several lines stands in `"""…"""`',),
        help=help,
        edit=edit,
    )


def bare_place(text: str, start: int, end: int) -> Diagnostic:
    """A model's id or path without quotes."""
    edit = Edit(Span(start, end), f'"{text[start:end]}"')
    message = "a model's id or path stands in double quotes"
    return Diagnostic("QP109", message, Span(start, end), "expected a string", help=f"write `{edit.text}`", edit=edit)


def single_quotes(text: str, start: int, end: int) -> Diagnostic:
    mended = '"' + text[start + 1 : end - 1].replace("\\'", "'").replace('"', '\\"') + '"'
    message, edit = "a string stands in double quotes", Edit(Span(start, end), mended)
    return Diagnostic("QP104", message, Span(start, end), help=f"write `{shorten(mended, 60)}`", edit=edit)


def odd_number(text: str, start: int, end: int) -> Diagnostic:
    """Digits in a form that other languages take, or with letters behind them."""
    digits = text[start:end]
    plain: str | None = None
    if re.fullmatch(r"\d+\.", digits):
        plain = digits[:-1]
    elif re.fullmatch(r"\.\d+", digits) and (start == 0 or not (text[start - 1].isalnum() or text[start - 1] in "_])")):
        plain = f"0{digits}"
    elif re.fullmatch(r"\d[\d_]*(?:\.\d+)?", digits):
        plain = digits.replace("_", "")
    elif re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", digits):
        plain = str(int(digits, 16))
    help, edit = (f"write `{plain}`", Edit(Span(start, end), plain)) if plain and len(plain) < 40 else (None, None)
    return Diagnostic("QP109", f"`{shorten(digits, 40)}` is not a number", Span(start, end), help=help, edit=edit)


def foreign_name(text: str, start: int, end: int) -> Diagnostic:
    message = f"`{shorten(text[start:end], 40)}` cannot be a name"
    notes = ("names are ASCII letters, digits and `_`",)
    return Diagnostic("QP104", message, Span(start, end), "not ASCII", notes=notes)


def stray(text: str, start: int, end: int) -> Diagnostic:
    char, span = text[start], Span(start, end)
    if char in _LOOKALIKES:
        plain = _LOOKALIKES[char]
        advice = "write a plain space" if plain == " " else f"write `{plain}`"
        name = "U+00A0 (no-break space)" if plain == " " else f"`{char}`"
        return Diagnostic("QP104", f"unexpected character {name}", span, help=advice, edit=Edit(span, plain))
    if char == ";":
        ends = not text[end:].split("\n", 1)[0].split("#", 1)[0].strip(" \t\r}")
        help, edit = ("leave it out", Edit(span, "")) if ends else ("write ` |`", Edit(span, " |"))
        return Diagnostic("QP104", "stages are parted by a newline or `|`, not by `;`", span, help=help, edit=edit)
    name = f"`{shorten(text[start:end], 40)}`" if char.isprintable() and not char.isspace() else f"U+{ord(char):04X}"
    return Diagnostic("QP104", f"unexpected character {name}", span, help=_ADVICE.get(char))
