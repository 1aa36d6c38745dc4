"""The arguments of a program: values for its parameters, from the command line as text, from files, or from JSON.

A value of a plain type is written as it is; one of any other type is JSON, or stands in a file: `@shots.jsonl`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

from qpdsl.errors import reason, shorten, unknown
from qpdsl.executor.foreign.bounded_file import read_bounded
from qpdsl.executor.runtime.operators.valid_records import fault_of
from qpdsl.grammar.source import Span
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.logical import LogicalProgram, Parameter
from qpdsl.planner.plan.options import LARGEST, spelt
from qpdsl.planner.strategies.written_strategies import settled
from qpdsl.planner.values.value import NUMBER, Record, Value, fields_of, is_list, is_record, item_of, thawed

KINDS = {
    "text": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "`true` or `false`",
    "messages": 'a list of turns, each `{"role": "user", "content": "…"}`',
}
# A file that the caller hands in, by how its name ends: its text, a JSON document, JSON lines.
FILE_ENDINGS = (".txt", ".md", ".json", ".jsonl")
# The largest such file, in bytes, and how deep a value nests.
_MAX_BYTES = 64 << 20
_MAX_DEPTH = 64
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NOWHERE = Span(0, 0)


class ArgumentError(ValueError):
    """A value that a parameter does not take; the message names the parameter and what it takes."""


def from_text(param: Parameter, text: str) -> Value:
    """The value that a command-line string stands for: the value itself, JSON, or `@FILE`. Raises ArgumentError."""
    path = file_of(param, text)
    if path is not None:
        return _checked(param, _read(param, path))
    if param.type == "text":
        return _checked(param, text[1:] if text.startswith("@@") else text)
    word = text.strip()
    value: object = text
    if param.optional and word == "none":
        return None
    if param.type not in ("int", "float", "bool"):
        value = _parsed(param, text, "the value")
    elif param.type == "bool":
        value = {"true": True, "false": False}.get(word.lower(), text)
    elif param.type == "int" and _WHOLE.fullmatch(word):
        # Python refuses to read very many digits.
        value = int(word) if len(word) < 1000 else LARGEST + 1
    elif param.type == "float" and NUMBER.fullmatch(word):
        value = int(word) if _WHOLE.fullmatch(word) and len(word) < 1000 else float(word)
    return _checked(param, value)


def file_of(param: Parameter, text: str) -> Path | None:
    """The file that a command-line string names as the place of the value; None where it is the value."""
    if not text.startswith("@") or text.startswith("@@") or param.type in ("int", "float", "bool"):
        return None
    named = text.endswith(FILE_ENDINGS)
    if not named and param.type != "text":
        endings = ", ".join(f"`{ending}`" for ending in FILE_ENDINGS)
        raise ArgumentError(f"`{param.name}`: the name of a file with a value ends in {endings}, not `{shorten(text)}`")
    return Path(text[1:]) if named else None


def settings_files(params: Iterable[Parameter], settings: Iterable[str]) -> list[Path]:
    """The files that `name=@file` strings name."""
    known = {param.name: param for param in params}
    pairs = [setting.partition("=") for setting in settings]
    files = [file_of(known[name.strip()], text) for name, _, text in pairs if name.strip() in known]
    return [file for file in files if file is not None]


def from_json(param: Parameter, value: object) -> Value:
    """The value that a JSON value, or one of Python, stands for. Raises ArgumentError."""
    return _checked(param, plain_value(value))


def plain_value(value: object) -> object:
    """A Python value as JSON has it: records of every kind become dictionaries, without fields that are None."""
    if isinstance(value, list | tuple):
        return [plain_value(part) for part in value]
    if isinstance(value, Mapping):
        return {name: plain_value(part) for name, part in value.items()}
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return plain_value(dump(mode="json", exclude_none=True))
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((part.name, getattr(value, part.name)) for part in fields(value))
        return {name: plain_value(part) for name, part in pairs if part is not None}
    return value


def parse_settings(
    params: Iterable[Parameter], settings: Iterable[str], program: str, models: Collection[str] = ()
) -> dict[str, Value]:
    """The values of `name=value` strings, but for those of parameters that are `models`.

    Raises ArgumentError, also for two values of one name.
    """
    known = {param.name: param for param in params}
    values: dict[str, Value] = {}
    for setting in settings:
        name, sign, text = setting.partition("=")
        name = name.strip()
        if not sign or not name:
            raise ArgumentError(f"`--set` takes name=value, not `{shorten(setting)}`")
        if name in models:
            continue
        if name not in known:
            raise ArgumentError(_unknown_parameter(name, [*known, *models], program))
        if name in values:
            raise ArgumentError(f"`--set` gives `{name}` twice")
        values[name] = from_text(known[name], text)
    return values


def _unknown_parameter(name: str, known: Collection[str], program: str) -> str:
    from qpdsl.grammar import ast
    from qpdsl.grammar.ast.stage import options
    from qpdsl.grammar.suggest import closest

    option = closest(name, options(ast.Generate))
    if closest(name, known) is None and option is not None:
        place = f"the program says it, as `generate MODEL {option}=…`"
        return f"program `{program}` has no parameter `{name}`; {place}, and `--set` takes it once that is a parameter"
    return unknown(name, known, f"program `{program}` has no parameter")


def text_parameter(program: LogicalProgram, values: Mapping[str, Value], text: str) -> str:
    """The name of the one text parameter that needs a value and has none in `values`, for a text without a name.

    Raises ArgumentError, also for what reads as a setting.
    """
    name, sign, _ = text.partition("=")
    if sign and any(name == param.name for param in program.params):
        raise ArgumentError(f"a parameter of the program is set by `--set {name}=…`")
    texts = lacking_texts(program, values)
    if len(texts) == 1:
        return texts[0]
    if texts:
        names = " and ".join(f"`{name}`" for name in texts)
        raise ArgumentError(f"the text could be {names} of `{program.name}`: say `--set {texts[0]}=…`")
    if conversation := [param.name for param in _lacking(program, values) if param.type == "messages"]:
        form = f'--set \'{conversation[0]}=[{{"role":"user","content":"…"}}]\''
        raise ArgumentError(f"`{program.name}` takes a conversation, `{conversation[0]}`, and no text: `{form}`")
    raise ArgumentError(f"`{program.name}` takes no text besides what `--set` gives it")


def lacking_texts(program: LogicalProgram, given: Collection[str]) -> list[str]:
    """The parameters that need a text, and have no value in `given`."""
    lack = _lacking(program, given)
    return [param.name for param in lack if param.type == "text" and not param.optional and param.schema is None]


def _lacking(program: LogicalProgram, given: Collection[str]) -> list[Parameter]:
    return [param for param in program.params if param.default is None and param.name not in given]


def with_defaults(program: LogicalProgram, values: Mapping[str, Value]) -> LogicalProgram:
    """The program with values in place of its parameters' defaults."""
    program = settled(program, values)
    params = (
        replace(param, default=spelt(values[param.name], _NOWHERE)) if param.name in values else param
        for param in program.params
    )
    ways = tuple(replace(way, program=with_defaults(way.program, values)) for way in program.ways)
    return replace(program, params=tuple(params), ways=ways)


