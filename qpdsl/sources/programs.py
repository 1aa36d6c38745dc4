"""Programs and data that the command line names: files, what is shipped, and pipelines."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from dataclasses import replace
from importlib.abc import Traversable
from importlib.resources import files
from pathlib import Path

from qpdsl.errors import DataError, UsageError, reason, shorten, unknown
from qpdsl.grammar import ast
from qpdsl.grammar.parse.parser import parse_file, parse_pipeline
from qpdsl.grammar.source import MAX_SOURCE_BYTES, Source, Span
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import WithinLevel
from qpdsl.planner.check.lower import lower
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.sources.surroundings import Surroundings
from qpdsl.sources.user_drafts import check_drafts

_NOTHING = Surroundings()


def load_program(
    target: str | None,
    pipeline: str | None,
    program: str | None,
    surroundings: Surroundings = _NOTHING,
    settings: Iterable[str] = (),
) -> LogicalProgram:
    """The program that the command line names, checked, with its warnings. Raises UsageError and QpError.

    `settings` are `NAME=VALUE` strings: those for parameters that are models say which models the program runs with,
    as `--model` does. Every such parameter has a model then.
    """
    if (target is None) == (pipeline is None):
        raise UsageError(
            "give a program: a FILE, the NAME of a shipped one, or `-e` and a pipeline, and one of them only"
        )
    if pipeline is not None:
        file = parse_pipeline(Source("-e", pipeline), surroundings.models)
        lowered, folder = lower(file, program, surroundings.environment(None)), None
        what = "the pipeline uses no model"
    else:
        assert target is not None
        file = parse_file(read_target(target))
        folder = folder_of(target)
        lowered = lower(file, program, surroundings.environment(folder))
        what = f"`{file.source.name}` declares no model"
    given = _model_settings(lowered, settings, surroundings)
    if given:
        surroundings = replace(surroundings, models={**surroundings.models, **given})
        lowered = lower(file, program, surroundings.environment(folder))
    # Those of a pipeline are the names that `--model` gives, whatever they are.
    own = {model.name for model in file.models if model.name.isidentifier()} | {*lowered.model_params}
    # A quoted id goes by itself in a program, and is no name that could stand for another model.
    used = {name for name, id in lowered.models.items() if name in own or (name != id and _is_name(name))}
    declared = used if pipeline is not None else used | own
    for option, names in (("--model", surroundings.models), ("--adapter", surroundings.adapters)):
        for name in names:
            if name not in declared:
                raise UsageError(f"`{option}`: {unknown(name, sorted(declared), what)}")
    for name in lowered.model_params:
        if not lowered.models.get(name, name):
            help = f"`--model {name}=ID` gives one: a folder, a Hugging Face id or a built-in model"
            raise UsageError(f"no model for `{name}`, which is a parameter of `{lowered.name}`", help)
    check_drafts(lowered, tuple(surroundings.drafts))
    warnings = (replace(warning, source=warning.source or file.source) for warning in lowered.warnings)
    return replace(lowered, warnings=tuple(warnings), text=file.source.text)


def permitting(program: LogicalProgram, level: WithinLevel | None) -> LogicalProgram:
    """The program under `within LEVEL`, as the command line says. Raises UsageError where it says another itself."""
    if level is None:
        return program
    if program.within is not None and program.within.level != level:
        message = f"`--within {level}`: `{program.name}` says `within {program.within.level}` itself"
        raise UsageError(message, "the option is for programs that say nothing")
    return replace(program, within=ast.Within(level, span=Span(0, 0)))


def _is_name(name: str) -> bool:
    """Whether a model is named so in a program, perhaps by the name of another file."""
    return all(part.isidentifier() for part in name.split("."))


def _model_settings(program: LogicalProgram, settings: Iterable[str], surroundings: Surroundings) -> dict[str, str]:
    """The models that `NAME=ID` strings give for parameters. Raises UsageError where one is given twice."""
    given: dict[str, str] = {}
    for setting in settings:
        name, _, id = (part.strip() for part in setting.partition("="))
        if name not in program.model_params:
            continue
        if name in given or name in surroundings.models:
            raise UsageError(f"the model `{name}` is given twice")
        if not id:
            raise UsageError(f"`--set {name}=` takes the id of a model")
        given[name] = id
    return given


def read_target(target: str) -> Source:
    """The text of the program that a command line names: `-` means standard input. Raises UsageError."""
    if target != "-":
        return find_source(target)
    check_stdin()
    name = "standard input"
    # Not `sys.stdin`, which decodes by the locale.
    with open(0, "rb", closefd=False) as file:
        return Source(name, decode(name, file.read(MAX_SOURCE_BYTES + 1)))


def check_stdin() -> None:
    """Raises UsageError where standard input is closed. Its number may be that of another file then."""
    if sys.stdin is None:
        raise UsageError("standard input is closed", "`-` reads from it")


def folder_of(target: str) -> Path | None:
    """The folder of the program that `read_target` reads, which the program may read; None for standard input."""
    path = program_path(target)
    return None if path is None else path.parent


def program_path(target: str) -> Path | None:
    """The file of the program that `read_target` reads; None for standard input."""
    path, shipped = Path(target), shipped_sources()
    if target == "-":
        return None
    return Path(str(shipped[target])) if target in shipped and not path.is_file() else path


def find_source(target: str) -> Source:
    """The text of a program file, or of a shipped program. Raises UsageError."""
    path = Path(target)
    shipped = shipped_sources()
    if target in shipped and not path.is_file():
        return Source(f"{target}.qp", shipped[target].read_text("utf-8"))
    if not os.path.lexists(target):
        raise _not_found(target, path, shipped)
    return Source(target, read_file(path))


def shipped_programs() -> dict[str, Traversable]:
    """The programs that come with the package, by name."""
    programs = {entry.name: entry for entry in files("qpdsl.programs").iterdir() if entry.name.endswith(".qp")}
    return {name.removesuffix(".qp"): programs[name] for name in sorted(programs)}


def shipped_idioms() -> dict[str, Traversable]:
    """The idioms that come with the package, by name: `idioms/` and that of the program."""
    folders = (entry for entry in (files("qpdsl.programs") / "idioms").iterdir() if entry.is_dir())
    idioms = {entry.name: entry for folder in folders for entry in folder.iterdir() if entry.name.endswith(".qp")}
    return {f"idioms/{name.removesuffix('.qp')}": idioms[name] for name in sorted(idioms)}


def shipped_sources() -> dict[str, Traversable]:
    """All programs that come with the package, by what `qpdsl run` calls them."""
    return {**shipped_programs(), **shipped_idioms()}


def shipped_data() -> list[str]:
    """The names of the sets of rows that come with the package."""
    entries = (files("qpdsl.programs") / "data").iterdir()
    return sorted(entry.name.removesuffix(".jsonl") for entry in entries if entry.name.endswith(".jsonl"))


def shipped_name(path: Path) -> str | None:
    """The name by which users know a file of shipped rows; None for other files."""
    return next((name for name, shipped in _shipped_paths().items() if shipped == path), None)


def _shipped_paths() -> dict[str, Path]:
    return {name: Path(str(files("qpdsl.programs") / "data" / f"{name}.jsonl")) for name in shipped_data()}


def input_path(name: str) -> Path | None:
    """The file of input data that a name means: a path, or a shipped set of problems where there is no such file.

    None for `-`, which means standard input. Raises DataError where there is neither.
    """
    if name == "-":
        check_stdin()
        return None
    path = Path(name)
    if os.path.lexists(path):
        return path
    shipped = _shipped_paths()
    if name in shipped:
        return shipped[name]
    beside = [str(entry) for entry in path.parent.glob("*.jsonl")]
    guess = closest(name, [*beside, *shipped])
    meant = f"; did you mean `{guess}`?" if guess else ""
    raise DataError(f"there is no input data `{shorten(name)}`{meant}", f"shipped: {listed(shipped, last='and')}")


def read_file(path: Path) -> str:
    """The text of a program file. Raises UsageError."""
    try:
        if path.is_dir():
            raise UsageError(f"`{path}` is a folder, not a program file")
        with path.open("rb") as file:
            data = file.read(MAX_SOURCE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {reason(error)}") from error
    return decode(str(path), data)


def decode(name: str, data: bytes) -> str:
    """The text of a program from the bytes of what is called `name`. Raises UsageError."""
    if len(data) > MAX_SOURCE_BYTES:
        raise UsageError(f"`{name}` is larger than a program may be ({MAX_SOURCE_BYTES:,} bytes)")
    if not data.strip():
        raise UsageError(f"`{name}` is empty, it holds no program")
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"`{name}` is not a program file: byte {error.start + 1} is not UTF-8 text") from error
    if "\0" in text:
        raise UsageError(f"`{name}` is a binary file, not a program file")
    return text


def _not_found(target: str, path: Path, shipped: Collection[str]) -> UsageError:
    name, sign, _ = target.partition("=")
    if sign and name.isidentifier():
        return UsageError(
            f"`{shorten(target)}` is no program", f"give the program first, and its parameters by `--set {name}=…`"
        )
    looks_like_path = path.suffix == ".qp" or path.name != target
    beside: list[str] = []
    if path.parent.is_dir():
        beside = [str(path.parent / entry.name) for entry in path.parent.glob("*.qp")]
    idiom = f"idioms/{path.stem}" if f"idioms/{path.stem}" in shipped else None
    guess = closest(target, [*beside, *shipped]) or idiom or closest(path.stem, shipped)
    what = "file" if looks_like_path else "file or shipped program"
    meant = f"; did you mean `{guess}`?" if guess else ""
    names = [name for name in shipped if "/" not in name]
    listing = f"shipped programs: {listed(names, last='and')}; `qpdsl programs` lists the idioms too"
    return UsageError(f"there is no {what} `{shorten(target)}`{meant}", listing)
