"""The words of the language: stages with their forms and options, declarations, reserved words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf
from typing import get_args

RESERVED = frozenset(
    {
        "as",
        "via",
        "given",
        "into",
        "by",
        "per",
        "until",
        "and",
        "or",
        "not",
        "matches",
        "true",
        "false",
        "none",
        "within",
        "prefer",
    }
)

# A line that starts with one of these continues the stage above it. So does one with `draft` or `of` before a name or
# an id, or `like` before a name.
CLAUSES = frozenset({"as", "via", "given", "into", "by", "per", "until", "within", "prefer"})

# The columns of every row, with their types.
COLUMNS = {
    "text": "text",
    "step": "text",
    "finish": "text",
    "finished": "bool",
    "logprob": "float",
    "tokens": "int",
    "group": "int",
}

TYPES = ("text", "int", "float", "bool")
# The types of parameters: a conversation and a model besides.
PARAMETER_TYPES = (*TYPES, "messages", "model")
# What is made of the scores of a solution's steps.
Reduce = OneOf["last", "min", "mean", "prod", "sum"]
REDUCES: tuple[Reduce, ...] = get_args(Reduce)
# What is made of a judge's answer: the likeliest number, or the mean of the numbers by their probabilities.
JudgeReduce = OneOf["answer", "expected"]
JUDGE_REDUCES: tuple[JudgeReduce, ...] = get_args(JudgeReduce)
ROLES = ("system", "user", "assistant")
# What looks at all rows; `min` and `max` of several values look at one.
AGGREGATES = ("count", "sum", "mean", "min", "max", "std", "any", "all", "first", "last", "list")
FUNCTIONS = (
    *AGGREGATES,
    *("int", "float", "text", "len", "lower", "upper", "strip", "contains", "join", "if"),
    *("log", "exp", "sqrt", "abs", "round"),
)

DECLARATIONS = {
    "use": 'use "file.qp" as NAME',
    "model": 'model NAME = "id" kind=KIND adapter="folder"',
    "schema": 'schema NAME { FIELD: TYPE … } or schema NAME from "file.json"',
    "program": "program NAME(PARAMETER: TYPE, …) -> TYPE { … }",
}

MODEL_OPTIONS = ("kind", "adapter")

# What stages are called in other languages.
STAGE_SYNONYMS = {
    "sample": "generate",
    "complete": "generate",
    "judge": "score",
    "filter": "where",
    "when": "if",
    "take": "keep",
    "top": "keep",
    "limit": "keep",
    "sort": "order",
    "unique": "distinct",
    "dedup": "distinct",
    "concat": "join",
    "gather": "join",
    "while": "repeat",
    "for": "each",
    "foreach": "each",
    "map": "each",
    "loop": "repeat",
    "mcts": "search",
    "tree": "search",
    "parallel": "branch",
    "union": "branch",
}

# How a clause is written, and what stands in its place.
CLAUSE_FORMS = {
    "as": 'as SCHEMA, int(1..5), bool, [text], /regex/, choice("a", "b"), choice(OPTIONS) or grammar("file.lark")',
    "via": "via filter(MODEL, THRESHOLD, by= share= rows= wait=) or "
    'amortized(MARGIN, layer= rerank= head="folder" certify=)',
    "draft": 'draft MODEL, ngram, ngram("texts.txt"), early_exit, early_exit("folder"), eagle("folder") or none; '
    "each with tokens= branches=",
    "within": "within exact, epsilon(1e-3), loss(0.02), replayable or recorded; within budget(tokens=2000)",
    "prefer": "prefer latency=0.8",
    "like": "like search_and_learn",
    "given": "given PROBLEM, which is a parameter, a column or a string",
    "of": "of TEXT, which is a column, a parameter or a string",
}
# What proposes tokens besides a model, and `none`, which means that nothing does.
DraftMethod = OneOf["none", "ngram", "model", "early_exit", "eagle"]
DRAFTS = ("ngram", "early_exit", "eagle")
DRAFT_OPTIONS = ("tokens", "branches")
# The most tokens of one draft, those of all branches together.
MOST_DRAFTED = 63
TARGETS = ("choice", "grammar", "int", "float")
VIAS = ("filter", "amortized")
# The options of both besides what stands first.
FILTER_OPTIONS = ("by", "share", "rows", "wait")
AMORTIZED_OPTIONS = ("layer", "rerank", "head", "certify")
# What `extract` takes besides patterns: the content of the `\\boxed{…}` of LaTeX.
BOXED = "boxed"
# What `score` can say of the draws of a text.
DrawFigure = OneOf["entropy", "confidence", "certainty"]
DRAW_FIGURES: tuple[DrawFigure, ...] = get_args(DrawFigure)
# How a tree of rows is searched.
SearchMethod = OneOf["puct", "ab_mcts"]
SEARCH_METHODS: tuple[SearchMethod, ...] = get_args(SearchMethod)
# What a search says of its rows, with types.
SEARCHED_COLUMNS = {"visits": "int", "value": "float"}
# What a filter goes by: the probability of the drawn token, the lead of the likeliest one, how little is open.
Confidence = OneOf["probability", "margin", "entropy"]
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)
# How far a plan may go, and what may be another in another run: see `Within`.
WithinLevel = OneOf["exact", "epsilon", "loss", "replayable", "recorded"]
LEVELS: tuple[WithinLevel, ...] = get_args(WithinLevel)
BOUNDED_LEVELS = ("epsilon", "loss")
# What a budget counts: the mean of these over problems.
BudgetUnit = OneOf["tokens", "seconds", "cost"]
BUDGET_UNITS: tuple[BudgetUnit, ...] = get_args(BudgetUnit)
BUDGET_FORM = "budget(tokens=2000), budget(seconds=1.5) or budget(cost=0.002)"
# What stands in the place of a width that a budget decides about, and the widths that it then chooses from.
AUTO = "auto"
AUTO_WIDTHS = (4, 16, 64)
AUTO_FORM = "auto or auto(4, 16, 64)"
# The kinds of verifiers that a model may be declared as; `executor/verifiers/registry.py` has the same ones.
VerifierKind = OneOf["rlhflow", "math_shepherd", "skywork", "qwen", "outcome"]
VERIFIER_KINDS: tuple[VerifierKind, ...] = get_args(VerifierKind)
SYSTEMS = ("search_and_learn",)
# When two values are the same answer.
Equality = OneOf["text", "number", "math"]
EQUALITIES: tuple[Equality, ...] = get_args(Equality)
# Which of several matches `extract` takes.
Which = OneOf["first", "last", "all"]
# What `join` calls the number of a row, from 1.
ROW_NUMBER = "i"
# What `compare` calls the two rows.
COMPARED = ("a", "b")
# The verifiers that take arguments, and `compare`, which `best by` takes.
VERIFIER_FORMS = {
    "judge": 'judge(MODEL, "rubric", LOW..HIGH) or judge(MODEL, "question") as int(LOW..HIGH)',
    "prob": 'prob(MODEL, "question", "Yes", "No")',
    "equal": "equal(ANSWER, REFERENCE, by=text|number|math)",
    "json": "json or json(SCHEMA)",
    "passes": "passes(TESTS, timeout=SECONDS)",
    "confidence": "confidence or confidence(window=TOKENS)",
    "compare": 'compare(MODEL, "…{a.text}…{b.text}…", both=true)',
}

# The types that take arguments, with their forms; a field takes these beside plain types, `[TYPE]` and `{ … }`.
TYPE_FORMS = {
    "text": "text(min_length= max_length= format= pattern=)",
    "int": "int(LOW..HIGH)",
    "float": "float(LOW..HIGH)",
    "choice": 'choice("a", "b")',
}
TEXT_OPTIONS = ("min_length", "max_length", "format", "pattern")
FIELD_FORM = "FIELD: TYPE or FIELD: TYPE?, parted by `,` or a new line"


@dataclass(frozen=True, slots=True)
class StageForm:
    """How a stage is written: its whole form, what follows its word, and its `key=` options."""

    usage: str
    first: str
    options: tuple[str, ...] = ()


STAGES = {
    "prompt": StageForm('prompt "…"', "a string"),
    "chat": StageForm(
        "chat system= user= assistant= messages=", "`system=`, `user=` or `assistant=`", (*ROLES, "messages")
    ),
    "say": StageForm('say "…"', "a string"),
    "generate": StageForm(
        "generate MODEL n= temperature= top_p= top_k= min_p= stop= max_tokens= as … via … draft … into …",
        "a model",
        ("n", "temperature", "top_p", "top_k", "min_p", "stop", "max_tokens"),
    ),
    "score": StageForm(
        'score VERIFIER or judge(MODEL, "rubric", 1..5) reduce= of TEXT given PROBLEM into NAME',
        "a verifier",
        ("reduce",),
    ),
    "extract": StageForm(
        "extract NAME = /regex/, .json.path, boxed or EXTRACTOR; extract last NAME, extract all NAME",
        "the name of a column",
    ),
    "let": StageForm("let NAME = EXPR", "the name of a column"),
    "where": StageForm("where EXPR", "a condition"),
    "keep": StageForm("keep K by EXPR per COLUMN", "how many rows to keep"),
    "best": StageForm("best by EXPR per COLUMN", "`by`"),
    "distinct": StageForm("distinct by EXPR per COLUMN", "`by`"),
    "order": StageForm("order by EXPR", "`by`"),
    "join": StageForm('join NAME = EXPR sep="…" per COLUMN', "the name of a column", ("sep",)),
    "vote": StageForm(
        "vote COLUMN weight=EXPR equal=text|number|math decided=P per COLUMN",
        "a column",
        ("weight", "equal", "decided"),
    ),
    "split": StageForm(
        "split G or split N by EXPR temperature= per COLUMN", "how many groups to make", ("temperature",)
    ),
    "repeat": StageForm("repeat N until EXPR { … }", "the most rounds to run"),
    "search": StageForm(
        "search puct by EXPR simulations= c= per_round= { … } or search ab_mcts by EXPR simulations= per_round= { … }",
        "`puct` or `ab_mcts`",
        ("simulations", "c", "per_round"),
    ),
    "branch": StageForm("branch { { … } { … } }", "`{`"),
    "strategy": StageForm("strategy { { … } or { … } }", "`{`"),
    "if": StageForm("if COND { … } else { … }", "a condition"),
    "each": StageForm(
        "each NAME in LIST { … } or each NAME in .json.path { … }, with no block too", "the name of a column"
    ),
    "peek": StageForm("peek { … }", "`{`"),
    "ask": StageForm("ask { … }", "`{`"),
    "call": StageForm("call PROGRAM(ARGUMENT, …) into NAME", "a program"),
    "return": StageForm("return EXPR", "an expression"),
}

# A type as the language writes it: one of `TYPES`, `[text]` for a list, `{name: text}` for a record. "none" is the type
# of the literal alone, "record" a record of any fields, "unknown" fits anywhere (`planner/values/value_types.py`).
Type = str
NUMBERS = frozenset({"int", "float"})
# What `finish` can say; it is none where nothing was generated.
FINISHES = ("eos", "stop", "length", "match", "context")