def bind(params: Iterable[Parameter], values: Mapping[str, Value]) -> dict[str, Value]:
    """All arguments in the order of the declaration, with defaults filled in.

    Raises ArgumentError where a parameter has neither a value nor a default.
    """
    bound: dict[str, Value] = {}
    for param in params:
        if param.name in values:
            bound[param.name] = values[param.name]
        elif param.default is not None:
            bound[param.name] = _checked(param, evaluate(param.default, bound))
        else:
            raise ArgumentError(f"no value for `{param.name}`, which takes {takes(param)}")
    return bound


def takes(param: Parameter) -> str:
    """What a parameter takes, in words."""
    words = KINDS.get(param.type, f"a value of the type `{param.declared}`")
    if param.type in ("text", "int", "float") and param.schema is not None:
        words = f"`{param.declared.removesuffix('?')}`"
    return f"{words}, or none" if param.optional else words


def _checked(param: Parameter, value: object) -> Value:
    if value is None and param.optional:
        return None
    typed = _typed(param, value, "[unknown]" if param.type == "messages" else param.type, param.name, 0)
    if param.schema is not None:
        fault = fault_of(json.dumps(thawed(typed), ensure_ascii=False), param.schema)
        if fault is not None:
            raise ArgumentError(f"`{param.name}` takes {takes(param)}: {fault}")
    return typed


