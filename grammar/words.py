"""The words of the language: stages with their forms and options, declarations, reserved words."""

from __future__ import annotations

from dataclasses import dataclass

RESERVED = frozenset(
    {
        "as",
        "via",
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

# A line that starts with one of these goes on with the stage above it.
CLAUSES = frozenset({"as", "via", "into", "by", "per", "until", "within", "prefer"})

# Words of the design that the language does not have yet; using one is told from a slip of the pen.
ABSENT = frozenset(
    {"where", "split", "branch", "call", "schema", "use", "as", "via", "draft", "within", "prefer", "per"}
)

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
    "model": 'model NAME = "id"',
    "program": "program NAME(PARAMETER: TYPE, …) -> TYPE { … }",
}


@dataclass(frozen=True, slots=True)
class Form:
    """How a stage is written: its whole form, what follows its word, and its `key=` options."""

    usage: str
    first: str
    options: tuple[str, ...] = ()


STAGES = {
    "prompt": Form('prompt "…"', "a string"),
    "chat": Form("chat system= user= assistant=", "`system=`, `user=` or `assistant=`", ROLES),
    "generate": Form(
        "generate MODEL n= temperature= top_p= top_k= min_p= stop= max_tokens=",
        "a model",
        ("n", "temperature", "top_p", "top_k", "min_p", "stop", "max_tokens"),
    ),
    "score": Form("score VERIFIER reduce= into NAME", "a verifier model", ("reduce",)),
    "extract": Form("extract NAME = /regex/ or .json.path", "the name of a column"),
    "keep": Form("keep K by EXPR", "how many rows to keep"),
    "best": Form("best by EXPR", "`by`"),
    "vote": Form("vote COLUMN weight=EXPR", "a column", ("weight",)),
    "repeat": Form("repeat N until EXPR { … }", "the most rounds to run"),
    "return": Form("return EXPR", "an expression"),
}
