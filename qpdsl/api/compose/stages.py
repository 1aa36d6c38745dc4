"""The stages of a program: `chat` and `prompt` start its context, and all others are methods of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, cast, final, overload
from typing import Literal as OneOf

from qpdsl.api.compose import targets
from qpdsl.api.compose.blocks import BranchBlock, Stages, WithBlock
from qpdsl.api.compose.stage_call import StageCall, stage_call
from qpdsl.api.compose.symbols import Symbol, convert
from qpdsl.api.composition import Composition, shown
from qpdsl.errors import naming_keywords
from qpdsl.grammar import ast
from qpdsl.grammar.builders.forms import SCALES, is_scale
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import EQUALITIES, REDUCES, ROLES
from qpdsl.sources.functions import Extractor, Scorer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from qpdsl.api.program import Program

    M = TypeVar("M", bound=BaseModel)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Role = OneOf["system", "user", "assistant"]
Reduce = OneOf["last", "min", "mean", "prod", "sum"]
Equal = OneOf["text", "number", "math"]


@naming_keywords
def chat(
    *turns: tuple[Role, str], system: str | None = None, user: str | None = None, assistant: str | None = None
) -> Rows:
    """Starts the context with turns, in the model's own chat template.

    The turns come in the order written: a conversation as (role, text) pairs first, then those by name.
    """
    return Rows(_add_turns(stage_call("qp.chat"), turns, {"system": system, "user": user, "assistant": assistant}))


def prompt(text: str) -> Rows:
    """Starts the context with plain text."""
    return Rows(_add_prompt(stage_call("qp.prompt"), text))


class GenerateKeywords(TypedDict, total=False):
    """The keywords of `generate` other than `as_`, for type checkers: the overloads share them."""

    n: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    stop: str | None
    max_tokens: int | None
    via: targets.Filter | targets.Amortized | None
    draft: targets.Draft | targets.Model | str | OneOf[False] | None
    into: str | None


@final
class Rows:
    """The rows of a program. Every method adds a stage, and returns the column that the stage makes, if any."""

    def __init__(self, composition: Composition) -> None:
        self._composition = composition

    @naming_keywords
    def chat(
        self,
        *turns: tuple[Role, str],
        system: str | None = None,
        user: str | None = None,
        assistant: str | None = None,
    ) -> None:
        """Appends turns to the context."""
        _add_turns(self._stage_call("chat"), turns, {"system": system, "user": user, "assistant": assistant})

    def prompt(self, text: str) -> None:
        """Appends plain text to the context."""
        _add_prompt(self._stage_call("prompt"), text)

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
        stop: str | None = None,
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
            call.maybe("stop", stop),
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
        verifier: targets.Model | targets.Judge | targets.LogProb | Scorer[..., Any] | str,
        *,
        reduce: Reduce | None = None,
        given: str | None = None,
        into: str | None = None,
    ) -> float:
        """Adds a column with the verifier's score of each row, and returns it.

        The verifier is a model, `qp.judge(…)`, `qp.logprob` or a scorer. `given` is the problem that it is shown with
        the row's text, by default the first user turn.
        """
        call = self._stage_call("score")
        span = call.place("verifier", 0)
        reference: ast.ModelRef | ast.Judge
        match verifier:
            case targets.Judge(model=model, rubric=rubric, scale=scale):
                if not isinstance(scale, tuple) or len(scale) != 2 or not is_scale(*scale):
                    raise call.refuse(f"{SCALES}: `scale=(1, 5)`, not {shown(scale)}", span)
                rubric_ = call.template("verifier", rubric, 0)
                reference = ast.Judge(call.model("verifier", model, 0), rubric_, *scale, span=span)
            case targets.LogProb():
                reference = ast.ModelRef("logprob", False, span=span)
            case Scorer():
                reference = ast.ModelRef(call.function(verifier.function, span), False, span=span)
            case _:
                reference = call.model("verifier", verifier, 0)
        word = None if reduce is None else call.word("reduce", reduce, REDUCES, "QP207")
        column = None if into is None else call.new_column("into", into)
        stage = ast.Score(reference, word, call.maybe("given", given), column, span=call.span)
        return cast(float, self._add(stage, call, column.id if column else "score"))

    @overload
    def extract(self, column: str, pattern: str | targets.Regex) -> str: ...

    @overload
    def extract(self, column: str, pattern: Extractor[..., Any, T]) -> T: ...

    def extract(self, column: str, pattern: str | targets.Regex | Extractor[..., Any, Any]) -> Any:
        """Adds a column and returns it.

        It holds the first match of a regex, the value at a JSON path (`.a.b[0]`), or the value of an extractor.
        """
        call = self._stage_call("extract")
        name = call.new_column("column", column, 0)
        stage = ast.Extract(name, call.pattern("pattern", pattern, 1), span=call.span)
        return self._add(stage, call, name.id)

    def where(self, condition: bool) -> None:
        """Keeps the rows for which a condition holds."""
        call = self._stage_call("where")
        self._add(ast.Where(call.expr("condition", condition, 0), span=call.span), call)

    @naming_keywords
    def keep(self, count: int, *, by: float, per: object = None) -> None:
        """Keeps the `count` rows with the greatest `by`; with `per`, that many for each value of that column."""
        call = self._stage_call("keep")
        column = None if per is None else call.column("per", per)
        stage = ast.Keep(call.expr("count", count, 0), call.expr("by", by), column, span=call.span)
        self._add(stage, call)

    @naming_keywords
    def best(self, *, by: float) -> None:
        """Keeps the row with the greatest `by`."""
        call = self._stage_call("best")
        self._add(ast.Best(call.expr("by", by), span=call.span), call)

    @naming_keywords
    def vote(self, column: T, *, weight: float | None = None, equal: Equal = "text") -> T:
        """Keeps one row of the value with the most votes, or the most weight. Returns the column."""
        call = self._stage_call("vote")
        name = call.column("column", column, 0)
        word = call.word("equal", equal, EQUALITIES, "QP126")
        stage = ast.Vote(name, call.maybe("weight", weight), word, span=call.span)
        return cast(T, self._add(stage, call, name.id))

    @naming_keywords
    def split(self, count: int, *, by: float | None = None, temperature: float | None = None) -> None:
        """Copies each row `count` times. The column `group` has the number of the copy.

        With `by`, makes `count` rows in all, shared out by the softmax of `by` over `temperature`.
        """
        call = self._stage_call("split")
        rows, value, soft = (
            call.expr("count", count, 0),
            call.maybe("by", by),
            call.maybe("temperature", temperature),
        )
        self._add(ast.Split(rows, value, soft, span=call.span), call)

    @naming_keywords
    def repeat(self, limit: int, *, until: bool | None = None) -> WithBlock:
        """Runs the stages of the `with` block until a condition over all rows holds, `limit` times at most."""
        call = self._stage_call("repeat")
        most, condition = call.expr("limit", limit, 0), call.maybe("until", until)

        def done(body: Stages) -> None:
            self._add(ast.Repeat(most, condition, body, span=call.span), call)

        return WithBlock(call, "`repeat`", done)

    def branch(self) -> BranchBlock:
        """Runs each arm of the `with` block on the same rows. The rows of all arms come one after another."""
        call = self._stage_call("branch")
        return BranchBlock(call, lambda arms: self._add(ast.Branch(arms, span=call.span), call))

    def peek(self) -> WithBlock:
        """Runs the stages of the `with` block. Then the rows are as they were before, with the columns that it made."""
        call = self._stage_call("peek")
        return WithBlock(call, "`peek`", lambda body: self._add(ast.Peek(body, span=call.span), call))

    def call(self, program: Program[P, R], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Runs another program's stages in this place."""
        self._call("call", None, program, args, kwargs)

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
        return None if column is None else Symbol(ast.Name(column, span=call.span))


def _add_turns(call: StageCall, pairs: tuple[tuple[Role, str], ...], named: Mapping[str, str | None]) -> Composition:
    """Adds a `chat` stage with turns in the order in which they are written. Raises QpError."""
    turns: list[tuple[Any, object, Span]] = []
    for index, pair in enumerate(pairs):
        span = call.place("", index)
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] not in ROLES:
            raise call.refuse(f"a turn is a pair of a role ({listed(ROLES)}) and a text, not {shown(pair)}", span)
        turns.append((pair[0], pair[1], span))
    # Python passes keywords by name; their order in the file is that of their places.
    roles = sorted((role for role in ROLES if named[role] is not None), key=lambda role: call.place(role).start)
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
