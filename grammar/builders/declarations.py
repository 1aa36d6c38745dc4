"""Parse tree to syntax tree.

What the grammar leaves open is checked on the way: which options a stage takes, each at most once; what the arguments
of forms mean; regexes and strings. A faulty option is left out and its stage kept, so that the checker can go on.
`expressions.py`, `field_types.py` and `stages.py` hold the parts; declarations put them together.
"""

from __future__ import annotations

from typing import Any

from lark import Token, Tree

from qpdsl.grammar import ast
from qpdsl.grammar.builders.forms import Form
from qpdsl.grammar.builders.leaves import Option, at, span_of
from qpdsl.grammar.builders.stages import Block, Clause, Stages
from qpdsl.grammar.builders.types import Range, RegexArgument, TypeArgument
from qpdsl.grammar.diagnostic import Edit, Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import CLAUSE_FORMS, SYSTEMS


class ToAst(Stages):
    """Turns the tree of one text into a tuple of declarations, or of stages for a pipeline; collects `faults`.

    There is a method for each rule, which gets the place of its text and what became of its children.
    """

    def transform(self, tree: Tree[Token]) -> tuple[Any, ...]:
        """Children before their parents, in reading order, without recursion."""
        pending, order = [tree], []
        while pending:
            node = pending.pop()
            order.append(node)
            pending += [child for child in node.children if isinstance(child, Tree)]
        methods: dict[str, Any] = {}
        made: dict[int, Any] = {}
        while order:
            node = order.pop()
            method = methods.get(node.data) or methods.setdefault(node.data, getattr(self, node.data))
            children = [made.pop(id(child)) if isinstance(child, Tree) else child for child in node.children]
            made[id(node)] = method(node.meta, children)
        items: tuple[Any, ...] = made[id(tree)]
        return items

    def file(self, meta: Any, children: list[Any]) -> tuple[Any, ...]:
        for block in (child for child in children if isinstance(child, Block)):
            self._headless(block, "a block belongs to a program", "program NAME(PARAMETER: TYPE) -> text { … }")
        return tuple(child for child in children if not isinstance(child, Block))

    def pipeline(self, meta: Any, children: list[Any]) -> tuple[ast.Stage, ...]:
        return tuple(self._stages(children))

    def use(self, meta: Any, children: list[Token]) -> ast.Use:
        return ast.Use(self.plain(self.string(children[0]), "a path"), span=span_of(meta))

    def model(self, meta: Any, children: list[Any]) -> ast.Model:
        name, raw, *pairs = children
        id = self.plain(self.string(raw), "a model id")
        return ast.Model(str(name), id, self.kind(pairs), span=span_of(meta), name_span=at(name))

    def schema(self, meta: Any, children: list[Any]) -> ast.Schema:
        name, body = children
        if isinstance(body, ast.RecordType):
            return ast.Schema(str(name), body, span=span_of(meta), name_span=at(name))
        path = self.plain(self.string(body), "a path")
        return ast.Schema(str(name), path=path, path_span=at(body), span=span_of(meta), name_span=at(name))

    def program(self, meta: Any, children: list[Any]) -> ast.Program:
        name, params, returns, *clauses, block = children
        body = self._body(block, f"program `{name}` has no stages", at(name))
        given = self._clauses(clauses)
        return ast.Program(str(name), params or (), returns, body, **given, span=span_of(meta), name_span=at(name))

    def params(self, meta: Any, children: list[Any]) -> tuple[ast.Param, ...]:
        return tuple(children)

    def param(self, meta: Any, children: list[Any]) -> ast.Param:
        name, type_, default = children
        if default is not None and not self._shallow(default):
            default = None
        return ast.Param(str(name), type_, default, span=span_of(meta), name_span=at(name))

    def within(self, meta: Any, children: list[Form | Token]) -> Clause:
        return Clause("within", self.level(children[0]), span_of(meta))

    def like(self, meta: Any, children: list[Token]) -> Clause:
        name, span = children[0], span_of(meta)
        if name in SYSTEMS:
            return Clause("like", ast.Like("search_and_learn", span=span), span)
        self.unknown_form(name, "system", SYSTEMS, CLAUSE_FORMS["like"])
        return Clause("like", None, span)

    def prefer(self, meta: Any, children: list[Option]) -> Clause:
        (key, value), span = children[0], span_of(meta)
        if key != "latency":
            fix = {"help": "write `latency`", "edit": Edit(at(key), "latency")}
            notes = (f"form: {CLAUSE_FORMS['prefer']}",)
            self.fault("QP116", f"`prefer` has no option `{key}`", at(key), "unknown option", notes=notes, **fix)
            return Clause("prefer", None, span)
        number = self.between(value, "`latency`", 0, 1)
        return Clause("prefer", None if number is None else ast.Prefer(float(number), span=span), span)

    # Types

    def record(self, meta: Any, children: list[ast.Field]) -> ast.RecordType:
        seen: dict[str, ast.Field] = {}
        for field in children:
            first = seen.setdefault(field.name, field)
            if first is not field:
                why = (Label(first.name_span, "the first"),)
                self.fault("QP208", f"field `{field.name}` is declared twice", field.name_span, "again", secondary=why)
        return ast.RecordType(tuple(seen.values()), span=span_of(meta))

    def field(self, meta: Any, children: list[Any]) -> ast.Field:
        name, type_, optional = children
        return ast.Field(str(name), type_, optional is not None, span=span_of(meta), name_span=at(name))

    def type_name(self, meta: Any, children: list[Any]) -> ast.TypeRef:
        return ast.TypeRef(str(children[0]), span=span_of(meta))

    def type_call(self, meta: Any, children: list[Any]) -> ast.TypeExpr:
        name, arguments = children
        return self.type_with(name, arguments or (), span_of(meta))

    def type_list(self, meta: Any, children: list[ast.TypeExpr]) -> ast.ListType:
        return ast.ListType(children[0], span=span_of(meta))

    def type_args(self, meta: Any, children: list[TypeArgument]) -> tuple[TypeArgument, ...]:
        return tuple(children)

    def regex_argument(self, meta: Any, children: list[Token]) -> RegexArgument:
        name, pattern = children
        return RegexArgument(name, self.pattern(pattern))

    def range(self, meta: Any, children: list[ast.Expr | None]) -> Range:
        return Range(children[0], children[1], Span(meta.start_pos, meta.end_pos))
