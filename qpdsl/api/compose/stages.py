"""The stages of a program: `chat` and `prompt` start its context, and all others are methods of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast, final, overload

from qpdsl.api.compose import targets
from qpdsl.api.compose.blocks import BranchBlock, EachBlock, Stages, WithBlock
from qpdsl.api.compose.stage_call import StageCall, stage_call
from qpdsl.api.compose.symbols import Symbol, convert
from qpdsl.api.composition import Composition, shown
from qpdsl.errors import naming_keywords
from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import MAX_DEPTH, made_column, with_block
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import (
    HISTORIES,
    ROLES,
    SEARCH_METHODS,
    ArmChoice,
    Backup,
    Drawn,
    Equality,
    FinishedRows,
    FirstTokens,
    History,
    JudgeReduce,
    Part,
    Reduce,
    Rollout,
    SearchMethod,
    StopText,
    WorthPrior,
)
from qpdsl.session.functions import Extractor, RegisteredTool, Scorer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from qpdsl.api.program import Program

    M = TypeVar("M", bound=BaseModel)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Role = Literal["system", "user", "assistant"]


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
    call = stage_call("qp.prompt")
    call.composition.add(call.stage(ast.Prompt, (text,), {}))
    return Rows(call.composition)


def let(column: str, value: T) -> T:
    """Adds a column with what is worked out, before the context is started too, and returns it."""
    return cast(T, _let(stage_call("qp.let"), column, value))


def extract(
    column: str,
    pattern: str | targets.RegexText | targets.BuiltIn | targets.Failure | Extractor[..., Any, Any],
    *arguments: object,
    which: Literal["last", "all"] | None = None,
    of: str | None = None,
    **named: object,
) -> Any:
    """Adds a column out of a text that is given, or by a Python function, before the context is started too."""
    return _extract(stage_call("qp.extract"), column, pattern, arguments, named, which=which, of=of)


class GenerateKeywords(TypedDict, total=False):
    """The keywords of `generate` other than `as_`, for type checkers: the overloads share them."""

    n: int | None
    first_tokens: FirstTokens
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: targets.LogitBias | None
    stop: targets.Stop | None
    stop_text: StopText
    without: str | Sequence[str] | None
    min_tokens: int | None
    max_tokens: int | None
    think: bool | int | str | None
    only: Part | None
    ahead: int | None
    via: targets.Via | None
    draft: targets.DraftTarget | targets.Model | str | Literal[False] | None
    until: targets.UnderBar | None
    into: str | None


@final
class Rows:
    """The rows of a program. Every method adds a stage, and returns the column that the stage makes, else the rows.

    A column has these methods too, so that stages can stand one behind another:
    `qp.chat(user=q).generate(llm, n=8).score(prm)`.
    """

    def __init__(self, composition: Composition) -> None:
        self._composition = composition

    def __getattr__(self, name: str) -> Any:
        """Raises AttributeError: what is none of the methods may have been meant as a column."""
        if name.startswith("_"):
            raise AttributeError(name)
        near = closest(name, [word for word in dir(type(self)) if not word.startswith("_")])
        meant = f"; did you mean `{near}`?" if near else f"; a column is `qp.col.{name}`"
        raise AttributeError(f"there is no stage `{name}`{meant}")

    @naming_keywords
    def chat(
        self,
        *turns: tuple[Role, str],
        system: str | None = None,
        user: str | None = None,
        assistant: str | None = None,
        messages: Sequence[Any] | None = None,
        tool: object = None,
        history: History = "template",
    ) -> Rows:
        """Appends turns to the context. What a `tool` gave answers the call that ends the model's own turn.

        With `history="tokens"` what the model wrote stays in the tokens that were drawn, its thoughts among them; else
        it is shown as the chat template has it.
        """
        named = {"system": system, "user": user, "assistant": assistant, "tool": tool, "messages": messages}
        _add_turns(self._stage_call("chat"), turns, named, history)
        return self

    def prompt(self, text: str) -> Rows:
        """Appends plain text to the context."""
        return self._rows(ast.Prompt, text)

    def say(self, text: str) -> Rows:
        """Goes on with the open turn of the assistant by a text that is given."""
        return self._rows(ast.Say, text)

    @overload
    def generate(self, model: targets.Model | str, *, as_: type[M], **options: Unpack[GenerateKeywords]) -> M: ...

    @overload
    def generate(
        self,
        model: targets.Model | str,
        *,
        as_: targets.NamedSchema | Mapping[str, Any],
        **options: Unpack[GenerateKeywords],
    ) -> dict[str, Any]: ...

    @overload
    def generate(
        self,
        model: targets.Model | str,
        *,
        as_: targets.Choice | targets.RegexText | targets.Grammar | targets.ToolChoice | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> str: ...

    @naming_keywords
    def generate(
        self,
        model: targets.Model | str,
        *,
        n: int | None = None,
        first_tokens: FirstTokens = "drawn",
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        logit_bias: targets.LogitBias | None = None,
        stop: targets.Stop | None = None,
        stop_text: StopText = "keep",
        without: str | Sequence[str] | None = None,
        min_tokens: int | None = None,
        max_tokens: int | None = None,
        think: bool | int | str | None = None,
        only: Part | None = None,
        ahead: int | None = None,
        as_: Any = None,
        via: targets.Via | None = None,
        draft: targets.DraftTarget | targets.Model | str | Literal[False] | None = None,
        until: targets.UnderBar | None = None,
        into: str | None = None,
    ) -> Any:
        """Each row becomes `n` rows, each continued with text of the model. Returns the text.

        With `first_tokens="likeliest"` each of the samples begins with another of the `n` likeliest tokens.
        Penalties are those of transformers and OpenAI; `logit_bias` maps tokens, as texts or ids, to what is added to
        their logits. `without` are texts that never appear, and the sample has `min_tokens` at least; with
        `stop_text="drop"` what stopped it is left out.
        `think` is for a model that thinks before it answers: whether it does, for how many tokens at most, or how hard
        ("low"). `only` is "thought" to go on with the thought alone, and "answer" to end it and answer. In a loop
        `ahead` is how many rounds samples may run ahead, which changes no token.
        `as_` makes the text follow a pydantic model, a JSON schema, a choice, a regex or a grammar; `into` names a
        column for the text of this call. `draft` is what proposes tokens (see `qp.draft`);
        False means that nothing does. `until` ends a row as soon as its confidence falls:
        `until=qp.confidence(window=64) < bar`.
        """
        options: dict[str, Any] = {
            "n": n,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "stop": stop,
        }
        if isinstance(logit_bias, Mapping):
            logit_bias = [{"token": token, "bias": bias} for token, bias in logit_bias.items()]
        options |= {"repetition_penalty": repetition_penalty, "presence_penalty": presence_penalty}
        options |= {"frequency_penalty": frequency_penalty, "logit_bias": logit_bias, "stop_text": stop_text}
        options |= {"without": without, "min_tokens": min_tokens, "first_tokens": first_tokens}
        options |= {"max_tokens": max_tokens, "think": think, "only": only, "ahead": ahead}
        clauses = {"as_": as_, "via": via, "draft": draft, "until": until, "into": into}
        return self._column(ast.Generate, model, **options, **clauses)

    @naming_keywords
    def score(
        self,
        verifier: targets.Model | targets.VerifierTarget | Scorer[..., Any] | str,
        *,
        reduce: Reduce | JudgeReduce | None = None,
        of: str | None = None,
        given: str | None = None,
        into: str | None = None,
    ) -> float:
        """Adds a column with the verifier's score of each row, and returns it.

        The verifier is a model, `qp.judge(…)`, `qp.prob(…)`, `qp.logprob`, `qp.equal(…)`, `qp.valid_json()`,
        `qp.passes(…)` or a scorer. `of` is the text that is scored, by default the row's, and for `qp.entropy`,
        `qp.certainty` and `qp.confidence` the part of the turn, `qp.col.thought` or `qp.col.text`; `given` is the
        problem that is shown with it, by default the first user turn.
        """
        call = self._stage_call("score")
        form, own = call.verifier(verifier)
        shared = call.parts(ast.Score, (), {"reduce": reduce, "of": of, "given": given, "into": into})
        return cast(float, self._made(form(**own, **shared, span=call.span, at=call.place("verifier", 0)), call))

    @overload
    def extract(
        self,
        column: str,
        pattern: str | targets.RegexText | targets.BuiltIn,
        *,
        which: Literal["all"],
        of: str | None = None,
    ) -> list[str]: ...

    @overload
    def extract(
        self,
        column: str,
        pattern: str | targets.RegexText | targets.BuiltIn,
        *,
        which: Literal["last"] | None = None,
        of: str | None = None,
    ) -> str: ...

    @overload
    def extract(
        self,
        column: str,
        pattern: targets.Failure,
        tests: str,
        *,
        timeout: float | None = None,
        of: str | None = None,
    ) -> str: ...

    @overload
    def extract(
        self,
        column: str,
        pattern: Extractor[..., Any, T],
        *arguments: object,
        which: None = None,
        of: str | None = None,
        **named: object,
    ) -> T: ...

    def extract(
        self,
        column: str,
        pattern: Any,
        *arguments: object,
        which: Literal["last", "all"] | None = None,
        of: str | None = None,
        **named: object,
    ) -> Any:
        """Adds a column and returns it.

        It holds the first match of a regex, the answer that the text comes to (`qp.final_answer`), its last number
        (`qp.last_number`) or LaTeX box (`qp.boxed`), the value at a JSON path (`.a.b[0]`), why code fails its tests
        (`qp.failure`), or the value of an extractor; the last two are given the `arguments`. `which` says
        that of the matches the last one is meant, or the list of all; `of` the text, where it is not that of the row.
        """
        return _extract(self._stage_call("extract"), column, pattern, arguments, named, which=which, of=of)

    def let(self, column: str, value: T) -> T:
        """Adds a column with what is worked out for each row, and returns it."""
        return cast(T, self._column(ast.Let, column, value))

    def where(self, condition: bool) -> Rows:
        """Keeps the rows for which a condition holds."""
        return self._rows(ast.Where, condition)

    @naming_keywords
    def keep(self, count: int, *, by: float | targets.Compare, per: object = None) -> Rows:
        """Keeps the `count` rows with the greatest `by`; with `per`, that many for each value of that column.

        With `qp.compare(…)` for `by` those are kept that tournaments find to be best.
        """
        if not isinstance(by, targets.Compare):
            return self._rows(ast.Keep, count, by=by, per=per)
        call = self._stage_call("keep")
        self._composition.add(call.compare(by, per, ast.KeepTournament, count=call.expr("count", count, 0)))
        return self

    @naming_keywords
    def first(self, count: int = 1, *, per: object = None) -> Rows:
        """Keeps the first `count` rows as they stand; with `per`, that many for each value of that column."""
        return self._rows(ast.First, count, per=per)

    @naming_keywords
    def best(self, *, by: float | targets.Compare, per: object = None, else_: object = None) -> Rows:
        """Keeps the row with the greatest `by`; with `per`, that of each value of that column.

        With `qp.compare(…)` for `by` the row is kept that wins a tournament. `else_`: see `vote`.
        """
        if not isinstance(by, targets.Compare):
            return self._rows(ast.Best, by=by, per=per, else_=else_)
        call = self._stage_call("best")
        self._composition.add(call.compare(by, per, otherwise=call.maybe("else_", else_)))
        return self

    @naming_keywords
    def distinct(self, *, by: object, per: object = None) -> Rows:
        """Keeps the first row of each value of `by`; with `per`, within each value of that column."""
        return self._rows(ast.Distinct, by=by, per=per)

    @naming_keywords
    def order(self, *, by: object) -> Rows:
        """Puts the rows in order, greatest number first, texts in that of the alphabet.

        With `qp.compare(…)` for `by`, in the order in which they win against each other.
        """
        if not isinstance(by, targets.Compare):
            return self._rows(ast.Order, by=by)
        self._composition.add(self._stage_call("order").compare(by, None, ast.RoundRobin))
        return self

    @naming_keywords
    def join(self, column: str, value: object, *, sep: str | None = None, per: object = None) -> str:
        """Makes one row of all, with a column of their values in one text; with `per`, of each value of that column.

        In `value`, `qp.col.i` is the row's number, from 1. `sep` stands between the values, a newline by default.
        Returns the column.
        """
        return cast(str, self._column(ast.Join, column, value, sep=sep, per=per))

    @naming_keywords
    def vote(
        self,
        column: T,
        *,
        weight: float | None = None,
        equal: Equality = "text",
        decided: float | None = None,
        per: object = None,
        else_: object = None,
    ) -> T:
        """Keeps one row of the value with the most votes, or the most weight. Returns the column.

        With `decided` the samples count in their order, up to where the winner is that sure to stay ahead. With `per`
        there is a vote for each value of that column. `else_` is the program's result where it would have none, behind
        its last stage.
        """
        named = {"weight": weight, "equal": equal, "decided": decided, "per": per, "else_": else_}
        return cast(T, self._column(ast.Vote, column, **named))

    @naming_keywords
    def split(
        self,
        count: int,
        *,
        by: float | None = None,
        temperature: float | None = None,
        draw: Drawn | None = None,
        finished: FinishedRows = "pass",
        per: object = None,
    ) -> Rows:
        """Copies each row `count` times, 0 to drop it. The column `group` has the number of the copy.

        With `by`, makes `count` rows in all, shared out by the softmax of `by` over `temperature`; with `per` too, so
        many of each value of that column. With a `draw` they are drawn, else shares are rounded as in REBASE. Finished
        rows pass once each, or are shared out too.
        """
        named = {"per": per, "draw": draw, "finished": finished if finished != "pass" else None}
        beside = next((name for name, value in named.items() if value is not None), None)
        if beside is not None and by is None:
            call = self._stage_call("split")
            message = f"`{beside}` stands beside `by`, the value that rows are shared out by"
            raise call.composition.refuse("QP502", message, call.span)
        return self._rows(ast.Split, count, by=by, temperature=temperature, draw=draw, finished=finished, per=per)

    @naming_keywords
    def repeat(self, limit: int, *, until: bool | None = None, gather: bool = False) -> WithBlock:
        """Runs the stages of the `with` block until a condition over all rows holds, `limit` times at most.

        To `gather`, each round starts from the rows of now, and the rows that all rounds left go on.
        """
        return self._block(ast.Repeat, limit, until=until, gather="gather" if gather else None)

    @naming_keywords
    def search(
        self,
        method: SearchMethod,
        *,
        by: float,
        simulations: int,
        c: float | None = None,
        per_round: int | None = None,
        rollout: Rollout = "last",
        backup: Backup = "mean",
        prior: WorthPrior = "gaussian",
        arms: ArmChoice | None = None,
    ) -> WithBlock:
        """Grows a tree of rows: the `with` block makes the children of a row, and `by` is the value of each.

        `simulations` rows are expanded, `per_round` side by side. A `rollout` carries each new row on to its end,
        "greedy" or "sampled", or, as "last", the most visited line where no row is finished. `backup` is for "puct",
        `prior` for "ab_mcts"; with `arms` the AB-MCTS choose which arm of the block's `branch` makes a child. The
        columns `visits` and `value` say how many values there are of a row and those below it, and their mean.
        """
        call = self._stage_call("search")
        if simulations is None:
            raise call.composition.refuse("QP150", "`search` says how often it may expand a row", call.span)
        if call.word("method", method, SEARCH_METHODS, "QP150") != "puct" and c is not None:
            message = f"`c` weighs how much is explored, which `{method}` finds out by itself"
            raise call.composition.refuse("QP150", message, call.place("c"))
        named = {"rollout": rollout, "backup": backup, "prior": prior, "arms": arms}
        return self._block(ast.Search, method, by=by, simulations=simulations, c=c, per_round=per_round, **named)

    def branch(self) -> BranchBlock:
        """Runs each arm of the `with` block on the same rows. The rows of all arms come one after another."""
        return self._arms(ast.Branch)

    def strategy(self) -> BranchBlock:
        """Arms that aim at the same: a budget has one of them run for a problem, or several one after another."""
        return self._arms(ast.Strategy, 2)

    def if_(self, condition: bool) -> WithBlock:
        """Runs the stages of the `with` block on the rows for which a condition holds; the others pass.

        `with rows.else_():` right after it has the stages for the others.
        """
        return self._block(ast.If, condition)

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
        `with rows.each(…) as element` gives the column of the element; of a parameter that lists models, the model.
        """
        call = self._stage_call("each")
        name = call.new_column("column", column, 0)
        path = source if isinstance(source, str) and source.startswith(".") else None
        listed = call.expr("source", source, 1) if path is None else call.json_path(path, call.place("source", 1))
        element: Symbol | targets.Model = Symbol(name)
        if isinstance(listed, ast.Name) and listed.id in self._composition.model_params:
            element = self._composition.model_params[name.id] = targets.Model("", name.id)
        return EachBlock(
            call, element, lambda body: self._composition.add(ast.Each(name, listed, body, span=call.span))
        )

    def peek(self) -> WithBlock:
        """Runs the stages of the `with` block. Then the rows are as they were before, with the columns that it made."""
        return self._block(ast.Peek)

    def ask(self) -> WithBlock:
        """Runs the stages of the `with` block for each row in a conversation of its own.

        The rows are as they were then, with the columns that it made.
        """
        return self._block(ast.Ask)

    def call(self, program: Program[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Rows:
        """Runs another program's stages in this place."""
        self._call("call", None, program, args, kwargs)
        return self

    @overload
    def call_into(self, column: str, program: Program[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def call_into(self, column: str, program: targets.Itself, /, *args: Any, **kwargs: Any) -> Any: ...
    def call_into(self, column: str, program: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Runs another program for each row, in a conversation of its own. Returns a new column with the result.

        Nothing else of the rows changes: the columns and the conversation of the other program stay inside. A program
        calls itself by `qp.itself(depth=2)`.
        """
        return self._call("call_into", column, program, args, kwargs)

    def tool(
        self,
        column: str | None,
        tool: RegisteredTool[..., R] | object,
        /,
        *arguments: object,
        timeout: float | None = None,
        at_most: int | None = None,
        **named: object,
    ) -> Any:
        """Calls a tool for each row, with arguments in their order or by name. Returns a new column with the result.

        In the place of a tool there may be a column of calls, as `generate` with `as_=qp.call(…)` writes them. A tool
        that fails, or takes more than `timeout` seconds, gives a text that begins with `error: `. `at_most` so many
        calls run at a time. Where `column` is None, nothing is kept of what it gives.
        """
        call = self._stage_call("tool")
        span, given = call.place("tool", 1), None
        if isinstance(tool, RegisteredTool):
            name = ast.Name(call.function(tool.function, span), span=span)
            given = call.arguments(arguments, named, 2)
        elif arguments or named or not isinstance(tool, Symbol):
            raise call.refuse(f"`tool` takes a tool (`@qp.tool`), or a column of calls alone, not {shown(tool)}", span)
        else:
            name = call.column("tool", tool, 1)
        into = None if column is None else call.new_column("column", column, 0)
        seconds, most = call.maybe("timeout", timeout), call.maybe("at_most", at_most)
        stage = ast.Tool(name, given, seconds, most, into, span=call.span)
        return self._composition.add(stage) if into is None else self._made(stage, call)

    def _call(self, word: str, column: str | None, program: Any, args: Any, kwargs: Any) -> Any:
        from qpdsl.api.compose.uses import use
        from qpdsl.api.program import Program

        call = self._stage_call(word)
        into = None if column is None else call.new_column("column", column, 0)
        at = 0 if column is None else 1
        span = call.place("program", at)
        depth = None
        if isinstance(program, targets.Itself):
            if type(program.depth) is not int or not 1 <= program.depth <= MAX_DEPTH:
                raise self._composition.refuse("QP301", f"`depth` is a whole number from 1 to {MAX_DEPTH}", span)
            name, depth = self._composition.program, ast.Literal(program.depth, span=span)
        elif not isinstance(program, Program):
            raise call.refuse(f"`call` takes a program, not {shown(program)}", span)
        elif program.name == self._composition.program:
            raise self._composition.calls_itself(span)
        else:
            name = use(self._composition, program, span)
        stage = ast.Call(name, call.arguments(args, kwargs, at + 1), into, depth, span=call.span, name_span=span)
        return self._made(stage, call) if into else self._composition.add(stage)

    def _rows(self, form: type[ast.Stage], *values: object, **named: object) -> Rows:
        """Adds a stage, and gives the rows back."""
        call = self._stage_call(form.word)
        self._composition.add(call.stage(form, values, named))
        return self

    def _column(self, form: type[ast.Stage], *values: object, **named: object) -> Any:
        """Adds a stage, and gives back the column that it makes or reads."""
        call = self._stage_call(form.word)
        return self._made(call.stage(form, values, named), call)

    def _made(self, stage: ast.Stage, call: StageCall) -> Symbol:
        self._composition.add(stage)
        voted = stage.column.id if isinstance(stage, ast.Vote) else None
        return Symbol(ast.Name(made_column(stage) or voted or "text", span=call.span), self)

    def _block(self, form: type[ast.Stage], *values: object, **named: object) -> WithBlock:
        """The block of a stage, which is added when the block ends."""
        word = f"{form.word}_" if iskeyword(form.word) else form.word
        call = self._stage_call(word)
        stage = call.stage(form, values, named)
        return WithBlock(call, f"`{word}`", lambda body: self._composition.add(with_block(stage, body)))

    def _arms(self, form: type[ast.Branch | ast.Strategy], least: int = 1) -> BranchBlock:
        call = self._stage_call(form.word)
        return BranchBlock(call, lambda arms: self._composition.add(form(arms, span=call.span)), form.word, least)

    def _stage_call(self, word: str) -> StageCall:
        call = stage_call(word)
        if call.composition is not self._composition:
            raise call.composition.refuse("QP504", "these rows belong to another program", call.span)
        return call


def _let(call: StageCall, column: str, value: object) -> Symbol:
    """Adds a `let` stage. Raises QpError."""
    stage = call.stage(ast.Let, (column, value), {})
    call.composition.add(stage)
    return Symbol(ast.Name(made_column(stage) or "", span=call.span), Rows(call.composition))


def _extract(
    call: StageCall, column: str, pattern: object, arguments: Sequence[object], named: Mapping[str, object], **more: Any
) -> Symbol:
    """Adds an `extract` stage. Raises QpError."""
    stage = cast(ast.Extract, call.stage(ast.Extract, (column, pattern), more))
    if arguments or named:
        if not isinstance(pattern, Extractor | targets.Failure):
            extra = f"`{next(iter(named))}=`" if named else "more arguments"
            raise call.refuse(f"`extract` takes {extra} for an extractor alone", call.span)
        stage = replace(stage, arguments=call.arguments(arguments, named, 2))
    call.composition.add(stage)
    return Symbol(ast.Name(made_column(stage) or "", span=call.span), Rows(call.composition))


def _add_turns(
    call: StageCall,
    pairs: tuple[tuple[Role, str], ...],
    named: Mapping[str, object],
    history: History = "template",
) -> Composition:
    """Adds a `chat` stage with turns in the order in which they are written. Raises QpError."""
    turns: list[tuple[Any, object, Span]] = []
    for index, pair in enumerate(pairs):
        span = call.place("", index)
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] not in ROLES:
            raise call.refuse(f"a turn is a pair of a role ({listed(ROLES)}) and a text, not {shown(pair)}", span)
        turns.append((pair[0], pair[1], span))
    # Python passes keywords by name; their order in the file is that of their places.
    given = (role for role in (*ROLES, "tool", "messages") if named.get(role) is not None)
    roles = sorted(given, key=lambda role: call.place(role).start)
    turns += [(role, named[role], call.place(role)) for role in roles]
    if not turns:
        raise call.refuse(f"`chat` takes a turn at least: {listed(ROLES)}", call.span)
    syntax = (ast.Turn(role, convert(content, span), span=span) for role, content, span in turns)
    kept = call.word("history", history, HISTORIES, "QP129")
    call.composition.add(ast.Chat(tuple(syntax), kept, span=call.span))
    return call.composition
