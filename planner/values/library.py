"""The functions that are built in: those over one row, and the aggregates over several.

`none` gives none, and so does what cannot be converted or has no result in the real numbers; aggregates leave it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qpdsl.grammar.ast.stage import Range
from qpdsl.grammar.words import NUMBERS, Type
from qpdsl.planner.values.value import NUMBER, Value, common_of, common_type, format_value, holds, item_of, list_of

# A program that doubles a text or a list in each round of a loop would fill the memory.
MAX_CHARACTERS = 1 << 24
MAX_ITEMS = 1 << 20
_MAX_BITS = 1024
_TEXT = frozenset({"text"})
_LIST = frozenset({"[unknown]"})
_ANY = frozenset({"unknown"})
_SCALAR = frozenset({"text", "int", "float", "bool"})
# What a share of the rows is.
SHARES = Range("float", 0, 1)


class TooLarge(OverflowError):
    """A value grew beyond what a column can hold; the message says so."""


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function over one row.

    `takes` are the types that each argument may have, and `words` the same in words; arguments from `least` on may be
    left out. `gives` is the type of the result for those of the arguments, None where they do not go together.
    `compute` gets arguments of these types; unless `sees_none`, none of them is none.
    """

    takes: tuple[frozenset[str], ...]
    words: tuple[str, ...]
    gives: Callable[[Sequence[Type]], Type | None]
    compute: Callable[..., Value]
    least: int
    sees_none: bool = False

    def __call__(self, values: Sequence[Value]) -> Value:
        """The value of the function; none where an argument is none, or of another type."""
        if not self.sees_none and any(value is None for value in values):
            return None
        if not all(
            any(holds(type_, value) for type_ in types) for types, value in zip(self.takes, values, strict=False)
        ):
            return None
        try:
            return bounded(self.compute(*values))
        except TooLarge:
            raise
        except (ValueError, OverflowError):
            return None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function over rows. `takes`: the types that its argument may have, `words`: the same in words.

    `gives` is the type of the result for that of the argument. `compute` gets a value of each row, none among them, and
    behind these, of one that `takes_share`, a number from 0 to 1 that is the same for all rows. `of_lists`: whether a
    list in a row is taken for the values. One that is `of_each` row gives each of them a value of its own.
    """

    takes: frozenset[str]
    words: str
    gives: Callable[[Type], Type]
    compute: Callable[..., Value]
    takes_share: bool = False
    of_each: Callable[[Sequence[Value]], Sequence[Value]] | None = None

    @property
    def of_lists(self) -> bool:
        return self.takes != _ANY and self.of_each is None

    def __call__(self, values: Sequence[Value], *share: Value) -> Value:
        if not all(isinstance(one, int | float) and SHARES.holds(one) for one in share):
            return None
        try:
            return bounded(self.compute(values, *share))
        except TooLarge:
            raise
        except (ValueError, OverflowError):
            return None


def bounded(value: Value) -> Value:
    """The value; none for a number that is not finite, or that is whole and takes over 1,024 bits. Raises TooLarge."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if value.bit_length() <= _MAX_BITS else None
    if isinstance(value, str) and len(value) > MAX_CHARACTERS:
        raise TooLarge(f"a text of {len(value):,} characters is too long for a column")
    if isinstance(value, tuple) and len(value) > MAX_ITEMS:
        raise TooLarge(f"a list of {len(value):,} values is too long for a column")
    return value


# Over one row


def _to_int(value: Value) -> Value:
    if isinstance(value, str):
        return int(value) if _is_number(value) and value.strip().lstrip("+-").isdecimal() else None
    return int(value) if isinstance(value, int | float) else None


def _to_float(value: Value) -> Value:
    if isinstance(value, str):
        return float(value) if _is_number(value) else None
    return float(value) if isinstance(value, int | float) else None


def _is_number(text: str) -> bool:
    return NUMBER.fullmatch(text.strip()) is not None


def _joined(items: tuple[Value, ...], separator: str) -> Value:
    return separator.join(format_value(item) for item in items if item is not None)


