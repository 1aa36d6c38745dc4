"""What output is held to, where it ends, and whether it goes on from what is begun."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from qpdsl.executor.remote.dialects.dialect import Message, Messages
from qpdsl.executor.remote.probe.probe_client import SEEDS, ProbeClient, ProbeRequest
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from qpdsl.executor.requests.request import CONSTRAINT_NAMES, ConstraintKind, SampleConstraint, SamplingParams

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
# So a record begins, and nothing else that a model writes.
_BEGUN = re.compile(r'\s*\{\s*"(?:zq"\s*:\s*(?:"(?:kp3|vv8)"\s*(?:,\s*)?)?|xj"\s*:\s*)$')
# A record of bytes alone is some thirty tokens.
_MAX_TOKENS = 64
# So many characters as before show that an answer goes on.
_MIN_CHARACTERS = 8


async def constraints(client: ProbeClient, number: int, text: str) -> ServerCapabilities:
    """What the output after a prompt, whose greedy text is known, is held to, and where it ends."""
    kept, notes = set(), []
    for kind in sorted(client.dialect.constraints):
        seen = await _keeps(client, number, kind)
        if seen in ("held", "padded"):
            kept.add(kind)
        if seen == "ignored":
            notes.append(f"accepts {CONSTRAINT_NAMES[kind]} and does not enforce it")
        elif seen == "padded":
            notes.append(f"enforces {CONSTRAINT_NAMES[kind]}, and lets its model write white space in it without end")
    stops, names, stays = await _stops(client, number, text)
    if stays:
        notes.append("leaves a stop string in the text")
    return ServerCapabilities(constraints=frozenset(kept), stops=stops, names_stop=names, notes=tuple(notes))


async def calls_tools(client: ProbeClient) -> bool:
    """Whether a chat that has to call a tool does, with arguments that fit, and one that may is answered.

    `client` asks by messages.
    """
    tool = {"name": "zq", "description": "Notes it.", "parameters": _RECORD}
    constraint = SampleConstraint("grammar", "", json.dumps([tool]))
    answer = await client.ask(ProbeRequest(most=_MAX_TOKENS * 2, constraint=constraint))
    calls = [] if answer is None else [_loaded(call) for call in answer.calls]
    if [call.get("name") for call in calls] != ["zq"] or not _is_record(json.dumps(calls[0].get("arguments"))):
        return False
    # Servers without a parser of their model's calls refuse to let it choose.
    return await client.ask(ProbeRequest(constraint=replace(constraint, or_text=True))) is not None


def _loaded(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def prefills(client: ProbeClient, number: int, text: str) -> bool:
    """Whether an answer whose beginning is given goes on as it did by itself. `client` asks by messages.

    Where a text is cut it may have been one token, which is two now; so it is cut at several places.
    """
    prompt = client.prompts[number]
    # Where a thought cannot be kept from, it stands before what is begun.
    whole = await client.ask(ProbeRequest(prompt)) if client.room else None
    thought = "" if whole is None else whole.thought
    spaces = [place for place, character in enumerate(text) if character == " " and text[:place].strip()]
    for place in [spaces[len(spaces) * part // 4] for part in (1, 2, 3) if spaces]:
        rest = text[place:].strip()[:_MIN_CHARACTERS]
        if not isinstance(prompt, Messages) or len(rest) < _MIN_CHARACTERS or text.strip().startswith(rest):
            continue
        begun = Message("assistant", text[:place], thought)
        answer = await client.ask(ProbeRequest(replace(prompt, begun=begun)))
        # Some take the rest of an answer for a thought.
        if answer is not None and (answer.text or answer.thought).strip().startswith(rest):
            return True
    return False


async def _keeps(client: ProbeClient, number: int, kind: ConstraintKind) -> Literal["held", "padded", "ignored"] | None:
    """Whether output is held to a constraint of the kind, None where the request is refused.

    Of a record that is "padded" there came the beginning, and then white space.
    """
    constraint, free = SampleConstraint(kind, _SOURCES[kind]), SamplingParams(temperature=1.0)
    begun = False
    for seed in SEEDS:
        answer = await client.ask(ProbeRequest(client.prompts[number], free, seed, _MAX_TOKENS, constraint=constraint))
        if answer is None:
            return "padded" if begun else None
        if _RIGHT[kind](answer.text.strip()):
            return "held"
        begun = begun or (kind == "json_schema" and _BEGUN.match(answer.text) is not None)
    return "padded" if begun else "ignored"


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


async def _stops(client: ProbeClient, number: int, text: str) -> tuple[bool, bool, bool]:
    """Whether a piece out of the middle of the greedy text ends it, is named, and stays unasked."""
    place = next((at for at in range(len(text) // 3, len(text) - 4) if text.find(text[at : at + 3]) == at), None)
    if place is None:
        return False, False, False
    stop = text[place : place + 3]
    answer = await client.ask(ProbeRequest(client.prompts[number], stops=(stop,)))
    if answer is None or answer.finish != "stop":
        return False, False, False
    stopped = answer.text.startswith(text[:place]) and len(answer.text) < len(text)
    named = stopped and answer.named == stop
    return stopped, named, stopped and not named and answer.text.startswith(text[: place + 3])
