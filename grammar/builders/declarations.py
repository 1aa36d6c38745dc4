"""Declarations: what a file holds, and a program's head."""

from __future__ import annotations

from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.builders.blocks import BlockBuilder, StageBlock
from qpdsl.grammar.builders.clauses import ClauseBuilder
from qpdsl.grammar.builders.leaves import LeafBuilder, at, span_of
from qpdsl.grammar.builders.options import OptionBuilder
from qpdsl.grammar.model_id import adapter_of
from qpdsl.grammar.words import VERIFIER_KINDS


class DeclarationBuilder:
    """Builds the items of a text: the declarations of a file, or the stages of a pipeline."""

    def __init__(
        self, leaves: LeafBuilder, options: OptionBuilder, clauses: ClauseBuilder, blocks: BlockBuilder
    ) -> None:
        self.leaves = leaves
        self.options = options
        self.clauses = clauses
        self.blocks = blocks

    def file(self, meta: Any, children: list[Any]) -> tuple[Any, ...]:
        for block in (child for child in children if isinstance(child, StageBlock)):
            usage = "program NAME(PARAMETER: TYPE) -> text { … }"
            self.blocks.report_headless(block, "a block belongs to a program", usage)
        return tuple(child for child in children if not isinstance(child, StageBlock))

    def pipeline(self, meta: Any, children: list[Any]) -> tuple[ast.Stage, ...]:
        return tuple(self.blocks.stages(children))

    def use(self, meta: Any, children: list[Token]) -> ast.Use:
        path, alias = children
        return ast.Use(self._plain(path, "a path"), None if alias is None else str(alias), span=span_of(meta))

    def model(self, meta: Any, children: list[Any]) -> ast.Model:
        name, quoted_id, *options = children
        id = self._plain(quoted_id, "a model id")
        values = self.options.values_of_model(options)
        kind = values.get("kind")
        if kind is not None:
            kind = self.options.word("kind", kind, VERIFIER_KINDS, "not a kind of verifier")
        adapter = None
        if "adapter" in values:
            adapter = self.leaves.text_of(values["adapter"], "an adapter")
            if adapter_of(id) is not None:
                self.leaves.faults.report_repeated("option `adapter`", values["adapter"].span, at(quoted_id))
        return ast.Model(str(name), id, kind, adapter, span=span_of(meta), name_span=at(name))

    def schema(self, meta: Any, children: list[Any]) -> ast.Schema:
        name, body = children
        if isinstance(body, ast.RecordType):
            return ast.Schema(str(name), body, span=span_of(meta), name_span=at(name))
        path = self._plain(body, "a path")
        return ast.Schema(str(name), path=path, path_span=at(body), span=span_of(meta), name_span=at(name))

    def program(self, meta: Any, children: list[Any]) -> ast.Program:
        name, params, returns, *clauses, block = children
        body = self.blocks.body(block, f"program `{name}` has no stages", at(name))
        values = self.clauses.values(clauses)
        return ast.Program(str(name), params or (), returns, body, **values, span=span_of(meta), name_span=at(name))

    def params(self, meta: Any, children: list[Any]) -> tuple[ast.Param, ...]:
        return tuple(children)

    def param(self, meta: Any, children: list[Any]) -> ast.Param:
        name, type_, optional, default = children
        if default is not None and not self.blocks.is_shallow(default):
            default = None
        default = None if default is None else self.leaves.width(default)
        return ast.Param(str(name), type_, default, optional is not None, span=span_of(meta), name_span=at(name))

    def _plain(self, token: Token, what: str) -> str:
        return self.leaves.plain(self.leaves.string(token), what)
