"""The words of the language: stages with their forms and options, declarations, reserved words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

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
    "thought": "text",
    "thought_tokens": "int",
}

TYPES = ("text", "int", "float", "bool")
# The types of parameters: a conversation and a model besides.
PARAMETER_TYPES = (*TYPES, "messages", "model")
# What is made of the scores of a solution's steps.
Reduce = Literal["last", "min", "mean", "prod", "sum"]
REDUCES: tuple[Reduce, ...] = get_args(Reduce)
# What is made of a judge's answer: the likeliest number, or the mean of the numbers by their probabilities.
JudgeReduce = Literal["answer", "expected"]
JUDGE_REDUCES: tuple[JudgeReduce, ...] = get_args(JudgeReduce)
ROLES = ("system", "user", "assistant")
# What a message calls the thought before it.
THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
# What looks at all rows, or at none, and gives each of them a value of its own.
OF_EACH = ("number", "rank", "random")
# What looks at all rows; `min` and `max` of several values, and those of a list, look at one.
AGGREGATES = (
    *("count", "sum", "mean", "min", "max", "std", "median", "quantile"),
    *("any", "all", "first", "last", "list", *OF_EACH),
)
FUNCTIONS = (
    *AGGREGATES,
    *("int", "float", "text", "len", "lower", "upper", "strip", "contains", "lines", "split", "replace", "sort"),
    *("join", "if"),
    *("log", "exp", "sqrt", "abs", "round"),
)

DECLARATIONS = {
    "use": 'use "file.qp" as NAME',
    "model": 'model NAME = "id" kind=KIND adapter="folder" think="<think>|</think>"',
    "schema": 'schema NAME { FIELD: TYPE … } or schema NAME from "file.json"',
    "program": "program NAME(PARAMETER: TYPE, …) -> TYPE { … }",
}

MODEL_OPTIONS = ("kind", "adapter", "think")


@dataclass(frozen=True, slots=True)
class DraftForm:
    """How a way to draft is written: its `form`, and what stands in its brackets.

    `place` says what is named there, `reads` that it is a file whose text is read; else it is a folder. `named`: it
    cannot be left out.
    """

    form: str
    place: str
    reads: bool = False
    named: bool = False


@dataclass(frozen=True, slots=True)
class ViaForm:
    """How a way to decode is written: in short, and in full."""

    form: str
    usage: str


# How many rounds a sample may run ahead.
MAX_AHEAD = 3
# Up to so many rows a CPU's step waits for memory rather than for arithmetic, so that there is room for such samples.
CPU_SPARE_ROWS = 8
# What proposes tokens: a model, or one of `DRAFTS`; `none` means that nothing does.
DraftMethod = Literal["none", "ngram", "model", "early_exit", "eagle"]
DRAFTS: Mapping[DraftMethod, DraftForm] = {
    "ngram": DraftForm('ngram, ngram("texts.txt")', "a file of texts", reads=True),
    "early_exit": DraftForm('early_exit, early_exit("folder")', "the folder of a head"),
    "eagle": DraftForm('eagle("folder")', "the folder of its head", named=True),
}
# The same as a command line takes them.
SHORT_DRAFTS = tuple(
    short
    for method, form in DRAFTS.items()
    for short in ((() if form.named else (method,)) + (f"{method}({'FILE' if form.reads else 'FOLDER'})",))
)
DRAFT_OPTIONS = ("tokens", "branches")
# The most tokens of one draft, those of all branches together.
MAX_DRAFTED = 63
VIAS = {
    "filter": ViaForm(
        "filter(MODEL, THRESHOLD, by= share= rows= wait=)",
        "filter(MODEL, THRESHOLD, by=probability|top|margin|entropy, rows=N, wait=SECONDS) or filter(MODEL, share=, …)",
    ),
    "contrast": ViaForm("contrast(MODEL, ALPHA, beta=)", "contrast(MODEL, ALPHA, beta=B)"),
    "amortized": ViaForm(
        'amortized(MARGIN, layer= rerank= head="folder" certify=)',
        'amortized(MARGIN, layer=L, rerank=K, head="folder", certify=E)',
    ),
}
# How a clause is written, and what stands in its place.
CLAUSE_FORMS = {
    "as": 'as SCHEMA, A | B, int(1..5), [text], /regex/, choice("a", "b"), choice(OPTIONS), grammar("file.lark") or '
    "call(TOOL, …)",
    "via": "via " + " or ".join(form.form for form in VIAS.values()),
    "draft": f"draft MODEL, {', '.join(form.form for form in DRAFTS.values())} or none; each with tokens= branches=",
    "within": "within exact, epsilon(1e-3), loss(0.02), replayable or recorded; within budget(tokens=2000); "
    "within accuracy(0.9) or cost(0.02); within deadline(2s)",
    "prefer": "prefer latency=0.8",
    "like": "like search_and_learn",
    "given": "given PROBLEM, which is a parameter, a column or a string",
    "of": "of TEXT, which is a column, a parameter or a string",
}
# How the `until` of `generate` is written; that of `repeat` is any condition.
UNTIL_FORM = "until confidence(window=TOKENS) < BAR"
# So many calls of tools one message may hold.
MAX_CALLS_AT_ONCE = 32
TARGETS = ("choice", "grammar", "call", "int", "float")
# What `extract` finds by name, besides patterns; an extractor that the caller registers under one goes before it.
EXTRACTORS = {
    "boxed": r"what stands in the last \boxed{…}",
    "final_answer": "what the text boxes, else what it calls its answer",
    "last_number": "the last number of the text",
}
# Why code in a text fails the tests in the brackets.
FAILURE = "failure"
# What `score` can say of the draws of a text.
DrawFigure = Literal["entropy", "confidence", "certainty"]
DRAW_FIGURES: tuple[DrawFigure, ...] = get_args(DrawFigure)
# What is made of the figures of all draws, and of the log-probabilities of all tokens.
DrawReduce = Literal["mean", "min", "last"]
DRAW_REDUCES: tuple[DrawReduce, ...] = get_args(DrawReduce)
LogProbReduce = Literal["sum", "mean", "min"]
# How a tree of rows is searched.
SearchMethod = Literal["puct", "ab_mcts", "ab_mcts_m"]
SEARCH_METHODS: tuple[SearchMethod, ...] = get_args(SearchMethod)
# Which rows of a tree are carried on to their end: each new one, or where no row is finished the best of them.
Rollout = Literal["greedy", "sampled", "last", "off"]
ROLLOUTS: tuple[Rollout, ...] = get_args(Rollout)
# What the values below a node make of it, what is believed of them before any is known, and how an arm is chosen.
Backup = Literal["mean", "max"]
BACKUPS: tuple[Backup, ...] = get_args(Backup)
WorthPrior = Literal["gaussian", "beta"]
WORTH_PRIORS: tuple[WorthPrior, ...] = get_args(WorthPrior)
ArmChoice = Literal["thompson", "ucb"]
ARM_CHOICES: tuple[ArmChoice, ...] = get_args(ArmChoice)
# What a search says of its rows, with types.
SEARCHED_COLUMNS = {"visits": "int", "value": "float"}
# What one says of them to who watches: how likely a child is before anything is known of it. No column has this name.
SEARCH_PRIOR = "prior among its siblings"
# What a filter goes by: the probability of the drawn token, that of the likeliest one, its lead, how little is open.
Confidence = Literal["probability", "top", "margin", "entropy"]
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)
# How far a plan may go, and what may be another in another run: see `Within`.
WithinLevel = Literal["exact", "epsilon", "loss", "replayable", "recorded"]
LEVELS: tuple[WithinLevel, ...] = get_args(WithinLevel)
BOUNDED_LEVELS = ("epsilon", "loss")
# Formats that keys and values may be quantized to; without one they are in the model's own type.
KVType = Literal["int8", "fp8", "int4"]
KV_TYPES: tuple[KVType, ...] = get_args(KVType)
# What a budget counts: the mean of these over problems.
BudgetUnit = Literal["tokens", "thought_tokens", "seconds", "cost"]
BUDGET_UNITS: tuple[BudgetUnit, ...] = get_args(BudgetUnit)
BUDGET_FORM = "budget(tokens=2000), budget(thought_tokens=800), budget(seconds=1.5) or budget(cost=0.002)"
# A share of right answers in the place of an amount, and how likely what is said of it may be wrong.
ACCURACY_FORM = "accuracy(0.9), accuracy(0.9, delta=0.05) or accuracy(0.9) or tokens(2000)"
DELTA = 0.1
BudgetKey = Literal[BudgetUnit, "accuracy", "delta"]
# What is counted where a program does not say.
DEFAULT_UNIT: BudgetUnit = "tokens"
# What stands in the place of a width that a budget decides about, and the widths that it then chooses from.
AUTO = "auto"
AUTO_WIDTHS = (4, 16, 64)
AUTO_FORM = "auto or auto(4, 16, 64)"
# The kinds of verifiers that a model may be declared as; `executor/verifiers/registry.py` has the same ones.
VerifierKind = Literal["rlhflow", "math_shepherd", "skywork", "qwen", "outcome"]
VERIFIER_KINDS: tuple[VerifierKind, ...] = get_args(VerifierKind)
SYSTEMS = ("search_and_learn",)
# What programs like them say first, where a parameter `system` has no other value: `system_prompt` of search-and-learn
# (`src/sal/config.py`).
SYSTEM_PROMPTS = {
    "search_and_learn": r"""Solve the following math problem efficiently and clearly:

- For simple problems (2 steps or fewer):
Provide a concise solution with minimal explanation.

- For complex problems (3 steps or more):
Use this step-by-step format:

## Step 1: [Concise description]
[Brief explanation and calculations]

## Step 2: [Concise description]
[Brief explanation and calculations]

...

Regardless of the approach, always conclude with:

Therefore, the final answer is: $\boxed{answer}$. I hope it is correct.

Where [answer] is just the final number or expression that solves the problem."""
}
# When two values are the same answer.
Equality = Literal["text", "number", "math"]
EQUALITIES: tuple[Equality, ...] = get_args(Equality)
# How `split` draws copies by their weights, and what becomes of finished rows there.
Drawn = Literal["systematic", "multinomial"]
DRAWN: tuple[Drawn, ...] = get_args(Drawn)
FinishedRows = Literal["pass", "share"]
FINISHED_ROWS: tuple[FinishedRows, ...] = get_args(FinishedRows)
# Which of several matches `extract` takes.
Which = Literal["first", "last", "all"]
WHICH: tuple[Which, ...] = get_args(Which)
# What `join` calls the number of a row, from 1.
ROW_NUMBER = "i"
# What `compare` calls the two rows.
COMPARED = ("a", "b")
# The verifiers that take arguments, and `compare`, which `best by`, `keep K by` and `order by` take.
VERIFIER_FORMS = {
    "judge": 'judge(MODEL, "rubric", LOW..HIGH) or judge(MODEL, "question") as int(LOW..HIGH)',
    "prob": 'prob(MODEL, "question", "Yes", "No")',
    "likelihood": 'likelihood(MODEL, "question", TEXT)',
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


# A type as the language writes it: one of `TYPES`, `[text]` for a list, `{name: text}` for a record. "none" is the type
# of the literal alone, "record" a record of any fields, "unknown" fits anywhere (`planner/values/value.py`).
Type = str
NUMBERS = frozenset({"int", "float"})
# What `finish` can say; it is none where nothing was generated.
FINISHES = ("eos", "stop", "length", "match", "until", "context", "closed", "thought")
# What of a turn a `generate` writes, where not all of it: what the model thinks, or what it answers.
Part = Literal["thought", "answer"]
PARTS: tuple[Part, ...] = get_args(Part)
# What becomes of the text that stopped a sample.
StopText = Literal["keep", "drop"]
STOP_TEXTS: tuple[StopText, ...] = get_args(StopText)
# Which tokens samples begin with: drawn ones, or each with another of the likeliest.
FirstTokens = Literal["drawn", "likeliest"]
FIRST_TOKENS: tuple[FirstTokens, ...] = get_args(FirstTokens)
# How the turns of a model are shown to it later: as its chat template has them, or in the tokens that were drawn.
History = Literal["template", "tokens"]
HISTORIES: tuple[History, ...] = get_args(History)
# What stands for true and false where something is switched.
SWITCH = {"on": True, "off": False}
