"""The call of a stage that a program is written with: its arguments, turned into the parts of the stage's syntax."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, final

from qpdsl.api.call_sites import Site
from qpdsl.api.compose import schemas, targets
from qpdsl.api.compose.annotations import type_of
from qpdsl.api.compose.symbols import Symbol, convert
from qpdsl.api.composition import Composition, needed, shown
from qpdsl.api.syntax_trees import NOWHERE
from qpdsl.grammar import ast
from qpdsl.grammar.builders.verifier_forms import SCALES, is_scale
from qpdsl.grammar.model_id import adapter_of, think_of, thought_marks, with_adapter, with_think
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import (
    COMPARED,
    CONFIDENCES,
    DRAFT_OPTIONS,
    EQUALITIES,
    FAILURE,
    MAX_CALLS_AT_ONCE,
    MAX_DRAFTED,
    RESERVED,
    TYPES,
    VERIFIER_KINDS,
)
from qpdsl.session.functions import Extractor, RegisteredTool, Scorer

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

    def stage(self, form: type[ast.Stage], values: Sequence[object], named: Mapping[str, object]) -> ast.Stage:
        """A stage of the values that are given for its fields, in their order and by name; its blocks are empty."""
        return form(**self.parts(form, values, named), span=self.span)

    def parts(self, form: type[ast.Node], values: Sequence[object], named: Mapping[str, object]) -> dict[str, Any]:
        """The fields of a stage, each of its value as the field is declared."""
        roles = dict(ast.parts(form))
        order = [field.name for field in fields(form) if field.name in roles]
        given = {name: (value, at) for at, (name, value) in enumerate(zip(order, values, strict=False))}
        found: dict[str, Any] = {}
        for name, part in roles.items():
            keyword = part.lead if part.kind == "part" and part.lead else name
            keyword = f"{part.lead}_" if iskeyword(part.lead) else keyword
            value, at = given.get(name, (named.get(keyword), None))
            if part.kind in ("block", "arms"):
                found[name] = ()
            elif value is not None or (part.kind == "part" and part.lead):
                found[name] = self._part(keyword, name, part, value, at)
            elif ast.usual(form, name) is MISSING:
                found[name] = None
        return found

    def _part(self, keyword: str, name: str, part: ast.Role, value: Any, at: int | None) -> Any:
        """A field of a stage; `keyword` is what Python calls it."""
        match part.kind:
            case "made":
                return self.new_column(keyword, value, at)
            case "column":
                return self.column(keyword, value, at)
            case "model":
                return self.model(keyword, value, at)
            case "word":
                return self.word(keyword, value, part.words, part.code)
            case "part":
                parts = {"as": self.target, "via": self.via, "draft": self.draft, "until": self.until}
                return parts[part.lead](value)
            case "plain":
                return self.pattern(keyword, value, at or 0)
        if name == "stop":
            return self.stop(value)
        if part.template:
            return self.template(keyword, value, at)
        return self.expr(keyword, value, at)

    def arguments(self, values: Sequence[object], named: Mapping[str, object], at: int) -> tuple[ast.Argument, ...]:
        """The arguments of a program or a function that is handed over, the first one at place `at` of the call."""
        placed = (
            ast.Argument(None, self.argument("", value, place), span=self.place("", place))
            for place, value in enumerate(values, at)
        )
        return (
            *placed,
            *(ast.Argument(key, self.argument(key, value), span=self.place(key)) for key, value in named.items()),
        )

    def argument(self, name: str, value: object, at: int | None = None) -> ast.Expr:
        """A value, a model, or a list with models in it."""
        if isinstance(value, list | tuple) and any(isinstance(item, targets.Model) for item in value):
            items = tuple(self.argument(name, item, at) for item in value)
            return ast.ListLiteral(items, span=self.place(name, at))
        if isinstance(value, targets.Model):
            model = self.model(name, value, at)
            span = model.span
            return ast.Template((model.name,), span=span) if model.quoted else ast.Name(model.name, span=span)
        return self.expr(name, value, at)

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
        think = self._think(value.think, id_, span)
        whole = with_think(with_adapter(id_, adapter), think)
        declared = value.name or self._variable(value)
        if declared is None:
            return ast.ModelRef(whole, True, span=span)
        self.composition.name(declared, span, "a model's name")
        kind = None if value.kind is None else self.word(name, value.kind, VERIFIER_KINDS, "QP127")
        model = ast.Model(declared, id_, kind, adapter, think, span=span, name_span=span)
        known = self.composition.models.setdefault(declared, model)
        other = known.whole_id
        if other != whole and value.name is None:
            return ast.ModelRef(whole, True, span=span)
        if other != whole:
            message = f"two models are called `{declared}`: `{other}` and `{whole}`"
            raise self.composition.refuse("QP208", message, span, help='tell them apart with `qp.model("…", name="…")`')
        return ast.ModelRef(declared, False, span=span)

    def _think(self, value: str | None, id_: str, span: Span) -> str | None:
        """What a model is said to think between."""
        if value is None:
            return None
        think = self.composition.plain(value, span, "`think`")
        try:
            thought_marks(think)
        except ValueError as error:
            raise self.composition.refuse("QP128", f"`think` {error}", span) from None
        if think_of(id_) is not None:
            raise self.composition.refuse("QP117", f"`think` is given twice: `{id_}` has one", span)
        return think

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
            case targets.RegexText(pattern=pattern):
                return self.composition.regex(pattern, self.site, span)
            case targets.Choice(options=options):
                if len(options) == 1 and isinstance(options[0], Symbol):
                    return ast.OptionsTarget(self.column("as_", options[0]), span=span)
                texts = tuple(self.composition.plain(option, span, "a choice") for option in options)
                return ast.ChoiceTarget(texts, span=span)
            case targets.ToolChoice(tools=tools, calls=most):
                called = [tool for tool in tools if tool is not str]
                refs = tuple(ast.ToolRef(self._tool_name(tool, span), span=span) for tool in called)
                if not refs:
                    raise self.refuse("`qp.call` takes a tool at least", span)
                if most is not None and (type(most) is not int or not 1 <= most <= MAX_CALLS_AT_ONCE):
                    raise self.refuse(f"`calls` is a whole number from 1 to {MAX_CALLS_AT_ONCE}", span)
                return ast.CallTarget(refs, len(called) < len(tools), most, span=span)
            case targets.Grammar(text=text, path=path):
                return ast.GrammarTarget(path or self.composition.file_of("grammar", "lark", text or ""), span=span)
            case targets.NamedSchema(name=name):
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
                what = "`int`, `bool`, a list, a dataclass, a pydantic model or a union of them, a JSON schema, "
                what += "`qp.choice`, `qp.regex` or `qp.lark`"
                raise self.refuse(f"`as_` takes {what}, not {shown(value)}", span)
            case type_:
                return ast.TypeTarget(type_, span=span)

    def _tool_name(self, value: Any, span: Span) -> str:
        """The name of a tool, or of a schema as one."""
        if isinstance(value, RegisteredTool):
            return self.function(value.function, span)
        match type_of(value, self, span) if isinstance(value, type) else None:
            case ast.TypeRef(name=name) if name not in TYPES:
                return name
        raise self.refuse(f"`qp.call` takes tools (`@qp.tool`) and pydantic models, not {shown(value)}", span)

    def stop(self, value: Any) -> ast.Expr | None:
        """What ends a sample: a text, a regex, or a list of them."""
        span = self.place("stop")
        if isinstance(value, list | tuple):
            return ast.ListLiteral(tuple(self._stop(item, span) for item in value), span=span)
        return None if value is None else self._stop(value, span)

    def _stop(self, value: object, span: Span) -> ast.Expr:
        if isinstance(value, targets.RegexText):
            return self.composition.regex(value.pattern, self.site, span)
        return convert(value, span)

    def via(self, value: Any) -> ast.Via | None:
        span = self.place("via")
        if value is None:
            return None
        if not isinstance(value, targets.Via):
            raise self.refuse(
                f"`via` takes `qp.filter(…)`, `qp.contrast(…)` or `qp.amortized(…)`, not {shown(value)}", span
            )
        given = value.values
        if value.form is ast.Filter:
            if (given["threshold"] is None) == (given["share"] is None):
                raise self.refuse("`qp.filter` takes a threshold or `share=`, one of them", span)
            if given["by"] not in CONFIDENCES:
                by = shown(given["by"])
                raise self.refuse(f"`by` of `qp.filter` is one of {listed(CONFIDENCES)}, not {by}", span)
        elif value.form is ast.Amortized and given["margin"] is None and given["certify"] is None:
            raise self.refuse("`qp.amortized` takes a margin, or `certify=` in its place", span)
        return value.form(**self._fields(value.form, given, "via", None, span), span=span)

    def _fields(
        self, form: type[ast.Node], values: Mapping[str, object], keyword: str, at: int | None, span: Span
    ) -> dict[str, Any]:
        """The fields of what is handed over as a whole, at one place."""
        roles, found = dict(ast.parts(form)), dict(values)
        for name, value in values.items():
            if name not in roles or value is None or roles[name].kind == "word":
                continue
            if roles[name].kind == "model":
                found[name] = self.model(keyword, value, at)
            elif roles[name].kind == "plain":
                found[name] = self.composition.plain(str(value), span, "a path")
            elif isinstance(value, tuple) and roles[name].template:
                found[name] = tuple(self.template(keyword, text, at) for text in value)
            elif roles[name].template:
                found[name] = self.template(keyword, value, at)
            else:
                found[name] = convert(value, span)
        return found

    def draft(self, value: Any) -> ast.DraftClause | None:
        """What proposes tokens: a model or a way to draft; False for nothing."""
        span = self.place("draft")
        if value is None:
            return None
        if value is False:
            return ast.DraftClause("none", span=span)
        if not isinstance(value, targets.DraftTarget):
            return ast.DraftClause("model", self.model("draft", value), span=span)
        for option in DRAFT_OPTIONS:
            number = getattr(value, option)
            if number is not None and (type(number) is not int or not 1 <= number <= MAX_DRAFTED):
                bounds = f"a whole number of 1 to {MAX_DRAFTED}"
                raise self.refuse(f"`{option}` of a draft is {bounds}, not {shown(number)}", span)
        model = None if value.model is None else self.model("draft", value.model)
        place = None if value.place is None else self.composition.plain(value.place, span, "a path")
        return ast.DraftClause(value.method, model, place, value.tokens, value.branches, span=span)

    def until(self, value: Any) -> ast.Until | None:
        """What ends a row by its confidence."""
        span = self.place("until")
        if value is None:
            return None
        if not isinstance(value, targets.UnderBar) or value.score.values.get("kind") != "confidence":
            raise self.refuse(f"`until` takes `qp.confidence(…) < bar`, not {shown(value)}", span)
        window = value.score.values["window"]
        bar = convert(value.bar, span)
        return ast.Until(bar, None if window is None else convert(window, span), span=span)

    def verifier(self, value: Any) -> tuple[type[ast.Score], dict[str, Any]]:
        """What `score` asks: a class of stages, and its own fields."""
        span = self.place("verifier", 0)
        if isinstance(value, Scorer):
            return ast.StepScore, {"verifier": ast.ModelRef(self.function(value.function, span), False, span=span)}
        if not isinstance(value, targets.VerifierTarget):
            return ast.StepScore, {"verifier": self.model("verifier", value, 0)}
        form, given = value.form, dict(value.values)
        # What is written as a bare name.
        bare: dict[type[ast.Score], object] = {ast.LogProb: "logprob", ast.ValidJson: "json"}
        named = bare.get(form, given.get("kind"))
        if named is not None and all(given.get(name) is None for name in ("schema", "window")):
            return ast.StepScore, {"verifier": ast.ModelRef(str(named), False, span=span)}
        if form is ast.Judge:
            scale = given.pop("scale")
            if not isinstance(scale, tuple) or len(scale) != 2 or not is_scale(*scale):
                raise self.refuse(f"{SCALES}: `(1, 5)`, not {shown(scale)}", span)
            given |= {"low": scale[0], "high": scale[1]}
        elif form is ast.Equal and given["by"] not in EQUALITIES:
            raise self.refuse(f"`by` of `qp.equal` is one of {listed(EQUALITIES)}, not {shown(given['by'])}", span)
        elif form is ast.ValidJson:
            return form, {"schema": self._valid(given["schema"], span)}
        return form, self._fields(form, given, "verifier", 0, span)

    def _valid(self, schema: object, span: Span) -> ast.Name:
        target = self.target(schema)
        if not isinstance(target, ast.SchemaTarget):
            what = "a pydantic model or a JSON schema"
            raise self.refuse(f"`qp.valid_json` takes {what}, not {shown(schema)}", span)
        return ast.Name(target.name, span=span)

    def compare(
        self, value: targets.Compare, per: object = None, cls: type[ast.Tournament] = ast.Tournament, **more: Any
    ) -> ast.Tournament:
        """The tournament that `best` holds, or another class of one."""
        name, group = "by", None if per is None else self.column("per", per)
        span = self.place(name)
        if not callable(value.question):
            help = 'write `qp.compare(llm, lambda a, b: f"… {a.text} … {b.text}")`'
            raise self.composition.refuse("QP502", "the question of `qp.compare` is made of two rows", span, help=help)
        question = convert(value.question(*map(ComparedRow, COMPARED)), span)
        if not isinstance(question, ast.Template):
            raise self.refuse("the question of `qp.compare` is a text", span)
        return cls(self.model(name, value.model), question, bool(value.both), group, **more, span=self.span)

    def pattern(self, name: str, value: object, at: int) -> ast.Regex | ast.JsonPath | ast.Name:
        """What `extract` reads a column by: a regex, a JSON path or an extractor."""
        span = self.place(name, at)
        match value:
            case Extractor():
                return ast.Name(self.function(value.function, span), span=span)
            case targets.BuiltIn(name=name):
                return ast.Name(name, span=span)
            case targets.Failure():
                return ast.Name(FAILURE, span=span)
            case targets.RegexText(pattern=text):
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
