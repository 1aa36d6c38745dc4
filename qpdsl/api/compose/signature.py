"""The signature of a Python function, read as that of a program."""

from __future__ import annotations

import ast as python
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal, get_args, get_origin

from qpdsl.api.call_sites import Site
from qpdsl.api.compose.stage_call import StageCall, is_pydantic
from qpdsl.api.compose.symbols import convert
from qpdsl.api.composition import Composition
from qpdsl.api.syntax_trees import NOWHERE
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.sources.functions import evaluated, without_none

_TYPES = {str: "text", int: "int", float: "float", bool: "bool"}


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

    def returns(self) -> ast.TypeRef | None:
        """The type of the declared result. A pydantic model adds its schema to the program."""
        annotation, span = self._returned, self._annotation_span("return")
        if annotation in (inspect.Signature.empty, None, Any):
            return None
        if annotation in _TYPES:
            return ast.TypeRef(_TYPES[annotation], span=span)
        if get_origin(annotation) is Literal and all(isinstance(option, str) for option in get_args(annotation)):
            return ast.TypeRef("text", span=span)
        if is_pydantic(annotation):
            call = StageCall(self._composition, Site(self._composition.file, span, None, None))
            target = call.target(annotation)
            assert isinstance(target, ast.SchemaTarget)
            return ast.TypeRef(target.name, span=span)
        schemas = list(self._composition.schemas)
        if annotation in (dict, Mapping) or get_origin(annotation) in (dict, Mapping):
            if len(schemas) == 1:
                return ast.TypeRef(schemas[0], span=span)
            message = f"a program that gives a `dict` has one schema, this one has {len(schemas)}"
            raise self._composition.refuse("QP503", message, span)
        message = f"a program cannot give {_named(annotation)}"
        help = "annotate it `str`, `int`, `float`, `bool`, a pydantic model, or `dict` for a schema"
        raise self._composition.refuse("QP503", message, span, help=help)

    @property
    def result(self) -> Callable[[Any], Any] | None:
        """What makes the program's value an instance of its pydantic model."""
        annotation: Any = self._returned
        return annotation.model_validate if is_pydantic(annotation) else None

    def _param(self, param: inspect.Parameter) -> ast.Param:
        refuse = self._composition.refuse
        node = self._arguments.get(param.name)
        span = self._composition.file.span(node)
        name_span = Span(span.start, span.start + len(param.name)) if node else self.name_span
        if param.kind in (param.VAR_POSITIONAL, param.VAR_KEYWORD, param.POSITIONAL_ONLY):
            message = f"`{param.name}` is no parameter with a name of its own"
            raise refuse("QP503", message, name_span, help="a program's parameters are all named")
        self._composition.name(param.name, name_span, "a parameter")
        annotation = self._evaluated(param.annotation)
        if annotation not in _TYPES:
            type_text = "no type" if annotation is inspect.Parameter.empty else _named(annotation)
            message = f"parameter `{param.name}` has {type_text}"
            raise refuse("QP503", message, name_span, help="annotate it `str`, `int`, `float` or `bool`")
        type_ = ast.TypeRef(_TYPES[annotation], span=self._annotation_span(param.name))
        default = None
        if param.default is not inspect.Parameter.empty:
            default = convert(param.default, self._default_span(param.name, name_span))
        return ast.Param(param.name, type_, default, span=span, name_span=name_span)

    @cached_property
    def _returned(self) -> Any:
        return without_none(self._evaluated(inspect.signature(self._function).return_annotation))

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
