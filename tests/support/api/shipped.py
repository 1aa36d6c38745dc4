"""The shipped programs, written in Python. Type checkers pass this file; the tests hold it against `programs/*.qp`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

import qpdsl as qp

llm = qp.model("zoo/counting")
prm = qp.model("zoo/counting-prm")
slm = qp.model("zoo/counting-mini")

DATA = Path(str(files("qpdsl.programs") / "data"))


class Person(BaseModel):
    name: str = Field(min_length=1, max_length=40)
    age: int = Field(ge=0, le=150)
    tags: list[Annotated[str, Field(max_length=20)]]
    email: Annotated[str, Field(max_length=60, json_schema_extra={"format": "email"})] | None = None


class Meeting(BaseModel):
    topic: str = Field(min_length=1, max_length=40)
    day: Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
    hour: int = Field(ge=0, le=23)
    room: Literal["A", "B", "C", "D"]
    people: list[Annotated[str, Field(min_length=1, max_length=40)]]


Order = qp.schema("Order", DATA / "order.schema.json")


@qp.program
def greedy(problem: str, system: str | None = None, max_tokens: int = 2048) -> str:
    rows = qp.chat(system=system, user=problem)
    rows.generate(llm, temperature=0, max_tokens=max_tokens)
    return rows.extract("answer", qp.final_answer)


@qp.program
def best_of_n(
    problem: str, n: int = 16, system: str | None = None, temperature: float = 0.8, max_tokens: int = 2048
) -> str:
    rows = qp.chat(system=system, user=problem)
    rows.generate(llm, n=n, temperature=temperature, max_tokens=max_tokens)
    score = rows.score(prm, reduce="last")
    rows.best(by=score)
    return rows.extract("answer", qp.final_answer)


@qp.program
def self_consistency(
    problem: str, n: int = 32, system: str | None = None, temperature: float = 0.8, max_tokens: int = 2048
) -> str:
    rows = qp.chat(system=system, user=problem)
    rows.generate(llm, n=n, temperature=temperature, max_tokens=max_tokens)
    answer = rows.extract("answer", qp.final_answer)
    return rows.vote(answer, equal="number")


@qp.program
def best_of_n_logprob(
    problem: str, n: int = 16, system: str | None = None, temperature: float = 0.8, max_tokens: int = 2048
) -> str:
    rows = qp.chat(system=system, user=problem)
    rows.generate(llm, n=n, temperature=temperature, max_tokens=max_tokens)
    answer = rows.extract("answer", qp.final_answer)
    score = rows.score(qp.logprob, reduce="mean")
    rows.where(answer != None)  # noqa: E711
    rows.best(by=score)
    return answer


@qp.program
def weighted_best_of_n(
    problem: str, n: int = 16, system: str | None = None, temperature: float = 0.8, max_tokens: int = 2048
) -> str:
    rows = qp.chat(system=system, user=problem)
    rows.generate(llm, n=n, temperature=temperature, max_tokens=max_tokens)
    score = rows.score(prm, reduce="last")
    answer = rows.extract("answer", qp.final_answer)
    return rows.vote(answer, weight=score, equal="number")


@qp.program
def beam_search(
    problem: str,
    width: int = 4,
    expand: int = 4,
    depth: int = 40,
    system: str | None = None,
    temperature: float = 0.8,
    max_tokens: int = 2048,
) -> str:
    rows = qp.chat(system=system, user=problem)
    with rows.repeat(depth, until=qp.all(qp.col.finished)):
        rows.generate(llm, n=expand, stop="\n\n", temperature=temperature, max_tokens=max_tokens)
        score = rows.score(prm)
        rows.keep(width, by=score)
    rows.best(by=score)
    return rows.extract("answer", qp.final_answer)


@qp.program
def dvts(
    problem: str,
    subtrees: int = 4,
    expand: int = 4,
    depth: int = 40,
    system: str | None = None,
    temperature: float = 0.8,
    max_tokens: int = 2048,
) -> str:
    rows = qp.chat(system=system, user=problem)
    rows.split(subtrees)
    with rows.repeat(depth, until=qp.all(qp.col.finished)):
        rows.generate(llm, n=expand, stop="\n\n", temperature=temperature, max_tokens=max_tokens)
        score = rows.score(prm)
        rows.keep(1, by=score, per=qp.col.group)
    answer = rows.extract("answer", qp.final_answer)
    return rows.vote(answer, weight=score, equal="number")


@qp.program(budget={"tokens": 500})
def compute_optimal(
    problem: str,
    subtrees: int = qp.auto(1, 2, 4, 8, 16),
    expand: int = 4,
    depth: int = 40,
    system: str | None = None,
    temperature: float = 0.8,
    max_tokens: int = 2048,
) -> str:
    rows = qp.chat(system=system, user=problem)
    with rows.strategy() as strategy:
        with strategy.arm():
            rows.generate(llm, temperature=0, max_tokens=max_tokens)
            rows.score(prm, reduce="last")
        with strategy.arm():
            rows.split(subtrees)
            with rows.repeat(depth, until=qp.all(qp.col.finished)):
                rows.generate(llm, n=expand, stop="\n\n", temperature=temperature, max_tokens=max_tokens)
                score = rows.score(prm)
                rows.keep(1, by=score, per=qp.col.group)
    answer = rows.extract("answer", qp.final_answer)
    return rows.vote(answer, weight=qp.col.score, equal="number")


@qp.program
def filter_decoding(problem: str, threshold: float = 0.9, system: str | None = None, max_tokens: int = 2048) -> str:
    rows = qp.chat(system=system, user=problem)
    rows.generate(llm, via=qp.filter(slm, threshold), temperature=0, max_tokens=max_tokens)
    return rows.extract("answer", qp.final_answer)


@qp.program
def outline_then_write(topic: str, system: str | None = None) -> str:
    rows = qp.chat(system=system, user=f"List three points about {topic}.")
    points = rows.generate(llm, into="points", max_tokens=120)
    rows.chat(user=f"Now write it up, keeping to these points: {points}")
    with rows.branch() as branch:
        with branch.arm():
            rows.generate(llm, n=2, temperature=1.0, max_tokens=400)
        with branch.arm():
            rows.generate(slm, n=2, temperature=0.7, max_tokens=400)
    rating = rows.score(qp.judge(llm, "How clear and complete is the text?", (1, 5)), given=f"Write about {topic}.")
    rows.best(by=rating)
    return qp.col.text


@qp.program
def constrained_json(note: str, system: str | None = None) -> Person:
    rows = qp.chat(system=system, user=f"Extract the person in this note as JSON: {note}")
    return rows.generate(llm, as_=Person, temperature=0, max_tokens=256)


@qp.program
def order(note: str, system: str | None = None) -> dict[str, Any]:
    rows = qp.chat(system=system, user=f"Extract the order in this note as JSON: {note}")
    return rows.generate(llm, as_=Order, temperature=0, max_tokens=256)


@qp.program
def meeting(note: str, system: str | None = None) -> Meeting:
    rows = qp.chat(system=system, user=f"Extract the meeting in this note as JSON: {note}")
    return rows.generate(llm, as_=Meeting, temperature=0, max_tokens=256)


@qp.program
def rebase(
    problem: str,
    budget: int = 16,
    balance: float = 0.2,
    depth: int = 40,
    system: str | None = None,
    temperature: float = 0.8,
    max_tokens: int = 2048,
) -> str:
    rows = qp.chat(system=system, user=problem)
    rows.split(budget)
    with rows.repeat(depth, until=qp.all(qp.col.finished)):
        rows.generate(llm, stop="\n\n", temperature=temperature, max_tokens=max_tokens)
        score = rows.score(prm)
        rows.split(budget, by=score, temperature=balance)
    answer = rows.extract("answer", qp.final_answer)
    return rows.vote(answer, weight=score, equal="number")


@qp.program
def lookahead(
    problem: str,
    width: int = 4,
    expand: int = 4,
    ahead: int = 2,
    depth: int = 40,
    system: str | None = None,
    temperature: float = 0.8,
    max_tokens: int = 2048,
) -> str:
    rows = qp.chat(system=system, user=problem)
    with rows.repeat(depth, until=qp.all(qp.col.finished)):
        rows.generate(llm, n=expand, stop="\n\n", temperature=temperature, max_tokens=max_tokens)
        with rows.peek():
            with rows.repeat(ahead, until=qp.all(qp.col.finished)):
                rows.generate(llm, stop="\n\n", temperature=0, max_tokens=max_tokens)
            score = rows.score(prm)
        rows.keep(width, by=score)
    rows.best(by=score)
    return rows.extract("answer", qp.final_answer)


@qp.program(like="search_and_learn")
def sal_best_of_n(
    problem: str, n: int = 16, system: str | None = None, temperature: float = 0.8, max_tokens: int = 2048
) -> str:
    rows = qp.chat(system=system, user=problem)
    rows.generate(llm, n=n, temperature=temperature, max_tokens=max_tokens)
    rows.best(by=rows.score(prm))
    return rows.extract("answer", qp.final_answer)


@qp.program(like="search_and_learn")
def sal_beam_search(
    problem: str,
    width: int = 4,
    expand: int = 4,
    depth: int = 40,
    system: str | None = None,
    temperature: float = 0.8,
    max_tokens: int = 2048,
) -> str:
    rows = qp.chat(system=system, user=problem)
    rows.split(width * expand)
    with rows.repeat(depth - 1, until=qp.all(qp.col.finished)):
        rows.generate(llm, stop="\n\n", temperature=temperature, max_tokens=max_tokens)
        score = rows.score(prm)
        with rows.branch() as branch:
            with branch.arm():
                rows.where(qp.col.finished)
            with branch.arm():
                rows.where(qp.not_(qp.col.finished))
                rows.keep(width, by=score)
                rows.split(width * expand, by=1)
    rows.generate(llm, temperature=temperature, max_tokens=max_tokens)
    score = rows.score(prm)
    rows.keep(width * expand, by=1)
    rows.best(by=score)
    return rows.extract("answer", qp.final_answer)


@qp.program(like="search_and_learn")
def sal_dvts(
    problem: str,
    subtrees: int = 4,
    expand: int = 4,
    depth: int = 40,
    system: str | None = None,
    temperature: float = 0.8,
    max_tokens: int = 2048,
) -> str:
    rows = qp.chat(system=system, user=problem)
    rows.split(subtrees)
    with rows.repeat(depth - 1, until=qp.all(qp.col.finished)):
        rows.generate(llm, n=expand, stop="\n\n", temperature=temperature, max_tokens=max_tokens)
        with rows.peek():
            rows.generate(llm, stop="\n\n", temperature=0, max_tokens=max_tokens)
            score = rows.score(prm)
        rows.keep(1, by=score, per=qp.col.group)
    rows.generate(llm, n=expand, temperature=temperature, max_tokens=max_tokens)
    rows.best(by=rows.score(prm))
    return rows.extract("answer", qp.final_answer)


PROGRAMS: dict[str, qp.Program[..., Any]] = {
    program.name: program
    for program in (
        greedy,
        best_of_n,
        best_of_n_logprob,
        self_consistency,
        weighted_best_of_n,
        beam_search,
        dvts,
        compute_optimal,
        rebase,
        lookahead,
        sal_best_of_n,
        sal_beam_search,
        sal_dvts,
        filter_decoding,
        outline_then_write,
        constrained_json,
        order,
        meeting,
    )
}
