"""Stages of the parse tree to stages of the syntax tree.

Blocks: the stages between two braces, and the parts of a program that are left out of its tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, dataclass, replace
from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import STAGES, Role, parts, usual
from qpdsl.grammar.ast.walk import MAX_DEPTH, is_shallow
from qpdsl.grammar.builders.expressions import Faults, at, name_of, path_of, span_of
from qpdsl.grammar.builders.forms import Form, Option
from qpdsl.grammar.builders.types import Clause, ClauseBuilder
from qpdsl.grammar.builders.verifier_forms import VerifierFormBuilder
from qpdsl.grammar.diagnostic import Edit
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import SEARCH_METHODS, SWITCH, UNTIL_FORM


@dataclass(slots=True)
class StageBlock:
    """What stands between two braces: stages, and blocks without a head."""

    items: list[Any]
    span: Span


class BlockBuilder(Faults):
    """`headless` holds the offsets of braces whose head was faulty and is blanked: their blocks need no second error.

    `gaps` holds the parts that are left out, and is added to.
    """

    def __init__(self, headless: AbstractSet[int], gaps: Iterable[Span]) -> None:
        super().__init__()
        self.headless = headless
        self.gaps = list(gaps)

    def block(self, meta: Any, children: list[Any]) -> StageBlock:
        return StageBlock(children, span_of(meta))

    def body(self, block: StageBlock, empty: str, span: Span) -> tuple[ast.Stage, ...]:
        """The stages of a block. One without stages is reported: `empty` is the message, `span` its place."""
        stages = tuple(self.stages(block.items))
        if not stages and not self.in_gap(block.span):
            self.report("QP121", empty, span)
        return stages

    def stages(self, items: list[Any]) -> Iterator[ast.Stage]:
        """The stages of a block; those of a block without a head stand in its place."""
        for item in items:
            if isinstance(item, StageBlock):
                message = "a block belongs to a stage such as `repeat`, `branch` or `if`"
                self.report_headless(item, message, STAGES["repeat"].usage)
                yield from self.stages(item.items)
            elif self.is_shallow(item):
                yield item

    def report_headless(self, block: StageBlock, message: str, usage: str) -> None:
        """A block that no stage or declaration stands before."""
        self.gaps.append(block.span)
        if block.span.start not in self.headless:
            span, notes = Span(block.span.start, block.span.start + 1), (f"form: {usage}",)
            self.report("QP122", message, span, "nothing says what this block is for", notes=notes)

    def in_gap(self, span: Span) -> bool:
        """Whether something was left out within a span."""
        return any(span.start <= gap.start < span.end for gap in self.gaps)

    def is_shallow(self, node: ast.Node) -> bool:
        """Whether a node can be walked; one that nests too deep is reported, and its place is a gap.

        Long chains of operators nest to the left.
        """
        if is_shallow(node):
            return True
        start = Span(node.span.start, node.span.start + 1)
        self.report("QP103", f"this nests over {MAX_DEPTH} deep", start, "from here")
        self.gaps.append(node.span)
        return False


class StageBuilder(VerifierFormBuilder, ClauseBuilder, BlockBuilder):
    def stage(self, cls: type[ast.Stage], meta: Any, children: list[Any]) -> ast.Stage:
        """A stage of this class."""
        return cls(**self._parts(cls, meta, children), span=span_of(meta))

    def _parts(self, cls: type[ast.Stage], meta: Any, children: list[Any]) -> dict[str, Any]:
        """The fields of a stage: what stands by its place, in the order of the form, then options and clauses."""
        options = self.option_values(cls.word, [child for child in children if isinstance(child, tuple)])
        clauses = self.clause_values(children)
        placed = iter([child for child in children if not isinstance(child, tuple | Clause)])
        found: dict[str, Any] = {}
        for name, part in parts(cls):
            if part.is_option:
                value = options.get(part.lead[:-1])
            else:
                value = clauses.get(name, clauses.get(part.lead)) or next(placed, None)
            if value is not None:
                found[name] = self._part(cls, name, part, value, meta)
            elif usual(cls, name) is MISSING:
                found[name] = None if part.kind != "block" else ()
        return found

    def _part(self, cls: type[ast.Stage], name: str, part: Role, value: Any, meta: Any) -> Any:
        """What a child of a stage is there."""
        if isinstance(value, StageBlock):
            return self.body(value, part.empty.format(cls.word), _word_span(meta, cls.word))
        if isinstance(value, Token):
            match value.type:
                case "STRING":
                    return self.string(value)
                case "REGEX":
                    return self.pattern(value)
                case "PATH":
                    return path_of(value)
            return value.value if part.kind == "word" else name_of(value)
        if part.kind == "word":
            return self.word(name, value, part.words, part.code, part.what)
        if part.switch and isinstance(value, ast.Name) and value.id in SWITCH:
            return ast.Literal(SWITCH[value.id], span=value.span)
        return self.width(value) if part.auto else value

    # Stages that are more than their parts

    def chat(self, meta: Any, children: list[Option]) -> ast.Chat:
        turns, others = list[ast.Turn](), list[Option]()
        for key, value in children:
            if key == "history":
                others.append((key, value))
            elif self.is_known("chat", key):
                turns.append(ast.Turn(key.value, value, span=Span(key.start_pos or 0, value.span.end)))
        return ast.Chat(**{**self._parts(ast.Chat, meta, others), "turns": tuple(turns)}, span=span_of(meta))

    def score(self, meta: Any, children: list[Any]) -> ast.Stage:
        verifier, *rest = children
        scale = next((child.value for child in rest if isinstance(child, Clause) and child.word == "scale"), None)
        shared = self._parts(ast.Score, meta, rest)
        if isinstance(verifier, Form):
            form, own = self.verifier_of(verifier, scale)
        else:
            form, own = ast.StepScore, {"verifier": verifier}
            if scale is not None:
                message = "`as` holds a judge's answer to a scale, and this is no judge"
                self.report("QP140", message, scale.span, "leave this out")
        return form(**own, **shared, span=span_of(meta), at=verifier.span)

    def extract(self, meta: Any, children: list[Any]) -> ast.Extract:
        form, arguments = children[2], None
        if isinstance(form, Form):
            arguments = tuple(argument for argument in form.arguments if isinstance(argument, ast.Argument))
            if len(arguments) < len(form.arguments):
                self.report("QP125", "a Python function takes no range", form.span)
            children = [*children[:2], form.name, *children[3:]]
        return ast.Extract(**{**self._parts(ast.Extract, meta, children), "arguments": arguments}, span=span_of(meta))

    def tool(self, meta: Any, children: list[Any]) -> ast.Tool:
        form, *rest = children
        if not isinstance(form, Form):
            return ast.Tool(**self._parts(ast.Tool, meta, children), span=span_of(meta))
        arguments = tuple(argument for argument in form.arguments if isinstance(argument, ast.Argument))
        if len(arguments) < len(form.arguments):
            self.report("QP125", "a tool takes no range", form.span)
        found = self._parts(ast.Tool, meta, [form.name, *rest])
        return ast.Tool(**{**found, "arguments": arguments}, span=span_of(meta))

    def until(self, meta: Any, children: list[Any]) -> Clause:
        """`confidence(window=TOKENS) < BAR`; None where it is faulty."""
        figure, sign, bar = children
        form = figure if isinstance(figure, Form) else None
        name, notes = figure if form is None else form.name, (f"form: {UNTIL_FORM}",)
        value: ast.Until | None = None
        if name != ast.DrawScore.form:
            self.report_unknown_form(name, "figure that ends a row", (ast.DrawScore.form,), UNTIL_FORM)
        elif sign != "<":
            message = f"a row ends where its confidence falls under the bar, not where it is `{sign}` it"
            self.report("QP125", message, at(sign), "expected `<`", notes=notes, edit=Edit(at(sign), "<"))
        elif (fields := {} if form is None else self.confidence(form)) is not None:
            value = ast.Until(bar, **fields, span=Span(at(name).start, bar.span.end))
        return Clause("until", value, span_of(meta))

    def best(self, meta: Any, children: list[Any]) -> ast.Stage:
        by, per, *rest = children
        if not isinstance(by, ast.Tournament):
            return self.stage(ast.Best, meta, children)
        otherwise = self.clause_values(rest).get("otherwise")
        return replace(by, per=None if per is None else name_of(per), otherwise=otherwise, span=span_of(meta))

    def keep(self, meta: Any, children: list[Any]) -> ast.Stage:
        count, by, per = children
        if not isinstance(by, ast.Tournament):
            return self.stage(ast.Keep, meta, children)
        group = None if per is None else name_of(per)
        return ast.KeepTournament(by.model, by.question, by.both, group, count=count, span=span_of(meta))

    def order(self, meta: Any, children: list[Any]) -> ast.Stage:
        (by,) = children
        if not isinstance(by, ast.Tournament):
            return self.stage(ast.Order, meta, children)
        return ast.RoundRobin(by.model, by.question, by.both, span=span_of(meta))

    def search(self, meta: Any, children: list[Any]) -> ast.Search:
        found, span = self._parts(ast.Search, meta, children), _word_span(meta, "search")
        method = children[0]
        if method not in SEARCH_METHODS:
            message = f"`search` goes by {listed(SEARCH_METHODS)}"
            self.report_unknown("QP150", message, at(method), str(method), SEARCH_METHODS, "unknown method")
            found["method"] = SEARCH_METHODS[0]
        elif method != "puct" and found["c"] is not None:
            message = f"`c` weighs how much is explored, which `{method}` finds out by itself"
            self.report("QP150", message, found["c"].span, "of `puct` alone", help="leave `c` out")
        if found["simulations"] is None:
            message, notes = "`search` says how often it may expand a row", (f"form: {STAGES['search'].usage}",)
            self.report("QP150", message, span, "no `simulations=`", notes=notes)
            found["simulations"] = ast.Literal(1, span=span)
        return ast.Search(**found, span=span_of(meta))

    def branch(self, meta: Any, children: list[StageBlock]) -> ast.Branch:
        span = span_of(meta)
        arms = tuple(tuple(self.stages(block.items)) for block in children)
        if not any(arms) and not self.in_gap(span):
            has = "no arm with stages" if arms else "no arms"
            self.report("QP121", f"`branch` has {has}", _word_span(meta, "branch"))
        return ast.Branch(arms, span=span)

    def strategy(self, meta: Any, children: list[Any]) -> ast.Strategy:
        span, blocks = span_of(meta), [child for child in children if isinstance(child, StageBlock)]
        if len(blocks) < 2 and not self.in_gap(span):
            help = "a `strategy` with one arm is that arm: leave the braces out" if blocks else None
            message, notes = "`strategy` chooses among two arms at least", (f"form: {STAGES['strategy'].usage}",)
            self.report("QP121", message, _word_span(meta, "strategy"), notes=notes, help=help)
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
                self.report("QP109", message, brace, "expected `or`" if arms else "", **more)
            arms.append(self.body(block, "this arm of `strategy` has no stages", brace))
        return ast.Strategy(tuple(arms), span=span)

    def if_(self, meta: Any, children: list[Any]) -> ast.If:
        condition, block, otherwise = children
        then = self.body(block, "this `if` has no stages to run", _word_span(meta, "if"))
        if isinstance(otherwise, StageBlock):
            brace = Span(otherwise.span.start, otherwise.span.start + 1)
            others = self.body(otherwise, "this `else` has no stages to run", brace)
        elif otherwise is not None and not _is_short(otherwise):
            word = Span(otherwise.span.start, otherwise.span.start + 2)
            self.report("QP103", f"`else if` goes on over {MAX_DEPTH} times", word, "one too many")
            others = ()
        else:
            others = () if otherwise is None else (otherwise,)
        return ast.If(condition, then, others, span=span_of(meta))

    def elif_(self, meta: Any, children: list[Any]) -> ast.If:
        word = Span(meta.start_pos, meta.start_pos + len("elif"))
        edit = Edit(word, "else if")
        self.report("QP109", "`elif` is written `else if`", word, help="write `else if`", edit=edit)
        return self.if_(meta, children)

    # Calls and results of programs

    def call(self, meta: Any, children: list[Any]) -> ast.Call:
        name, arguments, *rest = children
        clauses = self.clause_values(rest)
        given_depth = self.option_values("call", [child for child in rest if isinstance(child, tuple)]).get("depth")
        if given_depth is not None:
            depth = self.number_between(given_depth, "`depth`", 1, MAX_DEPTH)
            if isinstance(depth, float):
                self.report("QP125", "`depth` is a whole number", given_depth.span)
            clauses["depth"] = ast.Literal(int(depth or 1), span=given_depth.span)
        given = tuple(replace(argument, value=self.width(argument.value)) for argument in arguments or ())
        return ast.Call(str(name), given, **clauses, span=span_of(meta), name_span=at(name))


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
