"""Stages of the parse tree to stages of the syntax tree."""

from __future__ import annotations

from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.builders.blocks import BlockBuilder, StageBlock
from qpdsl.grammar.builders.clauses import ClauseBuilder
from qpdsl.grammar.builders.faults import Faults
from qpdsl.grammar.builders.forms import Form, FormBuilder
from qpdsl.grammar.builders.leaves import LeafBuilder, at, name_of, path_of, span_of
from qpdsl.grammar.builders.options import Option, OptionBuilder
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import EQUALITIES, REDUCES


class StageBuilder:
    def __init__(
        self,
        faults: Faults,
        leaves: LeafBuilder,
        options: OptionBuilder,
        forms: FormBuilder,
        clauses: ClauseBuilder,
        blocks: BlockBuilder,
    ) -> None:
        self.faults = faults
        self.leaves = leaves
        self.options = options
        self.forms = forms
        self.clauses = clauses
        self.blocks = blocks

    # Contexts

    def prompt(self, meta: Any, children: list[Any]) -> ast.Prompt:
        return ast.Prompt(self.leaves.string(children[0]), span=span_of(meta))

    def chat(self, meta: Any, children: list[Option]) -> ast.Chat:
        turns = []
        for key, value in children:
            if self.options.is_known("chat", key):
                span = Span(key.start_pos or 0, value.span.end)
                turns.append(ast.Turn(key.value, value, span=span))
        return ast.Chat(tuple(turns), span=span_of(meta))

    # Calls of models

    def generate(self, meta: Any, children: list[Any]) -> ast.Generate:
        options = self.options.values("generate", _options_in(children))
        return ast.Generate(children[0], **options, **self.clauses.values(children), span=span_of(meta))  # type: ignore[arg-type]

    def score(self, meta: Any, children: list[Any]) -> ast.Score:
        verifier = children[0]
        if isinstance(verifier, Form):
            verifier = self.forms.judge_of(verifier) or ast.ModelRef("logprob", False, span=verifier.span)
        options = self.options.values("score", _options_in(children))
        given = options.get("reduce")
        reduce = None if given is None else self.options.word("reduce", given, REDUCES, "not a way to reduce")
        return ast.Score(verifier, reduce, **self.clauses.values(children), span=span_of(meta))

    def extract(self, meta: Any, children: list[Token]) -> ast.Extract:
        column, source = children
        pattern: ast.Regex | ast.JsonPath | ast.Name
        if source.type == "NAME":
            pattern = name_of(source)
        else:
            pattern = self.leaves.pattern(source) if source.type == "REGEX" else path_of(source)
        return ast.Extract(name_of(column), pattern, span=span_of(meta))

    # Rows

    def where(self, meta: Any, children: list[ast.Expr]) -> ast.Where:
        return ast.Where(children[0], span=span_of(meta))

    def keep(self, meta: Any, children: list[Any]) -> ast.Keep:
        count, by, per = children
        return ast.Keep(count, by, None if per is None else name_of(per), span=span_of(meta))

    def best(self, meta: Any, children: list[ast.Expr]) -> ast.Best:
        return ast.Best(children[0], span=span_of(meta))

    def vote(self, meta: Any, children: list[Any]) -> ast.Vote:
        column, *pairs = children
        options = self.options.values("vote", pairs)
        equal = self.options.word("equal", options.get("equal"), EQUALITIES, "not a way to compare")
        return ast.Vote(name_of(column), options.get("weight"), equal, span=span_of(meta))

    def split(self, meta: Any, children: list[Any]) -> ast.Split:
        count, by, *pairs = children
        options = self.options.values("split", [pair for pair in pairs if pair is not None])
        return ast.Split(count, by, options.get("temperature"), span=span_of(meta))

    # Stages that hold stages

    def repeat(self, meta: Any, children: list[Any]) -> ast.Repeat:
        limit, until, block = children
        body = self.blocks.body(block, "`repeat` has no stages to run", _word_span(meta, "repeat"))
        return ast.Repeat(limit, until, body, span=span_of(meta))

    def branch(self, meta: Any, children: list[StageBlock]) -> ast.Branch:
        span = span_of(meta)
        if not children and not self.blocks.in_gap(span):
            self.faults.report("QP121", "`branch` has no arms", _word_span(meta, "branch"))
        arms = []
        for block in children:
            brace = Span(block.span.start, block.span.start + 1)
            arms.append(self.blocks.body(block, "this arm of `branch` has no stages", brace))
        return ast.Branch(tuple(arms), span=span)

    def peek(self, meta: Any, children: list[StageBlock]) -> ast.Peek:
        body = self.blocks.body(children[0], "`peek` has no stages to run", _word_span(meta, "peek"))
        return ast.Peek(body, span=span_of(meta))

    # Calls and results of programs

    def call(self, meta: Any, children: list[Any]) -> ast.Call:
        name, arguments, *intos = children
        clauses = self.clauses.values(intos)
        return ast.Call(str(name), arguments or (), **clauses, span=span_of(meta), name_span=at(name))

    def return_(self, meta: Any, children: list[ast.Expr]) -> ast.Return:
        return ast.Return(children[0], span=span_of(meta))


def _options_in(children: list[Any]) -> list[Option]:
    return [child for child in children if isinstance(child, tuple)]


def _word_span(meta: Any, word: str) -> Span:
    """Where the word of a stage stands: at its beginning."""
    return Span(meta.start_pos, meta.start_pos + len(word))
