"""The stages of a program, each declared once: its form, its fields with their roles, and what it means.

Those that ask models are in `model_stages.py`, which comes first: messages list stages in the order of their classes.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from qpdsl.grammar.ast.clauses import GivenColumn, ModelRef
from qpdsl.grammar.ast.expressions import Expr, JsonPath, Literal, Name, Regex, Template
from qpdsl.grammar.ast.model_stages import MAX_ROWS, Arguments
from qpdsl.grammar.ast.node import Node
from qpdsl.grammar.ast.stage import (
    BLOCK,
    ELSE,
    INTO,
    PER,
    Range,
    Rows,
    Stage,
    is_a,
    is_condition,
    is_equality,
    is_key,
    is_number,
    is_option,
    is_text,
    require,
)
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import (
    ARM_CHOICES,
    BACKUPS,
    COMPARED,
    DRAWN,
    EXTRACTORS,
    FINISHED_ROWS,
    ROLLOUTS,
    ROW_NUMBER,
    SEARCH_METHODS,
    WHICH,
    WORTH_PRIORS,
    ArmChoice,
    Backup,
    Drawn,
    Equality,
    FinishedRows,
    Rollout,
    SearchMethod,
    Which,
    WorthPrior,
)

_EMPTY_EACH = "`each` has no stages to run in its block; without a block it only copies rows"
_ORDERED = frozenset({"int", "float", "bool", "text"})
Block = tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Argument(Node):
    """One argument of `call`, or of a Python function: `name` is None where it stands by its place."""

    name: str | None
    value: Expr = field(metadata=is_a("value", auto=True))


@dataclass(frozen=True, slots=True)
class Extract(Stage):
    """`extract last NAME = /regex/ of TEXT`, `.json.path`, a name of `EXTRACTORS`, or a registered Python extractor.

    Adds a column: a match in the row's text, or the value at a JSON path; else none. The match is the first one or, by
    `which`, the last, or the list of all: matches that do not overlap, from the left. "boxed" matches what stands in
    the braces of a `\\boxed{…}`, of LaTeX, inner braces and all. `type` is the column's: text, a list of texts, or what
    the schema says of the path where the text was held to one. `of` is the text, None for that of the row. `arguments`
    are those in the brackets behind an extractor, None where there are none.
    """

    word, usage = (
        "extract",
        "extract NAME = /regex/, .json.path, final_answer, last_number, boxed, failure(TESTS), EXTRACTOR or "
        "EXTRACTOR(…) of TEXT; "
        "extract last NAME, extract all NAME",
    )
    first = "the name of a column"
    rows = "same"
    written: ClassVar[tuple[str, ...]] = ("which", "column", "pattern", "arguments", "of")

    column: Name = field(metadata=is_a("made"))
    pattern: Regex | JsonPath | Name = field(metadata=is_a("plain", "="))
    which: Which = field(default="first", metadata=is_a("word", words=WHICH, code="QP250"))
    arguments: tuple[Argument, ...] | None = field(default=None, metadata=is_a("part"))
    of: Expr | None = field(default=None, metadata=is_text("of", place="`of`"))
    type: str = "text"

    @property
    def built_in(self) -> str | None:
        """Which of `EXTRACTORS` it names; None where it names none."""
        names = isinstance(self.pattern, Name) and self.arguments is None and self.pattern.id in EXTRACTORS
        return self.pattern.id if names and isinstance(self.pattern, Name) else None

    def _check(self) -> None:
        require(not isinstance(self.pattern, JsonPath) or self.which == "first", "a path leads to one value")


@dataclass(frozen=True, slots=True)
class PythonExtract(Stage):
    """`extract NAME = EXTRACTOR of TEXT`: what the registered Python extractor `function` gives for the row's text.

    An `Extract` whose pattern is the name of such a function is this, once it is checked. `asks`, `arguments`, `row`:
    see `PythonScore`. Where arguments were written in brackets they are `columns`, by the function's own names, and all
    that it is shown.
    """

    word = "extract"
    rows = "same"

    column: Name = field(metadata=is_a("made"))
    function: str = field(metadata=is_a("plain", "="))
    of: Expr | None = field(default=None, metadata=is_text("of", place="`of`"))
    asks: tuple[str, ...] = ()
    arguments: Arguments = ()
    row: bool = True
    columns: tuple[GivenColumn, ...] | None = None


# Rows


@dataclass(frozen=True, slots=True)
class Let(Stage):
    """`let NAME = EXPR`: adds a column, the value of an expression, which may look at all rows of the stage."""

    word, usage, first = "let", "let NAME = EXPR", "the name of a column"
    rows = "same"

    column: Name = field(metadata=is_a("made"))
    value: Expr = field(metadata=is_a("value", "=", reads="row", chooses=True))


@dataclass(frozen=True, slots=True)
class Where(Stage):
    """`where EXPR`: the rows for which it holds."""

    word, usage, first = "where", "where EXPR", "a condition"
    also = ("filter",)
    rows = "fewer"

    condition: Expr = field(metadata=is_condition(chooses=True))


@dataclass(frozen=True, slots=True)
class Keep(Stage):
    """`keep K by EXPR per COLUMN`: the K rows with the greatest value, greatest first; ties go to the earlier row.

    A row whose value is none sorts last. With `per`, the K rows of each value of that column, the values in the order
    in which they are first seen. As in search-and-learn (`like`), the kept rows stay in the order in which they stood,
    and a group whose best row is finished, or holds a boxed answer, is closed: all its rows stay as they are, and count
    as finished.
    """

    word, usage, first = "keep", "keep K by EXPR per COLUMN", "how many rows to keep"
    also = ("take", "top", "limit")
    rows = "count"
    needs = "rows"
    operator = "TopK"

    count: Expr = field(
        metadata=is_number("", Range("int", 1), "keep", reads="once", place="the number of rows to keep", auto=True)
    )
    by: Expr = field(metadata=is_key())
    per: Name | None = field(default=None, metadata=PER)
    like: str | None = None

    def _check(self) -> None:
        require(self.like in (None, "search_and_learn"), f"there are no conventions of `{self.like}`")


@dataclass(frozen=True, slots=True)
class First(Stage):
    """`first K per COLUMN`: the first K rows as they stand, of each value of the column if one is given.

    Without K it is one.
    """

    word, usage, first = "first", "first K per COLUMN", "how many rows to keep, or `per`"
    rows = "count"
    needs = "rows"

    count: Expr = field(
        default=Literal(1, span=Span(0, 0)),
        metadata=is_number("", Range("int", 1), "first", reads="once", place="the number of rows to keep"),
    )
    per: Name | None = field(default=None, metadata=PER)


@dataclass(frozen=True, slots=True)
class Best(Stage):
    """`best by EXPR per COLUMN`: the best row, of each value of the column if one is given. As an operator: a
    `Keep`. `else`: see `Return`."""

    word, usage, first = "best", "best by EXPR per COLUMN else EXPR", "`by`"
    rows = "one"
    needs = "rows"

    by: Expr = field(metadata=is_key())
    per: Name | None = field(default=None, metadata=PER)
    otherwise: Expr | None = field(default=None, metadata=ELSE)


@dataclass(frozen=True, slots=True)
class Tournament(Stage):
    """`best by compare(MODEL, "…{a.text}…{b.text}…", both=true)`: the row that wins a knockout tournament of the rows.

    The rows stand in their order; with `per` one wins for each value of the column. In a match `model` is asked, in a
    chat of its own, which of two rows is better: `question` reads their columns as fields of `a` and `b`, and the
    parameters. The answer is held to "A" and "B". With `both` it is asked again with the rows the other way round, and
    the probabilities are averaged. A tie goes to the earlier row, and in a round of an odd number of rows the first
    goes on without a match.
    """

    word, form = "best", "by compare"
    rows: ClassVar[Rows] = "one"

    model: ModelRef = field(metadata=is_a("model"))
    question: Template = field(metadata=is_a("value", reads="row", own=COMPARED, template=True, what="a question"))
    both: bool = field(default=True, metadata=is_a("plain", "both="))
    per: Name | None = field(default=None, metadata=PER)
    otherwise: Expr | None = field(default=None, metadata=ELSE)


@dataclass(frozen=True, slots=True)
class KeepTournament(Tournament):
    """`keep K by compare(…)`: the K best rows, best first; with `per`, of each value of the column.

    After each winner a knockout among those that lost to none but winners finds the next one.
    """

    word = "keep"
    rows = "count"

    count: Expr = field(
        kw_only=True,
        metadata=is_number("", Range("int", 1), "keep", reads="once", place="the number of rows to keep", ahead=True),
    )


@dataclass(frozen=True, slots=True)
class RoundRobin(Tournament):
    """`order by compare(…)`: all rows, in the order of the sums of their chances to win against each of the others.

    Every pair is asked about: the all-pairs ranking of Qin et al. ("Large language models are effective text rankers
    with pairwise ranking prompting", 2023, section 3.2), with chances for its wins. Ties stay in their order.
    """

    word = "order"
    rows = "same"


@dataclass(frozen=True, slots=True)
class Distinct(Stage):
    """`distinct by EXPR per COLUMN`: the first row of each value, within each value of the column if one is given."""

    word, usage, first = "distinct", "distinct by EXPR per COLUMN", "`by`"
    also = ("unique", "dedup")
    rows = "fewer"
    needs = "rows"

    by: Expr = field(metadata=is_a("value", "by", reads="row", place="`by`", chooses=True))
    per: Name | None = field(default=None, metadata=PER)


@dataclass(frozen=True, slots=True)
class Order(Stage):
    """`order by EXPR`: the rows, greatest value first, texts in the order of the alphabet.

    Ties stay in their order, and rows whose value is none come last.
    """

    word, usage, first = "order", "order by EXPR", "`by`"
    also = ("sort",)
    rows = "same"
    needs = "rows"

    by: Expr = field(metadata=is_key(accepts=_ORDERED, what="a number, a bool or a text", tells_apart=False))


@dataclass(frozen=True, slots=True)
class Join(Stage):
    """`join NAME = EXPR sep="…" per COLUMN`: one row of all, with the values of EXPR put together in a column.

    It is the first row. A value that is none is left out. In EXPR the name `i` is the row's number, from 1; the
    separator reads parameters, and is a newline where it is left out. With `per`, one row of each value of that column,
    in the order in which they are first seen.
    """

    word, usage, first = "join", 'join NAME = EXPR sep="…" per COLUMN', "the name of a column"
    also = ("concat", "gather")
    rows = "one"
    needs = "rows"

    column: Name = field(metadata=is_a("made"))
    value: Expr = field(metadata=is_a("value", "=", reads="row", place="`join`", own=(ROW_NUMBER,)))
    sep: Expr | None = field(default=None, metadata=is_text("sep=", "parameters"))
    per: Name | None = field(default=None, metadata=PER)


class SoughtText(NamedTuple):
    """What an `extract` looks for, as messages name it, and whether it does in the rows' own texts."""

    pattern: str
    own: bool


@dataclass(frozen=True, slots=True)
class Vote(Stage):
    """`vote COLUMN weight=EXPR equal=text|number|math decided=P per COLUMN else EXPR`: the best row of the value that
    wins.

    That is the one with the most votes, or the most weight; its best row has the greatest weight, then comes earliest.
    `equal` says when two values are the same answer: as texts, as numbers, or as mathematics. With `decided` the rows
    count in their order, and those behind the first ones at which the winner is that sure do not count: adaptive
    consistency, by the Beta posterior (Aggarwal et al., "Let's Sample Step by Step", 2023, section 3). With `per`, one
    row of each value of that column, the values in the order in which they are first seen. `else`: see `Return`.
    `sought` is what was looked for to find the answers, where an `extract` did.
    """

    word, usage = "vote", "vote COLUMN weight=EXPR equal=text|number|math decided=P per COLUMN else EXPR"
    first, also = "a column", ("majority",)
    rows = "one"
    needs = "rows"

    column: Name = field(metadata=is_a("column", place="`vote`"))
    weight: Expr | None = field(default=None, metadata=is_key("weight="))
    equal: Equality = field(default="text", metadata=is_equality("equal="))
    decided: Expr | None = field(
        default=None,
        metadata=is_number("decided=", Range("float", 0.5, 1, open_low=True, open_high=True), "decided"),
    )
    per: Name | None = field(default=None, metadata=PER)
    otherwise: Expr | None = field(default=None, metadata=ELSE)
    sought: SoughtText | None = field(default=None, compare=False, repr=False)

    def _check(self) -> None:
        require(self.weight is None or self.decided is None, "weights say nothing of how sure a vote is")


@dataclass(frozen=True, slots=True)
class Split(Stage):
    """`split G`: each row G times, in groups; `split N by EXPR temperature=T per COLUMN`: N copies by a softmax.

    A copy's index is appended to its path, and `group` numbers the copies of all rows. G may be a number of each row's
    own, of which 0 drops the row. With `by`, `count` rows in all, shared out among those that are not finished by the
    softmax of `by` over `temperature` (1 where None; there is none without `by`); a finished row passes as one of them,
    unless `finished` says "share". First copies come first, then second ones. With `per`, which there is beside `by`
    only, `count` rows of each value of that column, the values in the order in which they are first seen; `group` stays
    as it is.

    Without a `draw` shares are rounded up from the best on, as in REBASE. With one the copies are drawn, so that a row
    has as many as its share on average: each by itself ("multinomial"), or all by one number, evenly spaced
    ("systematic"; Douc et al., "Comparison of resampling schemes for particle filtering", 2005). `ordinal` numbers the
    draws of a program.
    """

    word = "split"
    usage = "split G or split N by EXPR temperature= draw=systematic|multinomial finished=share per COLUMN"
    first = "how many groups to make"
    needs = "context"

    count: Expr = field(
        metadata=is_number(
            "",
            Range("int", 1, MAX_ROWS),
            "split",
            place="the number of groups",
            reads=lambda split: "option" if split.by is None else "once",
            auto=True,
        )
    )
    by: Expr | None = field(default=None, metadata=is_key())
    temperature: Expr | None = field(
        default=None, metadata=is_number("temperature=", Range("float", 0), "split temperature", reads="once")
    )
    draw: Drawn | None = field(default=None, metadata=is_option("draw=", DRAWN, "not a way to draw"))
    finished: FinishedRows = field(
        default="pass", metadata=is_option("finished=", FINISHED_ROWS, "nothing that finished rows do")
    )
    per: Name | None = field(default=None, metadata=PER)
    ordinal: int = -1

    def _check(self) -> None:
        shares = self.temperature is not None or self.per is not None or self.draw is not None
        require(self.by is not None or not (shares or self.finished == "share"), "rows are shared out by a value")


# Stages that hold stages


@dataclass(frozen=True, slots=True)
class Repeat(Stage):
    """`repeat N until EXPR { … }`: runs the block on the rows until the condition holds, or N times.

    The condition is tested before each round. With `gather` every round starts from the rows that came in, its index
    appended to their paths, and what it leaves joins what the rounds before it left; the condition looks at all of
    that, after each round.
    """

    word, usage, first = "repeat", "repeat N gather until EXPR { … }", "the most rounds to run"
    also = ("while", "loop")
    written: ClassVar[tuple[str, ...]] = ("limit", "gather", "until", "body")

    limit: Expr = field(
        metadata=is_number("", Range("int", 0, 1_000_000), "repeat", reads="once", place="the number of rounds")
    )
    until: Expr | None = field(metadata=is_condition("until", "aggregates"))
    body: Block = field(metadata=BLOCK)
    gather: typing.Literal["gather"] | None = field(default=None, metadata=is_a("word", words=("gather",)))


@dataclass(frozen=True, slots=True)
class Search(Stage):
    """`search puct by EXPR simulations=N c=C per_round=K { … }`: a tree of rows; the block makes a row's children.

    `by` is the value of each, and it grows `simulations` times. "puct" expands the leaf that a descent by PUCT leads
    to, with all its siblings as likely and weight `c` (Silver et al., "Mastering the game of Go without human
    knowledge", 2017), by the mean or the greatest of the values below (`backup`). "ab_mcts" and "ab_mcts_m" go down by
    Thompson sampling and make a new child anywhere, wider or deeper: AB-MCTS-A with posteriors under a `prior`, and
    AB-MCTS-M with one hierarchical model (Inoue et al., "Wider or Deeper?", 2025). There a bandit over `arms` chooses
    which arm of the `branch` in the block makes a child; without, all do. `per_round` rows are expanded side by side
    (1 where None). A row with no value is not expanded, nor, unless the body begins `turns` anew, one that is finished.

    Rows that do not begin a turn are parts of answers, and a `rollout` carries them on to their end, each step of it
    one sample of the block: "greedy" and "sampled" each new row, whose value is then that of the row it came to;
    "last", where nothing is finished in the end, the line of robust children, greedily; "off" nothing.

    What comes out are the finished rows, those below the robust child (the most visits) first, by their values; where
    there are none, the leaves; where each row begins a turn, all that were made. `visits` and `value` are how many
    values of a row and those below it there are, and their mean; of a finished row its own value.
    """

    word, first = "search", "`puct`, `ab_mcts` or `ab_mcts_m`"
    usage = "search puct|ab_mcts|ab_mcts_m by EXPR simulations= c= per_round= rollout= backup= prior= arms= { … }"
    also = ("mcts", "tree")
    needs = "context"
    written: ClassVar[tuple[str, ...]] = (
        *("method", "by", "simulations", "c", "per_round", "rollout", "backup", "prior", "arms", "body"),
    )

    method: SearchMethod = field(metadata=is_a("word", words=SEARCH_METHODS, code="QP150"))
    by: Expr = field(metadata=is_key())
    simulations: Expr = field(
        metadata=is_number("simulations=", Range("int", 1, 1_000_000), "simulations", reads="once", auto=True)
    )
    c: Expr | None = field(metadata=is_number("c=", Range("float", 0), "c", reads="once"))
    per_round: Expr | None = field(
        metadata=is_number("per_round=", Range("int", 1, MAX_ROWS), "per_round", reads="once")
    )
    body: Block = field(metadata=is_a("block", empty="`search` has no stages to make children with"))
    rollout: Rollout = field(default="last", metadata=is_option("rollout=", ROLLOUTS, "no rollout"))
    backup: Backup = field(default="mean", metadata=is_option("backup=", BACKUPS, "no way to back values up"))
    prior: WorthPrior = field(default="gaussian", metadata=is_option("prior=", WORTH_PRIORS, "no prior"))
    arms: ArmChoice | None = field(default=None, metadata=is_option("arms=", ARM_CHOICES, "not a way to choose an arm"))
    turns: bool = False


@dataclass(frozen=True, slots=True)
class Branch(Stage):
    """`branch { {…} {…} }`: each arm on the rows, its index appended to their paths; their rows one after another.

    A column that an arm does not make is none in its rows. A search that chooses among arms runs `only` one of them.
    """

    word, usage, first = "branch", "branch { { … } { … } }", "`{`"
    also = ("parallel", "union")

    arms: tuple[Block, ...] = field(metadata=is_a("arms"))
    only: int | None = None

    def _check(self) -> None:
        require(bool(self.arms), "a branch has arms")


@dataclass(frozen=True, slots=True)
class Strategy(Stage):
    """`strategy { {…} or {…} }`: blocks that aim at the same, of which a budget has one run for a problem."""

    word, usage, first = "strategy", "strategy { { … } or { … } }", "`{`"

    arms: tuple[Block, ...] = field(metadata=is_a("arms", "or"))


@dataclass(frozen=True, slots=True)
class If(Stage):
    """`if COND { … } else { … }`: the rows for which it holds through one block, the others through another.

    Without `else` the others pass: `otherwise` is empty. `else if` is a single `If` in it. No index is appended to
    paths. The rows come out in the order of those that they were made of. A column that a block does not make is none
    in its rows.
    """

    word, usage, first = "if", "if COND { … } else { … }", "a condition"
    also = ("when",)

    condition: Expr = field(metadata=is_condition(chooses=True))
    then: Block = field(metadata=is_a("block", empty="this `if` has no stages to run"))
    otherwise: Block = field(default=(), metadata=is_a("block", "else"))


@dataclass(frozen=True, slots=True)
class Each(Stage):
    """`each NAME in EXPR { … }`: runs the block on copies of the row, one for every element of a list.

    The element stands in the column. The list is the value of an expression, or `.path` stands for the one at a JSON
    path in the row's text. The element's index is appended to the path. A row without elements makes no row. `type` is
    the elements'.
    """

    word, usage = "each", "each NAME in LIST { … } or each NAME in .json.path { … }, with no block too"
    first, also = "the name of a column", ("for", "foreach", "map")

    column: Name = field(metadata=is_a("made"))
    source: Expr | JsonPath = field(metadata=is_a("value", "in", reads="row", type="[text]"))
    body: Block = field(metadata=is_a("block", empty=_EMPTY_EACH))
    type: str = "unknown"


@dataclass(frozen=True, slots=True)
class Peek(Stage):
    """`peek { … }`: runs stages that make one row of each; gives the rows back, with the columns that were made.

    Where stages in it make several rows of one, or drop some, they run for each row by itself (`alone`), and must end
    in one row; the columns are none where they end in none.
    """

    word, usage, first = "peek", "peek { … }", "`{`"
    rows = "same"
    needs = "context"

    body: Block = field(metadata=BLOCK)
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Ask(Stage):
    """`ask { … }`: runs stages for each row on a row of its own: no context, but its columns and its path.

    Gives the rows back as they were, with the columns that the block made of its first row; none where it left no row.
    """

    word, usage, first = "ask", "ask { … }", "`{`"
    rows = "same"

    body: Block = field(metadata=BLOCK)


@dataclass(frozen=True, slots=True)
class Call(Stage):
    """`call PROGRAM(args) into NAME`: another program's result in a column; without `into` its stages in this place.

    Only one with `into` is an operator. For each row its operators run on one new row: no context, the path of the row
    it is run for, and no columns but those of `columns`, which are arguments that differ from row to row. `value` is an
    expression over the rows that they make, and `otherwise` another where that is none, as those of `Return`. `type` is
    that of the column where a JSON text spells the value; None where it stands as it is. `depth`, a number, is how many
    levels deep a program may call itself here; below them the column is none.
    """

    word, usage, first = "call", "call PROGRAM(ARGUMENT, …) into NAME depth=", "a program"
    rows = "same"

    program: str = field(metadata=is_a("plain"))
    arguments: tuple[Argument, ...] = field(default=(), metadata=is_a("part"))
    into: Name | None = field(default=None, metadata=INTO)
    depth: Literal | None = field(default=None, metadata=is_a("value", "depth="))
    name_span: Span = field(compare=False, repr=False, kw_only=True)
    columns: tuple[GivenColumn, ...] = ()
    value: Expr | None = None
    otherwise: Expr | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True)
