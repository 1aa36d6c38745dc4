"""What a program may use besides its own text and its parameters: folders to read, Python functions, models.

Checking a program needs its surroundings, but nothing that runs functions: that is imported only to load Python files.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qpdsl.errors import UsageError, shorten, unknown
from qpdsl.grammar.files import Files
from qpdsl.grammar.model_id import adapter_of, thought_marks, with_adapter, with_think
from qpdsl.grammar.words import MODEL_OPTIONS, VERIFIER_KINDS

if TYPE_CHECKING:
    from qpdsl.executor.runtime.instance.functions import PythonFunction
    from qpdsl.executor.runtime.instance.tools import CallableTool, Care
    from qpdsl.grammar import ast
    from qpdsl.planner.names.modules import Environment, ToolForm, UserDraft


T = TypeVar("T")
# What finds the whole text, without the space around it.
_WHOLE = r"/\s*([\s\S]*\S)/"
# An option behind an id, as in `ID kind=KIND`.
_MODEL_OPTION = re.compile(rf"\s({'|'.join(MODEL_OPTIONS)})=")


@dataclass(frozen=True)
class Surroundings:
    """`allowed` are folders that a program may read beside its own; `python` digests the files of the functions, and
    of the modules that these import and nobody installed.

    `answer` is what finds `final_answer`, where it is not its own rules. `models` replaces the ids of models by name,
    `kinds` the kinds of those that are verifiers, and `adapters` the adapters on them; `drafts` are what the
    user wants to draft with. `read` collects the files that the programs used that were checked here.
    """

    allowed: tuple[Path, ...] = ()
    functions: Mapping[str, PythonFunction] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    kinds: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    read: set[Path] = field(default_factory=set)
    drafts: Mapping[str, UserDraft] = field(default_factory=dict)
    answer: ast.Extract | None = None

    def environment(self, folder: Path | None) -> Environment:
        """What a program is checked against. `folder` is None for a pipeline, which reads no files."""
        return self.with_files(Files(folder, self.allowed, self.read))

    def with_files(self, files: Files) -> Environment:
        """The same for a program that reads these files."""
        # This loads the parser, which `qpdsl run --help` and shell completion do without.
        from qpdsl.planner.names.modules import Environment, Inputs

        functions = self.functions
        extractors: dict[str, Any] = {
            name: function.returns for name, function in functions.items() if function.kind == "extractor"
        }
        inputs = {
            name: Inputs(
                frozenset(one.usual), {want.name: want.required for want in one.wanted}, one.first, one.parameters
            )
            for name, one in functions.items()
        }
        scorers = frozenset(name for name, function in functions.items() if function.kind == "scorer")
        return Environment(
            files,
            scorers,
            extractors,
            self.models,
            inputs,
            self.kinds,
            self.adapters,
            self.drafts,
            self.answer,
            tool_forms(functions.values()),
        )


def tool_forms(functions: Iterable[PythonFunction]) -> dict[str, ToolForm]:
    """The tools among functions, as programs see them."""
    from qpdsl.planner.names.modules import ToolForm

    return {
        one.name: ToolForm(getattr(one, "schema", {}), one.returns, getattr(one, "description", ""))
        for one in functions
        if one.kind == "tool"
    }


def read_surroundings(
    allow_read: Sequence[str] = (),
    python: Sequence[str] = (),
    models: Sequence[str] = (),
    adapters: Sequence[str] = (),
    drafts: Sequence[str] = (),
    answer: str | None = None,
    tools: Sequence[str] = (),
) -> Surroundings:
    """The surroundings that options of the command line name: folders, Python files, models, and adapters on them.

    A model is `NAME=ID`, with `kind=KIND` behind it for a verifier whose files do not tell its kind, and with
    `adapter=PLACE` and `think=MARKS`; an adapter is `NAME=PLACE`. For a draft see `user_drafts`. `answer`
    is what stands behind the `=` of an `extract`. A tool is `NAME=FILE.py:FUNCTION` or `NAME=mcp:PLACE`. Raises
    UsageError.
    """
    for folder in allow_read:
        if not Path(folder).is_dir():
            raise UsageError(f"`--allow-read`: there is no folder `{folder}`")
    functions: dict[str, PythonFunction] = {}
    before = set(sys.modules)
    state = blake2b(digest_size=16)
    for file in python:
        for function in _load(file):
            if function.name in functions:
                raise UsageError(f"`--python`: `{function.name}` is registered in two files")
            functions[function.name] = function
        state.update(Path(file).read_bytes())
    for tool in _tools(tools, state):
        if tool.name in functions:
            raise UsageError(f"`--tool`: there are two functions `{tool.name}`")
        functions[tool.name] = tool
    for module in sorted(_own_modules(before)):
        state.update(module.read_bytes())
    digest = state.hexdigest() if python or tools else ""
    ids, kinds = _replacements(models)
    folders = tuple(Path(folder).resolve() for folder in allow_read)
    read: set[Path] = set()
    asked = _drafts(drafts, read)
    found = _answer(_WHOLE if answer == "text" and answer not in functions else answer)
    return Surroundings(folders, functions, ids, digest, kinds, _adapters(adapters, ids), read, asked, found)


@dataclass(frozen=True, slots=True)
class ToolPlace:
    """Where a tool is that a command names: a function of a Python file, or else a place of an MCP server."""

    name: str
    care: Care | None
    file: str | None
    within: str

    @classmethod
    def of(cls, setting: str) -> ToolPlace:
        """Of `NAME=FILE.py:FUNCTION` or `NAME=mcp:PLACE`, behind which `pure` or `effects` may stand.

        Raises UsageError.
        """
        name, sign, place = (part.strip() for part in setting.partition("="))
        place, _, word = place.rpartition(" ") if place.endswith((" pure", " effects")) else (place, "", "")
        care: Care | None = word if word in ("pure", "effects") else None  # type: ignore[assignment]
        if not sign or not name.isidentifier() or not name.isascii() or not place:
            raise UsageError(
                f"`--tool` takes NAME=FILE.py:FUNCTION or NAME=mcp:URL#TOOL, not `{shorten(setting)}`",
                "`pure` or `effects` may stand behind it",
            )
        if place.startswith("mcp:"):
            return cls(name, care, None, place.removeprefix("mcp:"))
        file, _, function = place.rpartition(":")
        function, _, other = function.partition(" ")
        if other:
            raise UsageError(f"`--tool`: `{shorten(other)}` is unknown", "behind a tool stands `pure` or `effects`")
        if not file.endswith(".py") or not function.isidentifier():
            raise UsageError(f"`--tool`: `{shorten(place)}` is no Python function", "write FILE.py:FUNCTION")
        return cls(name, care, file, function)


def _tools(settings: Sequence[str], state: blake2b) -> Iterator[CallableTool]:
    """The tools of `--tool` settings, each added to `state`. Raises UsageError."""
    for place in [ToolPlace.of(setting) for setting in settings]:
        if place.file is None:
            from qpdsl.session.mcp_tools import mcp_tool

            tool = mcp_tool(place.name, place.within, place.care)
            state.update(f"{tool.name} {tool.source} {tool.care}".encode())
        else:
            tool = _python_tool(place.file, place)
            state.update(f"{tool.name} {tool.care}".encode() + Path(place.file).read_bytes())
        yield tool


def _python_tool(file: str, place: ToolPlace) -> CallableTool:
    from qpdsl.session.functions import load_tool

    tool = _loaded("--tool", file, lambda: load_tool(file, place.within, place.name))
    return replace(tool, care=place.care or tool.care)


def _answer(pattern: str | None) -> ast.Extract | None:
    """The `extract` that a pattern stands for. Raises UsageError."""
    if pattern is None:
        return None
    # This loads the parser, which completion does without.
    from qpdsl.grammar.ast import Extract, Regex
    from qpdsl.grammar.diagnostic import QpError
    from qpdsl.grammar.literals.regex import check
    from qpdsl.grammar.parse.parser import parse_pipeline
    from qpdsl.grammar.source import Source

    which, sign, rest = pattern.strip().partition(" ")
    which, found = (which, rest) if sign and which in ("first", "last") else ("", pattern)
    with contextlib.suppress(QpError):
        body = parse_pipeline(Source("--answer", f"extract {which} answer = {found}")).programs[0].body
        stage = body[0] if len(body) == 1 else None
        if isinstance(stage, Extract) and stage.of is None:
            fault = check(stage.pattern.pattern, 0) if isinstance(stage.pattern, Regex) else None
            if fault is not None:
                raise UsageError(f"`--answer`: {fault.message}", fault.help)
            return stage
    help = "it takes `/REGEX/`, `last /REGEX/`, `boxed`, `last_number`, `text`, `.FIELD` or the name of an extractor"
    raise UsageError(f"`--answer`: `{shorten(pattern)}` is no pattern", help)


def _drafts(drafts: Sequence[str], read: set[Path]) -> dict[str, UserDraft]:
    if not drafts:
        return {}
    # This loads the planner, which completion does without.
    from qpdsl.session.user_drafts import user_drafts

    return user_drafts(drafts, read)


def _replacements(models: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The ids of `NAME=ID` settings by name, and the kinds of those that say one. Raises UsageError.

    `kind=KIND`, `adapter=PLACE` and `think=MARKS` may stand behind the id.
    """
    ids: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for setting in models:
        name, sign, model = setting.partition("=")
        name, (id_, *options) = name.strip(), (part.strip() for part in _MODEL_OPTION.split(model))
        if not sign or not name or not id_:
            help = None if sign else f"NAME is that of the program: `--model llm={shorten(setting)}` in shipped ones"
            raise UsageError(f"`--model` takes NAME=ID or NAME=PATH, not `{shorten(setting)}`", help)
        if name in ids:
            raise UsageError(f"`--model` names two models for `{name}`")
        if len({*options[::2]}) < len(options[::2]):
            raise UsageError(f"`--model` says an option twice in `{shorten(setting)}`")
        values = dict(zip(options[::2], options[1::2], strict=True))
        if values.get("adapter") == "":
            raise UsageError(f"`--model` names no adapter in `{shorten(setting)}`")
        if (think := values.get("think")) is not None:
            try:
                thought_marks(think)
            except ValueError as error:
                raise UsageError(f"`--model`: `think` {error}, not `{shorten(think)}`") from None
        ids[name] = with_think(with_adapter(id_, values.get("adapter")), think)
        if (kind := values.get("kind")) is not None:
            if kind not in VERIFIER_KINDS:
                raise UsageError(f"`--model`: {unknown(kind, VERIFIER_KINDS, 'there is no kind of verifier')}")
            kinds[name] = kind
    return ids, kinds


