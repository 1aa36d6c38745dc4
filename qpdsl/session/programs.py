"""Programs and data that the command line names: files, what is shipped, and pipelines."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.abc import Traversable
from importlib.resources import files
from pathlib import Path

from qpdsl.errors import DataError, UsageError, reason, shorten, unknown
from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk_stages
from qpdsl.grammar.parse.parser import parse_file, parse_pipeline
from qpdsl.grammar.source import MAX_SOURCE_BYTES, Source, Span
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import WithinLevel
from qpdsl.planner.check.program import lower
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.runs.record_file import ENDINGS
from qpdsl.session.surroundings import Surroundings
from qpdsl.session.user_drafts import check_drafts

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
    stages = [stage for one in file.programs for stage in walk_stages(one.body)]
    found = any(isinstance(stage, ast.Extract) and stage.built_in == "final_answer" for stage in stages)
    if surroundings.answer is not None and not found and not file.uses:
        help = "`extract answer = final_answer` in a program is what it is for"
        raise UsageError(f"`--answer`: `{lowered.name}` extracts no `final_answer`", help)
    given = _model_settings(lowered, settings, surroundings)
    if given:
        surroundings = replace(surroundings, models={**surroundings.models, **given})
        lowered = lower(file, program, surroundings.environment(folder))
    # Those of a pipeline are the names that `--model` gives, whatever they are.
    own = {model.name for model in file.models if model.name.isidentifier()} | {*lowered.model_params}
    # A quoted id goes by itself in a program, and is no name that could stand for another model.
    used = {name for name, id in lowered.models.items() if name in own or (name != id and _is_name(name))}
    declared = used if pipeline is not None else used | own
    check_named(surroundings, sorted(declared), what)
    for key, id in lowered.models.items():
        if not id:
            name = key.partition("[")[0]
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


def shipped_data() -> dict[str, Path]:
    """The sets of rows that come with the package, by name."""
    files_of = {entry.name: Path(str(entry)) for entry in (files("qpdsl.programs") / "data").iterdir()}
    return {name.removesuffix(".jsonl"): files_of[name] for name in sorted(files_of) if name.endswith(".jsonl")}


def shipped_name(path: Path) -> str | None:
    """The name by which users know a file of shipped rows; None for other files."""
    return next((name for name, shipped in shipped_data().items() if shipped == path), None)


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
    shipped = shipped_data()
    if name in shipped:
        return shipped[name]
    beside = [str(entry) for entry in path.parent.glob("*.jsonl")]
    guess = closest(name, [*beside, *shipped])
    meant = f"; did you mean `{guess}`?" if guess else ""
    raise DataError(f"there is no input data `{shorten(name)}`{meant}", f"shipped: {listed(shipped, last='and')}")


# Where pipes are that a shell has opened for the command: those of `|` and of `<(…)`.
_OF_SHELLS = ("/dev/", "/proc/")
# So many programs of a folder are named.
_MAX_LISTED = 8
# How the names end of the models that an option names.
_MODELS = (".gguf", ".safetensors")


def read_file(path: Path) -> str:
    """The text of a program file. Raises UsageError."""
    try:
        if path.is_dir():
            _check_kind(path)
            raise UsageError(f"`{path}` is a folder, not a program file")
        if path.is_fifo() and not str(path).startswith(_OF_SHELLS):
            raise UsageError(f"`{path}` is a named pipe, not a program file", "`-` reads a program from stdin")
        if path.exists():
            _check_kind(path)
        with path.open("rb") as file:
            data = file.read(MAX_SOURCE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {reason(error)}") from error
    return decode(str(path), data)


def _check_kind(path: Path) -> None:
    """Raises UsageError for what stands in a program's place and belongs to an option."""
    if path.suffix.lower() in _MODELS or (path / "config.json").exists():
        kind, option = "a model", f"--model llm={path}"
    elif path.suffix.lower() in (".tsv", *ENDINGS):
        kind, option = "data", f"--input {path}"
    elif path.suffix == ".py":
        raise UsageError(f"`{path}` is Python, not a program", f"`python {path}` runs it")
    else:
        return
    raise UsageError(f"`{path}` is {kind}, not a program", f"the program comes first, then `{option}`")


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
    file, sign, program = target.rpartition(":")
    if sign and Path(file).is_file():
        return UsageError(
            f"`{shorten(target)}` is no program", f"`{shorten(file)} --program {shorten(program)}` names one of a file"
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
    if beside and not looks_like_path:
        own = sorted(beside)[:_MAX_LISTED]
        listing = f'the program comes first; here are {listed(own, last="and")}, as in `qpdsl run {own[0]} "…"`'
    return UsageError(f"there is no {what} `{shorten(target)}`{meant}", listing)


@dataclass(frozen=True, slots=True)
class NamedProgram:
    """A program of a file, before it is loaded: which file, which program of it, and the names of its models.

    `name` is None for the only program of a file, which need have none.
    """

    target: str
    name: str | None
    models: frozenset[str]

    def load(self, surroundings: Surroundings, settings: Iterable[str] = ()) -> LogicalProgram:
        """The program, checked, with what is said of its own models.

        `settings` are `NAME=ID` strings for parameters that are models. Raises UsageError and QpError.
        """
        return load_program(self.target, None, self.name, _limited(surroundings, self.models), settings)


def named_programs(
    targets: Iterable[str], surroundings: Surroundings, program: str | None = None
) -> list[NamedProgram]:
    """Every program of the files and shipped programs that `targets` name; of a file with several `program`, if given.

    Raises UsageError and QpError, also where the surroundings speak of a model that none of them has.
    """
    found = [
        NamedProgram(target, name, _known_models(target, name, surroundings))
        for target in dict.fromkeys(targets)
        for name in program_names(target, program)
    ]
    check_named(surroundings, sorted({name for one in found for name in one.models}), "no program has the model")
    return found


def check_named(surroundings: Surroundings, names: Collection[str], lead: str) -> None:
    """Raises UsageError, which begins so, where the surroundings speak of another model than these."""
    for option, given in (("--model", surroundings.models), ("--adapter", surroundings.adapters)):
        for name in given:
            if name not in names:
                raise UsageError(f"`{option}`: {unknown(name, names, lead)}")


def distinct_names(loaded: Sequence[tuple[str, LogicalProgram]]) -> list[str]:
    """A name for each program, of which the file is known: its own, and where two have one name `FILE/NAME`.

    Raises UsageError where that does not tell two apart.
    """
    count = Counter(program.name for _, program in loaded)
    names: list[str] = []
    for target, program in loaded:
        name = program.name if count[program.name] == 1 else f"{Path(target).stem}/{program.name}"
        if name in names:
            raise UsageError(f"two programs would be `{name}`", "files of other names keep them apart")
        names.append(name)
    return names


def program_names(target: str, wanted: str | None = None) -> Iterator[str | None]:
    """The programs of a file, or the `wanted` of several; None for a single one, which need have no name.

    Raises UsageError and QpError.
    """
    if target == "-":
        raise UsageError("this command reads its programs from files, not from standard input")
    programs = parse_file(read_target(target)).programs
    if len(programs) < 2:
        yield None
        return
    yield from (program.name for program in programs) if wanted is None else (wanted,)


def _known_models(target: str, name: str | None, surroundings: Surroundings) -> frozenset[str]:
    """The names of the models that a program has, those that its file declares among them."""
    file = parse_file(read_target(target))
    bare = replace(surroundings, models={}, kinds={}, adapters={}, drafts={}, read=set())
    program = lower(file, name, bare.environment(folder_of(target)))
    return frozenset({*program.models, *program.model_params, *(model.name for model in file.models)})


def _limited(surroundings: Surroundings, known: Iterable[str]) -> Surroundings:
    """What is said of models, as far as a program has them."""
    names = set(known)
    return replace(
        surroundings,
        models={name: id for name, id in surroundings.models.items() if name in names},
        kinds={name: kind for name, kind in surroundings.kinds.items() if name in names},
        adapters={name: place for name, place in surroundings.adapters.items() if name in names},
        drafts={name: draft for name, draft in surroundings.drafts.items() if not name or name in names},
    )
