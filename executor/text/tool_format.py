"""How a model writes calls of tools and is shown what came of them, as its chat template tells.

A call of a tool that nobody has is rendered, and what stands around its name and its arguments is the frame of a call.
Three families of frames can be held to: a JSON object with the name in it, bare or between marks (Qwen, Hermes, Llama
3), a name with a JSON object behind it (Mistral, DeepSeek), and arguments between marks of their own
(`tagged_calls.py`). For a template of another family, or one that knows no tools, all is plain text: the tools stand in
the system turn, a call is JSON, and what came of it is a user's turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from qpdsl.executor.text.chat_template import ContextError, kept_with_its_tokenizer, render
from qpdsl.executor.text.tagged_calls import KEY, NAME, VALUE, ArgumentTags, Rendered, in_regex
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.planner.names.constraint_schema import as_constraint
from qpdsl.planner.names.json_schema import SPACING, nested, to_text

_SAID, _CAME = "qpdslsaid", "qpdslcame"
# The id of a call as the runtime gives it; templates of Mistral's models write it.
_ID = "call00001"
_ARGUMENTS = ("arguments", "parameters")
# What a schema says in words that a template may look at; all else that is text is a stranger's.
_WORDS = ("name", "type", "format", "$ref", "required", "role")
_PLAIN_WORD = re.compile(r"[\w.:/#$-]*")
_INTRODUCTION = (
    "You can call these tools. To call one, answer with nothing but JSON of this form, or a list of such: "
    '{"name": NAME, "arguments": {…}}. The tools, with the JSON Schema of their parameters:'
)


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`shows`: the template writes the tools that it is given. What stands around a call: `before` and `after` it.

    Of the family "object" a JSON object stands there, of a `name` and the arguments as `key`, and of an `id` where the
    template writes the one that it is given; of "named" the name, then
    `between`, then the arguments as a JSON object; of "tags" the name, then each argument between its `tags`. Behind a
    call another one stands after `joint`; where that is None the template writes one call a message.
    """

    family: Literal["plain", "object", "named", "tags"] = "plain"
    shows: bool = False
    before: str = ""
    between: str = ""
    after: str = ""
    key: str = "arguments"
    tags: ArgumentTags | None = None
    joint: str | None = None
    id: str = ""

    @property
    def is_plain(self) -> bool:
        return self.family == "plain"

    @property
    def mark(self) -> str:
        """What begins a call that may have text before it; empty where an output begins with its call."""
        return self.before.strip().partition("\n")[0]

    def starts(self, names: Sequence[str], *, several: bool = False) -> list[str]:
        """What calls of these tools begin with where there is no mark, and no text."""
        if self.is_plain:
            return ["[" if several else "{"]
        return ["{"] if self.family == "object" else [f"{name}{self.between}" for name in names]

    def grammar(self, tools: str, tokenizer: TextTokenizer, *, or_text: bool = False, most: int = 1) -> str:
        """A llguidance Lark grammar of up to `most` calls of these tools, a JSON list.

        With `or_text` of texts too: they may end in a call where there is a mark before it, and never begin one that
        they do not end.
        """
        literal = _literals(tokenizer)
        before = literal(self.before)
        texts: list[str] = []
        listed = json.loads(tools)
        if or_text:
            before, texts = self._after_text([tool["name"] for tool in listed], literal)
        rules: list[str] = []
        several = most > 1 and self.joint is not None
        for number, tool in enumerate(listed):
            if self.tags is not None:
                rules += self.tags.rules(f"call_{number}", tool["name"], tool["parameters"], literal)
                if several:
                    rules += self.tags.rules(f"led_{number}", tool["name"], tool["parameters"], literal, joined=True)
                continue
            if self.family == "named":
                document, held = nested(tool["parameters"], "#"), literal(f"{tool['name']}{self.between}")
                held += f" json_{number}"
            else:
                path = f"#/properties/{self.key}"
                fields = {"name": {"enum": [tool["name"]]}, self.key: nested(tool["parameters"], path)}
                fields |= {"id": {"enum": [self.id]}} if self.id else {}
                document = {"type": "object", "properties": fields, "required": [*fields]}
                held = f"json_{number}"
            document |= {"additionalProperties": False, "x-guidance": SPACING}
            rules += [f"call_{number}: {held}", f"json_{number}: %json {to_text(as_constraint(document))}"]
            if several:
                rules.append(f"led_{number}: call_{number} {literal(self.joint or '')}")
        ends = "" if self.tags is not None else literal(self.after)
        call, led = (" | ".join(f"{rule}_{number}" for number in range(len(listed))) for rule in ("call", "led"))
        first = f"({led}){{0,{most - 1}}} " if several else ""
        texts += [r"ANY: /(.|\n)+/"] if self.tags is not None else []
        return "\n".join([f"start: {before} {first}({call}) {ends}{' | TEXT' if or_text else ''}", *rules, *texts])

    def _after_text(self, names: Sequence[str], literal: Callable[[str], str]) -> tuple[str, list[str]]:
        """What stands before a call where a text may, in a grammar, and the rules for that and for texts."""
        mark = self.mark
        if not mark:
            begun = "|".join(map(in_regex, self.starts(names)))
            return "", [rf"TEXT: /(.|\n)+/ & ~/({begun})(.|\n)*/"]
        held = literal(self.before.lstrip())
        if held.startswith("<["):
            # No text spells a special token.
            return f"TEXT? {held}", [r"TEXT: /(.|\n)+/"]
        rest = self.before.lstrip().removeprefix(mark)
        rules = [
            rf"TEXT: /(.|\n)+/ & ~/(.|\n)*{in_regex(mark)}(.|\n)*/",
            rf"begun[suffix={json.dumps(mark)}]: /(.|\n)*/",
        ]
        return f"begun {literal(rest)}", rules

    def parted(
        self, text: str, tools: str, whole: Callable[[], str] | None = None, *, several: bool = False
    ) -> tuple[str, str] | None:
        """An output that ends in a call: the text before it, and the call as JSON of a `name` and its `arguments`.

        None where it ends in none. `several`: in a list of calls. `whole` gives the output with the special tokens in
        it.
        """
        marked = text if whole is None or self.is_plain else whole()
        starts = self.starts([tool["name"] for tool in json.loads(tools)], several=several)
        if not (self.mark in marked if self.mark else marked.lstrip().startswith(tuple(starts))):
            return None
        if self.is_plain:
            return "", text
        if self.tags is not None:
            calls = self._tagged(marked, tools)
        else:
            calls = self._with_json(marked if self.family == "named" else text, tools)
        if not calls:
            return None
        spelt = json.dumps(calls if several else calls[0], ensure_ascii=False)
        return (marked.partition(self.mark)[0].rstrip() if self.mark else ""), spelt

    def _with_json(self, text: str, tools: str) -> list[dict[str, Any]]:
        """The calls that end a text in which their arguments are JSON."""
        calls: list[dict[str, Any]] = []
        at = text.find("{")
        while at >= 0:
            try:
                record, end = json.JSONDecoder().raw_decode(text, at)
            except (ValueError, RecursionError):
                record, end = None, 0
            call = self._call(text[:at], record, tools) if end else None
            calls = [] if call is None else [*calls, call]
            # Special tokens may be no part of the text.
            if end and text[end:].strip() in self.after:
                return calls
            begun, at = end, text.find("{", max(at + 1, end))
            if calls and not self._joins(text[begun:at], tools):
                calls = []
        return []

    def _joins(self, gap: str, tools: str) -> bool:
        """Whether this stands between the arguments of a call and those of the next one."""
        if self.joint is None:
            return False
        if self.family == "object":
            return gap.strip() in self.joint
        return gap in [f"{self.joint}{tool['name']}{self.between}" for tool in json.loads(tools)]

    def _tagged(self, text: str, tools: str) -> list[dict[str, Any]]:
        assert self.tags is not None
        head = self.before.strip()
        listed = {tool["name"]: tool["parameters"] for tool in json.loads(tools)}
        names = re.compile("|".join(map(re.escape, sorted(listed, key=len, reverse=True))))
        for begun in re.finditer(re.escape(head), text):
            calls: list[dict[str, Any]] = []
            at: int | None = begun.end()
            while at is not None and (name := names.match(text, at)) is not None:
                read = self.tags.read(text, name.end(), listed[name[0]])
                if read is None:
                    break
                arguments, at = read
                calls.append({"name": name[0], "arguments": arguments})
                if at is None:
                    return calls
        return []

    def _call(self, before: str, record: Any, tools: str) -> dict[str, Any] | None:
        if self.family == "named":
            head = before.removesuffix(self.between)
            known = [tool["name"] for tool in json.loads(tools) if head.endswith(tool["name"])]
            name = max(known, key=len, default=None)
            return None if name is None else {"name": name, "arguments": record}
        if not isinstance(record, dict) or self.key not in record:
            return None
        return {"name": record.get("name"), "arguments": record[self.key]}


