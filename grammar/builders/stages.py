"""Stages of the parse tree to stages of the syntax tree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import MAX_DEPTH
from qpdsl.grammar.builders.blocks import BlockBuilder, StageBlock
from qpdsl.grammar.builders.clauses import ClauseBuilder
from qpdsl.grammar.builders.faults import Faults
from qpdsl.grammar.builders.forms import Form
from qpdsl.grammar.builders.leaves import LeafBuilder, at, name_of, path_of, span_of
from qpdsl.grammar.builders.options import Option, OptionBuilder
from qpdsl.grammar.builders.verifier_forms import VerifierFormBuilder
from qpdsl.grammar.diagnostic import Edit
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import EQUALITIES, JUDGE_REDUCES, REDUCES, SEARCH_METHODS, STAGES


class StageBuilder:
    def __init__(
        self,
        faults: Faults,
        leaves: LeafBuilder,
        options: OptionBuilder,
        verifiers: VerifierFormBuilder,
        clauses: ClauseBuilder,
        blocks: BlockBuilder,
    ) -> None:
        self.faults = faults
        self.leaves = leaves
        self.options = options
        self.verifiers = verifiers
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

    def say(self, meta: Any, children: list[ast.Expr]) -> ast.Say:
        return ast.Say(children[0], span=span_of(meta))

    # Calls of models

    def generate(self, meta: Any, children: list[Any]) -> ast.Generate:
        options = self.options.values("generate", _options_in(children))
        if "n" in options:
            options["n"] = self.leaves.width(options["n"])
        return ast.Generate(children[0], **options, **self.clauses.values(children), span=span_of(meta))  # type: ignore[arg-type]

    def score(self, meta: Any, children: list[Any]) -> ast.Score:
        verifier, clauses = children[0], self.clauses.values(children)
        if isinstance(verifier, Form):
            verifier = self.verifiers.verifier_of(verifier, clauses.pop("scale", None))
            verifier = verifier or ast.ModelRef("logprob", False, span=children[0].span)
        elif scale := clauses.pop("scale", None):
            message = "`as` holds a judge's answer to a scale, and this is no judge"
            self.faults.report("QP140", message, scale.span, "leave this out")
        options = self.options.values("score", _options_in(children))
        given, known = options.get("reduce"), (*REDUCES, *JUDGE_REDUCES)
        reduce = None if given is None else self.options.word("reduce", given, known, "not a way to reduce")
        return ast.Score(verifier, reduce, **clauses, span=span_of(meta))

    def extract(self, meta: Any, children: list[Any]) -> ast.Extract:
        which, column, source = children
        pattern: ast.Regex | ast.JsonPath | ast.Name
        if source.type == "NAME":
            pattern = name_of(source)
        else:
            pattern = self.leaves.pattern(source) if source.type == "REGEX" else path_of(source)
        return ast.Extract(name_of(column), pattern, "first" if which is None else which.value, span=span_of(meta))

    # Rows

    def let(self, meta: Any, children: list[Any]) -> ast.Let:
        column, value = children
        return ast.Let(name_of(column), value, span=span_of(meta))

    def where(self, meta: Any, children: list[ast.Expr]) -> ast.Where:
        return ast.Where(children[0], span=span_of(meta))

    def keep(self, meta: Any, children: list[Any]) -> ast.Keep:
        count, by, per = children
        return ast.Keep(self.leaves.width(count), by, None if per is None else name_of(per), span=span_of(meta))

    def best(self, meta: Any, children: list[Any]) -> ast.Best:
        by, per = children
        return ast.Best(by, None if per is None else name_of(per), span=span_of(meta))

    def distinct(self, meta: Any, children: list[Any]) -> ast.Distinct:
        by, per = children
        return ast.Distinct(by, None if per is None else name_of(per), span=span_of(meta))

    def order(self, meta: Any, children: list[ast.Expr]) -> ast.Order:
        return ast.Order(children[0], span=span_of(meta))

    def join(self, meta: Any, children: list[Any]) -> ast.Join:
        column, value, *rest = children
        options, clauses = self.options.values("join", _options_in(rest)), self.clauses.values(rest)
        return ast.Join(name_of(column), value, options.get("sep"), clauses.get("per"), span=span_of(meta))

    def vote(self, meta: Any, children: list[Any]) -> ast.Vote:
        column, *rest = children
        options, clauses = self.options.values("vote", _options_in(rest)), self.clauses.values(rest)
        equal = self.options.word("equal", options.get("equal"), EQUALITIES, "not a way to compare")
        weight, decided = options.get("weight"), options.get("decided")
        return ast.Vote(name_of(column), weight, equal, decided, clauses.get("per"), span=span_of(meta))

    def split(self, meta: Any, children: list[Any]) -> ast.Split:
        count, by, *rest = children
        options, clauses = self.options.values("split", _options_in(rest)), self.clauses.values(rest)
        groups, soft = self.leaves.width(count), options.get("temperature")
        return ast.Split(groups, by, soft, clauses.get("per"), span=span_of(meta))

    # Stages that hold stages

    def repeat(self, meta: Any, children: list[Any]) -> ast.Repeat:
        limit, until, block = children
        body = self.blocks.body(block, "`repeat` has no stages to run", _word_span(meta, "repeat"))
        return ast.Repeat(limit, until, body, span=span_of(meta))

    def search(self, meta: Any, children: list[Any]) -> ast.Search:
        method, by, *pairs, block = children
        span = _word_span(meta, "search")
        body = self.blocks.body(block, "`search` has no stages to make children with", span)
        options = self.options.values("search", pairs)
        if method not in SEARCH_METHODS:
            message = f"`search` goes by {listed(SEARCH_METHODS)}"
            self.faults.report_unknown("QP150", message, at(method), str(method), SEARCH_METHODS, "unknown method")
            method = SEARCH_METHODS[0]
        elif method != "puct" and "c" in options:
            message = f"`c` weighs how much is explored, which `{method}` finds out by itself"
            self.faults.report("QP150", message, options["c"].span, "of `puct` alone", help="leave `c` out")
        if "simulations" not in options:
            message, notes = "`search` says how often it may expand a row", (f"form: {STAGES['search'].usage}",)
            self.faults.report("QP150", message, span, "no `simulations=`", notes=notes)
        simulations = self.leaves.width(options.get("simulations") or ast.Literal(1, span=span))
        c, most = options.get("c"), options.get("per_round")
        return ast.Search(str(method), by, simulations, c, most, body, span=span_of(meta))  # type: ignore[arg-type]

    def branch(self, meta: Any, children: list[StageBlock]) -> ast.Branch:
        span = span_of(meta)
        if not children and not self.blocks.in_gap(span):
            self.faults.report("QP121", "`branch` has no arms", _word_span(meta, "branch"))
        arms = []
        for block in children:
            brace = Span(block.span.start, block.span.start + 1)
            arms.append(self.blocks.body(block, "this arm of `branch` has no stages", brace))
        return ast.Branch(tuple(arms), span=span)

    def strategy(self, meta: Any, children: list[Any]) -> ast.Strategy:
        span, blocks = span_of(meta), [child for child in children if isinstance(child, StageBlock)]
        if len(blocks) < 2 and not self.blocks.in_gap(span):
            help = "a `strategy` with one arm is that arm: leave the braces out" if blocks else None
            message, notes = "`strategy` chooses among two arms at least", (f"form: {STAGES['strategy'].usage}",)
            self.faults.report("QP121", message, _word_span(meta, "strategy"), notes=notes, help=help)
        arms: list[tuple[ast.Stage, ...]] = []
        for before, block in zip([None, *children], children, strict=False):
            if not isinstance(block, StageBlock):
                continue
            brace = Span(block.span.start, block.span.start + 1)
            if bool(arms) == (before is None or isinstance(before, StageBlock)):
                message = "the arms of `strategy` are joined by `or`, of which one is used for a problem"
                more: dict[str, Any] = {}
                if arms:
                    before_it = Span(brace.start, brace.start)
                    more = {"help": "write `or` between them", "edit": Edit(before_it, "or ")}
                self.faults.report("QP109", message, brace, "expected `or`" if arms else "", **more)
            arms.append(self.blocks.body(block, "this arm of `strategy` has no stages", brace))
        return ast.Strategy(tuple(arms), span=span)

    def if_(self, meta: Any, children: list[Any]) -> ast.If:
        condition, block, otherwise = children
        then = self.blocks.body(block, "this `if` has no stages to run", _word_span(meta, "if"))
        if isinstance(otherwise, StageBlock):
            brace = Span(otherwise.span.start, otherwise.span.start + 1)
            others = self.blocks.body(otherwise, "this `else` has no stages to run", brace)
        elif otherwise is not None and not _is_short(otherwise):
            word = Span(otherwise.span.start, otherwise.span.start + 2)
            self.faults.report("QP103", f"`else if` goes on over {MAX_DEPTH} times", word, "one too many")
            others = ()
        else:
            others = () if otherwise is None else (otherwise,)
        return ast.If(condition, then, others, span=span_of(meta))

    def each(self, meta: Any, children: list[Any]) -> ast.Each:
        column, source, block = children
        empty = "`each` has no stages to run in its block; without a block it only copies rows"
        body = () if block is None else self.blocks.body(block, empty, _word_span(meta, "each"))
        path = path_of(source) if isinstance(source, Token) else source
        return ast.Each(name_of(column), path, body, span=span_of(meta))

    def peek(self, meta: Any, children: list[StageBlock]) -> ast.Peek:
        body = self.blocks.body(children[0], "`peek` has no stages to run", _word_span(meta, "peek"))
        return ast.Peek(body, span=span_of(meta))

    def ask(self, meta: Any, children: list[StageBlock]) -> ast.Ask:
        body = self.blocks.body(children[0], "`ask` has no stages to run", _word_span(meta, "ask"))
        return ast.Ask(body, span=span_of(meta))

    # Calls and results of programs

    def call(self, meta: Any, children: list[Any]) -> ast.Call:
        name, arguments, *intos = children
        clauses = self.clauses.values(intos)
        given = tuple(replace(argument, value=self.leaves.width(argument.value)) for argument in arguments or ())
        return ast.Call(str(name), given, **clauses, span=span_of(meta), name_span=at(name))

    def return_(self, meta: Any, children: list[ast.Expr]) -> ast.Return:
        return ast.Return(children[0], span=span_of(meta))


def _options_in(children: list[Any]) -> list[Option]:
    return [child for child in children if isinstance(child, tuple)]


def _is_short(stage: ast.If) -> bool:
    """Whether a chain of `else if` can be walked; each of them lies inside the one before it."""
    for _ in range(MAX_DEPTH - 1):
        match stage.otherwise:
            case (ast.If() as stage,):
                continue
        return True
    return False


def _word_span(meta: Any, word: str) -> Span:
    """Where the word of a stage stands: at its beginning."""
    return Span(meta.start_pos, meta.start_pos + len(word))
