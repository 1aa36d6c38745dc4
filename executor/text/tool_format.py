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
from typing import Any, Literal

from qpdsl.executor.text.chat_template import ContextError, kept_with_its_tokenizer, render
from qpdsl.executor.text.tagged_calls import KEY, NAME, VALUE, ArgumentTags, Rendered, in_regex
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.planner.names.constraint_schema import as_constraint
from qpdsl.planner.names.json_schema import SPACING, nested, to_text

_SAID, _CAME = "qpdslsaid", "qpdslcame"
_ARGUMENTS = ("arguments", "parameters")
# What a schema says in words that a template may look at; all else that is text is a stranger's.
_WORDS = ("name", "type", "format", "$ref", "required", "role")
_PLAIN_WORD = re.compile(r"[\w.:/#$-]*")
_INTRODUCTION = (
    "You can call these tools, one at a time. To call one, answer with nothing but JSON of this form: "
    '{"name": NAME, "arguments": {…}}. The tools, with the JSON Schema of their parameters:'
)


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`shows`: the template writes the tools that it is given. What stands around a call: `before` and `after` it.

    Of the family "object" a JSON object stands there, of a `name` and the arguments as `key`; of "named" the name, then
    `between`, then the arguments as a JSON object; of "tags" the name, then each argument between its `tags`.
    """

    family: Literal["plain", "object", "named", "tags"] = "plain"
    shows: bool = False
    before: str = ""
    between: str = ""
    after: str = ""
    key: str = "arguments"
    tags: ArgumentTags | None = None

    @property
    def is_plain(self) -> bool:
        return self.family == "plain"

    @property
    def mark(self) -> str:
        """What begins a call that may have text before it; empty where an output begins with its call."""
        return self.before.strip().partition("\n")[0]

    def starts(self, names: Sequence[str]) -> list[str]:
        """What calls of these tools begin with where there is no mark, and no text."""
        return ["{"] if self.family in ("plain", "object") else [f"{name}{self.between}" for name in names]

    def grammar(self, tools: str, tokenizer: TextTokenizer, *, or_text: bool = False) -> str:
        """A llguidance Lark grammar of the calls of these tools, a JSON list.

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
        names: list[str] = []
        for number, tool in enumerate(listed):
            names.append(f"call_{number}")
            if self.tags is not None:
                rules += self.tags.rules(f"call_{number}", before, tool["name"], tool["parameters"], literal)
                continue
            if self.family == "named":
                document, held = nested(tool["parameters"], "#"), literal(f"{tool['name']}{self.between}")
                held += f" json_{number}"
            else:
                path = f"#/properties/{self.key}"
                fields = {"name": {"enum": [tool["name"]]}, self.key: nested(tool["parameters"], path)}
                document = {"type": "object", "properties": fields, "required": [*fields]}
                held = f"json_{number}"
            document |= {"additionalProperties": False, "x-guidance": SPACING}
            rules.append(f"call_{number}: {before} {held} {literal(self.after)}")
            rules.append(f"json_{number}: %json {to_text(as_constraint(document))}")
        names += ["TEXT"] if or_text else []
        texts += [r"ANY: /(.|\n)+/"] if self.tags is not None else []
        return "\n".join([f"start: {' | '.join(names)}", *rules, *texts])

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

    def parted(self, text: str, tools: str, whole: Callable[[], str] | None = None) -> tuple[str, str] | None:
        """An output that ends in a call: the text before it, and the call as JSON of a `name` and its `arguments`.

        None where it ends in none. `whole` gives the output with the special tokens in it.
        """
        if self.is_plain:
            return ("", text) if text.lstrip().startswith("{") else None
        marked = text if whole is None else whole()
        if self.mark not in marked:
            return None
        if self.tags is not None:
            call = self._tagged(marked, tools)
        else:
            call = self._with_json(marked if self.family == "named" else text, tools)
        if call is None:
            return None
        return (marked.partition(self.mark)[0].rstrip() if self.mark else ""), call

    def _with_json(self, text: str, tools: str) -> str | None:
        """The call that ends a text in which its arguments are JSON."""
        at = text.find("{")
        while at >= 0:
            try:
                record, end = json.JSONDecoder().raw_decode(text, at)
            except (ValueError, RecursionError):
                record, end = None, 0
            # Special tokens may be no part of the text.
            if end and text[end:].strip() in self.after:
                return self._call(text[:at], record, tools)
            at = text.find("{", max(at + 1, end))
        return None

    def _tagged(self, text: str, tools: str) -> str | None:
        assert self.tags is not None
        head = self.before.strip()
        listed = {tool["name"]: tool["parameters"] for tool in json.loads(tools)}
        names = "|".join(map(re.escape, sorted(listed, key=len, reverse=True)))
        for found in re.finditer(f"{re.escape(head)}({names})", text):
            arguments = self.tags.read(text, found.end(), listed[found[1]])
            if arguments is not None:
                return json.dumps({"name": found[1], "arguments": arguments}, ensure_ascii=False)
        return None

    def _call(self, before: str, record: Any, tools: str) -> str | None:
        if self.family == "named":
            head = before.removesuffix(self.between)
            known = [tool["name"] for tool in json.loads(tools) if head.endswith(tool["name"])]
            name = max(known, key=len, default=None)
            return None if name is None else json.dumps({"name": name, "arguments": record}, ensure_ascii=False)
        if not isinstance(record, dict) or self.key not in record:
            return None
        return json.dumps({"name": record.get("name"), "arguments": record[self.key]}, ensure_ascii=False)


