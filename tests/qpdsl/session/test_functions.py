"""Python scorers and extractors: all four shapes, from both faces."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import qpdsl as qp
from qpdsl.errors import UsageError

llm = qp.model("zoo/counting")


@qp.scorer
def length(text: str) -> float:
    return len(text)


@qp.scorer
async def length_later(text: str) -> float:
    await asyncio.sleep(0)
    return len(text)


@qp.scorer(rows="all")
def lengths(texts: Sequence[str]) -> list[float]:
    return [len(text) for text in texts]


@qp.scorer(rows="all", name="lengths_later")
async def later(texts: Sequence[str]) -> list[float]:
    await asyncio.sleep(0)
    return [len(text) for text in texts]


@qp.extractor
def last(text: str) -> int | None:
    digits = [word for word in text.replace(".", " ").split() if word.isdigit()]
    return int(digits[-1]) if digits else None


@qp.extractor
async def last_later(text: str) -> int | None:
    await asyncio.sleep(0)
    return last(text)


@qp.extractor(rows="all")
def lasts(texts: Sequence[str]) -> list[int | None]:
    return [last(text) for text in texts]


@qp.extractor(rows="all")
async def lasts_later(texts: Sequence[str]) -> list[int | None]:
    await asyncio.sleep(0)
    return [last(text) for text in texts]


SCORERS: list[qp.Scorer[..., Any]] = [length, length_later, lengths, later]
EXTRACTORS: list[qp.Extractor[..., Any, int]] = [last, last_later, lasts, lasts_later]
SHAPES = list(zip(SCORERS, EXTRACTORS, strict=True))


def check(result: qp.Result[Any]) -> None:
    (row,) = result.rows
    assert row["size"] == len(row["text"]) and row["number"] == last(row["text"])
    assert result.value == row["number"]


@pytest.mark.parametrize(("scorer", "extractor"), SHAPES, ids=lambda registered: registered.function.name)
def test_in_python(scorer: qp.Scorer[..., Any], extractor: qp.Extractor[..., Any, int], problem: str) -> None:
    @qp.program
    def p(problem: str) -> int:
        rows = qp.chat(user=problem)
        rows.generate(llm, n=3, temperature=0.8)
        size = rows.score(scorer, into="size")
        number = rows.extract("number", extractor)
        rows.best(by=size)
        return number

    check(p.run(problem))
    check(asyncio.run(p.arun(problem)))


@pytest.mark.parametrize(("scorer", "extractor"), SHAPES, ids=lambda registered: registered.function.name)
def test_in_text(scorer: qp.Scorer[..., Any], extractor: qp.Extractor[..., Any, int], problem: str) -> None:
    text = f"""
    program p(problem: text) -> int {{
      chat user=problem
      generate "zoo/counting" n=3 temperature=0.8
      score {scorer.function.name} into size
      extract number = {extractor.function.name}
      best by size
      return number
    }}
    """
    check(qp.parse(text, functions=[scorer, extractor]).run(problem))
    with pytest.raises(qp.QpError) as caught:
        qp.parse(text)
    assert scorer.function.name in str(caught.value)


@qp.scorer
def right(answer: str, reference: str) -> float:
    return float(answer == reference)


@qp.scorer(rows="all")
def shares(answer: Sequence[str], reference: str) -> list[float]:
    assert isinstance(reference, str)
    return [answer.count(own) / len(answer) for own in answer]


GRADED = r"""model llm = "zoo/counting"
program graded(problem: text, reference: text = "12") -> float {
  chat user=problem
  generate llm n=4 temperature=1
  extract answer = /(\d+)\.$/
  score right into right
  score shares into share
  return RESULT
}
program called(problem: text, wanted: text) -> float {
  call graded(problem, wanted)
  return max(right)
}
"""


def test_a_function_may_ask_for_columns_and_parameters_by_their_names(problem: str) -> None:
    text = GRADED.replace("RESULT", "right")
    graded = qp.parse(text, "graded", functions=[right, shares])
    rows = graded.run(problem).rows
    answers = [row["answer"] for row in rows]
    assert [row["right"] for row in rows] == [float(answer == "12") for answer in answers]
    assert [row["share"] for row in rows] == [answers.count(answer) / 4 for answer in answers]
    called = qp.parse(text, "called", functions=[right, shares])
    assert [called(problem, answer) for answer in ("none", answers[0])] == [0.0, 1.0]


def test_a_function_that_asks_for_what_there_is_not_is_an_error_of_the_program() -> None:
    @qp.scorer
    def likely(text: str, temprature: float) -> float:
        return 0

    program = (
        "program p(q: text, temperature: float) -> text { chat user=q | generate llm | score likely | best by score }"
    )
    with pytest.raises(qp.QpError, match="`likely` asks for `temprature`") as caught:
        qp.parse('model llm = "zoo/counting"\n' + program, functions=[likely])
    assert "QP241" in str(caught.value) and "did you mean `temperature`?" in str(caught.value)
    with pytest.raises(UsageError, match="`rows` of scorer `one` is `one`, `all` or `batch`"):
        qp.scorer(rows="each", name="one")(lambda text: 1)  # type: ignore[call-overload]

    @qp.scorer(rows="batch")
    def free(solutions: Sequence[str], problems: Sequence[str], row: Sequence[Any], scale: int = 2, *more: int) -> Any:
        return [scale] * len(solutions)

    assert not free.function.compares and free.function.inputs() == {"text", "problem", "row"}


@dataclass
class Passage:
    title: str
    words: list[str]
    rank: int | None = None


def test_an_extractor_is_given_arguments_before_any_generate_and_gives_lists_and_records() -> None:
    calls = []

    @qp.extractor
    async def retrieve(query: str, k: int = 1) -> list[Passage]:
        calls.append(query)
        return [Passage(f"{query} {i}", query.split()) for i in range(k)]

    @qp.program
    def p(question: str, k: int = 2) -> str:
        passages = qp.extract("passages", retrieve, question, k=k)
        element: Any = passages
        with element.each("part", qp.extract("parts", r"\w", which="all", of=question)):
            element.extract("again", retrieve, query=question, k=1)
            element.where(qp.col.again != qp.none)
        element.join("titles", f"{qp.col.passages[-1]['title']} {qp.col.part}", sep=",")
        titles: str = qp.col.titles
        return titles

    text = """
    program p(question: text, k: int = 2) -> text {
      extract passages = retrieve(question, k=k)
      extract all parts = /\\w/ of question
      each part in parts {
        extract again = retrieve(query=question, k=1)
        where again != none
      }
      join titles = "{passages[-1].title} {part}" sep=","
      return titles
    }"""
    assert p("ab").replace(" ", "") == "ab1a,ab1b"
    assert qp.parse(text, functions=[retrieve])("ab", k=3).replace(" ", "") == "ab2a,ab2b"
    # Each program calls it once for each set of arguments.
    assert calls == ["ab"] * 4

    @qp.extractor
    def odd(text: str) -> list[Passage]:
        return [Passage(text, [3])]  # type: ignore[list-item]

    with pytest.raises(qp.RunError, match=r"`odd` must give .*, not 3"):
        qp.parse("extract a = odd(q) | return a[0].title", functions=[odd])(q="x")


def test_functions_are_still_functions() -> None:
    assert length("four") == 4 and last("1 2 x") == 2 and length.__name__ == "length"


def test_async_functions_run_in_the_callers_loop(problem: str) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @qp.scorer
    async def where(text: str) -> float:
        loops.append(asyncio.get_running_loop())
        return 1.0

    @qp.program
    def p(problem: str) -> str:
        rows = qp.chat(user=problem)
        rows.generate(llm, max_tokens=2)
        rows.best(by=rows.score(where))
        return qp.col.text

    async def main() -> asyncio.AbstractEventLoop:
        await p.acall(problem)
        return asyncio.get_running_loop()

    mine = asyncio.run(main())
    p(problem)
    assert loops[0] is mine and loops[1] is not mine


def test_a_function_that_fails_is_the_rows_error(problem: str) -> None:
    @qp.scorer
    def broken(text: str, row: Mapping[str, Any]) -> float:
        return float(row["absent"])

    @qp.program
    def p(problem: str) -> str:
        rows = qp.chat(user=problem)
        rows.generate(llm, max_tokens=2)
        rows.best(by=rows.score(broken))
        return qp.col.text

    result = p.run(problem)
    assert result.error is not None and "`broken` failed: KeyError: 'absent'" in result.error
    with pytest.raises(qp.RunError, match="`broken` failed") as caught:
        p(problem)
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError) and traceback.extract_tb(cause.__traceback__)[-1].name == "broken"
    # Another process need not know the exception.
    assert pickle.loads(pickle.dumps(caught.value)).result.error == result.error


def test_load_functions(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import qpdsl as qp\n"
        "@qp.scorer\ndef one(text: str) -> float:\n    return 1.0\n"
        "@qp.extractor(rows='all')\ndef two(texts: list[str]) -> list[bool]:\n    return [True for _ in texts]\n"
        "def three(text: str) -> float:\n    return 3.0\n"
    )
    functions = qp.load_functions(file)
    assert [(f.name, f.kind, f.batched, f.returns) for f in functions] == [
        ("one", "scorer", False, "text"),
        ("two", "extractor", True, "bool"),
    ]
    (tmp_path / "p.qp").write_text('program p(q: text) { chat user=q | generate "zoo/counting" | score one }')
    assert qp.load(tmp_path / "p.qp", functions=functions).logical.score_column == "score"
    with pytest.raises(UsageError, match="there is no Python file"):
        qp.load_functions(tmp_path / "none.py")
    file.write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        qp.load_functions(file)


def test_functions_that_cannot_be_registered() -> None:
    with pytest.raises(UsageError, match="cannot be the name of a function"):
        qp.scorer(lambda text: 1.0)
    with pytest.raises(UsageError, match="a column holds `str`, `int`, `float`, `bool`, lists and records"):

        @qp.extractor
        def raw(text: str) -> bytes:
            return text.encode()

    with pytest.raises(UsageError, match="two functions are called `length`"):
        qp.parse("", functions=[length, qp.scorer(name="length")(last)])