def _typed(param: Parameter, value: object, type_: str, where: str, depth: int) -> Value:
    """A Python or JSON value as one of the type, at the place `where` in the argument. Raises ArgumentError."""
    if depth > _MAX_DEPTH:
        raise ArgumentError(f"`{param.name}` nests over {_MAX_DEPTH} deep")
    match type_, value:
        case "text", str():
            return _text(where, value)
        case "bool", bool():
            return value
        case "int", int() if not isinstance(value, bool):
            if abs(value) > LARGEST:
                raise ArgumentError(f"`{where}` takes a whole number of up to 64 bits, not one this large")
            return int(value)
        case "float", int() | float() if not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if isinstance(value, int) and math.isfinite(number) and number != value:
                raise ArgumentError(f"`{where}` takes a number, and none here has all the digits of {json_text(value)}")
            if math.isfinite(number):
                return number
        case _, list() | tuple() if is_list(type_):
            item = item_of(type_)
            return tuple(_typed(param, part, item, f"{where}[{at}]", depth + 1) for at, part in enumerate(value))
        case _, Mapping() if is_record(type_):
            types = fields_of(type_) or {}
            return Record(
                {
                    _text(where, str(name)): _typed(
                        param, part, types.get(name, "unknown"), f"{where}.{name}", depth + 1
                    )
                    for name, part in value.items()
                }
            )
        case "unknown", _:
            own = _own_type(value)
            if own is not None:
                return None if own == "none" else _typed(param, value, own, where, depth)
    if where == param.name:
        raise ArgumentError(f"`{param.name}` takes {takes(param)}, not {json_text(value)}")
    raise ArgumentError(f"`{where}` takes {KINDS.get(type_, f'a value of the type `{type_}`')}, not {json_text(value)}")


def _text(where: str, value: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise ArgumentError(f"`{where}` is not text that UTF-8 can hold")
    # The text itself: a subclass, such as an enum, can show as another one.
    return str.__str__(value)


def _own_type(value: object) -> str | None:
    """The type of a value where nothing is said of it; None where the language has no such values."""
    match value:
        case None:
            return "none"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case str():
            return "text"
        case list() | tuple():
            return "[unknown]"
        case Mapping():
            return "record"
    return None


def _read(param: Parameter, path: Path) -> object:
    """The value in a file: the text of `.txt` and `.md`, or its lines as a list; JSON; a list of JSON lines.

    Raises ArgumentError.
    """
    try:
        text = read_bounded(path, _MAX_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ArgumentError(f"`{param.name}`: cannot read `{path}`: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise ArgumentError(f"`{param.name}`: `{path}` is not UTF-8 text") from error
    if path.suffix == ".jsonl":
        return list(_lines(param, path, text))
    if path.suffix == ".json":
        return _parsed(param, text, f"`{path}`")
    if param.type == "text":
        return text
    if param.type == "[text]":
        return [line for line in text.splitlines() if line.strip()]
    raise ArgumentError(f"`{param.name}` takes {takes(param)}, which stands in a `.json` or `.jsonl` file")


def _lines(param: Parameter, path: Path, text: str) -> Iterator[object]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield _parsed(param, line, f"line {number} of `{path}`")


def _parsed(param: Parameter, text: str, what: str) -> object:
    """The JSON value that a text spells; a text that a parameter such as a choice takes stands for itself."""
    if param.type == "text":
        return text
    try:
        return json.loads(text, parse_constant=_refused)
    except RecursionError as error:
        raise ArgumentError(f"`{param.name}`: {what} nests too deep") from error
    except ValueError as error:
        where = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ArgumentError(
            f"`{param.name}` takes {takes(param)}, written as JSON; {what} is none{where}: {shorten(text.strip())}"
        ) from error


def _refused(word: str) -> None:
    raise ValueError(word)


def json_text(value: object) -> str:
    """A value as JSON calls it, short enough to stand in a message."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'the text "{shorten(value)}"'
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
    return shorten(str(value))
