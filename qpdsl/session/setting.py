"""How a setting is declared: as a field of a dataclass, with all that the faces need to know of it.

`setting(...)` is such a field. From it the options of the command line are made (`cli/shared_options.py`), the
keywords of `Session` and `using`, and the table of `docs/reference/cli.md`. A `Kind` says which values there are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from qpdsl.arguments import ArgumentError, json_text
from qpdsl.errors import UsageError, naming_keywords, shorten
from qpdsl.grammar.suggest import listed

# About a year, in seconds.
LONGEST_TIMEOUT = 31_536_000
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_KEY = "setting"
STDOUT = "stdout"
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Kind:
    """The values of a setting: text that is not looked at, unless a subclass says more."""

    def check(self, name: str, value: Any) -> None:
        """Raises ArgumentError unless the setting `name` takes the value, which is not None."""

    def read(self, value: Any) -> Any:
        """The setting's value for what the command line has. Raises UsageError."""
        return value


class Flag(Kind):
    """On or off."""


@dataclass(frozen=True)
class FlagOrWord(Kind):
    """On, off, or on in the way that a word names."""

    word: str

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, bool) and value != self.word:
            raise ArgumentError(f"`{name}` is true, false or `{self.word}`, not {json_text(value)}")


@dataclass(frozen=True)
class FilePath(Kind):
    """The name of a file or a folder. `dash` says why `-` is none; with STDOUT it is what is printed otherwise."""

    dash: str | None = None


