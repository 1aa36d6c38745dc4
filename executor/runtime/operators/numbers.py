"""Numbers as people and models write them, and the last one of a text."""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from decimal import Context, Decimal, InvalidOperation

from qpdsl.executor.runtime.operators.answers import boxed

# What stands between thousands besides a comma: a space, the narrow ones too, LaTeX's, an apostrophe (Swiss) and an
# underscore (programs).
_GAP = r"(?:[ \u00a0\u2007\u2009\u202f]|\\,)"
# More thousands of thousands are no number: reading takes time in proportion to a text.
_MOST_JOINTS = 20
_JOINTS = (",", _GAP, "['’]", "_")
_THOUSANDS = "|".join(rf"\d{{1,3}}(?:{joint}\d{{3}}){{1,{_MOST_JOINTS}}}" for joint in _JOINTS)
# The second is Indian: thousands, and hundreds of them.
_WHOLE = rf"(?:{_THOUSANDS}|\d{{1,2}}(?:,\d{{2}}){{1,{_MOST_JOINTS}}},\d{{3}}|\d+)"
_VULGAR = re.compile("[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]")
# A number as people and models write it. What is a power, an index or a part of another word is none, nor is what has
# such joints elsewhere (`1,0000`, `1'00`, `1..10`).
_NUMBER = re.compile(
    rf"""
    (?<![\w.^/])(?<![\^_]{{)(?<!\d['’])(?!(?<=\d,)0\d)
    (?P<sign>[-+−–]?) (?:\\?[$€£¥₹])? (?P<minus>[-−]?)
    (?: (?P<mixed>\d+)\s+ (?=\d+/\d) )?
    (?P<value> {_WHOLE}(?:\.\d+)? | \.\d+ )
    (?: [eE](?P<exponent>[-+]?\d+) | \s*(?:×|\*|·|[xX]|\\times|\\cdot)\s*10(?:\^|\*\*)(?P<power>{{?[-−]?\d+}}?) )?
    (?: \s?/\s? (?P<open>\(\s*)? (?P<below>[-−]?{_WHOLE}(?:\.\d+)?) (?(open)\s*\)) )?
    (?! \d | \.+\d | [⁰¹²³⁴-⁹⁺⁻^] | /\d | ['’_]+\d | ,0\d )
    """,
    re.VERBOSE,
)
# A minus apart from its number is one where nothing stands before it that it could take the number from.
_APART = re.compile(r"(?:[=:({$≈]|\bis)[ \t]*[-−–]\s+$")
# The same in words.
_IN_WORDS = re.compile(
    r"\bnegative\s+$|(?:^|[=:({$≈]|\b(?:is|are|was|be|of|to|get|equals?))\s*minus\s+$", re.IGNORECASE
)
_MINUSES = "-−–"
_POWER = re.compile("(?<![\\d.])10([⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
# Signs of Arabic numbers, which have digits of their own: the point, and what stands between thousands.
_ARABIC = str.maketrans("٫٬", ".,")
# Emphasis by underscores, which would make a number a part of a word.
_EMPHASIS = re.compile(r"(?<!\w)(_{1,2})(?=\S)([^_\n]*)(?<=\S)\1(?!\w)")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:{([^{}]*)}\s*{([^{}]*)}|(\d)(\d))")
_PUBLISHED = re.compile(r"####(.*)")
_GAPS = re.compile("|".join(_JOINTS))
# So many digits of a quotient are compared. What is too large for it, or divided by nothing, is not finite.
ARITHMETIC = Context(prec=60, traps=[])


def last_number(text: str) -> Decimal | None:
    """The last number in a text; None where there is none.

    Where a text marks its answer, by `\\boxed{…}` or by GSM8K's `####`, it is the last number there, if it has one.
    """
    marked = [*deque(boxed(text), maxlen=1), *_PUBLISHED.findall(text)[-1:]]
    return next((number for part in (*marked, text) if (number := _last(part)) is not None), None)


def _last(text: str) -> Decimal | None:
    plain = _EMPHASIS.sub(r"\2", text.replace("{,}", ",").translate(_ARABIC))
    plain = _POWER.sub(lambda own: f"10^{{{unicodedata.normalize('NFKC', own[1]).replace('−', '-')}}}", plain)
    plain = _FRACTION.sub(lambda own: f"{_gap(own)}{own[1] or own[3]}/{own[2] or own[4]}", plain)
    plain = _VULGAR.sub(lambda own: _gap(own) + unicodedata.normalize("NFKC", own[0]).replace("⁄", "/"), plain)
    found = next(iter(deque(_NUMBER.finditer(plain), maxlen=1)), None)
    if found is None:
        return None
    value = _size(found)
    return value.copy_negate() if value is not None and _is_negative(found, plain) else value


def _gap(fraction: re.Match[str]) -> str:
    """What keeps a fraction from the number before it, if that is not its own minus."""
    return "" if fraction.start() and fraction.string[fraction.start() - 1] in "-−–" else " "


def _size(found: re.Match[str]) -> Decimal | None:
    """The number without its sign; None where it is none, as `3/0` is."""
    shift = (found["exponent"] or found["power"] or "0").strip("{}").replace("−", "-")
    try:
        value = Decimal(f"{_digits(found['value'])}e{shift}")
        if found["below"]:
            value = ARITHMETIC.divide(value, Decimal(_digits(found["below"].replace("−", "-"))))
        if found["mixed"]:
            value = ARITHMETIC.add(value, Decimal(found["mixed"]))
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def _is_negative(found: re.Match[str], text: str) -> bool:
    signs = f"{found['sign']}{found['minus']}"
    if signs:
        return signs[0] in _MINUSES or signs[-1] in _MINUSES
    before, after = text[: found.start()], text[found.end() :]
    if before and before.strip() in [*_MINUSES] and not after.strip(" $.%"):
        return True
    return any(minus.search(before[-40:]) is not None for minus in (_APART, _IN_WORDS))


def _digits(text: str) -> str:
    return _GAPS.sub("", text)
