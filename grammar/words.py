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

# A line that starts with one of these continues the stage above it. So does one with `draft` before a name or an id, or
# `like` before a name.
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
REDUCES = ("last", "min", "mean", "prod", "sum")
ROLES = ("system", "user", "assistant")
FUNCTIONS = ("len", "min", "max", "mean", "all", "any")

DECLARATIONS = {
    "use": 'use "file.qp"',
    "model": 'model NAME = "id" kind=KIND adapter="folder"',
    "schema": 'schema NAME { FIELD: TYPE … } or schema NAME from "file.json"',
    "program": "program NAME(PARAMETER: TYPE, …) -> TYPE { … }",
}

MODEL_OPTIONS = ("kind", "adapter")

# What stages are called in other languages.
STAGE_SYNONYMS = {
    "ask": "chat",
    "sample": "generate",
    "complete": "generate",
    "judge": "score",
    "filter": "where",
    "if": "where",
    "take": "keep",
    "top": "keep",
    "limit": "keep",
    "sort": "keep",
    "order": "keep",
    "while": "repeat",
    "for": "repeat",
    "loop": "repeat",
    "parallel": "branch",
    "union": "branch",
}

# How a clause is written, and what stands in its place.
CLAUSE_FORMS = {
    "as": 'as SCHEMA, /regex/, choice("a", "b") or grammar("file.lark")',
    "via": 'via filter(MODEL, THRESHOLD, by= share=) or amortized(MARGIN, layer= rerank= head="folder" certify=)',
    "draft": 'draft MODEL, ngram, ngram("texts.txt"), early_exit, eagle("folder") or none; each with tokens= branches=',
    "within": "within exact, epsilon(1e-3) or loss(0.02)",
    "prefer": "prefer latency=0.8",
    "like": "like search_and_learn",
    "given": "given PROBLEM, which is a parameter, a column or a string",
}
# What proposes tokens besides a model, and `none`, which means that nothing does.
DraftMethod = OneOf["none", "ngram", "model", "early_exit", "eagle"]
DRAFTS = ("ngram", "early_exit", "eagle")
DRAFT_OPTIONS = ("tokens", "branches")
# The most tokens of one draft, those of all branches together.
MOST_DRAFTED = 63
TARGETS = ("choice", "grammar")
VIAS = ("filter", "amortized")
# The options of both besides what stands first.
FILTER_OPTIONS = ("by", "share")
AMORTIZED_OPTIONS = ("layer", "rerank", "head", "certify")
# What a filter goes by: the probability of the drawn token, the lead of the likeliest one, how little is open.
Confidence = OneOf["probability", "margin", "entropy"]
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)
LEVELS = ("exact", "epsilon", "loss")
# The kinds of verifiers that a model may be declared as; `executor/verifiers/registry.py` has the same ones.
VerifierKind = OneOf["rlhflow", "math_shepherd", "skywork", "qwen", "outcome"]
VERIFIER_KINDS: tuple[VerifierKind, ...] = get_args(VerifierKind)
SYSTEMS = ("search_and_learn",)
EQUALITIES = ("text", "number", "math")

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
    "chat": StageForm("chat system= user= assistant=", "`system=`, `user=` or `assistant=`", ROLES),
    "generate": StageForm(
        "generate MODEL n= temperature= top_p= top_k= min_p= stop= max_tokens= as … via … draft … into …",
        "a model",
        ("n", "temperature", "top_p", "top_k", "min_p", "stop", "max_tokens"),
    ),
    "score": StageForm(
        'score VERIFIER or judge(MODEL, "rubric", 1..5) reduce= given PROBLEM into NAME', "a verifier", ("reduce",)
    ),
    "extract": StageForm("extract NAME = /regex/, .json.path or EXTRACTOR", "the name of a column"),
    "where": StageForm("where EXPR", "a condition"),
    "keep": StageForm("keep K by EXPR per COLUMN", "how many rows to keep"),
    "best": StageForm("best by EXPR", "`by`"),
    "vote": StageForm("vote COLUMN weight=EXPR equal=text|number|math", "a column", ("weight", "equal")),
    "split": StageForm("split G or split N by EXPR temperature=", "how many groups to make", ("temperature",)),
    "repeat": StageForm("repeat N until EXPR { … }", "the most rounds to run"),
    "branch": StageForm("branch { { … } { … } }", "`{`"),
    "peek": StageForm("peek { … }", "`{`"),
    "call": StageForm("call PROGRAM(ARGUMENT, …) into NAME", "a program"),
    "return": StageForm("return EXPR", "an expression"),
}

# "none" is the type of the literal alone, "unknown" that of an expression with an error in it, which fits anywhere.
Type = OneOf["text", "int", "float", "bool", "none", "unknown"]
NUMBERS = frozenset({"int", "float"})
# What `finish` can say; it is none where nothing was generated.
FINISHES = ("eos", "stop", "length", "match")
