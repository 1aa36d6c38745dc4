"""The programs and models that a server offers: read, named, planned, and checked before any model is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qpdsl.arguments import parse_settings, with_defaults
from qpdsl.dataset.fingerprint import build, digest
from qpdsl.errors import UsageError, shorten, unknown
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.planner.check.lower import lower
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import Value
from qpdsl.planning.planning import Planning, reads_of
from qpdsl.planning.target import Target
from qpdsl.sources.programs import folder_of, load_program, read_target
from qpdsl.sources.surroundings import Surroundings
from qpdsl.stage_options import check_code, check_options


@dataclass(frozen=True, slots=True)
class Offered:
    """A program by the name that clients give; `fixed` are the parameters that the server sets for good."""

    name: str
    program: LogicalProgram
    fixed: tuple[str, ...] = ()

    def plan(self, planning: Planning, target: Target) -> PhysicalPlan:
        """Its plan, by all rules, with the columns that an answer is made of."""
        reads = reads_of(self.program, text=True)
        return planning.optimized(self.program, reads, target, kv_types=False).plan


def offered_programs(
    targets: Sequence[str],
    surroundings: Surroundings,
    settings: Sequence[str] = (),
    defaults: Sequence[str] = (),
) -> list[Offered]:
    """Every program of the files and shipped programs that `targets` name.

    A program goes by its own name, and where two have one name, by `FILE/NAME`. `settings` are `NAME=VALUE` strings
    that fix a parameter of all programs that have it, `defaults` those that a request may replace. What is said of
    models in the surroundings goes to the programs that have these models. Raises UsageError, QpError and
    ArgumentError.
    """
    found = [
        (target, name, _known_models(target, name, surroundings))
        for target in dict.fromkeys(targets)
        for name in _program_names(target, surroundings)
    ]
    _check_names(surroundings, settings, defaults, [known for *_, known in found])
    loaded: list[tuple[str, LogicalProgram, tuple[str, ...]]] = []
    params: set[str] = set()
    for target, name, known in found:
        own = _limited(surroundings, known)
        models = [text for text in (*settings, *defaults) if _name_of(text) in known]
        program = load_program(target, None, name, own, models)
        params |= {param.name for param in program.params}
        names = {param.name for param in program.params}
        fixed = _values(program, settings, names)
        usual = _values(program, defaults, names)
        for twice in fixed.keys() & usual.keys():
            raise UsageError(f"`--set` and `--default` both give `{twice}`")
        loaded.append((target, with_defaults(program, {**usual, **fixed}), tuple(fixed)))
    models_known = {name for *_, known in found for name in known}
    for text in (*settings, *defaults):
        if _name_of(text) not in params | models_known:
            option = "--set" if text in settings else "--default"
            raise UsageError(f"`{option}`: {unknown(_name_of(text), sorted(params), 'no program has the parameter')}")
    return list(_named(loaded))


def check_offered(plan: PhysicalPlan, *, allow_code: bool) -> None:
    """Raises UsageError and ArgumentError for what would fail in every request."""
    check_options(plan, plan.values())
    check_code(plan, allowed=allow_code)


def _program_names(target: str, surroundings: Surroundings) -> Iterator[str | None]:
    """The programs of a file; None for a file with a single one, which need have no name."""
    if target == "-":
        raise UsageError("a server reads its programs from files, not from standard input")
    file = parse_file(read_target(target))
    if len(file.programs) < 2:
        yield None
        return
    for program in file.programs:
        yield program.name


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


def _check_names(
    surroundings: Surroundings, settings: Sequence[str], defaults: Sequence[str], known: Sequence[Iterable[str]]
) -> None:
    """Raises UsageError for options that name a model which no program has, and for settings without a name."""
    names = sorted({name for one in known for name in one})
    for option, given in (("--model", surroundings.models), ("--adapter", surroundings.adapters)):
        for name in given:
            if name not in names:
                raise UsageError(f"`{option}`: {unknown(name, names, 'no program has the model')}")
    for option, texts in (("--set", settings), ("--default", defaults)):
        for text in texts:
            if not _name_of(text) or "=" not in text:
                raise UsageError(f"`{option}` takes NAME=VALUE, not `{shorten(text)}`")


def _name_of(setting: str) -> str:
    return setting.partition("=")[0].strip()


def _values(program: LogicalProgram, settings: Sequence[str], names: set[str]) -> dict[str, Value]:
    own = [text for text in settings if _name_of(text) in names]
    return parse_settings(program.params, own, program.name, program.model_params)


def _named(loaded: Sequence[tuple[str, LogicalProgram, tuple[str, ...]]]) -> Iterator[Offered]:
    count = Counter(program.name for _, program, _ in loaded)
    names: set[str] = set()
    for target, program, fixed in loaded:
        name = program.name if count[program.name] == 1 else f"{Path(target).stem}/{program.name}"
        if name in names:
            raise UsageError(f"two programs would be `{name}`", "files of other names keep them apart")
        names.add(name)
        yield Offered(name, program, fixed)


def exposed_models(settings: Sequence[str], plans: Iterable[PhysicalPlan]) -> dict[str, str]:
    """The models of `NAME` and `NAME=ID` settings, by the names that clients give. Raises UsageError.

    A name alone is that of a model in a program.
    """
    known: dict[str, set[str]] = {}
    for plan in plans:
        for name, id in plan.models.items():
            known.setdefault(name, set()).add(id)
    found: dict[str, str] = {}
    for setting in settings:
        name, sign, id = (part.strip() for part in setting.partition("="))
        if not name or (sign and not id):
            raise UsageError(f"`--expose` takes NAME or NAME=ID, not `{shorten(setting)}`")
        if name in found:
            raise UsageError(f"`--expose` names `{name}` twice")
        if not id:
            if name not in known:
                help = f"`--expose {name}=ID` serves a folder, a Hugging Face id or a built-in model"
                raise UsageError(f"`--expose`: {unknown(name, sorted(known), 'no program has the model')}", help)
            if len(known[name]) > 1:
                raise UsageError(f"`--expose`: programs have several models by the name `{name}`; say {name}=ID")
            id = next(iter(known[name]))
        found[name] = id
    return found


def bare_plan(model: str) -> PhysicalPlan:
    """A plan that writes with a model, by its id, and does nothing else: to load it by. Raises QpError."""
    program = load_program(None, "chat user=q | generate model", None, Surroundings(models={"model": model}))
    return Planning("naive").optimized(program, (), Target()).plan


def fingerprint_of(model: str) -> str:
    """Names what computes the tokens of a bare model, by its id."""
    return "fp_" + digest([build(), model])[:12]
