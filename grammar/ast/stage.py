"""What a stage is: its word and form, and what each of its fields is, declared beside the field.

All that goes over stages (building, printing, reading, checking, completing) reads these declarations. A field that is
written has a `Role` in its metadata; a field without one is for the checker to fill in, where a stage is an operator of
a plan: see `Stage`.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, cast

from qpdsl.grammar.ast.node import Node
from qpdsl.grammar.words import EQUALITIES

Number = int | float
# What an expression may read: parameters; aggregates too, of which the one value is for all rows ("once"); columns,
# where it may differ from row to row ("option"); the columns of a row; columns inside of aggregates alone; and both,
# where a bare column is the first row's.
Reads = typing.Literal["parameters", "once", "option", "row", "aggregates", "first row"]
# What a field holds: an expression; the name of a column that is made, or that is read; a model; one of a few words; a
# block of stages, or several; a part with fields of its own; anything else that is written out.
Kind = typing.Literal["value", "made", "column", "model", "word", "block", "arms", "part", "plain"]
# What a stage makes of the number of rows: as many; some of them; at most `count`, or one, of each value of `per`. Of
# any other stage nothing is said here.
Rows = typing.Literal["same", "fewer", "count", "one", "other"]


@dataclass(frozen=True, slots=True)
class Range:
    """A type, and the bounds of a number in words and figures; `open_low` leaves the lower bound out."""

    type: str
    low: Number
    high: Number = float("inf")
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: Number) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        low = f"{'over' if self.open_low else 'at least'} {self.low}"
        if self.high == float("inf"):
            return low
        return f"{low} and {'under' if self.open_high else 'at most'} {self.high}"


@dataclass(frozen=True, slots=True)
class Role:
    """What a field of a stage is.

    `lead` is what is written before it: a word (`by`), a sign (`=`), the key of an option (`n=`), or nothing. `own` are
    names that the stage itself gives a value in it.

    Of a value: what it may `read`; the `type` that a parameter has which stands there alone, None for any; the types
    that it `accepts` and what they are called (`what`); its `range`, whose name in messages is `limit`; `place`, what
    messages call it, where that is not its name. It `chooses` among rows, so that it is there to read columns; it
    `tells_apart` rows, so that it should differ from one to another; it may be left to a budget (`auto`); it is a
    string (`template`); it stands before the form of its stage (`ahead`). `switch`: `on` and `off` stand for true and
    false there. `reads` and `type` may depend on what else stands in the stage.

    Of a word: the `words` that it may be, the `code` of the error where it is another, and `what` that is then. `empty`
    says what is wrong with a block without stages.
    """

    kind: Kind
    lead: str = ""
    reads: Reads | Callable[[Any], Reads] = "parameters"
    type: str | Callable[[Any], str | None] | None = None
    accepts: frozenset[str] | None = None
    what: str = ""
    range: Range | None = None
    limit: str = ""
    place: str = ""
    chooses: bool = False
    tells_apart: bool = False
    auto: bool = False
    template: bool = False
    ahead: bool = False
    switch: bool = False
    words: tuple[str, ...] = ()
    code: str = ""
    own: tuple[str, ...] = ()
    empty: str = "`{}` has no stages to run"

    @property
    def is_option(self) -> bool:
        """Whether it is written `key=value`."""
        return self.lead.endswith("=") and len(self.lead) > 1

    @property
    def is_clause(self) -> bool:
        """Whether a word stands before it."""
        return self.lead.isalpha()

    @property
    def is_inside(self) -> bool:
        """Whether it stands in the brackets of a form, if there is one."""
        return not self.is_clause and self.lead != "reduce=" and not self.ahead

    def reads_of(self, owner: Any) -> Reads:
        return self.reads(owner) if callable(self.reads) else self.reads

    def type_of(self, owner: Any) -> str | None:
        return self.type(owner) if callable(self.type) else self.type


def is_a(kind: Kind, lead: str = "", **more: Any) -> Mapping[str, Role]:
    """The metadata of a field."""
    return {"role": Role(kind, lead, **more)}


def is_number(lead: str, range: Range, limit: str, **more: Any) -> Mapping[str, Role]:
    """A number in a range: by default over parameters."""
    what = "an int" if range.type == "int" else "a number"
    return is_a("value", lead, type=range.type, what=what, range=range, limit=limit, **more)


_SORTABLE = frozenset({"int", "float", "bool"})


def is_key(lead: str = "by", **more: Any) -> Mapping[str, Role]:
    """A value by which rows are told apart or weighed."""
    more = {"accepts": _SORTABLE, "what": "a number or a bool", "tells_apart": True, "chooses": True, **more}
    return is_a("value", lead, reads="row", type="float", **more)


def is_text(lead: str = "", reads: Reads = "row", **more: Any) -> Mapping[str, Role]:
    """A text, or a part of one."""
    return is_a("value", lead, reads=reads, type="text", accepts=frozenset({"text"}), what="a text", **more)


def is_condition(lead: str = "", reads: Reads = "row", **more: Any) -> Mapping[str, Role]:
    return is_a("value", lead, reads=reads, type="bool", accepts=frozenset({"bool"}), what="a bool", **more)


def is_equality(lead: str) -> Mapping[str, Role]:
    """A way to compare two values."""
    return is_option(lead, EQUALITIES, "not a way to compare")


def is_option(lead: str, words: tuple[str, ...], what: str) -> Mapping[str, Role]:
    """One of a few words; `what` says that another is none of them."""
    return is_a("word", lead, words=words, code="QP126", what=what)


PER = is_a("column", "per")
INTO = is_a("made", "into")
# The result of a program that would have none.
ELSE = is_a("value", "else", reads="first row", place="`else`")
BLOCK = is_a("block")

# The classes of stages by their words, in the order in which messages list them.
STAGES: dict[str, type[Stage]] = {}


class InvalidPlan(RuntimeError):
    """A plan, or a part of one, that breaks its own rules: a fault of the planner, never of the program."""


def require(condition: bool, message: str) -> None:
    """Raises InvalidPlan with the message unless the condition holds."""
    if not condition:
        raise InvalidPlan(message)


@dataclass(frozen=True, slots=True)
class Stage(Node):
    """One step of a program, as it is written; and, once checked, the operator of a plan that does what it says.

    `stage` numbers the stages of a program in reading order, from 0; it is -1 where nothing was numbered yet. A
    numbered one is an operator: names of models are those of the plan, what had a usual value has it, blocks are empty
    (the plan holds what was made of them), and it checks itself: one without a meaning raises InvalidPlan. Whether the
    value of an expression is in its range depends on the arguments, so that is left to the checker and the runtime.

    Of a class: `word` begins the stage; `usage` is its whole form and `first` what follows the word, for the one class
    of a word that has them. `also` is what it is called in other languages. `rows` and `needs` say what becomes of the
    number of rows, and whether it needs a context, or rows. `operator` is its name in what is kept of runs. Where there
    is a `form`, the fields that are its own stand in brackets behind that.
    """

    word: ClassVar[str] = ""
    usage: ClassVar[str] = ""
    first: ClassVar[str] = ""
    also: ClassVar[tuple[str, ...]] = ()
    rows: ClassVar[Rows] = "other"
    needs: ClassVar[typing.Literal["context", "rows"] | None] = None
    operator: ClassVar[str] = ""
    form: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        if "first" in cls.__dict__:
            STAGES[cls.word] = cls
        if "operator" not in cls.__dict__:
            cls.operator = cls.__name__

    def __post_init__(self) -> None:
        if self.stage == -1:
            return
        require(self.stage >= 0, f"{self.operator}: there is no stage {self.stage}")
        for name, part in parts(type(self)):
            value = getattr(self, name)
            empty = value == "" or (part.kind in ("made", "column") and getattr(value, "id", None) == "")
            require(not empty, f"{self.operator}: `{name}` is empty")
            if part.kind == "word" and value is not None:
                require(value in part.words, f"{self.operator}: `{name}` cannot be `{value}`")
        self._check()

    def _check(self) -> None:
        """Raises InvalidPlan where the parts of an operator do not go together."""

    stage: int = field(default=-1, kw_only=True)


def synonyms() -> Mapping[str, str]:
    """What stages are called in other languages, and what they are called here."""
    return {other: word for word, cls in STAGES.items() for other in cls.also}


def options(cls: type[Node]) -> tuple[str, ...]:
    """The keys that a stage takes, as `key=value`."""
    keys = (
        part.lead[:-1] if part.is_option else part.words
        for _, part in parts(cls)
        if part.is_option or part.kind == "part"
    )
    return tuple(key for some in keys for key in ((some,) if isinstance(some, str) else some))


def parts(cls: type[Node]) -> tuple[tuple[str, Role], ...]:
    """The fields of a class that are written, in the order of its form."""
    return _parts(cast(Any, cls))


def fields_in_order(cls: type[Node]) -> tuple[str, ...]:
    """The fields of a class in reading order: what is its own is written before what it shares with others."""
    return _fields_in_order(cast(Any, cls))


@cache
def _parts(cls: Any) -> tuple[tuple[str, Role], ...]:
    fields = cls.__dataclass_fields__
    return tuple(
        (name, fields[name].metadata["role"]) for name in fields_in_order(cls) if "role" in fields[name].metadata
    )


@cache
def _fields_in_order(cls: Any) -> tuple[str, ...]:
    first: tuple[str, ...] = getattr(cls, "written", ())
    bases = [getattr(base, "__dataclass_fields__", ()) for base in cls.__mro__]
    rest = (one.name for one in fields(cls) if one.name not in first)
    return (*first, *sorted(rest, key=lambda name: sum(name in own for own in bases)))


def usual(cls: type[Node], name: str) -> Any:
    """The value of a field that is left out."""
    return cls.__dataclass_fields__[name].default


def values(node: Any) -> Iterator[tuple[Any, Role, Any]]:
    """The expressions that stand in a node, those in its parts too, each with its role and the node that it is of."""
    for name, part in parts(type(node)):
        value = getattr(node, name)
        if part.kind == "value" and value is not None:
            for one in value if isinstance(value, tuple) else (value,):
                yield one, part, node
        elif part.kind == "part" and value is not None:
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, Node):
                    yield from values(one)
