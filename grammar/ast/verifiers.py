"""What `score` asks, and `best by`: the verifiers that are a word with arguments."""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.grammar.ast.clauses import ModelRef
from qpdsl.grammar.ast.expressions import Expr, Name, Template
from qpdsl.grammar.ast.node import Node
from qpdsl.grammar.words import Equality


@dataclass(frozen=True, slots=True)
class Judge(Node):
    """`judge(MODEL, "rubric", LOW..HIGH)`: a model asked, in a chat turn of its own, for a whole number in a range.

    `whole`: written `judge(MODEL, "question") as int(LOW..HIGH)`. Then the text is all that the model is shown;
    otherwise it follows the problem and the row's text.
    """

    model: ModelRef
    rubric: Template
    low: int
    high: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Prob(Node):
    """`prob(MODEL, "question", "Yes", "No")`: how probable the first answer is, of all of them where there are more."""

    model: ModelRef
    question: Template
    answers: tuple[Template, ...]


@dataclass(frozen=True, slots=True)
class Equal(Node):
    """`equal(ANSWER, REFERENCE, by=text|number|math)`: whether two values of a row are the same answer."""

    answer: Expr
    reference: Expr
    by: Equality = "text"


@dataclass(frozen=True, slots=True)
class ValidJson(Node):
    """`json(SCHEMA)`: whether a text is a JSON document of the schema. `json` alone is a bare name."""

    schema: Name


@dataclass(frozen=True, slots=True)
class Passes(Node):
    """`passes(TESTS, timeout=SECONDS)`: whether the code in a text passes unit tests."""

    tests: Expr
    timeout: Expr | None = None


@dataclass(frozen=True, slots=True)
class WindowConfidence(Node):
    """`confidence(window=TOKENS)`: how sure the model was, of groups of so many tokens."""

    window: Expr


@dataclass(frozen=True, slots=True)
class Compare(Node):
    """`compare(MODEL, "…{a.text}…{b.text}…", both=true)`: a model asked which of two rows, `a` and `b`, is better.

    `both`: it is asked with the rows in both orders.
    """

    model: ModelRef
    question: Template
    both: bool = True


Verifier = ModelRef | Judge | Prob | Equal | ValidJson | Passes | WindowConfidence
