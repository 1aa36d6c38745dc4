"""What a request says of tools: `tools`, `tool_choice`, `parallel_tool_calls`, as OpenAI's API has them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from qpdsl.errors import unknown
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.tool_format import marked_tools
from qpdsl.grammar.words import MAX_CALLS_AT_ONCE
from qpdsl.planner.names.json_schema import closed, faults
from qpdsl.planner.values.value import dumps
from qpdsl.serve.completion_request import CompletionRequest, Refusal, check_fields
from qpdsl.serve.constraint_bounds import check_schema, check_text

TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
_FIELD, _CHOICE = "tools", "tool_choice"
_CHOICES = ("none", "auto", "required")
_NAMED = '{"type": "function", "function": {"name": …}}'
_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
# As many as OpenAI's API takes.
_MAX_TOOLS = 128
_NAME = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_ID_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
# The templates of Mistral's models take ids of this length alone.
_ID_LENGTH = 9


@dataclass(frozen=True, slots=True)
class AskedTools:
    """The tools of a request, as JSON lists of records of a `name`, a `description` and a schema `parameters`.

    `shown` are those that the model is shown, and `callable` those that it may call; each is empty where there are
    none. With `or_text` it may answer in text too. An answer has up to `most` calls.
    """

    shown: str = ""
    callable: str = ""
    or_text: bool = True
    most: int = 1

    @classmethod
    def of(cls, request: CompletionRequest) -> AskedTools:
        """Raises Refusal."""
        parallel = request.flag("parallel_tool_calls")
        tools = _tools(request.get(_FIELD))
        names = [tool["name"] for tool in tools]
        choice, named = _choice(request.get(_CHOICE), names)
        if not tools or choice == "none":
            return cls()
        own = [tool for tool in tools if named in (None, tool["name"])]
        # Fields that a schema does not name are none that a model is to make up.
        held = [{**tool, "parameters": closed(tool["parameters"])} for tool in own]
        shown, held_to = (json.dumps(listed, ensure_ascii=False) for listed in (tools, held))
        # An answer that is held to one function calls it once.
        most = MAX_CALLS_AT_ONCE if parallel and named is None else 1
        return cls(shown, held_to, choice == "auto", most)

    @property
    def names(self) -> frozenset[str]:
        """Those of the tools that may be called."""
        return frozenset(tool["name"] for tool in json.loads(self.callable or "[]"))


def call_of(name: str, arguments: Any, origin: str) -> Mapping[str, Any]:
    """A call as a message has it. Its id follows from `origin`, which says which answer it is a part of.

    Raises ValueError for arguments with a number that JSON cannot have.
    """
    number = int.from_bytes(blake2b(origin.encode(), digest_size=8).digest())
    letters = []
    for _ in range(_ID_LENGTH):
        number, letter = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[letter])
    function = {"name": name, "arguments": _written(arguments)}
    return {"id": "".join(letters), "type": "function", "function": function}


def _written(arguments: Any) -> str:
    text = dumps(arguments)
    try:
        text.encode()
    except UnicodeEncodeError:
        # JSON can escape a lone surrogate, which UTF-8 cannot encode.
        return json.dumps(arguments)
    return text


def _tools(given: Any) -> list[dict[str, Any]]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise Refusal(f"`{_FIELD}` is a list of functions", _FIELD)
    if len(given) > _MAX_TOOLS:
        raise Refusal(f"`{_FIELD}` has {len(given):,} functions, and up to {_MAX_TOOLS} are taken", _FIELD)
    if given:
        check_text(f"`{_FIELD}`", len(json.dumps(given, ensure_ascii=False)), _FIELD)
        check_schema(given, _FIELD)
    tools = [_tool(f"{_FIELD}[{place}]", tool) for place, tool in enumerate(given)]
    names = [tool["name"] for tool in tools]
    if (twice := next((name for at, name in enumerate(names) if name in names[:at]), None)) is not None:
        raise Refusal(f"`{_FIELD}` has two functions `{twice}`", _FIELD)
    try:
        marked_tools(json.dumps(tools), str)
    except ContextError as error:
        raise Refusal(f"`{_FIELD}`: {error}", _FIELD) from error
    return tools


def _tool(where: str, tool: Any) -> dict[str, Any]:
    kind, function = (tool.get("type"), tool.get("function")) if isinstance(tool, dict) else (None, None)
    if kind != "function" or not isinstance(function, dict):
        what = f" of the type `{kind}`" if isinstance(kind, str) and kind != "function" else ""
        message = f'`{where}` is a tool{what}, and one is {{"type": "function", "function": {{"name": …}}}}'
        raise Refusal(message, _FIELD)
    check_fields(tool, ("type", "function"), where, _FIELD)
    check_fields(function, _FUNCTION_FIELDS, f"{where}.function", _FIELD)
    name, described = function.get("name"), function.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Refusal(f"`{where}` has a name of up to 64 letters, digits and `_`, `-`, `.`, `:`", _FIELD)
    if not isinstance(described, str | None) or not isinstance(function.get("strict"), bool | None):
        raise Refusal(f"`{name}` has a description, which is a text, and `strict`, which is true or false", _FIELD)
    said = {} if described is None else {"description": described}
    return {"name": name, **said, "parameters": _parameters(name, function.get("parameters"))}


def _parameters(name: str, schema: Any) -> Any:
    """The schema of a function's arguments; one without has none."""
    if schema is None or schema == {}:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise Refusal(f"`parameters` of `{name}` is a JSON Schema of the type `object`", _FIELD)
    for where, why in faults(schema):
        place = f" at `{where}`" if where.startswith("/") else ""
        raise Refusal(f"no call can be held to `parameters` of `{name}`{place}: {why}", _FIELD)
    return schema


def _choice(asked: Any, names: Collection[str]) -> tuple[str, str | None]:
    """One of `_CHOICES`, and the function that is to be called where one is named."""
    if asked is None:
        return "auto", None
    if isinstance(asked, str):
        if asked not in _CHOICES:
            raise Refusal(unknown(asked, _CHOICES, f"`{_CHOICE}` has no value"), _CHOICE)
        if asked == "required" and not names:
            raise Refusal(f"`{_CHOICE}` goes with `{_FIELD}`, and there are none", _CHOICE)
        return asked, None
    function = asked.get("function") if isinstance(asked, dict) and asked.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str):
        raise Refusal(f"`{_CHOICE}` is one of `none`, `auto` and `required`, or {_NAMED}", _CHOICE)
    check_fields(asked, ("type", "function"), _CHOICE, _CHOICE)
    check_fields(function, ("name",), f"{_CHOICE}.function", _CHOICE)
    if name not in names:
        raise Refusal(unknown(name, names, f"`{_FIELD}` has no function"), _CHOICE)
    return "required", name
