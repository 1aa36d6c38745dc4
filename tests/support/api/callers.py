"""What type checkers see of the Python face. mypy --strict passes this file; it is not run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, assert_type

from pydantic import BaseModel

import qpdsl as qp

llm = qp.model("zoo/counting")


class Person(BaseModel):
    name: str


@qp.program
def answered(problem: str, n: int = 4) -> str:
    rows = qp.chat(user=f"{problem}?")
    text = rows.generate(llm, n=n * 2, max_tokens=qp.min(n, 3))
    assert_type(text, str)
    score = rows.score(qp.logprob, reduce="mean")
    assert_type(score, float)
    rows.where((score > -9) & qp.not_(qp.col.finished) & qp.matches(text, r"\d"))
    rows.keep(2, by=score * 2, per=qp.col.group)
    return rows.vote(rows.extract("answer", r"(\d+)"), weight=score)


@qp.program(within=qp.loss(0.02), latency=0.5)
def extracted(note: str) -> Person:
    rows = qp.chat(user=note)
    return rows.generate(llm, as_=Person)


@qp.scorer
def length(text: str, row: Mapping[str, Any]) -> float:
    return len(text) / int(row["tokens"])


@qp.extractor
def number(text: str) -> int | None:
    return len(text)


@qp.extractor(rows="batch")
async def numbers(texts: Sequence[str]) -> list[float]:
    return [float(text) for text in texts]


@qp.program
def composed(note: str) -> int:
    rows = qp.chat(user=note)
    rows.call(answered, note, n=2)
    assert_type(rows.call_into("answer", answered, problem=note), str)
    rows.generate("zoo/counting", as_=qp.choice("a", "b"), via=qp.filter(llm, 0.5))
    assert_type(rows.score(length), float)
    assert_type(rows.extract("x", numbers), float)
    count = rows.extract("n", number)
    assert_type(count, int)
    rows.call(answered, 3)  # type: ignore[arg-type]
    rows.generate(llm, temprature=1)  # type: ignore[call-overload]
    rows.generate(llm, n="3")  # type: ignore[call-overload]
    return count


def synchronous() -> None:
    assert_type(answered("1 + 1", n=2), str)
    assert_type(answered.run("1 + 1"), qp.Result[str])
    assert_type(extracted("Ann").name, str)
    assert_type(answered.explain("json"), dict[str, Any])
    for result in extracted.using(seed=3).map([{"note": "Ann"}]):
        assert_type(result.value, Person)
    for event in answered.stream("1 + 1"):
        assert_type(event, qp.TextPiece | qp.Finished[str])
    with qp.using(device="cuda", seed=2) as session:
        assert_type(session, qp.Session)
    assert_type(qp.load("p.qp"), qp.Program[..., Any])
    assert_type(length("a", {"tokens": 1}), float)
    answered(3)  # type: ignore[arg-type]
    answered("1 + 1", m=2)  # type: ignore[call-arg]


async def incoming() -> AsyncIterator[dict[str, str]]:
    yield {"problem": "1 + 1"}


async def asynchronous() -> None:
    assert_type(await extracted.acall("Ann"), Person)
    async for result in answered.map([{"problem": "1 + 1"}], concurrency=8):
        assert_type(result, qp.Result[str])
    async for result in answered.map(incoming()):
        assert_type(result.value, str)
    async for event in answered.stream("1 + 1"):
        if isinstance(event, qp.Finished):
            assert_type(event.result.value, str)


def as_values() -> None:
    call: Callable[[str], str] = answered
    later: Callable[[str], Coroutine[Any, Any, Person]] = extracted.acall
    _ = call, later
