"""Values for a program's parameters: from the command line as text, or from JSON.

MERGED: Stage options that arguments put out of range, found before a model is loaded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest, listed
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import NUMBER, Value, evaluate, format_value
from qpdsl.planner.plan.logical import LogicalProgram, Parameter
from qpdsl.planner.plan.options import RANGES
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import names

KINDS = {"text": "text", "int": "a whole number", "float": "a number", "bool": "`true` or `false`"}
_WHOLE = re.compile(r"[+-]?[0-9]+")
_LARGEST = 2**63 - 1
_NOWHERE = Span(0, 0)
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
DTYPES = ("float32", "bfloat16", "float16")
KV_TYPES = ("int8", "fp8")


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
        value = int(word) if len(word) < 1000 else _LARGEST + 1
    elif param.type == "float" and NUMBER.fullmatch(word):
        value = float(word)
    return _checked(param, value)


def from_json(param: Parameter, value: object) -> Value:
    """The value that a JSON value stands for. Raises ArgumentError."""
    return _checked(param, value)


def parse_settings(params: Iterable[Parameter], settings: Iterable[str], program: str) -> dict[str, Value]:
    """The values of `name=value` strings; of two for one name the later counts. Raises ArgumentError."""
    known = {param.name: param for param in params}
    values: dict[str, Value] = {}
    for setting in settings:
        name, sign, text = setting.partition("=")
        name = name.strip()
        if not sign or not name:
            raise ArgumentError(f"`--set` takes name=value, not `{shorten(setting)}`")
        if name not in known:
            raise ArgumentError(unknown(name, known, f"program `{program}` has no parameter"))
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


def bind(params: Iterable[Parameter], given: Mapping[str, Value]) -> dict[str, Value]:
    """All arguments in the order of the declaration, defaults filled in. Raises ArgumentError where one is missing."""
    bound: dict[str, Value] = {}
    for param in params:
        if param.name in given:
            bound[param.name] = given[param.name]
        elif param.default is not None:
            bound[param.name] = _checked(param, evaluate(param.default, bound))
        else:
            raise ArgumentError(f"no value for `{param.name}`, which takes {KINDS[param.type]}")
    return bound


def check_device(device: object) -> None:
    """Raises ArgumentError where there is no such device anywhere."""
    if not isinstance(device, str) or not _DEVICE.fullmatch(device):
        raise ArgumentError(f"`{shorten(str(device))}` is no device; there is `cpu`, `cuda` and `cuda:N`")


def check_whole(name: str, value: object, least: int | None = None) -> None:
    """Raises ArgumentError unless the value is a whole number, of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        of = "" if least is None else f" of at least {least}"
        raise ArgumentError(f"`{name}` takes a whole number{of}, not {_shown(value)}")


def unknown(name: str, known: Iterable[str], lead: str) -> str:
    """`lead` `name`, with what was likely meant, or else with all that there is."""
    names = list(known)
    guess = closest(name, names)
    if guess is not None:
        return f"{lead} `{shorten(name)}`; did you mean `{guess}`?"
    return f"{lead} `{shorten(name)}`" + (f"; there is {listed(names, last='and')}" if names else "")


def shorten(text: str, limit: int = 60) -> str:
    """A text short enough to stand in a message, on one line."""
    line = "".join(char if char.isprintable() else " " for char in text)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _checked(param: Parameter, value: object) -> Value:
    match param.type, value:
        case "text", str():
            if any("\ud800" <= char <= "\udfff" for char in value):
                raise ArgumentError(f"`{param.name}` is not text that UTF-8 can hold")
            return value
        case "bool", bool():
            return value
        case "int", int() if not isinstance(value, bool):
            if abs(value) > _LARGEST:
                raise ArgumentError(f"`{param.name}` takes a whole number of up to 64 bits, not one this large")
            return value
        case "float", int() | float() if not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
    raise ArgumentError(f"`{param.name}` takes {KINDS[param.type]}, not {_shown(value)}")


def _shown(value: object) -> str:
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


def check_options(plan: PhysicalPlan, values: Mapping[str, Value]) -> None:
    """Checks every stage option that reads no parameter but those in `values`. Raises ArgumentError."""
    for name, expr in _options(plan.ops):
        if any(read.id not in values for read in names(expr)):
            continue
        value = evaluate(expr, values)
        if not _holds(name, value):
            allowed, text = RANGES[name], format_expr(expr)
            shown = "one this large" if isinstance(value, int) and abs(value) > _LARGEST else format_value(value)
            whose = "" if text == name else f", the value of `{text}`"
            raise ArgumentError(f"`{name}` takes {KINDS[allowed.type]} of {allowed}, not {shown}{whose}")


def _holds(name: str, value: Value) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_LARGEST <= value <= _LARGEST:
        return False
    return RANGES[name].holds(value)


def _options(nodes: tuple[PhysicalOp, ...]) -> Iterator[tuple[str, ast.Expr]]:
    for node in nodes:
        match node.op:
            case ops.Generate() as op:
                for name in ("n", "temperature", "top_p", "top_k", "min_p", "max_tokens"):
                    expr = getattr(op, name)
                    if expr is not None:
                        yield name, expr
                if isinstance(op.via, ops.Filter):
                    yield "threshold", op.via.threshold
                elif isinstance(op.via, ops.Amortized):
                    yield "margin", op.via.margin
            case ops.TopK(k=k):
                yield "keep", k
            case ops.Split(count=count, temperature=temperature):
                yield "split", count
                if temperature is not None:
                    yield "split temperature", temperature
            case ops.Repeat(limit=limit):
                yield "repeat", limit
        yield from _options(node.body)
        for arm in node.arms:
            yield from _options(arm)
