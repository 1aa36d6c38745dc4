"""The stages of a program: `chat` and `prompt` start its context, and all others are methods of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, cast, final, overload
from typing import Literal as OneOf

from qpdsl.api.compose import targets
from qpdsl.api.compose.blocks import BranchBlock, EachBlock, Stages, WithBlock
from qpdsl.api.compose.stage_call import StageCall, stage_call
from qpdsl.api.compose.symbols import Symbol, convert
from qpdsl.api.composition import Composition, shown
from qpdsl.errors import naming_keywords
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import (
    EQUALITIES,
    JUDGE_REDUCES,
    REDUCES,
    ROLES,
    SEARCH_METHODS,
    Equality,
    JudgeReduce,
    Reduce,
    SearchMethod,
    Which,
)
from qpdsl.sources.functions import Extractor, Scorer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from qpdsl.api.program import Program

    M = TypeVar("M", bound=BaseModel)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Role = OneOf["system", "user", "assistant"]


@naming_keywords
def chat(
    *turns: tuple[Role, str],
    system: str | None = None,
    user: str | None = None,
    assistant: str | None = None,
    messages: Sequence[Any] | None = None,
) -> Rows:
    """Starts the context with turns, in the model's own chat template.

    The turns come in the order written: a conversation as (role, text) pairs first, then those by name. `messages` is a
    conversation that the program was given. An assistant's turn at the end is left open: the model goes on with it.
    """
    named = {"system": system, "user": user, "assistant": assistant, "messages": messages}
    return Rows(_add_turns(stage_call("qp.chat"), turns, named))


def prompt(text: str) -> Rows:
    """Starts the context with plain text."""
    return Rows(_add_prompt(stage_call("qp.prompt"), text))


def let(column: str, value: T) -> T:
    """Adds a column with what is worked out, before the context is started too, and returns it."""
    return cast(T, _let(stage_call("qp.let"), column, value))


class GenerateKeywords(TypedDict, total=False):
    """The keywords of `generate` other than `as_`, for type checkers: the overloads share them."""

    n: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    stop: targets.Stop | None
    max_tokens: int | None
    via: targets.Filter | targets.Amortized | None
    draft: targets.Draft | targets.Model | str | OneOf[False] | None
    into: str | None


@final
class Rows:
    """The rows of a program. Every method adds a stage, and returns the column that the stage makes, else the rows.

    A column has these methods too, so that stages can stand one behind another:
    `qp.chat(user=q).generate(llm, n=8).score(prm)`.
    """

    def __init__(self, composition: Composition) -> None:
        self._composition = composition

    @naming_keywords
    def chat(
        self,
        *turns: tuple[Role, str],
        system: str | None = None,
        user: str | None = None,
        assistant: str | None = None,
        messages: Sequence[Any] | None = None,
    ) -> Rows:
        """Appends turns to the context."""
        named = {"system": system, "user": user, "assistant": assistant, "messages": messages}
        _add_turns(self._stage_call("chat"), turns, named)
        return self

    def prompt(self, text: str) -> Rows:
        """Appends plain text to the context."""
        _add_prompt(self._stage_call("prompt"), text)
        return self

    def say(self, text: str) -> Rows:
        """Goes on with the open turn of the assistant by a text that is given."""
        call = self._stage_call("say")
        self._add(ast.Say(call.expr("text", text, 0), span=call.span), call)
        return self

    @overload
    def generate(self, model: targets.Model | str, *, as_: type[M], **options: Unpack[GenerateKeywords]) -> M: ...

    @overload
    def generate(
        self,
        model: targets.Model | str,
        *,
        as_: targets.Schema | Mapping[str, Any],
        **options: Unpack[GenerateKeywords],
    ) -> dict[str, Any]: ...

    @overload
    def generate(
        self,
        model: targets.Model | str,
        *,
        as_: targets.Choice | targets.Regex | targets.Grammar | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> str: ...

    @naming_keywords
    def generate(
        self,
        model: targets.Model | str,
        *,
        n: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        stop: targets.Stop | None = None,
        max_tokens: int | None = None,
        as_: Any = None,
        via: targets.Filter | targets.Amortized | None = None,
        draft: targets.Draft | targets.Model | str | OneOf[False] | None = None,
        into: str | None = None,
    ) -> Any:
        """Each row becomes `n` rows, each continued with text of the model. Returns the text.

        `as_` makes the text follow a pydantic model, a JSON schema, a choice, a regex or a grammar; `into` names a
        column for the text of this call. `draft` is a model that proposes tokens, `qp.ngram()`, `qp.early_exit()` or
        `qp.eagle(…)`; False means that nothing does.
        """
        call = self._stage_call("generate")
        stage = ast.Generate(
            call.model("model", model, 0),
            call.maybe("n", n),
            call.maybe("temperature", temperature),
            call.maybe("top_p", top_p),
            call.maybe("top_k", top_k),
            call.maybe("min_p", min_p),
            call.stop(stop),
            call.maybe("max_tokens", max_tokens),
            call.target(as_),
            call.via(via),
            call.draft(draft),
            None if into is None else call.new_column("into", into),
            span=call.span,
        )
        return self._add(stage, call, stage.into.id if stage.into else "text")

    @naming_keywords
    def score(
        self,
        verifier: targets.Verifier | Scorer[..., Any] | str,
        *,
        reduce: Reduce | JudgeReduce | None = None,
        of: str | None = None,
        given: str | None = None,
        into: str | None = None,
    ) -> float:
        """Adds a column with the verifier's score of each row, and returns it.

        The verifier is a model, `qp.judge(…)`, `qp.prob(…)`, `qp.logprob`, `qp.equal(…)`, `qp.valid_json()`,
        `qp.passes(…)` or a scorer. `of` is the text that is scored, by default the row's; `given` is the problem that
        is shown with it, by default the first user turn.
        """
        call = self._stage_call("score")
        known = (*REDUCES, *JUDGE_REDUCES)
        word = None if reduce is None else call.word("reduce", reduce, known, "QP207")
        column = None if into is None else call.new_column("into", into)
        shown_ = call.maybe("of", of), call.maybe("given", given)
        stage = ast.Score(call.verifier(verifier), word, *shown_, column, span=call.span)
        return cast(float, self._add(stage, call, column.id if column else "score"))

    @overload
    def extract(
        self, column: str, pattern: str | targets.Regex | targets.Boxed, *, which: OneOf["all"]
    ) -> list[str]: ...

    @overload
    def extract(
        self, column: str, pattern: str | targets.Regex | targets.Boxed, *, which: OneOf["last"] | None = None
    ) -> str: ...

    @overload
    def extract(self, column: str, pattern: Extractor[..., Any, T]) -> T: ...

    @naming_keywords
    def extract(
        self,
        column: str,
        pattern: str | targets.Regex | targets.Boxed | Extractor[..., Any, Any],
        *,
        which: OneOf["last", "all"] | None = None,
    ) -> Any:
        """Adds a column and returns it.

        It holds the first match of a regex, the last LaTeX box (`qp.boxed`), the value at a JSON path (`.a.b[0]`), or
        the value of an extractor. `which` says that of the matches the last one is meant, or the list of all.
        """
        call = self._stage_call("extract")
        name = call.new_column("column", column, 0)
        word: Which = "first"
        if which is not None:
            word = call.word("which", which, ("last", "all"), "QP250")
        stage = ast.Extract(name, call.pattern("pattern", pattern, 1), word, span=call.span)
        return self._add(stage, call, name.id)

    def let(self, column: str, value: T) -> T:
        """Adds a column with what is worked out for each row, and returns it."""
        return cast(T, _let(self._stage_call("let"), column, value))

    def where(self, condition: bool) -> Rows:
        """Keeps the rows for which a condition holds."""
        call = self._stage_call("where")
        self._add(ast.Where(call.expr("condition", condition, 0), span=call.span), call)
        return self

    @naming_keywords
    def keep(self, count: int, *, by: float, per: object = None) -> Rows:
        """Keeps the `count` rows with the greatest `by`; with `per`, that many for each value of that column."""
        call = self._stage_call("keep")
        column = None if per is None else call.column("per", per)
        stage = ast.Keep(call.expr("count", count, 0), call.expr("by", by), column, span=call.span)
        self._add(stage, call)
        return self

    @naming_keywords
    def best(self, *, by: float | targets.Compare, per: object = None) -> Rows:
        """Keeps the row with the greatest `by`; with `per`, that of each value of that column.

        With `qp.compare(…)` for `by` the row is kept that wins a tournament.
        """
        call = self._stage_call("best")
        column = None if per is None else call.column("per", per)
        value = call.compare("by", by) if isinstance(by, targets.Compare) else call.expr("by", by)
        self._add(ast.Best(value, column, span=call.span), call)
        return self

    @naming_keywords
    def distinct(self, *, by: object, per: object = None) -> Rows:
        """Keeps the first row of each value of `by`; with `per`, within each value of that column."""
        call = self._stage_call("distinct")
        column = None if per is None else call.column("per", per)
        self._add(ast.Distinct(call.expr("by", by), column, span=call.span), call)
        return self

    @naming_keywords
    def order(self, *, by: object) -> Rows:
        """Puts the rows in order, greatest number first, texts in that of the alphabet."""
        call = self._stage_call("order")
        self._add(ast.Order(call.expr("by", by), span=call.span), call)
        return self

    @naming_keywords
    def join(self, column: str, value: object, *, sep: str | None = None, per: object = None) -> str:
        """Makes one row of all, with a column of their values in one text; with `per`, of each value of that column.

        In `value`, `qp.col.i` is the row's number, from 1. `sep` stands between the values, a newline by default.
        Returns the column.
        """
        call = self._stage_call("join")
        name = call.new_column("column", column, 0)
        groups = None if per is None else call.column("per", per)
        stage = ast.Join(name, call.expr("value", value, 1), call.maybe("sep", sep), groups, span=call.span)
        return cast(str, self._add(stage, call, name.id))

    @naming_keywords
    def vote(
        self,
        column: T,
        *,
        weight: float | None = None,
        equal: Equality = "text",
        decided: float | None = None,
        per: object = None,
    ) -> T:
        """Keeps one row of the value with the most votes, or the most weight. Returns the column.

        With `decided` the samples count in their order, up to where the winner is that sure to stay ahead. With `per`
        there is a vote for each value of that column.
        """
        call = self._stage_call("vote")
        name = call.column("column", column, 0)
        word = call.word("equal", equal, EQUALITIES, "QP126")
        groups = None if per is None else call.column("per", per)
        options = call.maybe("weight", weight), word, call.maybe("decided", decided)
        stage = ast.Vote(name, *options, groups, span=call.span)
        return cast(T, self._add(stage, call, name.id))

    @naming_keywords
    def split(
        self, count: int, *, by: float | None = None, temperature: float | None = None, per: object = None
    ) -> Rows:
        """Copies each row `count` times. The column `group` has the number of the copy.

        With `by`, makes `count` rows in all, shared out by the softmax of `by` over `temperature`; with `per` too, so
        many of each value of that column.
        """
        call = self._stage_call("split")
        rows, value, soft = (
            call.expr("count", count, 0),
            call.maybe("by", by),
            call.maybe("temperature", temperature),
        )
        column = None if per is None else call.column("per", per)
        if column is not None and value is None:
            raise call.composition.refuse(
                "QP502", "`per` stands beside `by`: rows are shared out in each group", call.span
            )
        self._add(ast.Split(rows, value, soft, column, span=call.span), call)
        return self

    @naming_keywords
    def repeat(self, limit: int, *, until: bool | None = None) -> WithBlock:
        """Runs the stages of the `with` block until a condition over all rows holds, `limit` times at most."""
        call = self._stage_call("repeat")
        most, condition = call.expr("limit", limit, 0), call.maybe("until", until)

        def done(body: Stages) -> None:
            self._add(ast.Repeat(most, condition, body, span=call.span), call)

        return WithBlock(call, "`repeat`", done)

    @naming_keywords
    def search(
        self,
        method: SearchMethod,
        *,
        by: float,
        simulations: int,
        c: float | None = None,
        per_round: int | None = None,
    ) -> WithBlock:
        """Grows a tree of rows: the `with` block makes the children of a row, and `by` is the value of each.

        `simulations` rows are expanded, `per_round` side by side. The columns `visits` and `value` say how many values
        there are of a row and those below it, and their mean.
        """
        call = self._stage_call("search")
        word = call.word("method", method, SEARCH_METHODS, "QP150")
        options = (call.maybe("simulations", simulations), call.maybe("c", c), call.maybe("per_round", per_round))
        value, most = call.expr("by", by), options[0]
        if most is None:
            raise call.composition.refuse("QP150", "`search` says how often it may expand a row", call.span)
        if word != "puct" and c is not None:
            message = f"`c` weighs how much is explored, which `{word}` finds out by itself"
            raise call.composition.refuse("QP150", message, call.place("c"))

        def done(body: Stages) -> None:
            self._add(ast.Search(word, value, most, *options[1:], body, span=call.span), call)

        return WithBlock(call, "`search`", done)

    def branch(self) -> BranchBlock:
        """Runs each arm of the `with` block on the same rows. The rows of all arms come one after another."""
        call = self._stage_call("branch")
        return BranchBlock(call, lambda arms: self._add(ast.Branch(arms, span=call.span), call))

    def strategy(self) -> BranchBlock:
        """Arms that aim at the same: a budget has one of them run for a problem, or several one after another."""
        call = self._stage_call("strategy")

        def done(arms: tuple[Stages, ...]) -> None:
            self._add(ast.Strategy(arms, span=call.span), call)

        return BranchBlock(call, done, "strategy", 2)

    def if_(self, condition: bool) -> WithBlock:
        """Runs the stages of the `with` block on the rows for which a condition holds; the others pass.

        `with rows.else_():` right after it has the stages for the others.
        """
        call = self._stage_call("if_")
        holds = call.expr("condition", condition, 0)
        return WithBlock(call, "`if_`", lambda body: self._add(ast.If(holds, body, span=call.span), call))

    def else_(self) -> WithBlock:
        """Runs the stages of the `with` block on the rows for which the condition of the `if_` before it fails."""
        call = self._stage_call("else_")
        stages = self._composition.blocks[-1]
        before = stages[-1] if stages else None
        if not isinstance(before, ast.If) or before.otherwise:
            message = "`else_` stands right after the block of an `if_`"
            raise call.composition.refuse("QP504", message, call.span)

        def done(body: Stages) -> None:
            stages[-1] = replace(before, otherwise=body)

        return WithBlock(call, "`else_`", done)

    def each(self, column: str, source: object) -> EachBlock:
        """Runs the stages of the `with` block on a copy of the row for every element of a list.

        The list is a column, a parameter, a Python list, or a JSON path (`".steps"`) in the row's text.
        `with rows.each(…) as element` gives the column of the element.
        """
        call = self._stage_call("each")
        name = call.new_column("column", column, 0)
        path = source if isinstance(source, str) and source.startswith(".") else None
        listed = call.expr("source", source, 1) if path is None else call.json_path(path, call.place("source", 1))

        def done(body: Stages) -> None:
            self._add(ast.Each(name, listed, body, span=call.span), call)

        return EachBlock(call, name, done)

    def peek(self) -> WithBlock:
        """Runs the stages of the `with` block. Then the rows are as they were before, with the columns that it made."""
        call = self._stage_call("peek")
        return WithBlock(call, "`peek`", lambda body: self._add(ast.Peek(body, span=call.span), call))

    def ask(self) -> WithBlock:
        """Runs the stages of the `with` block for each row in a conversation of its own.

        The rows are as they were then, with the columns that it made.
        """
        call = self._stage_call("ask")
        return WithBlock(call, "`ask`", lambda body: self._add(ast.Ask(body, span=call.span), call))

    def call(self, program: Program[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Rows:
        """Runs another program's stages in this place."""
        self._call("call", None, program, args, kwargs)
        return self

    def call_into(self, column: str, program: Program[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs another program for each row, in a conversation of its own. Returns a new column with the result.

        Nothing else of the rows changes: the columns and the conversation of the other program stay inside.
        """
        return cast(R, self._call("call_into", column, program, args, kwargs))

    def _call(self, word: str, column: str | None, program: Any, args: Any, kwargs: Any) -> Any:
        from qpdsl.api.compose.uses import use
        from qpdsl.api.program import Program

        call = self._stage_call(word)
        into = None if column is None else call.new_column("column", column, 0)
        at = 0 if column is None else 1
        span = call.place("program", at)
        if not isinstance(program, Program):
            raise call.refuse(f"`call` takes a program, not {shown(program)}", span)
        name = use(self._composition, program, span)
        values = [
            ast.Argument(None, call.expr("", value, at + 1 + index), span=call.place("", at + 1 + index))
            for index, value in enumerate(args)
        ]
        values += [ast.Argument(key, call.expr(key, value), span=call.place(key)) for key, value in kwargs.items()]
        stage = ast.Call(name, tuple(values), into, span=call.span, name_span=span)
        return self._add(stage, call, into.id if into else None)

    def _stage_call(self, word: str) -> StageCall:
        call = stage_call(word)
        if call.composition is not self._composition:
            raise call.composition.refuse("QP504", "these rows belong to another program", call.span)
        return call

    def _add(self, stage: ast.Stage, call: StageCall, column: str | None = None) -> Any:
        self._composition.add(stage)
        return None if column is None else Symbol(ast.Name(column, span=call.span), self)


def _let(call: StageCall, column: str, value: object) -> Symbol:
    """Adds a `let` stage. Raises QpError."""
    name = call.new_column("column", column, 0)
    call.composition.add(ast.Let(name, call.expr("value", value, 1), span=call.span))
    return Symbol(ast.Name(name.id, span=call.span))


def _add_turns(call: StageCall, pairs: tuple[tuple[Role, str], ...], named: Mapping[str, object]) -> Composition:
    """Adds a `chat` stage with turns in the order in which they are written. Raises QpError."""
    turns: list[tuple[Any, object, Span]] = []
    for index, pair in enumerate(pairs):
        span = call.place("", index)
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] not in ROLES:
            raise call.refuse(f"a turn is a pair of a role ({listed(ROLES)}) and a text, not {shown(pair)}", span)
        turns.append((pair[0], pair[1], span))
    # Python passes keywords by name; their order in the file is that of their places.
    given = (role for role in (*ROLES, "messages") if named[role] is not None)
    roles = sorted(given, key=lambda role: call.place(role).start)
    turns += [(role, named[role], call.place(role)) for role in roles]
    if not turns:
        raise call.refuse(f"`chat` takes a turn at least: {listed(ROLES)}", call.span)
    syntax = (ast.Turn(role, convert(content, span), span=span) for role, content, span in turns)
    call.composition.add(ast.Chat(tuple(syntax), span=call.span))
    return call.composition


def _add_prompt(call: StageCall, text: str) -> Composition:
    """Adds a `prompt` stage. Raises QpError."""
    call.composition.add(ast.Prompt(call.template("text", text, 0), span=call.span))
    return call.composition