def _adapters(adapters: Sequence[str], models: Mapping[str, str]) -> dict[str, str]:
    """The places of `NAME=PLACE` settings by name. Raises UsageError."""
    places: dict[str, str] = {}
    for setting in adapters:
        name, sign, place = (part.strip() for part in setting.partition("="))
        if not sign or not name or not place:
            raise UsageError(f"`--adapter` takes NAME=FOLDER or NAME=ID, not `{shorten(setting)}`")
        if name in places or adapter_of(models.get(name, "")) is not None:
            raise UsageError(f"two adapters are named for `{name}`, and a model takes one")
        places[name] = place
    return places


def _own_modules(before: Set[str]) -> set[Path]:
    """The files of the modules that came with the user's files: those imported since, the installed ones aside."""
    names = {name for name in set(sys.modules) - before if name.partition(".")[0] != "qpdsl"}
    paths = {getattr(sys.modules[name], "__file__", None) for name in names}
    files = {Path(path).resolve() for path in paths if path}
    folders = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = {Path(folder).resolve() for name, folder in sysconfig.get_paths().items() if name in folders}
    return {file for file in files if file.suffix == ".py" and file.is_file() and installed.isdisjoint(file.parents)}


def _load(file: str) -> Sequence[PythonFunction]:
    """The functions of a Python file, which leaves the current folder as it was.

    Raises UsageError, also for any exception of the file itself.
    """
    from qpdsl.session.functions import load_functions

    functions = _loaded("--python", file, lambda: load_functions(file))
    if not functions:
        raise UsageError(
            f"`--python`: `{file}` registers no function",
            "`@qpdsl.scorer`, `@qpdsl.extractor` and `@qpdsl.tool` register one",
        )
    return functions


def _loaded(option: str, file: str, load: Callable[[], T]) -> T:
    """What is loaded from a Python file, whose faults are the user's. Raises UsageError."""
    try:
        with contextlib.chdir("."):
            return load()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == os.path.abspath(file)
        ]
        place = f"{file}:{lines[-1]}" if lines else file
        raise UsageError(f"`{option}`: `{place}` failed: {message}") from error
