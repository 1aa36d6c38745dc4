"""The call of a stage that a program is written with: its arguments, turned into the parts of the stage's syntax."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from qpdsl.api.call_sites import Site
from qpdsl.api.compose import schemas, targets
from qpdsl.api.compose.annotations import type_of
from qpdsl.api.compose.symbols import Symbol, convert
from qpdsl.api.composition import Composition, needed, shown
from qpdsl.api.syntax_trees import NOWHERE
from qpdsl.grammar import ast
from qpdsl.grammar.builders.verifier_forms import SCALES, is_scale
from qpdsl.grammar.model_id import adapter_of, with_adapter
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import (
    BOXED,
    COMPARED,
    CONFIDENCES,
    DRAFT_OPTIONS,
    EQUALITIES,
    MOST_DRAFTED,
    RESERVED,
    TYPES,
    VERIFIER_KINDS,
)
from qpdsl.sources.functions import Extractor, Scorer

if TYPE_CHECKING:
    from qpdsl.executor.runtime.instance.functions import PythonFunction

_STEP = r"\.[A-Za-z_][A-Za-z0-9_]*|\[[0-9]+\]"
_PATH = re.compile(rf"\.(?:[A-Za-z_][A-Za-z0-9_]*|\[[0-9]+\])(?:{_STEP})*")


@final
class ComparedRow:
    """One of the two rows that `qp.compare` shows: `a.text` is its column `text`."""

    def __init__(self, name: str) -> None:
        self._name = ast.Name(name, span=NOWHERE)

    def __getattr__(self, column: str) -> Any:
        return self[column]

    def __getitem__(self, column: str) -> Any:
        return Symbol(ast.Path(self._name, (column,), span=NOWHERE))


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
        if isinstance(expr, ast.Name | ast.Path):
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
        if self.composition.model_params.get(value.name or "") is value:
            return ast.ModelRef(value.name or "", False, span=span)
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
                if len(options) == 1 and isinstance(options[0], Symbol):
                    return ast.OptionsTarget(self.column("as_", options[0]), span=span)
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
        match type_of(value, self, span):
            case ast.ChoiceType(options=texts):
                return ast.ChoiceTarget(texts, span=span)
            case ast.TypeRef(name="text" | "messages" | "model") | ast.TextType():
                raise self.composition.refuse("QP360", "every output is a text: leave `as_` out", span)
            case ast.TypeRef(name=name) if name not in TYPES:
                return ast.SchemaTarget(name, span=span)
            case None:
                what = "`int`, `bool`, a list, a dataclass, a pydantic model, a JSON schema, "
                what += "`qp.choice`, `qp.regex` or `qp.lark`"
                raise self.refuse(f"`as_` takes {what}, not {shown(value)}", span)
            case type_:
                return ast.TypeTarget(type_, span=span)

    def stop(self, value: Any) -> ast.Expr | None:
        """What ends a sample: a text, a regex, or a list of them."""
        span = self.place("stop")
        if isinstance(value, list | tuple):
            return ast.ListLiteral(tuple(self._stop(item, span) for item in value), span=span)
        return None if value is None else self._stop(value, span)

    def _stop(self, value: object, span: Span) -> ast.Expr:
        if isinstance(value, targets.Regex):
            return self.composition.regex(value.pattern, self.site, span)
        return convert(value, span)

    def via(self, value: Any) -> ast.Via | None:
        span = self.place("via")

        def optional(number: object) -> ast.Expr | None:
            return None if number is None else convert(number, span)

        match value:
            case None:
                return None
            case targets.Filter(model=model, threshold=threshold, by=by, share=share):
                if (threshold is None) == (share is None):
                    raise self.refuse("`qp.filter` takes a threshold or `share=`, one of them", span)
                if by not in CONFIDENCES:
                    raise self.refuse(f"`by` of `qp.filter` is one of {listed(CONFIDENCES)}, not {shown(by)}", span)
                numbers = map(optional, (share, value.rows, value.wait))
                return ast.Filter(self.model("via", model), optional(threshold), by, *numbers, span=span)
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

    def verifier(self, value: Any) -> ast.Verifier:
        """What `score` asks."""
        span = self.place("verifier", 0)
        match value:
            case targets.Judge(model=model, rubric=rubric, scale=scale, whole=whole):
                if not isinstance(scale, tuple) or len(scale) != 2 or not is_scale(*scale):
                    raise self.refuse(f"{SCALES}: `(1, 5)`, not {shown(scale)}", span)
                asked = self.template("verifier", rubric, 0)
                return ast.Judge(self.model("verifier", model, 0), asked, *scale, whole, span=span)
            case targets.Prob(model=model, question=question, answers=answers):
                asked, *texts = (self.template("verifier", text, 0) for text in (question, *answers))
                return ast.Prob(self.model("verifier", model, 0), asked, tuple(texts), span=span)
            case targets.Equal(answer=answer, reference=reference, by=by):
                if by not in EQUALITIES:
                    raise self.refuse(f"`by` of `qp.equal` is one of {listed(EQUALITIES)}, not {shown(by)}", span)
                return ast.Equal(convert(answer, span), convert(reference, span), by, span=span)
            case targets.ValidJson(schema=None):
                return ast.ModelRef("json", False, span=span)
            case targets.ValidJson(schema=schema):
                target = self.target(schema)
                if not isinstance(target, ast.SchemaTarget):
                    what = "a pydantic model or a JSON schema"
                    raise self.refuse(f"`qp.valid_json` takes {what}, not {shown(schema)}", span)
                return ast.ValidJson(ast.Name(target.name, span=span), span=span)
            case targets.Passes(tests=tests, timeout=timeout):
                limit = None if timeout is None else convert(timeout, span)
                return ast.Passes(convert(tests, span), limit, span=span)
            case targets.OfDraws(kind=kind, window=None):
                return ast.ModelRef(kind, False, span=span)
            case targets.OfDraws(window=window):
                return ast.WindowConfidence(convert(window, span), span=span)
            case targets.LogProb():
                return ast.ModelRef("logprob", False, span=span)
            case Scorer():
                return ast.ModelRef(self.function(value.function, span), False, span=span)
        return self.model("verifier", value, 0)

    def compare(self, name: str, value: targets.Compare) -> ast.Compare:
        """The tournament that `best` holds."""
        span = self.place(name)
        if not callable(value.question):
            help = 'write `qp.compare(llm, lambda a, b: f"… {a.text} … {b.text}")`'
            raise self.composition.refuse("QP502", "the question of `qp.compare` is made of two rows", span, help=help)
        question = convert(value.question(*map(ComparedRow, COMPARED)), span)
        if not isinstance(question, ast.Template):
            raise self.refuse("the question of `qp.compare` is a text", span)
        return ast.Compare(self.model(name, value.model), question, bool(value.both), span=span)

    def pattern(self, name: str, value: object, at: int) -> ast.Regex | ast.JsonPath | ast.Name:
        """What `extract` reads a column by: a regex, a JSON path or an extractor."""
        span = self.place(name, at)
        match value:
            case Extractor():
                return ast.Name(self.function(value.function, span), span=span)
            case targets.Boxed():
                return ast.Name(BOXED, span=span)
            case targets.Regex(pattern=text):
                return self.composition.regex(text, self.site, span)
            case str() if _PATH.fullmatch(value):
                return self.json_path(value, span)
            case str():
                return self.composition.regex(value, self.site, span)
        raise self.refuse(f"`extract` takes a regex, a JSON path or an extractor, not {shown(value)}", span)

    def json_path(self, value: str, span: Span) -> ast.JsonPath:
        """The path that a text spells."""
        if not _PATH.fullmatch(value):
            raise self.refuse(f'a JSON path is written `".a.b[0]"`, not {shown(value)}', span)
        steps = value.replace("[", ".[").split(".")
        return ast.JsonPath(tuple(int(step[1:-1]) if step[0] == "[" else step for step in steps if step), span=span)

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
            self.add_schema(schema, span)

    def add_schema(self, schema: ast.Schema, span: Span) -> None:
        """Adds a schema to the program's, which has no other of its name."""
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
