"""Diagnostics for unknown types, schemas, models and verifiers, with the nearest known name as a suggestion."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest, did_you_mean, meant
from qpdsl.grammar.words import COLUMNS, DRAW_FIGURES
from qpdsl.zoo import builtin

_TYPE_ALIASES = {"str": "text", "string": "text", "integer": "int", "number": "float", "boolean": "bool"}


def is_alias(name: str) -> bool:
    """Whether a name is that of a type in another language."""
    return name.lower() in _TYPE_ALIASES


def unknown_type(type_: ast.TypeRef, known: Collection[str]) -> Diagnostic:
    """`known` are the types that can stand here, schemas included."""
    alias = _TYPE_ALIASES.get(type_.name.lower())
    fix = meant(alias or closest(type_.name, known), type_.span)
    notes = (f"types: {', '.join(known)}",)
    return Diagnostic("QP206", f"unknown type `{type_.name}`", type_.span, notes=notes, **fix)


def unknown_schema(name: str, span: Span, declared: Sequence[str], forms: str | None = None) -> Diagnostic:
    """`forms` are other things that can stand there, in words."""
    notes: tuple[str, ...] = (f"schemas: {', '.join(declared)}",) if declared else ("the file declares no schema",)
    notes += () if forms is None else (f"other forms: {forms}",)
    fix = did_you_mean(name, declared, span)
    fix = fix or {"help": f"declare it above the program: `schema {name} {{ … }}`"}
    return Diagnostic("QP222", f"unknown schema `{name}`", span, "not declared", notes=notes, **fix)


def unknown_model(ref: ast.ModelRef, declared: Mapping[str, str]) -> Diagnostic:
    notes = (f"models: {', '.join(declared)}",) if declared else ("the file declares no model",)
    more = did_you_mean(ref.name, declared, ref.span)
    if not declared:
        more = {"help": f'declare it above the program: `model {ref.name} = "…"`'}
    return Diagnostic("QP201", f"unknown model `{ref.name}`", ref.span, "not declared", notes=notes, **more)


def unknown_verifier(ref: ast.ModelRef, declared: Mapping[str, str], scorers: Collection[str]) -> Diagnostic:
    """A name after `score` that is no model, no registered scorer and not `logprob`."""
    notes: tuple[str, ...] = (f"models: {', '.join(declared)}",) if declared else ("the file declares no model",)
    notes += (f"Python scorers: {', '.join(sorted(scorers))}",) if scorers else ()
    notes += ('other forms: `score logprob`, `score judge(MODEL, "rubric", 1..5)`',)
    verifiers = [name for name, id in declared.items() if (known := builtin(id)) is None or known.kind is not None]
    more = did_you_mean(ref.name, [*verifiers, *sorted(scorers), "logprob", *DRAW_FIGURES], ref.span)
    if ref.name in COLUMNS:
        more = {"help": f"`{ref.name}` is a column of every row: read it, as in `best by {ref.name}`"}
    if not more:
        model = f'`model {ref.name} = "…"`'
        more = {
            "help": f"declare it, {model}, or register a Python scorer of this name (`--python FILE`, or `@qp.scorer`)"
        }
    return Diagnostic("QP201", f"unknown verifier `{ref.name}`", ref.span, "not declared", notes=notes, **more)
