"""What a model can be asked for, as far as that is known before it is loaded: built-in models, and declared kinds."""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.model_id import base_of
from qpdsl.grammar.source import Source, Span
from qpdsl.grammar.suggest import did_you_mean, listed
from qpdsl.zoo import BUILTIN, builtin

# The kinds of verifiers with a head of their own in the place of the language model's.
_WITHOUT_TEXT = ("skywork", "qwen", "outcome")


def unknown_builtin(id: str, span: Span) -> Diagnostic | None:
    """A fault where an id has the form of a built-in model's and there is none; `span` is the id with its quotes."""
    # An id that stands otherwise in the text, with braces, has a fault of its own.
    if not id.startswith("zoo/") or builtin(id) is not None or span.end - span.start != len(id) + 2:
        return None
    names, base = [model.name for model in BUILTIN], base_of(id)
    help, edit = did_you_mean(base, names, Span(span.start + 1, span.start + 1 + len(base)))
    notes = (f"built-in models: {', '.join(names)}",)
    message = f"there is no built-in model `{base}`"
    return Diagnostic("QP260", message, span, "not one of them", notes=notes, help=help, edit=edit)


def id_span(model: ast.Model, source: Source) -> Span:
    """Where the id of a declaration stands, with its quotes; empty where the text does not show the id."""
    start = source.text.find(f'"{model.id}"', model.name_span.end, model.span.end)
    return Span(0, 0) if start < 0 else Span(start, start + len(model.id) + 2)


def misused(ref: ast.ModelRef, id: str, kind: str | None, *, scores: bool) -> Iterator[Diagnostic]:
    """What speaks against a model that is asked for scores, or else for text. `kind` is its declared kind."""
    known = builtin(id)
    name = f"`{ref.name}`" if ref.name == id else f"`{ref.name}`, which is `{id}`,"
    if scores:
        if known is not None and known.kind is None:
            verifiers = listed((model.name for model in BUILTIN if model.kind is not None), last="and")
            message = f"{name} is no verifier: it writes text"
            asked = f'"{ref.name}"' if ref.quoted else ref.name
            help = f'score with a reward model, as {verifiers}, or ask it: `score judge({asked}, "…", 1..5)`'
            yield Diagnostic("QP262", message, ref.span, "cannot score", help=help)
        elif known is not None and kind not in (None, known.kind):
            message = f"{name} is declared as a verifier of kind {kind}, and it is of kind {known.kind}"
            yield Diagnostic("QP262", message, ref.span, "another kind", help="leave `kind` out: it is known")
    elif known is not None and known.kind is not None:
        writers = listed((model.name for model in BUILTIN if model.kind is None), last="and")
        message = f"{name} is a verifier: it scores text, and cannot write any"
        yield Diagnostic("QP261", message, ref.span, "writes no text", help=f"{writers} write text")
    elif kind in _WITHOUT_TEXT:
        message = f"{name} is declared as a verifier of kind {kind}, which has no head to write text with"
        yield Diagnostic("QP261", message, ref.span, "writes no text", help="generate with another model")
    elif kind is not None:
        message = f"{name} is declared as a verifier of kind {kind}, and writes text here"
        help = "generate with another model; if this one does both, declare it a second time without `kind`"
        yield Diagnostic("QP261", message, ref.span, "a verifier", help=help, severity="warning")
