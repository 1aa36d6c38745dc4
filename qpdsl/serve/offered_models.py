"""The programs and models that a server offers: read, named, planned, and checked before any model is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qpdsl.arguments import parse_settings, with_defaults
from qpdsl.errors import UsageError, shorten, unknown
from qpdsl.grammar.model_id import is_remote, written_out
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import Value
from qpdsl.runs.store.fingerprint import build, digest
from qpdsl.session.prepare import BoundProgram, bind_program, plan_bound
from qpdsl.session.programs import distinct_names, named_programs, permitting
from qpdsl.session.settings import Settings
from qpdsl.session.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.serve.served_model import ServedModel
    from qpdsl.session.session import Session


@dataclass(frozen=True, slots=True)
class OfferedProgram:
    """A program by the name that clients give; `fixed` are the parameters that the server sets for good."""

    name: str
    bound: BoundProgram
    fixed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """All that a server offers: plans of programs, and ids of bare models, by name. It can be pickled.

    `fixed` has the parameters of programs that requests may not set. `seed` is that of requests that name none; None
    for another one each time.
    """

    programs: Mapping[str, PhysicalPlan]
    fixed: Mapping[str, tuple[str, ...]]
    exposed: Mapping[str, str]
    seed: int | None = None

    @property
    def names(self) -> list[str]:
        """What clients give as `model`."""
        return [*self.programs, *self.exposed]

    @property
    def plans(self) -> list[PhysicalPlan]:
        """What has to be loaded for them, bare models too."""
        return [*self.programs.values(), *map(bare_plan, dict.fromkeys(self.exposed.values()))]

    @property
    def unreachable(self) -> list[str]:
        """Why a program refuses every request, for each that does."""
        from qpdsl.serve.conversation import unreachable

        left = {
            name: [param for param in plan.params if param.name not in self.fixed[name]]
            for name, plan in self.programs.items()
        }
        return [why for name, params in left.items() if (why := unreachable(name, params)) is not None]

    def models(self, session: Session) -> list[ServedModel]:
        """What answers in a session that has them loaded."""
        from qpdsl.serve.passthrough_model import PassthroughModel
        from qpdsl.serve.served_program import ServedProgram

        programs = [
            ServedProgram(name, plan, session, self.seed, self.fixed[name]) for name, plan in self.programs.items()
        ]
        bare = [
            PassthroughModel(name, session.text_model(id), session.engine, fingerprint_of(id))
            for name, id in self.exposed.items()
        ]
        return [*programs, *bare]


def offered_programs(
    settings: Settings, targets: Sequence[str], surroundings: Surroundings, defaults: Sequence[str] = ()
) -> list[OfferedProgram]:
    """Every program of the files and shipped programs that `targets` name.

    A program goes by its own name, and where two have one name, by `FILE/NAME`. What the settings assign to a parameter
    holds for all programs that have it; `defaults` are `NAME=VALUE` strings that a request may replace. What is said of
    models in the surroundings goes to the programs that have these models. Raises UsageError, QpError and
    ArgumentError.
    """
    found = named_programs(targets, surroundings)
    _check_settings(settings.assigned, defaults)
    models = {name for program in found for name in program.models}
    loaded: list[tuple[str, LogicalProgram, tuple[str, ...]]] = []
    params: set[str] = set()
    for one in found:
        assigned = (*settings.assigned, *defaults)
        program = one.load(surroundings, [text for text in assigned if _name_of(text) in one.models])
        names = {param.name for param in program.params}
        params |= names
        fixed = _values(program, settings.assigned, names)
        usual = _values(program, defaults, names)
        for twice in fixed.keys() & usual.keys():
            raise UsageError(f"`--set` and `--default` both give `{twice}`")
        program = permitting(with_defaults(program, {**usual, **fixed}), settings.within)
        loaded.append((one.target, program, tuple(fixed)))
    for text in (*settings.assigned, *defaults):
        if _name_of(text) not in params | models:
            option = "--set" if text in settings.assigned else "--default"
            raise UsageError(f"`{option}`: {unknown(_name_of(text), sorted(params), 'no program has the parameter')}")
    names_given = distinct_names([(target, program) for target, program, _ in loaded])
    return [
        OfferedProgram(name, BoundProgram(program, {}, surroundings), fixed)
        for name, (_, program, fixed) in zip(names_given, loaded, strict=True)
    ]


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


def exposed_models(settings: Sequence[str], programs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The models of `NAME`, `ID` and `NAME=ID` settings, by the names that clients give. Raises UsageError.

    A name alone is that of a model in a program; `programs` are the ids of their models by name. An id alone is called
    as its server calls it, or by the last part of its path.
    """
    known: dict[str, set[str]] = {}
    for models in programs:
        for name, id in models.items():
            known.setdefault(name, set()).add(id)
    found: dict[str, str] = {}
    for setting in settings:
        name, sign, id = (part.strip() for part in setting.partition("="))
        if is_remote(written_out(setting)):
            # What its tokenizer is has the sign too.
            name, id = written_out(setting).partition("#")[2].partition(" ")[0], setting
        elif not sign and name not in known and "/" in name:
            name, id = Path(name).name, name
        if not name or (sign and not id):
            raise UsageError(f"`--expose` takes NAME or NAME=ID, not `{shorten(setting)}`")
        if name in found:
            raise UsageError(f"`--expose` names `{name}` twice")
        if not id:
            if name not in known:
                help = f"`--expose {name}=ID` serves a folder, a Hugging Face id or a built-in model as `{name}`"
                raise UsageError(f"`--expose`: {unknown(name, sorted(known), 'no program has the model')}", help)
            if len(known[name]) > 1:
                raise UsageError(f"`--expose`: programs have several models by the name `{name}`; say {name}=ID")
            id = next(iter(known[name]))
        found[name] = written_out(id)
    return found


def bare_plan(model: str) -> PhysicalPlan:
    """A plan that writes with a model, by its id, and does nothing else: to load it by. Raises QpError."""
    settings = Settings(pipeline="chat user=q | generate model", plan_kind="naive")
    return plan_bound(bind_program(settings, Surroundings(models={"model": model})), settings).plan


def fingerprint_of(model: str) -> str:
    """Names what computes the tokens of a bare model, by its id."""
    return "fp_" + digest([build(), model])[:12]
