"""Whether llguidance accepts a constraint, and why not. llguidance is imported with the first constraint."""

from __future__ import annotations

import json
import re
from functools import lru_cache

from qpdsl.planner.plan.ops import ConstraintKind

_POSITION = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_REASON = re.compile(r"^error: (.*)$", re.MULTILINE)


@lru_cache(maxsize=512)
def refusal(kind: ConstraintKind, source: str) -> str | None:
    """Why llguidance refuses a constraint, in one line without a full stop; None where it accepts it."""
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
    return _one_line(message, with_position=kind == "grammar") if message else None


def _one_line(message: str, *, with_position: bool) -> str:
    """The reason alone, without the excerpt below it; the position only where there is a file to look into."""
    reason = _REASON.search(message)
    position = _POSITION.match(message)
    text = reason[1] if reason else _POSITION.sub("", message).strip().split("\n")[0]
    text = text.strip().rstrip(".")
    return f"line {position[1]}, column {position[2]}: {text}" if with_position and position else text
