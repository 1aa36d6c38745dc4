"""A program as a Python object, written in Python or in `.qp` text: to be called, awaited, mapped, streamed, shown."""

from __future__ import annotations

import asyncio
import copy
import json
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from inspect import Signature
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

from qpdsl.api.binding import Binding, binding, bound, default_session
from qpdsl.api.composition import current
from qpdsl.api.other_names import Suggesting
from qpdsl.api.plain_errors import in_one_frame
from qpdsl.api.results import Result
from qpdsl.arguments import ArgumentError, bind, from_json, json_text, lacking_texts, plain_value, with_defaults
from qpdsl.errors import naming_keywords, refuse_keywords, shorten, unknown
from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.model_id import with_adapter, with_think
from qpdsl.planner.check.program import lower
from qpdsl.planner.explain.plan import explain, explain_json
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.names.parameters import lists_models
from qpdsl.planner.plan.logical import LogicalProgram, Parameter
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import Value
from qpdsl.session.prepare import BoundProgram, PlanUse, Prepared, plan_bound
from qpdsl.session.setting import Whole, values_of
from qpdsl.session.settings import SessionSettings, Settings

if TYPE_CHECKING:
    from qpdsl.api.background import ProgramCall
    from qpdsl.api.streams import InputRows, Map, Stream
    from qpdsl.session.session import Session


P = ParamSpec("P")
R = TypeVar("R")
# So many rows of a `map` run at once where no plan says how many.
_ROWS_AT_ONCE = 8
# The id of a model, and its kind of verifier.
ModelArgument = tuple[str, str | None]


class Plan(str):
    """How a program will run: text, data, and in a notebook a tree."""

    physical: PhysicalPlan

    def __new__(cls, physical: PhysicalPlan) -> Plan:
        plan = super().__new__(cls, explain(physical))
        plan.physical = physical
        return plan

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan, (self.physical,)

    def to_json(self) -> dict[str, Any]:
        return explain_json(self.physical)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from qpdsl.api.html import plan_html

        return plan_html(self.physical)


class QpWarning(UserWarning):
    """A warning of the checker about a program that is valid."""


