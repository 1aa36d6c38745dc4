"""The signature of a Python function, read as that of a program."""

from __future__ import annotations

import ast as python
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, get_args, get_origin

from qpdsl.api.call_sites import Site
from qpdsl.api.compose.annotations import WORDS, reader, type_of
from qpdsl.api.compose.stage_call import StageCall
from qpdsl.api.compose.symbols import convert
from qpdsl.api.compose.targets import Model
from qpdsl.api.composition import Composition
from qpdsl.api.syntax_trees import NOWHERE
from qpdsl.arguments import plain_value
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.plan.options import spelt
from qpdsl.planner.values.value import frozen
from qpdsl.session.functions import evaluated, without_none


class Signature:
    """The parts of a program that a function's definition states, with their places. Reading one may raise QpError."""

    def __init__(self, function: Callable[..., Any], composition: Composition) -> None:
        self._function, self._composition = function, composition
        self._definition = composition.file.function(function.__code__)
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename != function.__code__.co_filename:
            frame = frame.f_back
        self._scope = {**function.__globals__, **frame.f_locals}

    @property
    def span(self) -> Span:
        return self._composition.file.span(self._definition)

    @property
    def name_span(self) -> Span:
        """The function's name in its definition."""
        if self._definition is None:
            return NOWHERE
        at = self._composition.file.source.text.find(self._definition.name, self.span.start + len("def "))
        return Span(at, at + len(self._definition.name))

    @property
    def itself_span(self) -> Span:
        """Where the function first names itself."""
        nodes = python.walk(self._definition) if self._definition else ()
        uses = (node for node in nodes if isinstance(node, python.Name) and node.id == self._function.__name__)
        first = next(uses, None)
        return self._composition.file.span(first) if first else self.name_span

    @property
    def return_span(self) -> Span:
        """The last `return` of the function."""
        nodes = python.walk(self._definition) if self._definition else ()
        returns = [node for node in nodes if isinstance(node, python.Return)]
        return self._composition.file.span(returns[-1]) if returns else self.name_span

    def params(self) -> tuple[ast.Param, ...]:
        function = self._function
        others = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(is_other(function) for is_other in others):
            help = "programs run side by side as they are: call them with `acall`"
            raise self._composition.refuse(
                "QP503", "a program is composed by a plain function", self.name_span, help=help
            )
        return tuple(self._param(param) for param in inspect.signature(self._function).parameters.values())

    def returns(self) -> ast.TypeExpr | None:
        """The type of the declared result. A record adds its schema to the program."""
        annotation, span = self._returned, self._annotation_span("return")
        if annotation in (inspect.Signature.empty, None, Any):
            return None
        schemas = list(self._composition.schemas)
        if annotation in (dict, Mapping, list) or get_origin(annotation) in (dict, Mapping):
            # A record or a list of anything: what the program gives says which.
            return ast.TypeRef(schemas[0], span=span) if len(schemas) == 1 and annotation is not list else None
        type_ = type_of(annotation, StageCall(self._composition, Site(self._composition.file, span, None, None)), span)
        if isinstance(type_, ast.ChoiceType):
            return ast.TypeRef("text", span=span)
        if type_ is not None and not (isinstance(type_, ast.TypeRef) and type_.name in ("model", "messages")):
            return type_
        message = f"a program cannot give {_named(annotation)}"
        raise self._composition.refuse("QP503", message, span, help=f"annotate it {WORDS}, or `dict` for a record")

    @property
    def result(self) -> Callable[[Any], Any] | None:
        """What makes the program's value one of its annotation, such as an instance of a pydantic model."""
        return reader(self._returned)

    def _param(self, param: inspect.Parameter) -> ast.Param:
        refuse = self._composition.refuse
        node = self._arguments.get(param.name)
        span = self._composition.file.span(node)
        name_span = Span(span.start, span.start + len(param.name)) if node else self.name_span
        if param.kind in (param.VAR_POSITIONAL, param.VAR_KEYWORD, param.POSITIONAL_ONLY):
            message = f"`{param.name}` is no parameter with a name of its own"
            raise refuse("QP503", message, name_span, help="a program's parameters are all named")
        self._composition.name(param.name, name_span, "a parameter")
        whole = self._evaluated(param.annotation)
        if whole is inspect.Parameter.empty and param.name in ("self", "cls"):
            message = "a method is no program: its `self` is not known before it runs"
            help = "write a function, which takes what it needs of `self` as parameters"
            raise refuse("QP503", message, name_span, help=help)
        annotation, type_span = without_none(whole), self._annotation_span(param.name)
        call = StageCall(self._composition, Site(self._composition.file, type_span, None, None))
        type_ = None if whole is inspect.Parameter.empty else type_of(annotation, call, type_span)
        if type_ is None or isinstance(type_, ast.UnionType):
            type_text = "no type" if whole is inspect.Parameter.empty else _named(whole)
            message = f"parameter `{param.name}` has {type_text}"
            raise refuse("QP503", message, name_span, help=f"annotate it {WORDS}, `qp.Messages` or `qp.Model`")
        default = None
        # One that may be None is so where nothing else is said.
        if param.default is not inspect.Parameter.empty and not (param.default is None and annotation is not whole):
            default = self._default(param, call, self._default_span(param.name, name_span))
        optional = annotation is not whole
        return ast.Param(param.name, type_, default, optional, span=span, name_span=name_span)

    def _default(self, param: inspect.Parameter, call: StageCall, span: Span) -> ast.Expr:
        default = param.default
        if any(isinstance(item, Model) for item in (default if isinstance(default, list | tuple) else [default])):
            return call.argument(param.name, default)
        value = plain_value(default)
        if isinstance(value, list | dict):
            return spelt(frozen(value), span)
        return convert(value, span)

    @property
    def optional(self) -> bool:
        """Whether the result may be None."""
        return self._returned is not self._annotated

    @cached_property
    def _annotated(self) -> Any:
        return self._evaluated(inspect.signature(self._function).return_annotation)

    @cached_property
    def _returned(self) -> Any:
        return without_none(self._annotated)

    def _evaluated(self, annotation: Any) -> Any:
        return evaluated(annotation, self._scope) if isinstance(annotation, str) else annotation

    def _annotation_span(self, name: str) -> Span:
        if name == "return":
            node = self._definition.returns if self._definition else None
        else:
            argument = self._arguments.get(name)
            node = argument.annotation if argument else None
        return self._composition.file.span(node) if node else self.name_span

    def _default_span(self, name: str, otherwise: Span) -> Span:
        if self._definition is None:
            return otherwise
        args = self._definition.args
        positional = [*args.posonlyargs, *args.args]
        pairs = [*zip(positional[len(positional) - len(args.defaults) :], args.defaults, strict=True)]
        pairs += [(arg, value) for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value]
        return next((self._composition.file.span(value) for arg, value in pairs if arg.arg == name), otherwise)

    @cached_property
    def _arguments(self) -> dict[str, python.arg]:
        if self._definition is None:
            return {}
        args = self._definition.args
        starred = [arg for arg in (args.vararg, args.kwarg) if arg]
        return {arg.arg: arg for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs, *starred]}


def _named(annotation: Any) -> str:
    return f"the type `{annotation if get_args(annotation) else getattr(annotation, '__name__', annotation)}`"
