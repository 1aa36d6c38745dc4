"""The call of a stage that a program is written with: its arguments, turned into the parts of the stage's syntax."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qpdsl.api.call_sites import Site
from qpdsl.api.compose import schemas, targets
from qpdsl.api.compose.symbols import Symbol, convert
from qpdsl.api.composition import Composition, needed, shown
from qpdsl.grammar import ast
from qpdsl.grammar.model_id import adapter_of, with_adapter
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import CONFIDENCES, DRAFT_OPTIONS, MOST_DRAFTED, RESERVED, VERIFIER_KINDS
from qpdsl.sources.functions import Extractor

if TYPE_CHECKING:
    from qpdsl.executor.runtime.instance.functions import PythonFunction

_STEP = r"\.[A-Za-z_][A-Za-z0-9_]*|\[[0-9]+\]"
_PATH = re.compile(rf"\.(?:[A-Za-z_][A-Za-z0-9_]*|\[[0-9]+\])(?:{_STEP})*")


@dataclass(frozen=True)
class StageCall:
    """One call, and where it is written. `name` is always the keyword of an argument, `at` its position.

    Every method raises QpError where an argument cannot be what it is used as.
    """

    composition: Composition
    site: Site

    @property
    def span(self) -> Span:
        return self.site.span

    def place(self, name: str, at: int | None = None) -> Span:
        return self.site.argument(name, at)

    def expr(self, name: str, value: object, at: int | None = None) -> ast.Expr:
        return convert(value, self.place(name, at))

    def maybe(self, name: str, value: object) -> ast.Expr | None:
        return None if value is None else self.expr(name, value)

    def template(self, name: str, value: object, at: int | None = None) -> ast.Template:
        span = self.place(name, at)
        expr = convert(value, span)
        if isinstance(expr, ast.Name):
            return ast.Template((expr,), span=span)
        if not isinstance(expr, ast.Template):
            raise self.refuse(f"`{name}` takes a text, not {shown(value)}", span)
        return expr

    def new_column(self, name: str, value: object, at: int | None = None) -> ast.Name:
        """The name of a column that the stage makes."""
        span = self.place(name, at)
        text = value.node.id if isinstance(value, Symbol) and isinstance(value.node, ast.Name) else value
        column = self.composition.name(text, span, "a column's name")
        return ast.Name(column, span=self.site.inside(span, column) or span)

    def column(self, name: str, value: object, at: int | None = None) -> ast.Name:
        """A column that the stage reads: by its name, or as a stage or `qp.col` gave it."""
        if isinstance(value, Symbol):
            expr = self.expr(name, value, at)
            if isinstance(expr, ast.Name):
                return expr
            raise self.refuse(f"`{name}` takes a column, not an expression", expr.span)
        return self.new_column(name, value, at)

    def model(self, name: str, value: object, at: int | None = None) -> ast.ModelRef:
        span = self.place(name, at)
        if isinstance(value, str):
            return ast.ModelRef(self.model_id(value, span), True, span=span)
        if not isinstance(value, targets.Model):
            raise self.refuse(f"`{name}` takes a model (`qp.model(…)`) or a model id, not {shown(value)}", span)
        id_ = self.model_id(value.id, span)
        adapter = None if value.adapter is None else self.composition.plain(value.adapter, span, "an adapter")
        if adapter == "":
            raise self.composition.refuse("QP304", "an adapter cannot be empty", span)
        if adapter is not None and adapter_of(id_) is not None:
            raise self.composition.refuse("QP117", f"`adapter` is given twice: `{id_}` has one", span)
        whole = with_adapter(id_, adapter)
        declared = value.name or self._variable(value)
        if declared is None:
            return ast.ModelRef(whole, True, span=span)
        self.composition.name(declared, span, "a model's name")
        kind = None if value.kind is None else self.word(name, value.kind, VERIFIER_KINDS, "QP127")
        model = ast.Model(declared, id_, kind, adapter, span=span, name_span=span)
        known = self.composition.models.setdefault(declared, model)
        other = with_adapter(known.id, known.adapter)
        if other != whole and value.name is None:
            return ast.ModelRef(whole, True, span=span)
        if other != whole:
            message = f"two models are called `{declared}`: `{other}` and `{whole}`"
            raise self.composition.refuse("QP208", message, span, help='tell them apart with `qp.model("…", name="…")`')
        return ast.ModelRef(declared, False, span=span)

    def model_id(self, value: str, span: Span) -> str:
        id_ = self.composition.plain(value, span, "a model id")
        if not id_:
            raise self.composition.refuse("QP304", "a model id cannot be empty", span)
        return id_

    def word(self, name: str, value: object, words: tuple[str, ...], code: str) -> Any:
        if value in words:
            return value
        near = closest(value, words) if isinstance(value, str) else None
        help = f"did you mean `{near}`?" if near else None
        message = f"`{name}` is one of {listed(words)}, not {shown(value)}"
        raise self.composition.refuse(code, message, self.place(name), help=help)

    def target(self, value: Any) -> ast.Target | None:
        """The format that `as_` requires of an output."""
        span = self.place("as_")
        match value:
            case None:
                return None
            case targets.Regex(pattern=pattern):
                return self.composition.regex(pattern, self.site, span)
            case targets.Choice(options=options):
                texts = tuple(self.composition.plain(option, span, "a choice") for option in options)
                return ast.ChoiceTarget(texts, span=span)
            case targets.Grammar(text=text, path=path):
                return ast.GrammarTarget(path or self.composition.file_of("grammar", "lark", text or ""), span=span)
            case targets.Schema(name=name):
                self.schema(name, value.data, value.path, span, closed=False)
                return ast.SchemaTarget(name, span=span)
            case Mapping():
                title = value.get("title")
                name = title if isinstance(title, str) and title.isidentifier() and title not in RESERVED else "Answer"
                self.schema(name, value, None, span, closed=False)
                return ast.SchemaTarget(name, span=span)
        if is_pydantic(value):
            # A generic model is called `Box[int]`.
            name = re.sub(r"\W+", "_", value.__name__).strip("_")
            try:
                document = value.model_json_schema()
            except ValueError as error:
                raise self.refuse(f"`{name}` has no JSON schema: {str(error).splitlines()[0]}", span) from error
            self.schema(name, document, None, span, closed=True)
            return ast.SchemaTarget(name, span=span)
        what = "a pydantic model, a JSON schema, `qp.choice`, `qp.regex` or `qp.lark`"
        raise self.refuse(f"`as_` takes {what}, not {shown(value)}", span)

    def via(self, value: Any) -> ast.Via | None:
        span = self.place("via")

        def optional(number: object) -> ast.Expr | None:
            return None if number is None else convert(number, span)

        match value:
            case None:
                return None
            case targets.Filter(threshold=threshold, by=by, share=share):
                if (threshold is None) == (share is None):
                    raise self.refuse("`qp.filter` takes a threshold or `share=`, one of them", span)
                if by not in CONFIDENCES:
                    raise self.refuse(f"`by` of `qp.filter` is one of {listed(CONFIDENCES)}, not {shown(by)}", span)
                return ast.Filter(self.model("via", value.model), optional(threshold), by, optional(share), span=span)
            case targets.Amortized(margin=margin, certify=certify):
                if margin is None and certify is None:
                    raise self.refuse("`qp.amortized` takes a margin, or `certify=` in its place", span)
                head = None if value.head is None else self.composition.plain(value.head, span, "a path")
                layer, rerank = optional(value.layer), optional(value.rerank)
                return ast.Amortized(optional(margin), layer, rerank, head, optional(certify), span=span)
        raise self.refuse(f"`via` takes `qp.filter(…)` or `qp.amortized(…)`, not {shown(value)}", span)

    def draft(self, value: Any) -> ast.Draft | None:
        """What proposes tokens: a model or a way to draft; False for nothing."""
        span = self.place("draft")
        if value is None:
            return None
        if value is False:
            return ast.Draft("none", span=span)
        if not isinstance(value, targets.Draft):
            return ast.Draft("model", self.model("draft", value), span=span)
        for option in DRAFT_OPTIONS:
            number = getattr(value, option)
            if number is not None and (type(number) is not int or not 1 <= number <= MOST_DRAFTED):
                bounds = f"a whole number of 1 to {MOST_DRAFTED}"
                raise self.refuse(f"`{option}` of a draft is {bounds}, not {shown(number)}", span)
        model = None if value.model is None else self.model("draft", value.model)
        place = None if value.place is None else self.composition.plain(value.place, span, "a path")
        return ast.Draft(value.method, model, place, value.tokens, value.branches, span=span)

    def pattern(self, name: str, value: object, at: int) -> ast.Regex | ast.JsonPath | ast.Name:
        """What `extract` reads a column by: a regex, a JSON path or an extractor."""
        span = self.place(name, at)
        match value:
            case Extractor():
                return ast.Name(self.function(value.function, span), span=span)
            case targets.Regex(pattern=text):
                return self.composition.regex(text, self.site, span)
            case str() if _PATH.fullmatch(value):
                steps = value.replace("[", ".[").split(".")
                return ast.JsonPath(tuple(int(s[1:-1]) if s[0] == "[" else s for s in steps if s), span=span)
            case str():
                return self.composition.regex(value, self.site, span)
        raise self.refuse(f"`extract` takes a regex, a JSON path or an extractor, not {shown(value)}", span)

    def function(self, value: PythonFunction, span: Span) -> str:
        """The name of a registered function, which joins the functions of the program."""
        known = self.composition.functions.setdefault(value.name, value)
        if known is not value:
            message = f"two functions are called `{value.name}`"
            raise self.composition.refuse("QP208", message, span, help="give one another name: `name=…`")
        return value.name

    def refuse(self, message: str, span: Span) -> Exception:
        return self.composition.refuse("QP502", message, span)

    def schema(self, name: str, data: Mapping[str, Any] | None, path: str | None, span: Span, *, closed: bool) -> None:
        """Adds a schema to the program's: `data` or the file at `path`. `closed`: see `schemas.declarations`."""
        self.composition.name(name, span, "a schema's name")
        declared: tuple[ast.Schema, ...] = ()
        if data is not None:
            declared = schemas.declarations(name, data, span, closed=closed)
            path = None if declared else self.composition.file_of("schema", "json", schemas.text(data, closed=closed))
        for schema in declared or (ast.Schema(name, None, path, span, span=span, name_span=span),):
            known = self.composition.schemas.setdefault(schema.name, schema)
            if known != schema:
                help = "give one another name: `qp.schema(…)`, or the model's own"
                raise self.composition.refuse("QP208", f"two schemas are called `{schema.name}`", span, help=help)

    def _variable(self, model: targets.Model) -> str | None:
        """The name of the variable that holds a model where the stage is written, None where there is none."""
        frame = self.site.frame
        if frame is None:
            return None
        local = frame.f_locals
        # A variable of the module is the most stable name, a local one (of a loop, say) the least.
        for scope in (frame.f_globals, {name: local.get(name) for name in frame.f_code.co_freevars}, local):
            for name, value in scope.items():
                if value is model and not name.startswith("_") and name not in RESERVED and name.isascii():
                    return name
        return None


def stage_call(word: str) -> StageCall:
    """The call of a stage that is running now. Raises RuntimeError where no program is being composed."""
    composition = needed(word)
    return StageCall(composition, composition.file.here())


def is_pydantic(value: object) -> bool:
    """Whether a value is a pydantic model, found out without importing pydantic."""
    return isinstance(value, type) and callable(getattr(value, "model_json_schema", None))
