"""The stages of a program as methods of the rows that they work on.

MERGED: `chat` and `prompt`, which start a program's context and append to it alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, cast, final, overload
from typing import Literal as OneOf

from qpdsl.api.compose import targets
from qpdsl.api.compose.arguments import Arguments, arguments
from qpdsl.api.compose.blocks import Block, Branch, Stages
from qpdsl.api.compose.expressions import Symbol, convert
from qpdsl.api.composition import Composition, shown
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import EQUALITIES, REDUCES, ROLES
from qpdsl.sources.functions import Extractor, Scorer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from qpdsl.api.program import Program

    M = TypeVar("M", bound=BaseModel)


Role = OneOf["system", "user", "assistant"]


def add_turns(given: Arguments, pairs: tuple[tuple[Role, str], ...], named: Mapping[str, str | None]) -> Composition:
    written: list[tuple[Any, object, Span]] = []
    for index, pair in enumerate(pairs):
        span = given.place("", index)
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] not in ROLES:
            raise given.refuse(f"a turn is a pair of a role ({listed(ROLES)}) and a text, not {shown(pair)}", span)
        written.append((pair[0], pair[1], span))
    # Python hands keywords over by name; their order in the file is that of their places.
    roles = sorted((role for role in ROLES if named[role] is not None), key=lambda role: given.place(role).start)
    written += [(role, named[role], given.place(role)) for role in roles]
    if not written:
        raise given.refuse(f"`chat` takes a turn at least: {listed(ROLES)}", given.span)
    turns = (ast.Turn(role, convert(content, span), span=span) for role, content, span in written)
    given.composition.add(ast.Chat(tuple(turns), span=given.span))
    return given.composition


def add_prompt(given: Arguments, text: str) -> Composition:
    given.composition.add(ast.Prompt(given.template("text", text, 0), span=given.span))
    return given.composition


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Reduce = OneOf["last", "min", "mean", "prod", "sum"]
Equal = OneOf["text", "number", "math"]


def chat(
    *turns: tuple[Role, str], system: str | None = None, user: str | None = None, assistant: str | None = None
) -> Rows:
    """Starts the context with turns, in the model's own chat template.

    The turns come in the order written: a conversation as (role, text) pairs first, then those by name.
    """
    return Rows(add_turns(arguments("qp.chat"), turns, {"system": system, "user": user, "assistant": assistant}))


def prompt(text: str) -> Rows:
    """Starts the context with plain text."""
    return Rows(add_prompt(arguments("qp.prompt"), text))


class Options(TypedDict, total=False):
    """The options of `generate` beside `as_`, for type checkers: whatever the output is held to, they are the same."""

    n: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    stop: str | None
    max_tokens: int | None
    via: targets.Filter | targets.Amortized | None
    draft: targets.Model | str | None
    into: str | None


@final
class Rows:
    """The rows of a program. Every method is a stage; what it makes is given back, to be read by later stages."""

    def __init__(self, composition: Composition) -> None:
        self._composition = composition

    def chat(
        self,
        *turns: tuple[Role, str],
        system: str | None = None,
        user: str | None = None,
        assistant: str | None = None,
    ) -> None:
        """Appends turns to the context."""
        add_turns(self._arguments("chat"), turns, {"system": system, "user": user, "assistant": assistant})

    def prompt(self, text: str) -> None:
        """Appends plain text to the context."""
        add_prompt(self._arguments("prompt"), text)

    @overload
    def generate(self, model: targets.Model | str, *, as_: type[M], **options: Unpack[Options]) -> M: ...

    @overload
    def generate(
        self,
        model: targets.Model | str,
        *,
        as_: targets.Schema | Mapping[str, Any],
        **options: Unpack[Options],
    ) -> dict[str, Any]: ...

    @overload
    def generate(
        self,
        model: targets.Model | str,
        *,
        as_: targets.Choice | targets.Regex | targets.Grammar | None = None,
        **options: Unpack[Options],
    ) -> str: ...

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
        draft: targets.Model | str | None = None,
        into: str | None = None,
    ) -> Any:
        """Each row becomes `n` rows that go on with text of the model's; gives the text.

        `as_` holds the text to a pydantic model, a JSON schema, a choice, a regex or a grammar; `into` names a column
        for the text of this call.
        """
        given = self._arguments("generate")
        stage = ast.Generate(
            given.model("model", model, 0),
            given.maybe("n", n),
            given.maybe("temperature", temperature),
            given.maybe("top_p", top_p),
            given.maybe("top_k", top_k),
            given.maybe("min_p", min_p),
            given.maybe("stop", stop),
            given.maybe("max_tokens", max_tokens),
            given.target(as_),
            given.via(via),
            None if draft is None else given.model("draft", draft),
            None if into is None else given.new_column("into", into),
            span=given.span,
        )
        return self._add(stage, given, stage.into.id if stage.into else "text")

    def score(
        self,
        verifier: targets.Model | targets.Judge | targets.LogProb | Scorer[..., Any] | str,
        *,
        reduce: Reduce = "last",
        into: str | None = None,
    ) -> float:
        """Adds and gives the verifier's score of each row: a model, `qp.judge(…)`, `qp.logprob` or a scorer."""
        given = self._arguments("score")
        span = given.place("verifier", 0)
        found: ast.ModelRef | ast.Judge
        match verifier:
            case targets.Judge(model=model, rubric=rubric):
                rubric_ = given.template("verifier", rubric, 0)
                found = ast.Judge(given.model("verifier", model, 0), rubric_, span=span)
            case targets.LogProb():
                found = ast.ModelRef("logprob", False, span=span)
            case Scorer():
                found = ast.ModelRef(given.function(verifier.function, span), False, span=span)
            case _:
                found = given.model("verifier", verifier, 0)
        word = given.word("reduce", reduce, REDUCES, "QP207")
        column = None if into is None else given.new_column("into", into)
        stage = ast.Score(found, word, column, span=given.span)
        return cast(float, self._add(stage, given, column.id if column else "score"))

    @overload
    def extract(self, column: str, pattern: str | targets.Regex) -> str: ...

    @overload
    def extract(self, column: str, pattern: Extractor[..., Any, T]) -> T: ...

    def extract(self, column: str, pattern: str | targets.Regex | Extractor[..., Any, Any]) -> Any:
        """Adds and gives a column: a regex's first match, the value at a JSON path (`.a.b[0]`), or an extractor's."""
        given = self._arguments("extract")
        name = given.new_column("column", column, 0)
        stage = ast.Extract(name, given.pattern("pattern", pattern, 1), span=given.span)
        return self._add(stage, given, name.id)

    def where(self, condition: bool) -> None:
        """Keeps the rows for which a condition holds."""
        given = self._arguments("where")
        self._add(ast.Where(given.expr("condition", condition, 0), span=given.span), given)

    def keep(self, count: int, *, by: float, per: object = None) -> None:
        """Keeps the rows with the greatest `by`, of each value of the column `per` where one is given."""
        given = self._arguments("keep")
        column = None if per is None else given.column("per", per)
        stage = ast.Keep(given.expr("count", count, 0), given.expr("by", by), column, span=given.span)
        self._add(stage, given)

    def best(self, *, by: float) -> None:
        """Keeps the row with the greatest `by`."""
        given = self._arguments("best")
        self._add(ast.Best(given.expr("by", by), span=given.span), given)

    def vote(self, column: T, *, weight: float | None = None, equal: Equal = "text") -> T:
        """Keeps one row, of the value with the most votes (or weight); gives that value's column."""
        given = self._arguments("vote")
        name = given.column("column", column, 0)
        word = given.word("equal", equal, EQUALITIES, "QP126")
        stage = ast.Vote(name, given.maybe("weight", weight), word, span=given.span)
        return cast(T, self._add(stage, given, name.id))

    def split(self, count: int, *, by: float | None = None, temperature: float | None = None) -> None:
        """Copies each row `count` times, in groups: the column `group` tells them apart.

        With `by`, makes `count` rows in all, shared out by the softmax of `by` over `temperature`.
        """
        given = self._arguments("split")
        rows, value, soft = (
            given.expr("count", count, 0),
            given.maybe("by", by),
            given.maybe("temperature", temperature),
        )
        self._add(ast.Split(rows, value, soft, span=given.span), given)

    def repeat(self, limit: int, *, until: bool | None = None) -> Block:
        """Runs the stages of the `with` block until a condition over all rows holds, `limit` times at most."""
        given = self._arguments("repeat")
        most, condition = given.expr("limit", limit, 0), given.maybe("until", until)

        def done(body: Stages) -> None:
            self._add(ast.Repeat(most, condition, body, span=given.span), given)

        return Block(given, "`repeat`", done)

    def branch(self) -> Branch:
        """Runs each arm of the `with` block on the same rows, and puts what they make one after another."""
        given = self._arguments("branch")
        return Branch(given, lambda arms: self._add(ast.Branch(arms, span=given.span), given))

    def peek(self) -> Block:
        """Runs the stages of the `with` block, and gives the rows back as they were, with the columns made."""
        given = self._arguments("peek")
        return Block(given, "`peek`", lambda body: self._add(ast.Peek(body, span=given.span), given))

    def call(self, program: Program[P, R], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Runs another program's stages in this place."""
        self._call("call", None, program, args, kwargs)

    def call_into(self, column: str, program: Program[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs another program's stages in this place, and gives its result, in a new column."""
        return cast(R, self._call("call_into", column, program, args, kwargs))

    def _call(self, word: str, column: str | None, program: Any, args: Any, kwargs: Any) -> Any:
        from qpdsl.api.compose.uses import used
        from qpdsl.api.program import Program

        given = self._arguments(word)
        into = None if column is None else given.new_column("column", column, 0)
        at = 0 if column is None else 1
        span = given.place("program", at)
        if not isinstance(program, Program):
            raise given.refuse(f"`call` takes a program, not {shown(program)}", span)
        name = used(self._composition, program, span)
        values = [
            ast.Argument(None, given.expr("", value, at + 1 + index), span=given.place("", at + 1 + index))
            for index, value in enumerate(args)
        ]
        values += [ast.Argument(key, given.expr(key, value), span=given.place(key)) for key, value in kwargs.items()]
        stage = ast.Call(name, tuple(values), into, span=given.span, name_span=span)
        return self._add(stage, given, into.id if into else None)

    def _arguments(self, word: str) -> Arguments:
        given = arguments(word)
        if given.composition is not self._composition:
            raise given.composition.refuse("QP504", "these rows belong to another program", given.span)
        return given

    def _add(self, stage: ast.Stage, given: Arguments, column: str | None = None) -> Any:
        self._composition.add(stage)
        return None if column is None else Symbol(ast.Name(column, span=given.span))
