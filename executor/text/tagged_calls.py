"""Calls of tools whose arguments stand between marks of their own: Qwen3-Coder, Qwen3.5, GLM, DeepSeek V4.

`<function=NAME><parameter=KEY>VALUE</parameter></function>` is such a call. A value that is text stands there as it
is, another one as JSON. What stands where is learned from calls that the template has rendered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qpdsl.planner.names.constraint_schema import as_constraint
from qpdsl.planner.names.json_schema import SPACING, to_text

# What calls are rendered with, and looked for in them.
NAME, KEY, VALUE = "qpdslname", "qpdslkey", "qpdslvalue"
_OTHER_KEY, _OTHER_VALUE, _LIST = "qpdslother", "qpdslmore", [70707, True]
# What a call with these arguments is, from before its name to its end; None where the template has no such turn.
Rendered = Callable[[Mapping[str, Any]], str | None]


@dataclass(frozen=True, slots=True)
class ArgumentTags:
    """What stands behind a tool's name: `first` before the first key, `then` between a value and the next key.

    `text` is between a key and a value that is text, `other` one that is JSON. `last` ends a call, `none` is all of one
    without arguments. Each value is followed by `close`, with which `then` and `last` begin.
    """

    first: str
    text: str
    other: str
    then: str
    last: str
    none: str

    @classmethod
    def of(cls, head: str, rendered: Rendered) -> ArgumentTags | None:
        """Those of a template that writes `head` before a name; None where they are no such."""
        calls: list[Mapping[str, Any]] = [{KEY: VALUE}, {KEY: VALUE, _OTHER_KEY: _OTHER_VALUE}, {KEY: _LIST}, {}]
        frames = [rendered(call) for call in calls]
        if any(frame is None or not frame.startswith(head + NAME) for frame in frames):
            return None
        one, two, listed, none = (str(frame)[len(head + NAME) :] for frame in frames)
        if [one.count(word) for word in (NAME, KEY, VALUE)] != [0, 1, 1]:
            return None
        first, _, rest = one.partition(KEY)
        text, _, last = rest.partition(VALUE)
        begun = f"{first}{KEY}{text}{VALUE}"
        then, sign, _ = two.removeprefix(begun).partition(_OTHER_KEY)
        shown = json.dumps(_LIST)
        other = listed.removeprefix(first + KEY).removesuffix(shown + last)
        made = cls(first, text, other, then, last, none)
        whole = two == f"{begun}{then}{_OTHER_KEY}{text}{_OTHER_VALUE}{last}"
        fits = whole and sign and listed == f"{first}{KEY}{other}{shown}{last}" and made.close.strip()
        return made if fits else None

    @property
    def close(self) -> str:
        at = next((at for at, (a, b) in enumerate(zip(self.then, self.last, strict=False)) if a != b), None)
        return self.then[:at] if at is not None else min(self.then, self.last, key=len)

    def rules(
        self, call: str, before: str, name: str, parameters: Mapping[str, Any], literal: Callable[[str], str]
    ) -> Iterator[str]:
        """The rules of a llguidance grammar for the calls of one tool; `call` is the first, `before` stands in it."""
        fields: Mapping[str, Any] = parameters.get("properties", {})
        required = set(parameters.get("required", ()))
        begin, keys = f"{before} {literal(name)}", list(fields)
        yield f"{call}: {begin} {call}_first_0"
        close = self._plain_close(literal)
        for at, (key, schema) in enumerate(fields.items()):
            value = f"{call}_value_{at}"
            options = _texts(schema)
            if options is None:
                given = f"{literal(key + self.other)} {value} {literal(close)}"
                document = {**schema, "x-guidance": dict(SPACING)} if isinstance(schema, dict) else {}
                if "$defs" in parameters:
                    document["$defs"] = parameters["$defs"]
                yield f"{value}: %json {to_text(as_constraint(document))}"
            elif options:
                given = f"{literal(key + self.text)} ({' | '.join(map(literal, options))}) {literal(close)}"
            else:
                given = f"{literal(key + self.text)} {value}"
                yield f"{value}[suffix={json.dumps(close)}]: /(.|\\n)*/" if close else f"{value}: ANY?"
            # What stands before it: nothing yet, or another argument.
            for state, lead in (("first", self.first), ("more", self.then.removeprefix(close))):
                skipped = "" if key in required else f" | {call}_{state}_{at + 1}"
                yield f"{call}_{state}_{at}: {literal(lead)} {given} {call}_more_{at + 1}{skipped}"
        yield f"{call}_first_{len(keys)}: {literal(self.none)}"
        end = literal(self.last.removeprefix(close)) or '""'
        yield f"{call}_more_{len(keys)}: {end}"

    def _plain_close(self, literal: Callable[[str], str]) -> str:
        """What ends a text that is a value, up to the first special token; empty where that comes at once."""
        close = self.close
        return close[: next((at for at in range(len(close)) if literal(close[at:]).startswith("<[")), len(close))]

    def read(self, text: str, at: int, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
        """The arguments that stand from `at` on, with special tokens in the text; None where it is no such call."""
        fields: Mapping[str, Any] = parameters.get("properties", {})
        known = sorted(fields, key=len, reverse=True)
        arguments: dict[str, Any] = {}
        lead = self.first
        while text.startswith(lead, at) and not (lead == self.then and text.startswith(self.last, at)):
            at += len(lead)
            key = next((key for key in known if text.startswith(key, at)), None)
            if key is None:
                break
            at += len(key)
            if _texts(fields[key]) is None:
                if not text.startswith(self.other, at):
                    return None
                try:
                    arguments[key], at = json.JSONDecoder().raw_decode(text, at + len(self.other))
                except (ValueError, RecursionError):
                    return None
            else:
                at += len(self.text)
                end = text.find(self.close, at)
                if end < 0:
                    return None
                arguments[key], at = text[at:end], end
            lead = self.then
        return arguments if text.startswith(self.last if arguments else self.none, at) else None


def _texts(schema: Any) -> list[str] | None:
    """The texts that a schema permits, none where it permits any; None where it permits what is no text."""
    if not isinstance(schema, dict):
        return None
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if options is not None:
        return options if all(isinstance(option, str) for option in options) else None
    return [] if schema.get("type") == "string" else None


def in_regex(text: str) -> str:
    """A text as a regex of llguidance that stands between slashes."""
    return re.sub(r"([\\.+*?()|\[\]{}^$/&~#-])", r"\\\1", text).replace("\n", r"\n")