@kept_with_its_tokenizer
def tool_format(tokenizer: TextTokenizer) -> ToolFormat:
    """The format of a tokenizer's chat template; plain where the template does not tell it."""
    asked = {"role": "user", "content": "hello"}
    called = _called({KEY: VALUE})
    came = {"role": "tool", "tool_call_id": _ID, "name": NAME, "content": _CAME}
    tools = {"tools": [function_of({"name": NAME, "description": "", "parameters": _schema()})]}
    try:
        said = render(tokenizer, [asked, {"role": "assistant", "content": _SAID}], to_go_on=False, arguments=tools)
        rendered = render(tokenizer, [asked, called], to_go_on=False, arguments=tools)
        shows = NAME in render(tokenizer, [asked], arguments=tools)
        if _CAME not in render(tokenizer, [asked, called, came], arguments=tools):
            return ToolFormat()
    except ContextError:
        return ToolFormat()
    begin, _, end = said.partition(_SAID)
    eos = tokenizer.special_tokens_map.get("eos_token")

    def drawn(call: str) -> str:
        """A call as far as the model writes it."""
        return call.partition(str(eos))[0] if eos else call

    for start in (begin, begin.rstrip()):
        if rendered.startswith(start) and rendered.endswith(end) and len(rendered) > len(start + end):

            def frame(*calls: Mapping[str, Any], start: str = start) -> str | None:
                turns = [asked, _called(*calls)]
                try:
                    whole = render(tokenizer, turns, to_go_on=False, arguments=tools)
                except ContextError:
                    return None
                fits = whole.startswith(start) and whole.endswith(end)
                return drawn(whole[len(start) : len(whole) - len(end)]) if fits else None

            return _of(drawn(rendered[len(start) : len(rendered) - len(end)]), frame, shows=shows)
    return ToolFormat()


