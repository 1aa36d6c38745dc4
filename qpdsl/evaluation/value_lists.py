"""Lists of values on the command line: `4,16,64`."""

from __future__ import annotations

import json

from qpdsl.errors import UsageError, shorten

_JSON = json.JSONDecoder()


def split_values(text: str, what: str) -> tuple[str, ...]:
    """The values of a list, parted by commas, each as `--set` takes a single one.

    A value that begins as JSON text, list or object does and goes on to the next comma is one value, whatever commas
    are in it; JSON text stands for the text in it. `what` names the list in messages. Raises UsageError for an empty
    value among others, and for one that is there twice.
    """
    values: list[str] = []
    at = 0
    while at <= len(text):
        value, at, is_quoted = _next(text, at)
        if not value.strip() and not is_quoted and (values or at < len(text)):
            raise UsageError(f"{what} has an empty value in `{shorten(text)}`", 'an empty text is written `""`')
        if value in values:
            raise UsageError(f"{what} names the value `{shorten(value)}` twice")
        values.append(value)
        at += 1
    return tuple(values)


def _next(text: str, start: int) -> tuple[str, int, bool]:
    """The value that begins at `start`, where it ends (at a comma, or with the text), and whether it is quoted."""
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    if text[begin : begin + 1] in ('"', "[", "{"):
        try:
            value, end = _JSON.raw_decode(text, begin)
        except (ValueError, RecursionError):
            pass
        else:
            end += len(text[end:]) - len(text[end:].lstrip())
            if end == len(text) or text[end] == ",":
                is_quoted = isinstance(value, str)
                return (value if is_quoted else text[begin:end].strip()), end, is_quoted
    comma = text.find(",", start)
    end = len(text) if comma < 0 else comma
    return text[start:end], end, False
