"""What output is held to, where it ends, and whether it goes on from what is begun."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from qpdsl.executor.remote.dialects.dialect import Messages
from qpdsl.executor.remote.probe.asking import SEEDS, Way
from qpdsl.executor.requests.request import Constraint, ConstraintKind, SamplingParams

_RECORD = {
    "type": "object",
    "properties": {"zq": {"type": "string", "enum": ["kp3", "vv8"]}, "xj": {"type": "boolean"}},
    "required": ["zq", "xj"],
    "additionalProperties": False,
}
# What no model writes unless it is held to it, and in which tokens it may be written.
_SOURCES: Mapping[ConstraintKind, str] = {
    "json_schema": json.dumps(_RECORD),
    "regex": "zq[0-9]{3}xj",
    "grammar": 'start: word " " NUMBER\nword: "zq" | "xj"\nNUMBER: /[0-9]{3}/',
    "choice": json.dumps(["zqxj", "jxqz"]),
}
_NAMES: Mapping[ConstraintKind, str] = {
    "json_schema": "a JSON Schema",
    "regex": "a regex",
    "grammar": "a grammar",
    "choice": "a choice",
}
# A record of bytes alone is some thirty tokens.
_MOST = 64


@dataclass(frozen=True, slots=True)
class Held:
    """What was seen of one way."""

    constraints: frozenset[ConstraintKind]
    stops: bool
    names_stop: bool
    notes: tuple[str, ...]


async def holds(way: Way, number: int, text: str) -> Held:
    """Sees what the output after a prompt, whose greedy text is known, is held to."""
    kept, notes = set(), []
    for kind in sorted(way.dialect.constraints):
        seen = await _keeps(way, number, kind)
        if seen:
            kept.add(kind)
        elif seen is not None:
            notes.append(f"takes {_NAMES[kind]} and does not hold to it")
    stops, names, stays = await _stops(way, number, text)
    if stays:
        notes.append("leaves a stop string in the text")
    return Held(frozenset(kept), stops, names, tuple(notes))


async def goes_on(way: Way, number: int, text: str) -> bool:
    """Whether an answer whose beginning is given goes on as it did by itself. `way` asks by messages."""
    prompt, words = way.prompts[number], text.split(" ")
    cut = len(" ".join(words[: max(1, len(words) // 2)]))
    begun, rest = text[:cut], text[cut:].strip()
    if not isinstance(prompt, Messages) or not begun.strip() or len(rest) < 4 or text.strip().startswith(rest[:12]):
        return False
    answer = await way.ask(replace(prompt, begun=begun))
    # Where a text is cut it may have been one token, which is two now.
    return answer is not None and answer.text.strip().startswith(rest[:12])


async def _keeps(way: Way, number: int, kind: ConstraintKind) -> bool | None:
    """Whether output is held to a constraint of the kind, None where the request is refused."""
    constraint, free = Constraint(kind, _SOURCES[kind]), SamplingParams(temperature=1.0)
    seen = None
    for seed in SEEDS:
        answer = await way.ask(way.prompts[number], free, seed, _MOST, constraint=constraint)
        if answer is not None:
            seen = _RIGHT[kind](answer.text.strip())
        if seen or answer is None:
            break
    return seen


def _is_record(text: str) -> bool:
    try:
        record = json.loads(text)
    except ValueError:
        return False
    if not isinstance(record, dict) or record.keys() != {"zq", "xj"}:
        return False
    return record["zq"] in ("kp3", "vv8") and isinstance(record["xj"], bool)


_RIGHT: Mapping[ConstraintKind, Callable[[str], bool]] = {
    "json_schema": _is_record,
    "regex": lambda text: re.fullmatch(_SOURCES["regex"], text) is not None,
    "grammar": lambda text: re.fullmatch("(zq|xj) [0-9]{3}", text) is not None,
    "choice": lambda text: text in ("zqxj", "jxqz"),
}


async def _stops(way: Way, number: int, text: str) -> tuple[bool, bool, bool]:
    """Whether a piece out of the middle of the greedy text ends it, is named, and stays unasked."""
    place = next((at for at in range(len(text) // 3, len(text) - 4) if text.find(text[at : at + 3]) == at), None)
    if place is None:
        return False, False, False
    stop = text[place : place + 3]
    answer = await way.ask(way.prompts[number], stops=(stop,))
    if answer is None or answer.finish != "stop":
        return False, False, False
    stopped = answer.text.startswith(text[:place]) and len(answer.text) < len(text)
    named = stopped and answer.named == stop
    return stopped, named, stopped and not named and answer.text.startswith(text[: place + 3])