@dataclass(frozen=True, init=False)
class OneOf(Kind):
    """One of some words."""

    known: tuple[str, ...]

    def __init__(self, *known: str) -> None:
        object.__setattr__(self, "known", known)

    def check(self, name: str, value: Any) -> None:
        if value not in self.known:
            raise ArgumentError(f"`{name}` is one of {listed(self.known)}, not `{shorten(str(value))}`")


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number of at least `low` and at most `high`."""

    low: int | None = None
    high: int | None = None

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or (self.low is not None and value < self.low):
            of = "" if self.low is None else f" of at least {self.low}"
            raise ArgumentError(f"`{name}` takes a whole number{of}, not {json_text(value)}")


@dataclass(frozen=True)
class Number(Kind):
    """A number from `low`, or with `above` from behind it, to `high`."""

    low: float = 0.0
    high: float = math.inf
    above: bool = False

    def check(self, name: str, value: Any) -> None:
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if number and self.low <= value <= self.high and not (self.above and value == self.low):
            return
        start = f"above {self.low:g}" if self.above else f"from {self.low:g}"
        end = "" if math.isinf(self.high) else f" to {self.high:g}"
        raise ArgumentError(f"`{name}` takes a number {start}{end}, not {json_text(value)}")


class Seconds(Kind):
    """A time, more than none."""

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= LONGEST_TIMEOUT:
            of = f"seconds, more than 0 and at most {LONGEST_TIMEOUT:,}"
            raise ArgumentError(f"`{name}` takes {of}, not {json_text(value)}")


class DeviceName(Kind):
    """A device by its name."""

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, str) or not _DEVICE.fullmatch(value):
            raise ArgumentError(f"`{shorten(str(value))}` is no device; there is `cpu`, `cuda` and `cuda:N`")


class Memory(Kind):
    """An amount of memory, in bytes or as text."""

    def check(self, name: str, value: Any) -> None:
        from qpdsl.executor.engine.memory.budget import main_memory, parse

        if not isinstance(value, str):
            Whole(1).check(name, value)
        try:
            parse(value, main_memory)
        except ValueError as error:
            raise ArgumentError(f"`{name}`: {error}") from error


class Router(Kind):
    """What decides how heads are computed and which draws try their early exits (see `Routing.named`)."""

    policies = ("lin_ucb", "thompson", "exponential")
    known = ("none", *policies, *(f"fixed:{arm}" for arm in ("dense", "rows", "union", "exit", "rerank", "full")))

    def check(self, name: str, value: Any) -> None:
        from qpdsl.executor.requests.routing import Routing

        try:
            Routing.named(value if isinstance(value, str) else json_text(value))
        except ValueError as error:
            raise ArgumentError(f"`{name}`: {error}") from error


class HeadFolders(Kind):
    """Folders by the names of models; the empty name stands for all of them."""

    def check(self, name: str, value: Any) -> None:
        given = value.items() if isinstance(value, Mapping) else [(None, value)]
        for model, folder in given:
            if not isinstance(model, str) or not isinstance(folder, str | Path) or not str(folder):
                form = '{"llm": "folder"}, or {"": "folder"} for all models'
                raise ArgumentError(f"`{name}` takes folders by the names of models, as {form}, not {value!r:.60}")

    def read(self, value: Any) -> dict[str, str]:
        """The folders of `NAME=FOLDER` strings."""
        heads: dict[str, str] = {}
        for text in value:
            before, sign, after = text.partition("=")
            named = bool(sign) and before.strip().isidentifier()
            name, folder = (before.strip(), after.strip()) if named else ("", text.strip())
            if not folder:
                raise UsageError(f"`--exit-head` takes FOLDER or NAME=FOLDER, not `{shorten(text)}`")
            if name in heads:
                raise UsageError(f"`--exit-head` names two folders for {f'`{name}`' if name else 'all models'}")
            heads[name] = folder
        return heads


class Shares(Kind):
    """Parts of a whole by the names of models, each above 0 and at most 1."""

    def check(self, name: str, value: Any) -> None:
        given = value.items() if isinstance(value, Mapping) else [(None, value)]
        for model, share in given:
            if not isinstance(model, str):
                form = '{"llm": 0.75, "prm": 0.25}'
                raise ArgumentError(f"`{name}` takes parts by the names of models, as {form}, not {value!r:.60}")
            Number(0, 1, above=True).check(name, share)

    def read(self, value: Any) -> dict[str, float]:
        """The parts of `NAME=SHARE` strings, where a share is `75%` or `0.75`."""
        shares: dict[str, float] = {}
        for text in value:
            name, sign, share = (part.strip() for part in text.partition("="))
            digits = share.removesuffix("%")
            try:
                part = float(digits) / (1 if digits == share else 100)
            except ValueError:
                part = math.nan
            if not (sign and name and 0 < part <= 1):
                raise UsageError(f"`--kv-share` takes NAME=SHARE, such as `llm=75%`, not `{shorten(text)}`")
            if name in shares:
                raise UsageError(f"`--kv-share` has two parts for `{name}`")
            shares[name] = part
        return shares


TEXT = Kind()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known of a setting besides its name, type and default.

    `on` names the commands that take it, in words, and `option` how they spell it; a setting of Python has no command.
    `shown` is its default in words, where that is not a value. `needs` is another setting without which it means
    nothing, and `why` says so. `about` is "here" for what concerns models of this process and "servers" for others,
    `alone` says why it does not go with `--cluster`. Where tokens may depend on it, it is the part `fingerprint` of a
    run's fingerprint. `grants` says that it lets a command run code, read files besides its own or write some.
    `complete` names what proposes values to a shell, `envvar` an environment variable that sets it. What is `usual`
    the short help shows too, and `short` is its option in a letter. `qpdsl.toml` may say what is of a `project`: how
    something is computed, which lets no command run code, read a file, write one or send anything.
    """

    heading: str
    help: str
    kind: Kind = TEXT
    on: str = ""
    option: str = ""
    metavar: str | None = None
    shown: str | None = None
    multiple: bool = False
    needs: str | None = None
    why: str = ""
    about: str = ""
    alone: str = ""
    fingerprint: str | None = None
    grants: bool = False
    complete: str | None = None
    envvar: str | None = None
    usual: bool = False
    short: str | None = None
    project: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raises ArgumentError unless the setting takes the value; it may be None where nobody set it."""
        for one in value if isinstance(value, tuple) else (value,):
            if one is not None:
                self.kind.check(name, one)


def setting(default: Any = None, **known: Any) -> Any:
    """A field of a dataclass of settings; `known`: see `Setting`.

    A setting that is a truth value is a flag, and one that has a tuple or a mapping may be given several times.
    """
    usual: Any = {"default_factory": dict} if isinstance(default, dict) else {"default": default}
    told: dict[str, Any] = {
        "multiple": isinstance(default, tuple | dict),
        "kind": Flag() if isinstance(default, bool) else TEXT,
    }
    return field(**usual, metadata={_KEY: Setting(**(told | known))}, hash=not isinstance(default, dict))


def declared(settings: Any) -> Iterator[tuple[str, Setting, Any]]:
    """The settings of a dataclass, or of an instance: the name, what is known of it, and the default."""
    for one in fields(settings):
        if _KEY in one.metadata:
            yield one.name, one.metadata[_KEY], _default(one)


def option_of(name: str, known: Setting) -> str:
    """How the command line spells a setting."""
    return known.option or f"--{name.replace('_', '-')}"


def values_of(settings: Any, of: type) -> dict[str, Any]:
    """The values of the settings that a class declares, by name."""
    return {name: getattr(settings, name) for name, _, _ in declared(of)}


def given(settings: Any) -> Iterator[tuple[str, Setting]]:
    """The settings that are not at their defaults."""
    for name, known, default in declared(settings):
        if getattr(settings, name) != default:
            yield name, known


def check_values(settings: Any) -> None:
    """Gives what is None its default, and raises ArgumentError for a value that a setting does not take."""
    for name, known, default in declared(settings):
        if getattr(settings, name) is None and default is not None:
            object.__setattr__(settings, name, default)
        known.check(name, getattr(settings, name))


def keywords_of(settings: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """A function that takes as keywords what a class of settings takes, for help, editors and type checkers too.

    Its TypeError for another keyword names the nearest one.
    """

    def decorated(function: Callable[..., R]) -> Callable[P, R]:
        return cast("Callable[P, R]", _naming(function, settings, own=0))

    return decorated


def method_keywords_of(
    settings: Callable[P, Any],
) -> Callable[[Callable[Concatenate[S, ...], R]], Callable[Concatenate[S, P], R]]:
    """The same for a method."""

    def decorated(function: Callable[Concatenate[S, ...], R]) -> Callable[Concatenate[S, P], R]:
        return cast("Callable[Concatenate[S, P], R]", _naming(function, settings, own=1))

    return decorated


def _naming(function: Callable[..., Any], settings: Callable[..., Any], own: int) -> Any:
    known = list(signature(settings).parameters.values())
    itself = [Parameter("self", Parameter.POSITIONAL_ONLY)] * own
    checked = naming_keywords(function, [parameter.name for parameter in known])
    checked.__signature__ = Signature([*itself, *known])  # type: ignore[attr-defined]
    return checked


def _default(one: Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not MISSING else one.default
