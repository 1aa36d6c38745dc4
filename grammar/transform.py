"""Parse tree to syntax tree.

What the grammar leaves open is checked here: which options a stage takes, each at most once; the words that `reduce=`
takes; regexes and strings. A faulty option is left out and its stage kept, so that the checker can go on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from lark import Token, Tree
from lark.visitors import Transformer_NonRecursive, v_args

from qpdsl.grammar import ast, regex, strings
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label
from qpdsl.grammar.source import Source, Span
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import REDUCES, STAGES

MAX_DEPTH = 64
_Option = tuple[Token, ast.Expr]


@v_args(meta=True)
class ToAst(Transformer_NonRecursive[Token, Any]):
    """Turns the tree of one text into a tuple of declarations, or of stages for a pipeline; collects `faults`.

    `headless` holds the offsets of braces whose head was faulty and is blanked: their blocks need no second error.
    """

    def __init__(self, source: Source, headless: frozenset[int]) -> None:
        super().__init__()
        self.source = source
        self.headless = headless
        self.faults: list[Diagnostic] = []
        self.incomplete = False

    # Declarations

    def file(self, meta: Any, children: list[Any]) -> tuple[Any, ...]:
        for block in (child for child in children if isinstance(child, _Block)):
            self._headless(block, "a block belongs to a program", "program NAME(PARAMETER: TYPE) -> text { … }")
        return tuple(child for child in children if not isinstance(child, _Block))

    def pipeline(self, meta: Any, children: list[Any]) -> tuple[ast.Stage, ...]:
        return tuple(self._stages(children))

    def model(self, meta: Any, children: list[Any]) -> ast.Model:
        name, raw = children
        return ast.Model(str(name), self._plain(raw, "a model id"), span=_span(meta), name_span=_at(name))

    def program(self, meta: Any, children: list[Any]) -> ast.Program:
        name, params, returns, block = children
        body = tuple(self._stages(block.stages))
        if not body and block.span.start not in self.headless and not self.incomplete:
            self._fault("QP121", f"program `{name}` has no stages", _at(name))
        return ast.Program(str(name), params or (), returns, body, span=_span(meta), name_span=_at(name))

    def params(self, meta: Any, children: list[Any]) -> tuple[ast.Param, ...]:
        return tuple(children)

    def param(self, meta: Any, children: list[Any]) -> ast.Param:
        name, type_, default = children
        self._check_depth(default)
        return ast.Param(str(name), type_, default, span=_span(meta), name_span=_at(name))

    def type(self, meta: Any, children: list[Any]) -> ast.TypeRef:
        return ast.TypeRef(str(children[0]), span=_span(meta))

    # Stages

    def block(self, meta: Any, children: list[Any]) -> _Block:
        return _Block(children, _span(meta))

    def prompt(self, meta: Any, children: list[Any]) -> ast.Prompt:
        return ast.Prompt(self._template(children[0]), span=_span(meta))

    def chat(self, meta: Any, children: list[_Option]) -> ast.Chat:
        turns = []
        for key, value in children:
            if self._known("chat", key):
                span = Span(key.start_pos or 0, value.span.end)
                turns.append(ast.Turn(key.value, value, span=span))  # type: ignore[arg-type]
        return ast.Chat(tuple(turns), span=_span(meta))

    def generate(self, meta: Any, children: list[Any]) -> ast.Generate:
        return ast.Generate(children[0], **self._options("generate", children[1:]), span=_span(meta))

    def score(self, meta: Any, children: list[Any]) -> ast.Score:
        options = self._options("score", [child for child in children[1:] if isinstance(child, tuple)])
        intos = [child for child in children[1:] if isinstance(child, ast.Name)]
        if len(intos) > 1:
            first = (Label(intos[0].span, "the first"),)
            self._fault("QP117", "`into` is given twice", intos[1].span, "again here", secondary=first)
        reduce = self._reduce(options["reduce"]) if "reduce" in options else "last"
        return ast.Score(children[0], reduce, intos[0] if intos else None, span=_span(meta))  # type: ignore[arg-type]

    def into(self, meta: Any, children: list[Token]) -> ast.Name:
        return _name(children[0])

    def extract(self, meta: Any, children: list[Token]) -> ast.Extract:
        column, pattern = children
        value = self._regex(pattern) if pattern.type == "REGEX" else _path(pattern)
        return ast.Extract(_name(column), value, span=_span(meta))

    def keep(self, meta: Any, children: list[ast.Expr]) -> ast.Keep:
        return ast.Keep(children[0], children[1], span=_span(meta))

    def best(self, meta: Any, children: list[ast.Expr]) -> ast.Best:
        return ast.Best(children[0], span=_span(meta))

    def vote(self, meta: Any, children: list[Any]) -> ast.Vote:
        return ast.Vote(_name(children[0]), **self._options("vote", children[1:]), span=_span(meta))

    def repeat(self, meta: Any, children: list[Any]) -> ast.Repeat:
        limit, until, block = children
        body = tuple(self._stages(block.stages))
        if not body and not self.incomplete:
            self._fault("QP121", "`repeat` has no stages to run", Span(meta.start_pos, meta.start_pos + 6))
        return ast.Repeat(limit, until, body, span=_span(meta))

    def return_(self, meta: Any, children: list[ast.Expr]) -> ast.Return:
        return ast.Return(children[0], span=_span(meta))

    def model_ref(self, meta: Any, children: list[Token]) -> ast.ModelRef:
        token = children[0]
        quoted = token.type == "STRING"
        return ast.ModelRef(self._plain(token, "a model id") if quoted else str(token), quoted, span=_span(meta))

    def option(self, meta: Any, children: list[Any]) -> _Option:
        return children[0], children[1]

    # Expressions

    def or_(self, meta: Any, children: list[Any]) -> ast.Expr:
        return _fold(children)

    and_ = compare = sum = product = or_

    def not_(self, meta: Any, children: list[Any]) -> ast.Expr:
        return _prefix(children)

    unary = not_

    def matches(self, meta: Any, children: list[Any]) -> ast.Matches:
        subject, pattern = children
        return ast.Matches(subject, self._regex(pattern), span=_span(meta))

    def literal(self, meta: Any, children: list[Token]) -> ast.Expr:
        token = children[0]
        if token.type == "STRING":
            return self._template(token)
        if token.type == "NUMBER":
            return self._number(token)
        return ast.Literal({"TRUE": True, "FALSE": False, "NONE": None}[token.type], span=_at(token))

    def name(self, meta: Any, children: list[Token]) -> ast.Name:
        return _name(children[0])

    def apply(self, meta: Any, children: list[Any]) -> ast.Apply:
        function, args = children
        return ast.Apply(str(function), args or (), span=_span(meta), name_span=_at(function))

    def args(self, meta: Any, children: list[ast.Expr]) -> tuple[ast.Expr, ...]:
        return tuple(children)

    # Parts

    def _stages(self, children: list[Any]) -> Iterator[ast.Stage]:
        """The stages of a block; those of a block without a head stand in its place."""
        for child in children:
            if isinstance(child, _Block):
                self._headless(child, "a block belongs to a `repeat`", STAGES["repeat"].usage)
                yield from self._stages(child.stages)
            else:
                self._check_depth(child)
                yield child

    def _headless(self, block: _Block, message: str, usage: str) -> None:
        self.incomplete = True
        if block.span.start not in self.headless:
            span = Span(block.span.start, block.span.start + 1)
            self._fault("QP122", message, span, "nothing says what this block is for", notes=(f"form: {usage}",))

    def _options(self, stage: str, pairs: list[_Option]) -> dict[str, ast.Expr]:
        """Values by option name, without the unknown and the repeated ones."""
        seen: dict[str, Token] = {}
        options: dict[str, ast.Expr] = {}
        for key, value in pairs:
            if key.value in seen:
                first = (Label(_at(seen[key.value]), "the first"),)
                self._fault("QP117", f"option `{key}` is given twice", _at(key), "again here", secondary=first)
            elif self._known(stage, key):
                seen[key.value] = key
                options[key.value] = value
        return options

    def _known(self, stage: str, key: Token) -> bool:
        form = STAGES[stage]
        if key.value in form.options:
            return True
        kind = "role" if stage == "chat" else "option"
        near = closest(key.value, form.options)
        notes = (f"form: {form.usage}",)
        fix = {"help": f"did you mean `{near}`?", "edit": Edit(_at(key), near)} if near else {}
        message = f"`{stage}` has no {kind} `{key}`"
        self._fault("QP116", message, _at(key), f"unknown {kind}", notes=notes, **fix)
        return False

    def _reduce(self, value: ast.Expr) -> str:
        if isinstance(value, ast.Name) and value.id in REDUCES:
            return value.id
        word = value.id if isinstance(value, ast.Name) else ""
        if isinstance(value, ast.Template) and len(value.parts) == 1 and isinstance(value.parts[0], str):
            word = value.parts[0]
        near = closest(word, REDUCES) if word else None
        fix = {"help": f"did you mean `{near}`?", "edit": Edit(value.span, near)} if near else {}
        self._fault("QP207", f"`reduce` is one of {listed(REDUCES)}", value.span, "not a way to reduce", **fix)
        return "last"

    def _template(self, token: Token) -> ast.Template:
        value, faults = strings.template(str(token), token.start_pos or 0)
        self.faults += faults
        return value

    def _plain(self, token: Token, what: str) -> str:
        value = self._template(token)
        names = [part for part in value.parts if isinstance(part, ast.Name)]
        if names:
            self._fault("QP123", f"{what} is a plain string, without `{{…}}`", names[0].span)
        elif not value.parts:
            self._fault("QP304", f"{what} cannot be empty", value.span)
        return "".join(part for part in value.parts if isinstance(part, str))

    def _number(self, token: Token) -> ast.Literal:
        whole = token.value.isdigit()
        if len(token) > 400 or (not whole and not math.isfinite(float(token))):
            self._fault("QP301", "this number is too large", _at(token))
            return ast.Literal(0, span=_at(token))
        return ast.Literal(int(token) if whole else float(token), span=_at(token))

    def _regex(self, token: Token) -> ast.Regex:
        start = (token.start_pos or 0) + 1
        fault = regex.check(token.value[1:-1], start)
        if fault:
            self.faults.append(fault)
        return ast.Regex(token.value[1:-1], span=_at(token))

    def _check_depth(self, node: Any) -> None:
        """Refuses expressions too deep to walk: long chains nest to the left."""
        level = [node]
        for _ in range(MAX_DEPTH + 1):
            level = [child for parent in level for child in _children(parent)]
            if not level:
                return
        self._fault("QP103", f"this nests over {MAX_DEPTH} deep", node.span)
        self.incomplete = True

    def _fault(self, code: str, message: str, span: Span, label: str = "", **more: Any) -> None:
        self.faults.append(Diagnostic(code, message, span, label, **more))


class _Block:
    def __init__(self, stages: list[Any], span: Span) -> None:
        self.stages = stages
        self.span = span


def _span(meta: Any) -> Span:
    return Span(meta.start_pos, meta.end_pos)


def _at(token: Token) -> Span:
    return Span(token.start_pos or 0, token.end_pos or 0)


def _name(token: Token) -> ast.Name:
    return ast.Name(str(token), span=_at(token))


def _path(token: Token) -> ast.JsonPath:
    steps = token.value.replace("[", ".[").split(".")
    return ast.JsonPath(tuple(int(s[1:-1]) if s[0] == "[" else s for s in steps if s), span=_at(token))


def _fold(children: list[Any]) -> ast.Expr:
    left: ast.Expr = children[0]
    for operator, right in zip(children[1::2], children[2::2], strict=True):
        left = ast.Binary(str(operator), left, right, span=left.span.to(right.span))  # type: ignore[arg-type]
    return left


def _prefix(children: list[Any]) -> ast.Expr:
    operand: ast.Expr = children[-1]
    for operator in reversed(children[:-1]):
        span = Span(operator.start_pos, operand.span.end)
        operand = ast.Unary(str(operator), operand, span=span)  # type: ignore[arg-type]
    return operand


def _children(node: Any) -> Iterator[Any]:
    """The nodes right below a node, but for the stages of a block, which are checked on their own."""
    if isinstance(node, Tree) or not is_dataclass(node):
        return
    for field in fields(node):
        value = getattr(node, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, ast.Node) and field.name != "body":
                yield item