def contains(whole: Value, part: Value) -> Value:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    return isinstance(whole, tuple) and part in whole


def contains_type(types: Sequence[Type]) -> Type | None:
    whole, part = types
    fitting = part if whole in ("unknown", "none") else common_type("text" if whole == "text" else item_of(whole), part)
    return None if fitting is None else "bool"


def _split(text: str, separator: str) -> Value:
    return tuple(text.split(separator))


def _replace(text: str, old: str, new: str) -> Value:
    # Each letter may become as many as `new` has.
    if old and len(text) + text.count(old) * (len(new) - len(old)) > MAX_CHARACTERS:
        raise TooLarge("a text with these replacements is too long for a column")
    return text.replace(old, new) if old else text


def _sorted(items: tuple[Value, ...]) -> Value:
    """Ascending; none come last. Numbers go before texts, as a list of unknown values may hold both."""
    numbers = [item for item in items if isinstance(item, int | float)]
    texts = [item for item in items if isinstance(item, str)]
    if len(numbers) + len(texts) + items.count(None) < len(items):
        raise ValueError("no order")
    return (*sorted(numbers), *sorted(texts), *[None] * items.count(None))


def _round_type(types: Sequence[Type]) -> Type:
    return "int" if len(types) == 1 else types[0]


def _gives(type_: Type) -> Callable[[Sequence[Type]], Type]:
    return lambda types: type_


def _least(*values: Value) -> Value:
    numbers = _numbers(values)
    return min(numbers) if numbers else None


def _greatest(*values: Value) -> Value:
    numbers = _numbers(values)
    return max(numbers) if numbers else None


def _function(
    takes: frozenset[str], words: str, gives: Callable[[Sequence[Type]], Type | None], compute: Callable[..., Value]
) -> RowFunction:
    """A function of one argument."""
    return RowFunction((takes,), (words,), gives, compute, 1)


_TO_FLOAT = _gives("float")
ROW_FUNCTIONS: Mapping[str, RowFunction] = {
    "int": _function(_SCALAR, "a text, a number or a bool", _gives("int"), _to_int),
    "float": _function(_SCALAR, "a text, a number or a bool", _TO_FLOAT, _to_float),
    "text": _function(_ANY, "a value", _gives("text"), format_value),
    "len": _function(_TEXT | _LIST, "a text or a list", _gives("int"), len),
    "lower": _function(_TEXT, "a text", _gives("text"), str.lower),
    "upper": _function(_TEXT, "a text", _gives("text"), str.upper),
    "strip": _function(_TEXT, "a text", _gives("text"), str.strip),
    "contains": RowFunction(
        (_TEXT | _LIST, _ANY), ("a text or a list", "a value"), contains_type, contains, 2, sees_none=True
    ),
    "lines": _function(_TEXT, "a text", _gives("[text]"), lambda text: tuple(text.splitlines())),
    "split": RowFunction((_TEXT, _TEXT), ("a text", "a text"), _gives("[text]"), _split, 2),
    "replace": RowFunction((_TEXT,) * 3, ("a text",) * 3, _gives("text"), _replace, 3),
    "sort": _function(frozenset({"[int]", "[float]", "[text]"}), "a list of numbers or texts", common_of, _sorted),
    "join": RowFunction((_LIST, _TEXT), ("a list", "a text"), _gives("text"), _joined, 2),
    "if": RowFunction(
        (frozenset({"bool"}), _ANY, _ANY),
        ("a bool", "a value", "a value"),
        lambda types: common_type(types[1], types[2]),
        lambda condition, first, second: first if condition else second,
        3,
        sees_none=True,
    ),
    "log": _function(NUMBERS, "a number", _TO_FLOAT, math.log),
    "exp": _function(NUMBERS, "a number", _TO_FLOAT, math.exp),
    "sqrt": _function(NUMBERS, "a number", _TO_FLOAT, math.sqrt),
    "abs": _function(NUMBERS, "a number", common_of, abs),
    "round": RowFunction((NUMBERS, frozenset({"int"})), ("a number", "an int"), _round_type, round, 1),
}
# Of several values these are functions over one row; they leave none out.
OF_SEVERAL: Mapping[str, Callable[..., Value]] = {"min": _least, "max": _greatest}


