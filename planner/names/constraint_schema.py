"""A checked JSON Schema as llguidance takes it, such that every record that it lets through is valid.

llguidance has its own mind about some parts of a schema, and those are written so that there is one reading of them.
Patterns are written as `grammar/literals/constraint_regex.py` says. Dates are days of the calendar from the year 1 on,
times have no leap second (its `time` takes second 60 of any minute) and their letters are capitals, so that the usual
parsers read them. Hostnames have at most 253 characters.
"""

from __future__ import annotations

from qpdsl.grammar.literals.constraint_regex import anywhere
from qpdsl.planner.names.json_schema import Document, rebuilt, without_notes

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAYS_31 = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_DAYS_30 = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_FEBRUARY = "02-(?:0[1-9]|1[0-9]|2[0-8])"
_DATE = f"(?:{_YEAR}-(?:{_DAYS_31}|{_DAYS_30}|{_FEBRUARY})|{_LEAP_YEAR}-02-29)"
_HOUR_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_HOUR_MINUTE}:[0-5][0-9](?:\\.[0-9]+)?(?:Z|[+-]{_HOUR_MINUTE})"
_PATTERNS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
_LONGEST_HOSTNAME = 253
_ANY_SPACING = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}


def as_constraint(document: Document) -> Document:
    """The schema that llguidance is given. Every pattern in `document` is one that `regex.check` accepts."""
    adapted: Document = rebuilt(document, _adapted)
    return adapted


def _adapted(schema: Document) -> Document:
    adapted = without_notes(schema)
    if adapted.get("x-guidance", {}).get("whitespace_flexible"):
        # Its white space comes in addition to the separators, which have a blank in them otherwise.
        adapted["x-guidance"] = _ANY_SPACING
    if "pattern" in schema:
        adapted["pattern"] = anywhere(schema["pattern"])
    if "patternProperties" in schema:
        adapted["patternProperties"] = {anywhere(key): inner for key, inner in schema["patternProperties"].items()}
    format = adapted.get("format")
    if format in _PATTERNS:
        del adapted["format"]
        if "pattern" in schema:
            adapted["allOf"] = [*schema.get("allOf", ()), {"pattern": _PATTERNS[format]}]
        else:
            adapted["pattern"] = _PATTERNS[format]
    elif format == "hostname":
        adapted["maxLength"] = min(schema.get("maxLength", _LONGEST_HOSTNAME), _LONGEST_HOSTNAME)
    return adapted
