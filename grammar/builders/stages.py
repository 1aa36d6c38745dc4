"""Stages of the parse tree to stages of the syntax tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import MAX_DEPTH, is_shallow
from qpdsl.grammar.builders.expressions import Expressions
from qpdsl.grammar.builders.forms import Form
from qpdsl.grammar.builders.leaves import Option, at, name_of, path_of, span_of
from qpdsl.grammar.builders.types import Types
from qpdsl.grammar.diagnostic import Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import EQUALITIES, REDUCES, STAGES


class Block:
    """What stands between two braces: stages, and blocks without a head."""

    def __init__(self, stages: list[Any], span: Span) -> None:
        self.stages = stages
        self.span = span


class Clause:
    """A clause of `generate`, `score`, `call` or `program`; `value` is None where it was faulty."""

    def __init__(self, word: str, value: Any, span: Span) -> None:
        self.word = word
        self.value = value
        self.span = span


class Stages(Types, Expressions):
    """`headless` holds the offsets of braces whose head was faulty and is blanked: their blocks need no second error.

    `gaps` holds the parts that are left out, and is added to.
    """

    def __init__(self, headless: AbstractSet[int], gaps: Iterable[Span]) -> None:
        super().__init__()
        self.headless = headless
        self.gaps = list(gaps)

    def block(self, meta: Any, children: list[Any]) -> Block:
        return Block(children, span_of(meta))

    def prompt(self, meta: Any, children: list[Any]) -> ast.Prompt:
        return ast.Prompt(self.string(children[0]), span=span_of(meta))

    def chat(self, meta: Any, children: list[Option]) -> ast.Chat:
        turns = []
        for key, value in children:
            if self.is_option("chat", key):
                span = Span(key.start_pos or 0, value.span.end)
                turns.append(ast.Turn(key.value, value, span=span))
        return ast.Chat(tuple(turns), span=span_of(meta))

    def generate(self, meta: Any, children: list[Any]) -> ast.Generate:
        options = self.options("generate", [child for child in children[1:] if isinstance(child, tuple)])
        given: dict[str, Any] = {**options, **self._clauses(children[1:])}
        return ast.Generate(children[0], **given, span=span_of(meta))

    def score(self, meta: Any, children: list[Any]) -> ast.Score:
        verifier = children[0]
        if isinstance(verifier, Form):
            verifier = self.judge(verifier) or ast.ModelRef("logprob", False, span=verifier.span)
        options = self.options("score", [child for child in children[1:] if isinstance(child, tuple)])
        reduce = self.word("reduce", options.get("reduce"), REDUCES, "not a way to reduce")
        return ast.Score(verifier, reduce, **self._clauses(children[1:]), span=span_of(meta))

    def extract(self, meta: Any, children: list[Token]) -> ast.Extract:
        column, pattern = children
        value: ast.Regex | ast.JsonPath | ast.Name
        if pattern.type == "NAME":
            value = name_of(pattern)
        else:
            value = self.pattern(pattern) if pattern.type == "REGEX" else path_of(pattern)
        return ast.Extract(name_of(column), value, span=span_of(meta))

    def where(self, meta: Any, children: list[ast.Expr]) -> ast.Where:
        return ast.Where(children[0], span=span_of(meta))

    def keep(self, meta: Any, children: list[Any]) -> ast.Keep:
        count, by, per = children
        return ast.Keep(count, by, None if per is None else name_of(per), span=span_of(meta))

    def best(self, meta: Any, children: list[ast.Expr]) -> ast.Best:
        return ast.Best(children[0], span=span_of(meta))

    def vote(self, meta: Any, children: list[Any]) -> ast.Vote:
        options = self.options("vote", children[1:])
        equal = self.word("equal", options.get("equal"), EQUALITIES, "not a way to compare")
        return ast.Vote(name_of(children[0]), options.get("weight"), equal, span=span_of(meta))

    def split(self, meta: Any, children: list[Any]) -> ast.Split:
        count, by, *pairs = children
        options = self.options("split", [pair for pair in pairs if pair is not None])
        return ast.Split(count, by, options.get("temperature"), span=span_of(meta))

    def repeat(self, meta: Any, children: list[Any]) -> ast.Repeat:
        limit, until, block = children
        head = Span(meta.start_pos, meta.start_pos + len("repeat"))
        body = self._body(block, "`repeat` has no stages to run", head)
        return ast.Repeat(limit, until, body, span=span_of(meta))

    def branch(self, meta: Any, children: list[Block]) -> ast.Branch:
        span = span_of(meta)
        if not children and not self._in_gap(span):
            self.fault("QP121", "`branch` has no arms", Span(span.start, span.start + len("branch")))
        arms = [
            self._body(block, "this arm of `branch` has no stages", Span(block.span.start, block.span.start + 1))
            for block in children
        ]
        return ast.Branch(tuple(arms), span=span)

    def peek(self, meta: Any, children: list[Block]) -> ast.Peek:
        head = Span(meta.start_pos, meta.start_pos + len("peek"))
        return ast.Peek(self._body(children[0], "`peek` has no stages to run", head), span=span_of(meta))

    def call(self, meta: Any, children: list[Any]) -> ast.Call:
        name, arguments, *intos = children
        return ast.Call(str(name), arguments or (), **self._clauses(intos), span=span_of(meta), name_span=at(name))

    def return_(self, meta: Any, children: list[ast.Expr]) -> ast.Return:
        return ast.Return(children[0], span=span_of(meta))

    # Parts of stages

    def model_ref(self, meta: Any, children: list[Token]) -> ast.ModelRef:
        token = children[0]
        if token.type == "STRING":
            return ast.ModelRef(self.plain(self.string(token), "a model id"), True, span=span_of(meta))
        return ast.ModelRef(str(token), False, span=span_of(meta))

    def option(self, meta: Any, children: list[Any]) -> Option:
        return children[0], children[1]

    def form(self, meta: Any, children: list[Any]) -> Form:
        name, arguments = children
        return Form(name, arguments or (), span_of(meta))

    def target(self, meta: Any, children: list[Any]) -> Clause:
        found = children[0]
        value: ast.Target | None
        if isinstance(found, Form):
            value = self.held_to(found)
        elif found.type == "REGEX":
            value = self.pattern(found)
        else:
            value = ast.SchemaTarget(str(found), span=at(found))
        return Clause("target", value, span_of(meta))

    def via(self, meta: Any, children: list[Form]) -> Clause:
        return Clause("via", self.decoded(children[0]), span_of(meta))

    def draft(self, meta: Any, children: list[ast.ModelRef]) -> Clause:
        return Clause("draft", children[0], span_of(meta))

    def into(self, meta: Any, children: list[Token]) -> Clause:
        return Clause("into", name_of(children[0]), span_of(meta))

    def _clauses(self, children: list[Any]) -> dict[str, Any]:
        """Values by clause, without the repeated ones."""
        seen: dict[str, Clause] = {}
        for clause in (child for child in children if isinstance(child, Clause)):
            first = seen.setdefault(clause.word, clause)
            if first is not clause:
                shown = "as" if clause.word == "target" else clause.word
                why = (Label(first.span, "the first"),)
                self.fault("QP117", f"`{shown}` is given twice", clause.span, "again here", secondary=why)
        return {word: clause.value for word, clause in seen.items()}

    def _body(self, block: Block, empty: str, place: Span) -> tuple[ast.Stage, ...]:
        """The stages of a block, which has at least one."""
        body = tuple(self._stages(block.stages))
        if not body and not self._in_gap(block.span):
            self.fault("QP121", empty, place)
        return body

    def _stages(self, children: list[Any]) -> Iterator[ast.Stage]:
        """The stages of a block; those of a block without a head stand in its place."""
        for child in children:
            if isinstance(child, Block):
                self._headless(child, "a block belongs to a `repeat`, a `branch` or a `peek`", STAGES["repeat"].usage)
                yield from self._stages(child.stages)
            elif self._shallow(child):
                yield child

    def _headless(self, block: Block, message: str, usage: str) -> None:
        self.gaps.append(block.span)
        if block.span.start not in self.headless:
            span = Span(block.span.start, block.span.start + 1)
            self.fault("QP122", message, span, "nothing says what this block is for", notes=(f"form: {usage}",))

    def _in_gap(self, span: Span) -> bool:
        return any(span.start <= gap.start < span.end for gap in self.gaps)

    def _shallow(self, node: ast.Node) -> bool:
        """Leaves out what is too deep to walk: long chains of operators nest to the left."""
        if is_shallow(node):
            return True
        start = Span(node.span.start, node.span.start + 1)
        self.fault("QP103", f"this nests over {MAX_DEPTH} deep", start, "from here")
        self.gaps.append(node.span)
        return False
