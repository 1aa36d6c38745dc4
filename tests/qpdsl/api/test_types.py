"""Types of Python in signatures and outputs, models as parameters, seeds, chains, and what a result holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

import qpdsl as qp
from qpdsl.api.compose.annotations import reader
from tests.support.api.shipped import greedy, llm, prm

slm = qp.model("zoo/counting-mini")


@dataclass
class Person:
    name: str
    age: int | None = None


class Call(BaseModel):
    tool: str = Field(max_length=3)


class Team(BaseModel):
    people: list[Person] = Field(max_length=3)
    kind: Literal["red", "blue"]


@qp.program
def typed(
    q: str,
    shots: list[str],
    m: qp.Model = slm,
    who: Person | None = None,
    team: Team | None = None,
    style: Literal["short", "long"] = "short",
    marks: Annotated[list[int], Field(min_length=1)] = [1, 2],  # noqa: B006
    history: qp.Messages | None = None,
) -> dict[str, Any]:
    rows = qp.chat(user=f"{q} {shots} {who} {team} {history}")
    rows.generate(m, max_tokens=3)
    return {"shots": shots, "who": who, "team": team, "style": style, "marks": marks}


def test_the_signature_is_that_of_the_text() -> None:
    text = str(typed)
    for line in (
        "shots: [text],",
        'm: model = "zoo/counting-mini",',
        "who: Person?,",
        "team: Team?,",
        'style: choice("short", "long") = "short",',
        "marks: [int](1..) = [1, 2],",
        "history: messages?,",
        "people: [Person](..3)",
    ):
        assert line in text
    again = qp.parse(text)
    assert again.params == typed.params and str(again) == text


def test_values_go_in_and_come_out() -> None:
    team = Team(people=[Person("Bo", 3)], kind="red")
    value = typed("x", ["a"], who=Person("Ann"), team=team, m="zoo/counting")
    people = [{"name": "Bo", "age": 3}]
    assert value == {
        "shots": ["a"],
        "who": {"name": "Ann"},
        "team": {"people": people, "kind": "red"},
        "style": "short",
        "marks": [1, 2],
    }


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"shots": "a"}, "`shots` takes a value of the type"),
        ({"shots": [1]}, r"`shots\[0\]` takes text"),
        ({"shots": [], "marks": []}, "0 items are too few"),
        ({"shots": [], "style": "wide"}, "none of the values allowed"),
        ({"shots": [], "m": 3}, "`m` takes a model"),
        ({"shots": [], "seeds": 3}, "did you mean `seed`"),
        ({"shots": [], "seed": "a"}, "seed"),
        ({"shots": [], "history": [{"role": "me", "content": "x"}]}, "none of the values allowed"),
    ],
)
def test_values_that_do_not_fit(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(qp.ArgumentError, match=why):
        typed("x", **arguments)


def test_a_model_is_checked_for_what_it_has_to_do() -> None:
    with pytest.raises(qp.QpError, match="is a verifier"):
        typed("x", [], m=prm)

    @qp.program
    def open_(q: str, m: qp.Model) -> str:
        return qp.chat(user=q).generate(m, max_tokens=30, temperature=1.5)

    with pytest.raises(qp.ArgumentError, match="no model for `m`"):
        open_("x")  # type: ignore[call-arg]
    assert open_("x", llm) == open_("x", m="zoo/counting") != open_("x", slm)


def test_outputs_of_python_types() -> None:
    @qp.program
    def count(q: str, words: list[str]) -> list[bool]:
        rows = qp.chat(user=q)
        pick = rows.generate(llm, as_=qp.choice(words), into="pick")
        rows.chat(user=f"{pick}")
        return rows.generate(llm, as_=Annotated[list[bool], Field(min_length=2, max_length=2)], temperature=0)

    @qp.program
    def named(q: str) -> Person:
        rows = qp.chat(user=q)
        return rows.generate(llm, as_=Person, temperature=0)

    assert "as choice(words) into pick" in str(count) and "as [bool](2..2)" in str(count)
    truths = count("x", ["a", "b"], seed=1)
    assert len(truths) == 2 and {*truths} <= {True, False}
    assert "as Person" in str(named) and "age: int?" in str(named)


def test_a_union_of_classes() -> None:
    @qp.program
    def either(q: str) -> Call | Person | None:
        rows = qp.chat(user=q)
        act = rows.generate(llm, as_=Call | Person, temperature=9, into="act")
        rows.where(act["kind"] == "Call")
        return act

    assert "-> Call | Person? {" in str(either) and "as Call | Person into act" in str(either)
    assert str(qp.parse(str(either))) == str(either)
    found = [either("x", seed=seed) for seed in range(6)]
    assert {type(value) for value in found} == {Call, type(None)}
    with pytest.raises(qp.QpError, match=r"parameter `call` has the type `.*Call \| .*Person`"):

        @qp.program
        def takes(call: Call | Person) -> str:
            return qp.chat(user=f"{call}").generate(llm)


def test_a_list_of_a_union_of_classes() -> None:
    @qp.program
    def several(q: str) -> list[Call | Person]:
        rows = qp.chat(user=q)
        return rows.generate(llm, as_=list[Call | Person], temperature=9, max_tokens=60, into="acts")

    assert "-> [Call | Person] {" in str(several) and "as [Call | Person] into acts" in str(several)
    assert str(qp.parse(str(several))) == str(several)
    read = reader(list[Call | Person])
    assert read is not None
    assert [type(one) for one in read([{"kind": "Call", "tool": "a"}])] == [Call]


def test_a_parameter_that_lists_models() -> None:
    @qp.program
    def each_of(q: str, judges: list[qp.Model]) -> str:
        rows = qp.chat(user=q)
        with rows.each("m", judges) as m:
            rows.generate(m, max_tokens=3)
        return qp.text(qp.list(qp.col.text))

    @qp.program
    def outer(q: str) -> str:
        rows = qp.chat(user=q)
        return rows.call_into("x", each_of, q, [llm, "zoo/counting-mini"])

    assert "judges: [model]" in repr(each_of) and "each m in judges {\n    generate m" in str(each_of)
    assert each_of("x", ["zoo/counting", slm]) == each_of("x", judges=(llm, slm)) == outer("x") != each_of("x", [slm])
    for judges, why in [([], "a list of models"), ("zoo/counting", "a list of models"), ([3], r"`judges\[0\]` takes")]:
        with pytest.raises(qp.ArgumentError, match=why):
            each_of("x", judges)  # type: ignore[arg-type]
    with pytest.raises(qp.ArgumentError, match="no model for `judges`"):
        each_of("x")  # type: ignore[call-arg]


def test_stages_stand_one_behind_another(problem: str) -> None:
    @qp.program
    def chained(problem: str, n: int = 4) -> str:
        rows = qp.chat(user=problem).generate(llm, n=n, max_tokens=8).score(prm).where(qp.col.tokens > 1)
        return rows.best(by=qp.col.score).extract("first", r"(\S*)")

    @qp.program
    def plain(problem: str, n: int = 4) -> str:
        rows = qp.chat(user=problem)
        rows.generate(llm, n=n, max_tokens=8)
        score = rows.score(prm)
        rows.where(qp.col.tokens > 1)
        rows.best(by=score)
        return rows.extract("first", r"(\S*)")

    assert str(chained).replace("chained", "plain") == str(plain)
    assert chained(problem) == plain(problem)

    with pytest.raises(AttributeError, match="there is no stage `scor`; did you mean `score`"):

        @qp.program
        def slip(problem: str) -> Any:
            return qp.chat(user=problem).generate(llm).scor(prm)

    with pytest.raises(AttributeError, match=r"there is no stage `text`; a column is `qp\.col\.text`"):

        @qp.program
        def read(problem: str) -> Any:
            return qp.chat(user=problem).text


def test_seeds_of_calls_and_of_rows(problem: str) -> None:
    @qp.program
    def sampled(problem: str) -> str:
        return qp.chat(user=problem).generate(llm, max_tokens=12, temperature=1.5)

    alone = [sampled(problem, seed=seed) for seed in range(3)]
    assert len(set(alone)) > 1 and alone[1] == sampled.using(seed=1)(problem)
    rows = [{"problem": problem, "seed": seed} for seed in range(3)]
    by_field = {result.index: result.value for result in sampled.map(rows)}
    by_list = {result.index: result.value for result in sampled.map([{"problem": problem}] * 3, seeds=range(3))}
    assert [by_field[index] for index in range(3)] == alone == [by_list[index] for index in range(3)]
    for bad, why in (
        ({"problm": "x"}, "`problm` is no parameter; did you mean `problem`"),
        ({"problem": "x", "seed": "a"}, "seed"),
    ):
        with pytest.raises(qp.ArgumentError, match=why):
            list(sampled.map([bad]))
    with pytest.raises(qp.ArgumentError, match="`seeds` has ended"):
        list(sampled.map([{"problem": problem}] * 2, seeds=[1]))


def test_a_result_holds_conversations_and_tokens(problem: str) -> None:
    @qp.program
    def twice(problem: str) -> str:
        rows = qp.chat(system="Be brief.", user=problem)
        rows.generate(llm, max_tokens=4, into="draft")
        rows.chat(user="Again.")
        return rows.generate(llm, n=2, max_tokens=5)

    result = twice.run(problem)
    first, second = result.candidates
    assert [turn["role"] for turn in result.transcript] == ["system", "user", "assistant", "user", "assistant"]
    assert result.transcript == first.transcript and first.transcript[-1]["content"] == first.text == result.value
    assert first.transcript[2]["content"] == first.columns["draft"] and first.columns == result.rows[0]
    assert first.tokens and len(first.tokens) <= 5 and second.path[-1] == 1 and first.logprob <= 0


def test_tokens_of_inner_programs_are_counted(problem: str) -> None:
    @qp.program
    def inner(problem: str) -> str:
        return qp.chat(user=problem).generate(llm, max_tokens=3)

    def plain(text: str) -> float:
        return float(len(inner(problem)))

    async def awaited(text: str) -> float:
        return float(len(await inner.acall(problem)))

    alone = inner.run(problem).tokens
    for function in (plain, awaited):
        scorer = qp.scorer(function)

        @qp.program
        def outer(problem: str) -> str:
            rows = qp.chat(user=problem)
            rows.generate(llm, max_tokens=3)
            rows.score(scorer)  # noqa: B023
            return qp.col.text

        tokens = outer.run(problem).tokens
        assert tokens == (alone.prompt * 2, alone.sampled * 2)


def test_calls_in_an_event_loop_say_what_to_write(problem: str) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"await program\.acall"):
            greedy(problem)
        with pytest.raises(RuntimeError, match="async for"):
            list(greedy.map([{"problem": problem}]))
        assert await greedy.acall(problem, seed=3) == await greedy.acall(problem)

    asyncio.run(main())


def test_rows_that_name_their_models(problem: str) -> None:
    @qp.program
    def either(problem: str, m: qp.Model) -> str:
        return qp.chat(user=problem).generate(m, max_tokens=5)

    models = ["zoo/counting", "zoo/counting-mini"]
    found = {result.index: result.value for result in either.map([{"problem": problem, "m": m} for m in models])}
    assert found == {index: either(problem, m) for index, m in enumerate(models)}
    assert "either" in either._repr_html_() and str(either).startswith("program either")
    assert either.using(models={"m": "zoo/counting"})(problem) == found[0]
    for wanted in (either.explain, lambda: either.plan, lambda: either(problem)):
        with pytest.raises(qp.ArgumentError, match="no model for `m`"):
            wanted()
