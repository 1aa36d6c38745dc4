"""The arguments of a program: values for its parameters, from the command line as text or from JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from qpdsl.errors import shorten, unknown
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.plan.evaluate import NUMBER, Value, evaluate
from qpdsl.planner.plan.logical import LogicalProgram, Parameter

KINDS = {"text": "text", "int": "a whole number", "float": "a number", "bool": "`true` or `false`"}
_WHOLE = re.compile(r"[+-]?[0-9]+")
# The largest whole number that a parameter or an option takes.
LARGEST = 2**63 - 1
_NOWHERE = Span(0, 0)


class ArgumentError(ValueError):
    """A value that a parameter does not take; the message names the parameter and what it takes."""


def from_text(param: Parameter, text: str) -> Value:
    """The value that a command-line string stands for. Raises ArgumentError."""
    if param.type == "text":
        return _checked(param, text)
    word = text.strip()
    value: object = text
    if param.type == "bool":
        value = {"true": True, "false": False}.get(word.lower(), text)
    elif param.type == "int" and _WHOLE.fullmatch(word):
        # Python refuses to read very many digits.
        value = int(word) if len(word) < 1000 else LARGEST + 1
    elif param.type == "float" and NUMBER.fullmatch(word):
        value = int(word) if _WHOLE.fullmatch(word) and len(word) < 1000 else float(word)
    return _checked(param, value)


def from_json(param: Parameter, value: object) -> Value:
    """The value that a JSON value stands for. Raises ArgumentError."""
    return _checked(param, value)


def parse_settings(params: Iterable[Parameter], settings: Iterable[str], program: str) -> dict[str, Value]:
    """The values of `name=value` strings. Raises ArgumentError, also for two values of one name."""
    known = {param.name: param for param in params}
    values: dict[str, Value] = {}
    for setting in settings:
        name, sign, text = setting.partition("=")
        name = name.strip()
        if not sign or not name:
            raise ArgumentError(f"`--set` takes name=value, not `{shorten(setting)}`")
        if name not in known:
            raise ArgumentError(unknown(name, known, f"program `{program}` has no parameter"))
        if name in values:
            raise ArgumentError(f"`--set` gives `{name}` twice")
        values[name] = from_text(known[name], text)
    return values


def with_defaults(program: LogicalProgram, values: Mapping[str, Value]) -> LogicalProgram:
    """The program with values in place of its parameters' defaults."""

    def literal(value: Value) -> ast.Expr:
        return ast.Template((value,), span=_NOWHERE) if isinstance(value, str) else ast.Literal(value, span=_NOWHERE)

    params = (
        replace(param, default=literal(values[param.name])) if param.name in values else param
        for param in program.params
    )
    return replace(program, params=tuple(params))


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
            raise ArgumentError(f"no value for `{param.name}`, which takes {KINDS[param.type]}")
    return bound


def _checked(param: Parameter, value: object) -> Value:
    match param.type, value:
        case "text", str():
            if any("\ud800" <= char <= "\udfff" for char in value):
                raise ArgumentError(f"`{param.name}` is not text that UTF-8 can hold")
            # The text itself: a subclass, such as an enum, can show as another one.
            return str.__str__(value)
        case "bool", bool():
            return value
        case "int", int() if not isinstance(value, bool):
            if abs(value) > LARGEST:
                raise ArgumentError(f"`{param.name}` takes a whole number of up to 64 bits, not one this large")
            return int(value)
        case "float", int() | float() if not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if isinstance(value, int) and math.isfinite(number) and number != value:
                raise ArgumentError(
                    f"`{param.name}` takes a number, and none here has all the digits of {json_text(value)}"
                )
            if math.isfinite(number):
                return number
    raise ArgumentError(f"`{param.name}` takes {KINDS[param.type]}, not {json_text(value)}")


def json_text(value: object) -> str:
    """A value as JSON calls it, short enough to stand in a message."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'the text "{shorten(value)}"'
        case dict():
            return "an object"
        case list():
            return "a list"
    return shorten(str(value))
