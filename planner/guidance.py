"""Asking llguidance whether it takes a constraint. It is loaded with the first constraint, not before."""

from __future__ import annotations

import json
import re
from functools import lru_cache

from qpdsl.planner.ops import ConstraintKind

# The formats of JSON Schema that llguidance holds a text to.
FORMATS = ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")

_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_REASON = re.compile(r"^error: (.*)$", re.MULTILINE)


@lru_cache(maxsize=512)
def refusal(kind: ConstraintKind, source: str) -> str | None:
    """Why llguidance refuses a constraint, in one line without a full stop; None where it takes it."""
    from llguidance import LLMatcher

    match kind:
        case "json_schema":
            grammar = LLMatcher.grammar_from_json_schema(source)
        case "regex":
            grammar = LLMatcher.grammar_from_regex(source)
        case "choice":
            options = " | ".join(json.dumps(option, ensure_ascii=False) for option in json.loads(source))
            grammar = LLMatcher.grammar_from_lark(f"start: {options}")
        case "grammar":
            grammar = LLMatcher.grammar_from_lark(source)
    message: str = LLMatcher.validate_grammar(grammar, None)
    return _one_line(message, placed=kind == "grammar") if message else None


def _one_line(message: str, *, placed: bool) -> str:
    """The reason alone: without the excerpt below it, and with its place only where there is a file to look into."""
    reason = _REASON.search(message)
    place = _PLACE.match(message)
    text = reason[1] if reason else _PLACE.sub("", message).strip().split("\n")[0]
    text = text.strip().rstrip(".")
    return f"line {place[1]}, column {place[2]}: {text}" if placed and place else text
