"""Programs with mistakes in them: each function is put under `@qp.program`, and the error is in `mistakes.txt`."""

from __future__ import annotations

from typing import Any

import qpdsl as qp

llm = qp.model("zoo/counting")
prm = qp.model("zoo/counting-prm")
other = qp.model("zoo/counting-mini", name="llm")


@qp.program
def _finished(problem: str) -> str:
    return qp.chat(user=problem).generate(llm)


def names_and_values(problem: str, width: int = 0) -> str:
    rows = qp.chat(user=f"größer: {problem}")
    rows.generate(llm, n=70000)
    rows.score(prm, into="quality")
    rows.keep(width, by=qp.col.qualty * 2)
    return rows.extract("answer", r"The (answer is (-?\d+)")


def over_several_lines(problem: str) -> str:
    rows = qp.chat(
        user=problem,
    )
    rows.generate(
        llm,
        temperature=0.8,
        top_p=1.5,
    )
    return rows.vote(
        "anser",
    )


def stages_out_of_order(problem: str) -> str:
    rows = qp.chat(user=problem)
    rows.best(by=qp.col.logprob)
    return rows.generate(llm)


def truth(problem: str, careful: bool = True) -> str:
    rows = qp.chat(user=problem)
    if careful and problem:
        rows.generate(llm)
    return qp.col.text


def chained(problem: str) -> str:
    rows = qp.chat(user=problem)
    rows.generate(llm)
    rows.where(3 < qp.col.tokens < 9)
    return qp.col.text


def length(problem: str) -> str:
    rows = qp.chat(user=problem)
    return rows.generate(llm, max_tokens=len(problem))


def an_expression_in_a_text(problem: str, n: int = 2) -> str:
    rows = qp.chat(user=f"{n + 1} answers to {problem}")
    return rows.generate(llm)


def a_name_for_a_value(problem: str) -> str:
    rows = qp.chat(user=f"Solve {problem!r}")
    return rows.generate(llm)


def a_changed_text(problem: str) -> str:
    rows = qp.chat(user=f"Now: {problem}".upper())
    return rows.generate(llm)


def a_list(problem: str) -> str:
    rows = qp.chat(user=problem)
    return rows.generate(llm, max_tokens=[1, 2])  # type: ignore[call-overload, no-any-return]


def no_model(problem: str) -> str:
    rows = qp.chat(user=problem)
    return rows.generate(3)  # type: ignore[call-overload, no-any-return]


def two_models(problem: str) -> str:
    rows = qp.chat(user=problem)
    rows.generate(llm)
    return rows.generate(other)


def no_with(problem: str) -> str:
    rows = qp.chat(user=problem)
    rows.repeat(4)
    return rows.generate(llm)


def beside_the_arms(problem: str) -> str:
    rows = qp.chat(user=problem)
    with rows.branch():
        rows.generate(llm)
    return qp.col.text


def a_loop_of_python(problem: str, n: int = 4) -> str:
    rows = qp.chat(user=problem)
    for _ in range(n):
        rows.generate(llm)
    return qp.col.text


def an_empty_loop(problem: str) -> str:
    rows = qp.chat(user=problem)
    with rows.repeat(3):
        pass
    return rows.generate(llm)


def a_reduction(problem: str) -> str:
    rows = qp.chat(user=problem)
    text = rows.generate(llm)
    rows.score(prm, reduce="men")  # type: ignore[arg-type]
    return text


def a_type(problem: set[str]) -> str:
    rows = qp.chat(user=f"{problem}")
    return rows.generate(llm)


def a_method(self, problem: str) -> str:  # type: ignore[no-untyped-def]
    rows = qp.chat(user=problem)
    return rows.generate(llm)


def no_type(problem) -> str:  # type: ignore[no-untyped-def]
    rows = qp.chat(user=problem)
    return rows.generate(llm)


def a_reserved_name(problem: str, by: int = 3) -> str:
    rows = qp.chat(user=problem)
    return rows.generate(llm, n=by)


def starred(problem: str, *more: str) -> str:
    rows = qp.chat(user=problem)
    return rows.generate(llm)


def a_result(problem: str) -> set[Any]:
    rows = qp.chat(user=problem)
    rows.generate(llm)
    return set()


def another_result(problem: str) -> int:
    rows = qp.chat(user=problem)
    return rows.generate(llm)  # type: ignore[return-value]


async def later(problem: str) -> str:
    rows = qp.chat(user=problem)
    return rows.generate(llm)


def running_another(problem: str) -> str:
    rows = qp.chat(user=problem)
    rows.generate(llm)
    return _finished(problem)


def deep(problem: str) -> str:
    rows = qp.chat(user=problem)
    rows.generate(llm)
    number = qp.col.tokens
    for _ in range(100):
        number = number + 1
    rows.best(by=number)
    return qp.col.text


def half_a_character(problem: str) -> str:
    rows = qp.chat(user="\ud83d" + problem)
    return rows.generate(llm)


def two_schemas(problem: str) -> dict[str, Any]:
    rows = qp.chat(user=problem)
    rows.generate(llm, as_={"type": "string"})
    rows.chat(user="Again.")
    return rows.generate(llm, as_={"type": "integer"})


def nothing(problem: str) -> None:
    return None


def a_helper(problem: str) -> str:
    rows = qp.chat(user=problem)
    _helped(rows)
    return qp.col.text


def _helped(rows: qp.Rows) -> None:
    rows.generate(llm, n=0)


def a_scale(problem: str) -> str:
    rows = qp.chat(user=problem)
    rows.generate(llm)
    rows.best(by=rows.score(qp.judge(llm, "How good is it?", (5, 1))))
    return qp.col.text


def a_problem_that_nobody_sees(problem: str) -> str:
    rows = qp.chat(user=problem)
    rows.generate(llm)
    rows.best(by=rows.score(qp.logprob, given=problem))
    return qp.col.text


def several_results(problem: str) -> tuple[str, int]:
    rows = qp.chat(user=problem)
    return rows.generate(llm), qp.col.tokens


def several_values(problem: str) -> Any:
    rows = qp.chat(user=problem)
    return rows.generate(llm), qp.col.tokens
