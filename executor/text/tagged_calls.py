"""Calls of tools whose arguments stand between marks of their own: Qwen3-Coder, Qwen3.5, GLM, DeepSeek V4.

`<function=NAME><parameter=KEY>VALUE</parameter></function>` is such a call. A value that is text stands there as it
is, another one as JSON. What stands where is learned from calls that the template has rendered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qpdsl.planner.names.constraint_schema import as_constraint
from qpdsl.planner.names.json_schema import SPACING, to_text

# What calls are rendered with, and looked for in them.
NAME, KEY, VALUE = "qpdslname", "qpdslkey", "qpdslvalue"
_OTHER_KEY, _OTHER_VALUE, _LIST = "qpdslother", "qpdslmore", [70707, True]
# What calls with these arguments are, from before the first name to the end; None where the template has no such turn.
Rendered = Callable[..., str | None]


@dataclass(frozen=True, slots=True)
class ArgumentTags:
    """What stands behind a tool's name: `first` before the first key, `then` between a value and the next key.

    `text` is between a key and a value that is text, `other` one that is JSON. `last` ends a call, `none` is all of one
    without arguments. Each value is followed by `close`, with which `then` and `last` begin. Where another call follows
    in the message, `joint` is in the place of `last`, up to its name; None where none can.
    """

    first: str
    text: str
    other: str
    then: str
    last: str
    none: str
    joint: str | None = None

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
        return made._with_joint(head, rendered) if fits else None

    def _with_joint(self, head: str, rendered: Rendered) -> ArgumentTags:
        given = f"{self.first}{KEY}{self.text}{VALUE}"
        two = rendered({KEY: VALUE}, {KEY: VALUE}) or ""
        begun, ended = head + NAME + given, NAME + given + self.last
        joined = replace(self, joint=two[len(begun) : len(two) - len(ended)])
        bare = rendered({}, {}) == head + NAME + joined.ends(joined=True)[1] + NAME + self.none
        fits = two == f"{begun}{joined.joint}{ended}" and str(joined.joint).startswith(self.close)
        return joined if fits and bare and "call0000" not in str(joined.joint) else self

    def ends(self, *, joined: bool) -> tuple[str, str]:
        """What ends a call behind its last value, and all of one without arguments; `joined` to another call."""
        if not joined or self.joint is None:
            return self.last, self.none
        shared = len(_shared(self.last, self.joint))
        return self.joint, self.none.removesuffix(self.last[shared:]) + self.joint[shared:]

    @property
    def close(self) -> str:
        return _shared(self.then, self.last)

    def rules(
        self,
        call: str,
        name: str,
        parameters: Mapping[str, Any],
        literal: Callable[[str], str],
        *,
        joined: bool = False,
    ) -> Iterator[str]:
        """The rules of a llguidance grammar for the calls of one tool; `call` is the first. `joined`: see `ends`."""
        last, none = self.ends(joined=joined)
        fields: Mapping[str, Any] = parameters.get("properties", {})
        required = set(parameters.get("required", ()))
        keys = list(fields)
        yield f"{call}: {literal(name)} {call}_first_0"
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
        yield f"{call}_first_{len(keys)}: {literal(none)}"
        end = literal(last.removeprefix(close)) or '""'
        yield f"{call}_more_{len(keys)}: {end}"

    def _plain_close(self, literal: Callable[[str], str]) -> str:
        """What ends a text that is a value, up to the first special token; empty where that comes at once."""
        close = self.close
        return close[: next((at for at in range(len(close)) if literal(close[at:]).startswith("<[")), len(close))]

    def read(self, text: str, at: int, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], int | None] | None:
        """The arguments that stand from `at` on, and where the name of the next call is; None where it is no such call.

        Special tokens are in the text.
        """
        fields: Mapping[str, Any] = parameters.get("properties", {})
        known = sorted(fields, key=len, reverse=True)
        arguments: dict[str, Any] = {}
        lead = self.first
        ends = tuple(end for end in (self.last, self.joint) if end is not None)
        while text.startswith(lead, at) and not (lead == self.then and text.startswith(ends, at)):
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
        for joined in (True, False)[self.joint is None :]:
            some, none = self.ends(joined=joined)
            whole = some if arguments else none
            if text.startswith(whole, at):
                return arguments, at + len(whole) if joined else None
        return None


def _shared(one: str, other: str) -> str:
    """What both texts begin with."""
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return one[:at] if at is not None else min(one, other, key=len)


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