@kept_with_its_tokenizer
def tool_format(tokenizer: TextTokenizer) -> ToolFormat:
    """The format of a tokenizer's chat template; plain where the template does not tell it."""
    asked = {"role": "user", "content": "hello"}
    called = _called({KEY: VALUE})
    came = {"role": "tool", "tool_call_id": "call00001", "name": NAME, "content": _CAME}
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
    for start in (begin, begin.rstrip()):
        if rendered.startswith(start) and rendered.endswith(end) and len(rendered) > len(start + end):

            def frame(arguments: Mapping[str, Any], start: str = start) -> str | None:
                turns = [asked, _called(arguments)]
                try:
                    whole = render(tokenizer, turns, to_go_on=False, arguments=tools)
                except ContextError:
                    return None
                fits = whole.startswith(start) and whole.endswith(end)
                return whole[len(start) : len(whole) - len(end)] if fits else None

            return _of(rendered[len(start) : len(rendered) - len(end)], frame, shows=shows)
    return ToolFormat()


def _called(arguments: Mapping[str, Any]) -> dict[str, Any]:
    call = {"id": "call00001", "type": "function", "function": {"name": NAME, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _schema() -> dict[str, Any]:
    return {"type": "object", "properties": {KEY: {"type": "string"}}, "required": [KEY]}


def _of(frame: str, rendered: Rendered, *, shows: bool) -> ToolFormat:
    """The format of a call that is written so; other calls are `rendered`."""
    head, sign, _ = frame.partition(NAME)
    if sign and (tags := ArgumentTags.of(head, rendered)) is not None:
        return ToolFormat("tags", shows, head, tags.first, tags.last, tags=tags)
    at = frame.find("{")
    try:
        record, end = json.JSONDecoder().raw_decode(frame, at) if at >= 0 else (None, 0)
    except ValueError:
        return ToolFormat()
    before, after = frame[:at], frame[end:]
    if record == {KEY: VALUE} and before.count(NAME) == 1:
        head, _, between = before.partition(NAME)
        return ToolFormat("named", shows, head, between, after)
    for key in _ARGUMENTS:
        if record == {"name": NAME, key: {KEY: VALUE}} and list(record) == ["name", key]:
            return ToolFormat("object", shows, before, "", after, key)
    return ToolFormat()


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
