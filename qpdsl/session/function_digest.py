"""Digests of what Python functions compute, so that results that are kept are those of the functions as they are."""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from importlib.util import resolve_name
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from qpdsl.session.functions import Registered


class _UntoldError(Exception):
    """A function depends on a value of which its source does not tell what it is."""


def functions_digest(functions: Iterable[Callable[..., Any]]) -> str | None:
    """A digest of the functions and of all that their code names; None where that cannot be told.

    Followed are other functions, plain data, and the files of the user's own modules and classes. What is installed is
    taken by its name. An object, an open file or a model among what a function names cannot be told.
    """
    described = _Described()
    try:
        for function in functions:
            described.add(function)
    except _UntoldError:
        return None
    return described.state.hexdigest()


class _Described:
    def __init__(self) -> None:
        self.state = blake2b(digest_size=16)
        self._seen: dict[int, object] = {}

    def _say(self, *words: object) -> None:
        self.state.update("\0".join(map(str, words)).encode("utf-8", "surrogatepass") + b"\n")

    def add(self, value: Any) -> None:
        """Raises _UntoldError."""
        value = value._call if isinstance(value, Registered) else value
        match value:
            case None | bool() | int() | float() | complex() | str() | bytes():
                self._say(type(value).__name__, repr(value))
                return
            case _ if value is Ellipsis:
                self._say("...")
                return
        if id(value) in self._seen:
            self._say("seen", list(self._seen).index(id(value)))
            return
        self._seen[id(value)] = value
        match value:
            case list() | tuple():
                self._say(type(value).__name__, len(value))
                for part in value:
                    self.add(part)
            case set() | frozenset():
                # Of plain values alone: others have no order.
                self._say("set", *sorted(map(_plain, value)))
            case Mapping():
                self._say("mapping", len(value))
                for name, part in value.items():
                    self.add(name)
                    self.add(part)
            case re.Pattern():
                self._say("pattern", repr(value.pattern), value.flags)
            case CodeType():
                self._code(value)
            case ModuleType():
                self._module(value)
            case FunctionType() if not _is_installed(value.__module__):
                self._function(value)
            case FunctionType() | BuiltinFunctionType():
                self._say("installed", value.__module__, value.__qualname__)
            case type():
                self._say("class", value.__module__, value.__qualname__)
                if not _is_installed(value.__module__):
                    self._module(sys.modules.get(value.__module__))
            case _:
                raise _UntoldError

    def _function(self, function: FunctionType) -> None:
        self._say("function", function.__name__)
        self.add(function.__code__)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError as error:
                raise _UntoldError from error
        for name in _names(function.__code__):
            if name in function.__globals__:
                self._say("global", name)
                self.add(function.__globals__[name])

    def _code(self, code: CodeType) -> None:
        self._say("code", sys.version, code.co_code.hex(), code.co_names, code.co_varnames, code.co_flags)
        self.add(code.co_consts)

    def _module(self, module: ModuleType | None) -> None:
        """A module: its name where it is installed, else its file and the own modules that it imports."""
        if module is None:
            raise _UntoldError
        self._say("module", module.__name__)
        if _is_installed(module.__name__):
            return
        content = _file_of(module).read_bytes()
        self._say(content.hex())
        for name in sorted({*_imported(content, module.__package__ or "")} & {*sys.modules}):
            self.add(sys.modules[name])


def _names(code: CodeType) -> list[str]:
    """What a function and those inside it may name of their globals, in a fixed order."""
    inner = [name for const in code.co_consts if isinstance(const, CodeType) for name in _names(const)]
    return sorted({*code.co_names, *inner})


def _imported(content: bytes, package: str) -> Iterator[str]:
    """The names of what a file of Python imports: those of modules, and others."""
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = resolve_name("." * node.level + (node.module or ""), package or None)
            yield from (home, *(f"{home}.{alias.name}" for alias in node.names))


def _plain(value: object) -> str:
    if value is not None and not isinstance(value, bool | int | float | str | bytes):
        raise _UntoldError
    return repr(value)


def _file_of(module: ModuleType) -> Path:
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise _UntoldError
    return Path(file)


def _is_installed(name: str | None) -> bool:
    """Whether a module is Python's, of an installed package, or of qpdsl."""
    top = (name or "").partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top == "qpdsl":
        # The user's script is called `__main__`, which is no name of the standard library.
        return True
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    if file is None:
        return False
    folders = [Path(sysconfig.get_path(which)).resolve() for which in ("purelib", "platlib", "stdlib")]
    return any(folder in Path(file).resolve().parents for folder in folders)
