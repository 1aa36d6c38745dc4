"""Several programs for one command: all that its files hold, each with what is said of its own models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qpdsl.errors import UsageError, unknown
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.planner.check.lower import lower
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.sources.programs import folder_of, load_program, read_target
from qpdsl.sources.surroundings import Surroundings


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
    names = sorted({name for one in found for name in one.models})
    for option, given in (("--model", surroundings.models), ("--adapter", surroundings.adapters)):
        for name in given:
            if name not in names:
                raise UsageError(f"`{option}`: {unknown(name, names, 'no program has the model')}")
    return found


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