def _called(*calls: Mapping[str, Any]) -> dict[str, Any]:
    listed = [
        {"id": f"{_ID[:-1]}{number}", "type": "function", "function": {"name": NAME, "arguments": arguments}}
        for number, arguments in enumerate(calls, 1)
    ]
    return {"role": "assistant", "content": "", "tool_calls": listed}


def _schema() -> dict[str, Any]:
    return {"type": "object", "properties": {KEY: {"type": "string"}}, "required": [KEY]}


def _of(frame: str, rendered: Rendered, *, shows: bool) -> ToolFormat:
    """The format of a call that is written so; other calls are `rendered`."""
    head, sign, _ = frame.partition(NAME)
    if sign and (tags := ArgumentTags.of(head, rendered)) is not None:
        return ToolFormat("tags", shows, head, tags.first, tags.last, tags=tags, joint=tags.joint)
    at = frame.find("{")
    try:
        record, end = json.JSONDecoder().raw_decode(frame, at) if at >= 0 else (None, 0)
    except ValueError:
        return ToolFormat()
    before, after = frame[:at], frame[end:]
    if record == {KEY: VALUE} and before.count(NAME) == 1:
        head, _, between = before.partition(NAME)
        joint = _joint(head, frame[len(head) : end], after, rendered)
        return ToolFormat("named", shows, head, between, after, joint=joint)
    for key, id in product(_ARGUMENTS, ({}, {"id": _ID})):
        if record == {"name": NAME, key: {KEY: VALUE}, **id} and list(record) == ["name", key, *id]:
            joint = _joint(before, frame[at:end], after, rendered)
            return ToolFormat("object", shows, before, "", after, key, joint=joint, id=id.get("id", ""))
    return ToolFormat()