class Tool(Stage):
    """`tool NAME(ARGUMENT, …) timeout= at_most= into NAME`: what a tool of the caller's gives for each row.

    Without brackets `name` is a column of calls, records of a `name` and its `arguments`: `arguments` is None. A tool
    that fails, or takes more than `timeout` seconds, gives a text that begins with `error: `. No more than `at_most`
    calls of this stage run at a time. Of an operator `columns` are the arguments by the tool's own names.
    """

    word, usage = "tool", "tool NAME(ARGUMENT, …) timeout= at_most= into NAME; tool CALL into NAME"
    first = "a tool, or the column of a call"
    also = ("function", "action")
    rows = "same"

    name: Name = field(metadata=is_a("plain"))
    arguments: tuple[Argument, ...] | None = field(default=None, metadata=is_a("part"))
    timeout: Expr | None = field(
        default=None,
        metadata=is_number("timeout=", Range("float", 0, 600, open_low=True), "timeout"),
    )
    at_most: Expr | None = field(default=None, metadata=is_number("at_most=", Range("int", 1, 1024), "at_most"))
    into: Name | None = field(default=None, metadata=INTO)
    columns: tuple[GivenColumn, ...] | None = None


@dataclass(frozen=True, slots=True)
class Return(Stage):
    """`return EXPR else OTHER`: the program's value: an expression over the first row, with aggregates over all rows.

    Where that is none, the value is that of `else`, and with `optional` none. Behind a `vote` or `best` that ends the
    program `else` says the same of its result.

    With `parse`, that value is a JSON text held to a schema, and what is given back is what the JSON spells. `schema`
    is the JSON Schema of the declared result, as text, where it is for the run to see that the value satisfies it.
    `nones` says of columns that may be none why they are, in words for messages, and what was looked for.
    """

    word, usage, first = "return", "return EXPR else EXPR", "an expression"
    rows = "one"

    value: Expr = field(metadata=is_a("value", reads="first row", chooses=True))
    otherwise: Expr | None = field(default=None, metadata=ELSE)
    parse: bool = False
    schema: str | None = None
    optional: bool = False
    nones: tuple[tuple[str, str, SoughtText], ...] = field(default=(), compare=False, repr=False)


# The stages that say what a result is where there is none.
ENDS = (Best, Tournament, Vote, Return)