class Program(Suggesting, Generic[P, R]):
    """A checked program. Calling it runs it; `run` gives the rows and costs too.

    In an event loop use `acall`, `arun` and `amap`; the cells of a notebook take both.
    """

    __name__: str
    __signature__: Signature

    def __init__(
        self,
        file: ast.File,
        name: str | None = None,
        environment: Environment | None = None,
        functions: Mapping[str, PythonFunction] | None = None,
        result: Callable[[Any], R] | None = None,
        *,
        composed: bool = False,
    ) -> None:
        """`functions` are those that the program may name; `result` turns its value into one of Python.

        `composed` says that the file's source is not the text of the program: it is Python, or stages alone. Raises
        QpError.
        """
        self.environment = environment or Environment()
        self.functions = dict(functions or {})
        self._result = result
        self._binding = Binding()
        self.logical: LogicalProgram = lower(file, name, self.environment)
        self.file = file
        self.__name__ = self.name
        self._composed = composed
        self._specialized: dict[tuple[tuple[str, ModelArgument], ...], Program[P, R]] = {}
        self._plans: dict[tuple[Any, ...], Prepared] = {}
        for diagnostic in self.logical.warnings:
            _warn(diagnostic, file)

    @property
    def name(self) -> str:
        return self.logical.name

    @property
    def params(self) -> tuple[Parameter, ...]:
        return self.logical.params

    @in_one_frame
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the program and returns its value. Raises RunError where it has none, and ArgumentError.

        Besides the program's parameters every run takes `seed=`, unless that is the name of a parameter.
        """
        return self.run(*args, **kwargs).value

    @in_one_frame
    def run(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Runs the program and returns its value, with the final rows and their costs. Raises ArgumentError."""
        from qpdsl.api.background import submit
        from qpdsl.api.notebook import RunsShown, not_in_a_loop

        not_in_a_loop("`await program.acall(…)`, or `arun` for the whole result")
        call = self.call(args, kwargs)
        with RunsShown(1).shown() as runs:
            runs.add(call)
            future = submit(call.alone())
            try:
                return runs.seen(runs.result(future))
            finally:
                future.cancel()

    @in_one_frame
    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same as calling the program, in an event loop."""
        return (await self.arun(*args, **kwargs)).value

    @in_one_frame
    async def arun(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """The same as `run`, in an event loop."""
        from qpdsl.api.background import submit
        from qpdsl.api.notebook import RunsShown

        call, runs = self.call(args, kwargs), RunsShown(1)
        runs.add(call)
        async with runs.beside():
            return runs.seen(await asyncio.wrap_future(submit(call.alone(), asyncio.get_running_loop())))

    @in_one_frame
    def map(
        self, rows: InputRows, *, concurrency: int | None = None, seeds: Iterable[int] | None = None, **values: Any
    ) -> Map[R]:
        """Runs the program for many rows of arguments: a Result of each as it finishes.

        A text among the rows is the value of the one text parameter that has none. `values` are those of parameters in
        all rows, but for rows with a value of their own; those that are named as a keyword here are set by rows alone.
        `concurrency` rows run at a time; by default as many as the plan says, which keeps the engine at work.
        The results are for `for` and `async for`; rows that come asynchronously need `async for`. A row's field `id`
        names it and `seed` is its seed, unless these are parameters; `seeds` are those of the rows in their order.
        Other fields are ignored, but one that is spelt nearly as a parameter raises ArgumentError, as does a row that
        cannot be run. The result of a row without a value says why.
        """
        from qpdsl.api.streams import Map

        refuse_keywords(f"{self.name}.map", values, ("rows", "concurrency", "seeds", *self._names))
        self._arguments((), values)
        texts = lacking_texts(self.logical, values)
        return Map(partial(self.call, ()), self._names, self.admission, rows, concurrency, seeds, values, texts)

    def amap(
        self, rows: InputRows, *, concurrency: int | None = None, seeds: Iterable[int] | None = None, **values: Any
    ) -> AsyncIterator[Result[R]]:
        """The same as `map`, for `async for` alone."""
        return aiter(self.map(rows, concurrency=concurrency, seeds=seeds, **values))

    @in_one_frame
    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[R]:
        """Runs the program: a TextPiece for each piece of text as it is generated, then Finished with the result.

        For `for` and `async for`.
        """
        from qpdsl.api.streams import Stream

        return Stream(self.call(args, kwargs))

    @overload
    def explain(self, form: Literal["text"] = "text", **values: Any) -> Plan: ...
    @overload
    def explain(self, form: Literal["json"], **values: Any) -> dict[str, Any]: ...
    @in_one_frame
    def explain(self, form: str = "text", **values: Any) -> Plan | dict[str, Any]:
        """How the program will run, without loading a model; `values` are those to estimate with."""
        if form not in ("text", "json"):
            raise ArgumentError(f"`form` is `text` or `json`, not `{shorten(str(form))}`")
        arguments, models = self._arguments((), values)
        program = self._with_models(models)
        settings = settings_of(self._binding.over(bound()))
        plan = Plan(_prepared(with_defaults(program._bound_logical, arguments), settings).plan)
        return plan.to_json() if form == "json" else plan

    @property
    def plan(self) -> Plan:
        """The plan as text, and in a notebook as a tree. Raises ArgumentError where a model has to be given."""
        return Plan(self._with_models({})._prepared(self._binding.over(bound())).plan)

    @property
    def admission(self) -> tuple[int, int]:
        """How many rows run at once, and the sequences at work below which another one starts.

        Where each row names its models there is no one plan that could say it.
        """
        if self._open_models():
            return _ROWS_AT_ONCE, 0
        physical = self._prepared(self._binding.over(bound())).plan
        return physical.in_flight or 1, physical.floor

    @naming_keywords
    def using(
        self,
        *,
        session: Session | None = None,
        seed: int | None = None,
        models: Mapping[str, str] | None = None,
        row_timeout: float | None = None,
        priority: int | None = None,
    ) -> Program[P, R]:
        """The program, to run in a session, with a seed, and with other models (name → id) for those it declares.

        A run, or a row of `map`, that takes more than `row_timeout` seconds fails. Runs of a lower `priority` go before
        what else the session runs. Raises ArgumentError.
        """
        for name in models or ():
            if name not in self.logical.models:
                raise ArgumentError(unknown(name, self.logical.models, f"program `{self.name}` uses no model"))
        program = copy.copy(self)
        program._binding = binding(session, seed, models, row_timeout, priority).over(self._binding)
        return program

    def bound(self) -> Binding:
        """What the program runs with here: its own settings, and for the others those of the blocks around."""
        return self._binding.over(bound())

    def lowered(self, models: Mapping[str, ModelArgument]) -> LogicalProgram:
        """The checked program with all models that it has, and with its text; `models` for parameters go before others.

        Raises QpError and ArgumentError.
        """
        logical = self._with_models(models).logical
        text = str(self) if self._composed else self.file.source.text
        own = {name: id for name, id in self.bound().models.items() if name not in models}
        return replace(logical, models={name: own.get(name, id) for name, id in logical.models.items()}, text=text)

    def call(self, args: Iterable[Any], kwargs: Mapping[str, Any], id: str = "", index: int = 0) -> ProgramCall[R]:
        """One run, which is not started. Raises ArgumentError."""
        from qpdsl.api.background import ProgramCall

        composition = current()
        if composition is not None:
            message = f"`{self.name}` cannot run while another program is composed"
            raise composition.refuse("QP504", message, help="write `rows.call(…)` for its stages")
        run_binding = self._binding.over(bound())
        given, seed = dict(kwargs), run_binding.seed or 0
        if "seed" in given and "seed" not in self._names:
            seed = given.pop("seed")
            Whole().check("seed", seed)
        values, models = self._arguments(tuple(args), given)
        prepared = self._with_models(models)._prepared(run_binding, values)
        arguments = bind(prepared.plan.params, values)
        prepared.check(arguments)
        return ProgramCall(
            run_binding.session or default_session(),
            prepared.plan,
            arguments,
            seed,
            self.functions,
            self._result,
            run_binding.row_timeout,
            id,
            index,
            run_binding.priority or 0,
        )

    def __str__(self) -> str:
        """The program as `.qp` text, laid out as `qpdsl fmt` does, with the comments that it was written with."""
        from qpdsl.grammar.format.formatter import format_source, print_file

        return print_file(self.file) if self._composed else format_source(self.file.source)

    def __repr__(self) -> str:
        types = {param.name: param.declared for param in self.params}
        models = {name: "[model]" if name in self._listed else "model" for name in self._names}
        params = ", ".join(f"{name}: {type_}" for name, type_ in (models | types).items())
        return f"<program {self.name}({params}) -> {self.logical.returns}>"

    def _repr_html_(self) -> str:
        from qpdsl.api.html import program_html

        plan = None if self._open_models() else self.plan.physical
        return program_html(repr(self)[1:-1], str(self), plan)

    @property
    def _names(self) -> tuple[str, ...]:
        """The parameters in the order of the declaration, those that are models among them."""
        syntax = self.logical.syntax
        declared = [] if syntax is None else [param.name for param in syntax.params]
        return tuple(declared) or tuple(param.name for param in self.params)

    @property
    def _listed(self) -> frozenset[str]:
        """The parameters that list models, and others that are lists."""
        syntax = self.logical.syntax
        return (
            frozenset() if syntax is None else frozenset(param.name for param in syntax.params if lists_models(param))
        )

    def _arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Value], dict[str, ModelArgument]]:
        """The arguments by name, checked: values, and models. Raises ArgumentError."""
        names, params = self._names, {param.name: param for param in self.params}
        if len(args) > len(names):
            raise ArgumentError(f"program `{self.name}` takes {len(names)} arguments, not {len(args)}")
        arguments = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                known = (*names, *(() if "seed" in names else ("seed",)))
                raise ArgumentError(unknown(name, known, f"program `{self.name}` has no parameter"))
            if name in arguments:
                raise ArgumentError(f"two values for `{name}`")
            arguments[name] = value
        models: dict[str, ModelArgument] = {}
        for name in arguments:
            if name in self._listed and name not in params:
                models |= model_arguments(name, arguments[name])
            elif name not in params:
                models[name] = model_argument(name, arguments[name])
        return {name: from_json(params[name], value) for name, value in arguments.items() if name in params}, models

    def _with_models(self, models: Mapping[str, ModelArgument]) -> Program[P, R]:
        """The program with models for its parameters, checked with them. Raises QpError and ArgumentError."""
        program, key = self, tuple(models.items())
        if models:
            if key not in self._specialized:
                known = self.environment
                environment = replace(
                    known,
                    models={**known.models, **{name: id for name, (id, _) in models.items()}},
                    kinds={**known.kinds, **{name: kind for name, (_, kind) in models.items() if kind is not None}},
                )
                program = copy.copy(self)
                program.logical = lower(self.file, self.name, environment)
                program._plans = {}
                self._specialized[key] = program
            program = self._specialized[key]
        for name in program._open_models():
            raise ArgumentError(f"no model for `{name}`, which is a parameter of `{self.name}`")
        return program

    def _open_models(self) -> list[str]:
        """The parameters that are models and have none yet."""
        known = self._binding.over(bound()).models
        return [name.partition("[")[0] for name, id in self.logical.models.items() if not id and name not in known]

    @property
    def _bound_logical(self) -> LogicalProgram:
        return replace(self.logical, models=self._models(self._binding.over(bound())))

    def _prepared(self, binding: Binding, values: Mapping[str, Value] | None = None) -> Prepared:
        """The program, planned on the models of a binding. Values of open parameters leave less to a budget."""
        models = self._models(binding)
        settings = settings_of(binding)
        widths = {width.name for way in self.logical.ways for width in way.widths if width.parameter}
        given = {name: value for name, value in (values or {}).items() if name in widths}
        key = (settings, tuple(models.items()), tuple(given.items()))
        if key not in self._plans:
            logical = replace(self.logical, models=models)
            self._plans[key] = _prepared(with_defaults(logical, given) if given else logical, settings)
        return self._plans[key]

    def _models(self, binding: Binding) -> dict[str, str]:
        return {name: binding.models.get(name, id) for name, id in self.logical.models.items()}


def model_arguments(name: str, values: Any) -> dict[str, ModelArgument]:
    """The models that an argument lists: all of them, and each by its place. Raises ArgumentError."""
    if not isinstance(values, list | tuple) or not values:
        raise ArgumentError(
            f"`{name}` takes a list of models, `qp.model(…)` or ids, not {json_text(plain_value(values))}"
        )
    models = {f"{name}[{at}]": model_argument(f"{name}[{at}]", value) for at, value in enumerate(values)}
    return {name: (json.dumps([id for id, _ in models.values()]), None), **models}


def model_argument(name: str, value: Any) -> ModelArgument:
    """The model that an argument stands for. Raises ArgumentError."""
    if isinstance(value, str) and value:
        return value, None
    id = getattr(value, "id", None)
    if not isinstance(id, str) or not hasattr(value, "adapter"):
        raise ArgumentError(f"`{name}` takes a model, `qp.model(…)` or an id, not {json_text(plain_value(value))}")
    return with_think(with_adapter(id, value.adapter), value.think), value.kind


def settings_of(binding: Binding) -> Settings:
    """What programs of a binding are planned with: the settings of its session, else those of the default session."""
    session = binding.session
    return Settings() if session is None else Settings(**values_of(session.settings, SessionSettings))


def _prepared(logical: LogicalProgram, settings: Settings) -> Prepared:
    """The plan by all rules, with what they left open chosen by cost, but for the KV type, which the session sets.

    A program under a budget gets its policy from the saved runs. Raises UsageError where it has no budget.
    """
    from qpdsl.budgets.policy_for import program_policy

    return plan_bound(
        BoundProgram(logical),
        settings,
        PlanUse(rows=True),
        lambda program, values: program_policy(program, values, settings),
    )


def _warn(diagnostic: Diagnostic, file: ast.File) -> None:
    source = diagnostic.source or file.source
    line = source.position(diagnostic.span.start)[0]
    warnings.warn_explicit(f"{diagnostic.message} [{diagnostic.code}]", QpWarning, source.name, line)