def _joint(before: str, call: str, after: str, rendered: Rendered) -> str | None:
    """What stands between two calls of a message; None where the template writes one alone, or all in another way."""
    two = rendered({KEY: VALUE}, {KEY: VALUE}) or ""
    begun, ended = before + call, call + after
    joint = two[len(begun) : len(two) - len(ended)]
    return joint if two == begun + joint + ended and not re.search(f"{NAME}|{_ID[:-1]}", joint) else None


@kept_with_its_tokenizer
def _special(tokenizer: TextTokenizer) -> dict[str, int]:
    return {token.content: id for id, token in tokenizer.added_tokens_decoder.items() if token.special}


def _literals(tokenizer: TextTokenizer) -> Callable[[str], str]:
    """What writes a text of a frame in a Lark grammar: special tokens by their ids, all else as strings."""
    special = _special(tokenizer)
    pattern = re.compile("(" + ("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)") + ")")

    def literal(text: str) -> str:
        parts = (part for part in pattern.split(text) if part)
        return " ".join(f"<[{special[part]}]>" if part in special else json.dumps(part) for part in parts)

    return literal


def function_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as chat templates and chat APIs take it."""
    return {"type": "function", "function": dict(tool)}


def marked_tools(tools: str, text_of: Callable[[str], str]) -> list[dict[str, Any]]:
    """Tools as a template takes them, with what strangers wrote in them as `text_of` has it: it may not forge a turn.

    Raises ContextError for a name that could.
    """

    def of(name: str, value: Any) -> Any:
        if isinstance(value, str):
            if name not in _WORDS:
                return text_of(value)
            if not _PLAIN_WORD.fullmatch(value):
                raise ContextError(f"{value!r} is no {name} of a tool")
            return value
        if isinstance(value, list):
            return [of(name, item) for item in value]
        if isinstance(value, dict):
            if (odd := next((key for key in value if not _PLAIN_WORD.fullmatch(key)), None)) is not None:
                raise ContextError(f"{odd!r} is no name in a tool")
            # What is a property may be called as a word of the schema is.
            return {
                key: of("" if name == "properties" and isinstance(part, str) else key, part)
                for key, part in value.items()
            }
        return value

    return [function_of(of("", tool)) for tool in json.loads(tools)]


def introduction(tools: str) -> str:
    """The tools in words, for a model whose template does not write them."""
    return "\n".join([_INTRODUCTION, *(json.dumps(tool, ensure_ascii=False) for tool in json.loads(tools))])


def with_tools(before: str, more: str) -> str:
    """The tools of one list and those of another that it has not, as a JSON list."""
    if not before or not more or before == more:
        return before or more
    known: Sequence[dict[str, Any]] = json.loads(before)
    names = {tool["name"] for tool in json.loads(more)}
    merged = [*json.loads(more), *(tool for tool in known if tool["name"] not in names)]
    return json.dumps(merged, ensure_ascii=False)