# Over several rows


def _numbers(values: Sequence[Value]) -> list[int | float]:
    return [value for value in values if isinstance(value, int | float)]


def _sum(values: Sequence[Value]) -> int | float:
    """Exact, so that neither the order of the rows nor the version of Python matters."""
    numbers = _numbers(values)
    return sum(numbers) if all(isinstance(number, int) for number in numbers) else math.fsum(numbers)


def _mean(values: Sequence[Value]) -> float | None:
    numbers = _numbers(values)
    return _sum(numbers) / len(numbers) if numbers else None


def _std(values: Sequence[Value]) -> float | None:
    numbers, mean = _numbers(values), _mean(values)
    if mean is None:
        return None
    return math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / len(numbers))


def _quantile(values: Sequence[Value], share: float) -> float | None:
    """Between the two values around it by how near each is, as numpy's "linear" method has it, to the last digit."""
    numbers = sorted(map(float, _numbers(values)))
    if not numbers:
        return None
    place = share * (len(numbers) - 1)
    low, high = numbers[math.floor(place)], numbers[math.ceil(place)]
    part = place - math.floor(place)
    return high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part


def _median(values: Sequence[Value]) -> float | None:
    return _quantile(values, 0.5)


def _ranks(values: Sequence[Value]) -> list[Value]:
    """1 for the greatest; of equal ones the first comes first, and none come last: the order of `keep`."""
    order = sorted(range(len(values)), key=lambda place: (values[place] is None, -_number(values[place])))
    return [rank + 1 for rank in sorted(range(len(order)), key=order.__getitem__)]


def _number(value: Value) -> int | float:
    return value if isinstance(value, int | float) else 0


def _sum_type(type_: Type) -> Type:
    return "int" if type_ in ("bool", "none") else type_


_COUNTED = NUMBERS | {"bool"}
AGGREGATES: Mapping[str, Aggregate] = {
    "count": Aggregate(
        _ANY, "a value", lambda type_: "int", lambda values: sum(v is not None and v is not False for v in values)
    ),
    "sum": Aggregate(_COUNTED, "a number or a bool", _sum_type, _sum),
    "mean": Aggregate(_COUNTED, "a number or a bool", lambda type_: "float", _mean),
    "min": Aggregate(NUMBERS, "a number", lambda type_: type_, lambda values: _least(*values)),
    "max": Aggregate(NUMBERS, "a number", lambda type_: type_, lambda values: _greatest(*values)),
    "std": Aggregate(_COUNTED, "a number or a bool", lambda type_: "float", _std),
    "median": Aggregate(NUMBERS, "a number", lambda type_: "float", _median),
    "quantile": Aggregate(NUMBERS, "a number", lambda type_: "float", _quantile, takes_share=True),
    "any": Aggregate(frozenset({"bool"}), "a bool", lambda type_: "bool", lambda values: any(map(bool, values))),
    "all": Aggregate(frozenset({"bool"}), "a bool", lambda type_: "bool", lambda values: all(map(bool, values))),
    "first": Aggregate(_ANY, "a value", lambda type_: type_, lambda values: values[0] if values else None),
    "last": Aggregate(_ANY, "a value", lambda type_: type_, lambda values: values[-1] if values else None),
    "list": Aggregate(_ANY, "a value", list_of, tuple),
    "number": Aggregate(_ANY, "a value", lambda type_: "int", len, of_each=lambda values: range(1, len(values) + 1)),
    "rank": Aggregate(NUMBERS, "a number", lambda type_: "int", len, of_each=_ranks),
    # What it gives is drawn where the rows are known.
    "random": Aggregate(_ANY, "a value", lambda type_: "float", len, of_each=lambda values: values),
}
