"""The programs and models that a server offers: read, named, planned, and checked before any model is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qpdsl.arguments import parse_settings, with_defaults
from qpdsl.errors import UsageError, shorten, unknown
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import Value
from qpdsl.planning.planning import Planning, reads_of
from qpdsl.planning.target import Target
from qpdsl.run_store.fingerprint import build, digest
from qpdsl.sources.programs import load_program
from qpdsl.sources.several_programs import distinct_names, named_programs
from qpdsl.sources.surroundings import Surroundings
from qpdsl.stage_options import check_code, check_options


@dataclass(frozen=True, slots=True)
class OfferedProgram:
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
) -> list[OfferedProgram]:
    """Every program of the files and shipped programs that `targets` name.

    A program goes by its own name, and where two have one name, by `FILE/NAME`. `settings` are `NAME=VALUE` strings
    that fix a parameter of all programs that have it, `defaults` those that a request may replace. What is said of
    models in the surroundings goes to the programs that have these models. Raises UsageError, QpError and
    ArgumentError.
    """
    found = named_programs(targets, surroundings)
    _check_settings(settings, defaults)
    models = {name for program in found for name in program.models}
    loaded: list[tuple[str, LogicalProgram, tuple[str, ...]]] = []
    params: set[str] = set()
    for one in found:
        program = one.load(surroundings, [text for text in (*settings, *defaults) if _name_of(text) in one.models])
        names = {param.name for param in program.params}
        params |= names
        fixed = _values(program, settings, names)
        usual = _values(program, defaults, names)
        for twice in fixed.keys() & usual.keys():
            raise UsageError(f"`--set` and `--default` both give `{twice}`")
        loaded.append((one.target, with_defaults(program, {**usual, **fixed}), tuple(fixed)))
    for text in (*settings, *defaults):
        if _name_of(text) not in params | models:
            option = "--set" if text in settings else "--default"
            raise UsageError(f"`{option}`: {unknown(_name_of(text), sorted(params), 'no program has the parameter')}")
    names_given = distinct_names([(target, program) for target, program, _ in loaded])
    return [OfferedProgram(name, program, fixed) for name, (_, program, fixed) in zip(names_given, loaded, strict=True)]


def check_offered(plan: PhysicalPlan, *, allow_code: bool) -> None:
    """Raises UsageError and ArgumentError for what would fail in every request."""
    check_options(plan, plan.values())
    check_code(plan, allowed=allow_code)


def _check_settings(settings: Sequence[str], defaults: Sequence[str]) -> None:
    """Raises UsageError for settings without a name."""
    for option, texts in (("--set", settings), ("--default", defaults)):
        for text in texts:
            if not _name_of(text) or "=" not in text:
                raise UsageError(f"`{option}` takes NAME=VALUE, not `{shorten(text)}`")


def _name_of(setting: str) -> str:
    return setting.partition("=")[0].strip()


def _values(program: LogicalProgram, settings: Sequence[str], names: set[str]) -> dict[str, Value]:
    own = [text for text in settings if _name_of(text) in names]
    return parse_settings(program.params, own, program.name, program.model_params)


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
