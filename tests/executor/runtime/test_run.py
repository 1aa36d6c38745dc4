"""Programs on the built-in models: what they give does not depend on how they are run."""

from __future__ import annotations

import asyncio

import pytest

from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.events.events import Event, OperatorDone
from qpdsl.executor.runtime.run import _OPERATORS, InstanceResult
from qpdsl.planner.plan import ops
from qpdsl.planner.values.value import Value
from qpdsl.session.session import Session
from tests.support.executor.programs import (
    CASES,
    FUNCTIONS,
    HEADER,
    SHIPPED,
    arguments,
    case,
    compiled,
    run_all,
    shipped,
    texts,
)

SMALL: dict[str, dict[str, Value]] = {
    "greedy": {},
    "self_consistency": {"n": 5},
    "best_of_n": {"n": 4},
    "weighted_best_of_n": {"n": 4},
    "beam_search": {"width": 2, "expand": 3, "depth": 12},
}


def seen(result: InstanceResult) -> tuple[object, ...]:
    """Everything of a result but its costs."""
    rows = [(row.path, dict(row.columns), row.generated) for row in result.rows]
    return result.value, result.score, rows, result.error


@pytest.mark.parametrize(
    "stages",
    [
        "split 65536 | split 65536",
        "split 65536 | generate llm n=65536",
        "split 65536 | generate llm n=16 + 0 * group",
        "split 65536 | split 65536 by group temperature=1 per group",
        "split 65536 | let l = [1, 2, 3, 4] | each a in l | each b in l | let c = a + b",
        f"split 65536 | branch {{ {' '.join(f'{{ let a = {arm} }}' for arm in range(16))} }}",
    ],
)
def test_more_rows_than_memory_is_for_fail_their_problem(stages: str) -> None:
    plan = compiled(f"{HEADER}program p(problem: text) -> text {{ chat user=problem | {stages} | return problem }}")
    assert "rows at a time are too many: a problem has at most 1,000,000" in str(
        run_all(plan, [{"problem": "é"}])[0].error
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_a_row_is_the_same_alone_beside_others_and_short_of_memory(name: str) -> None:
    plan = shipped(name)
    rows = [arguments(plan, problem=text, **SMALL[name]) for text in texts(5)]
    together = [seen(result) for result in run_all(plan, rows)]
    alone = [seen(run_all(plan, [row])[0]) for row in rows]
    starved = run_all(plan, rows, EngineConfig(max_sequences=3, token_budget=50), kv_bytes=(1 << 19) * len(plan.models))
    assert together == alone
    assert [seen(result) for result in starved] == together
    assert all(error is None for *_, error in together)


@pytest.mark.parametrize("name", sorted(file.stem for file in CASES.glob("*.qp")))
def test_a_row_of_any_operator_is_the_same_alone_beside_others_and_short_of_memory(name: str) -> None:
    plan = case(name)
    rows: list[dict[str, Value]] = [{"problem": text} for text in texts(2)]
    together = run_all(plan, rows)
    starved = run_all(plan, rows, EngineConfig(max_sequences=3, token_budget=50), kv_bytes=(3 << 19) * len(plan.models))
    assert [seen(result) for result in starved] == [seen(result) for result in together]
    assert [seen(run_all(plan, [row])[0]) for row in rows] == [seen(result) for result in together]
    assert all(result.error is None for result in together)
    for result in together:
        paths = [row.path for row in result.rows]
        assert len(set(paths)) == len(paths)


def test_what_operators_spent_adds_up_over_arms_and_rounds() -> None:
    session = Session(functions=FUNCTIONS)
    spent: dict[str, list[int]] = {}

    def keep(event: Event) -> None:
        if isinstance(event, OperatorDone):
            known = spent.setdefault(event.operator, [0, 0])
            known[0] += event.prompt_tokens
            known[1] += event.sampled_tokens

    session.events.subscribe(keep)
    plan = case("turns")
    (result,) = run_all(plan, [{"problem": texts(1)[0]}], session=session)
    whole = [sum(each[side] for name, each in spent.items() if "." not in name) for side in (0, 1)]
    assert whole == [result.prompt_tokens, result.sampled_tokens]
    (branch,) = [node for node in plan.ops if node.arms]
    arms = [spent[node.id] for arm in branch.arms for node in arm]
    assert spent[branch.id] == [sum(side) for side in zip(*arms, strict=True)] and branch.id in spent


def sampled(stages: str, parameters: str = "", seed: int = 0, **values: Value) -> list[str]:
    """The texts of the rows that stages make of one problem."""
    plan = compiled(HEADER + f"program p(problem: text{parameters}) -> text {{\n{stages}\n return text\n}}")
    (result,) = run_all(plan, [arguments(plan, problem=texts(1)[0], **values)], seed=seed)
    assert result.error is None
    return [str(row.columns["text"]) for row in result.rows]


_SAMPLES = " chat user=problem\n generate llm n=3 temperature=3 max_tokens=30"


def test_the_seed_and_what_the_model_is_shown_change_the_samples() -> None:
    base = sampled(_SAMPLES)
    assert base == sampled(_SAMPLES)
    assert set(base).isdisjoint(sampled(_SAMPLES, seed=1))
    assert set(base).isdisjoint(sampled(_SAMPLES.replace("problem", '"{problem} "', 1)))
    assert set(base).isdisjoint(sampled(_SAMPLES.replace("chat ", 'chat system="Be brief." ')))


def test_fewer_samples_are_the_first_of_more() -> None:
    assert sampled(_SAMPLES.replace("n=3", "n=2")) == sampled(_SAMPLES)[:2]
    steps = ' chat user=problem\n repeat 2 {\n  generate llm n=N stop="\\n\\n" temperature=2\n }'
    assert set(sampled(steps.replace("N", "1"))) < set(sampled(steps.replace("N", "2")))


def test_what_the_model_is_not_shown_changes_no_sample() -> None:
    base = sampled(_SAMPLES)
    assert base == sampled(_SAMPLES, ", note: text", note="unused")
    assert base == sampled(_SAMPLES.replace("n=3", "n=n"), ", n: int = 3")
    assert base == sampled(_SAMPLES + "\n score prm\n extract answer = /[0-9]+/")
    turns = (
        ' chat user=problem\n generate llm temperature=2 max_tokens=9{}\n chat user="And?"\n generate llm max_tokens=9'
    )
    assert sampled(turns.format("")) == sampled(turns.format("\n score logprob into sure\n where tokens > 0"))


def test_temperatures_share_their_random_numbers() -> None:
    """At two temperatures that are nearly the same, nearly all tokens are."""
    warm, warmer = (sampled(_SAMPLES.replace("temperature=3", f"temperature={t}")) for t in ("0.7", "0.7001"))
    assert warm == warmer


def test_layout_and_names_of_programs_do_not_change_the_samples() -> None:
    body = 'chat user=problem{0}generate llm n=2 temperature=0.9 stop="\\n\\n"{0}generate llm n=2 max_tokens=8'
    rows = []
    for text in (
        HEADER + "program p(problem: text) -> text {\n" + body.format("\n") + "\n}",
        HEADER
        + "# a comment\nprogram other(question: text) -> text { "
        + body.format(" | ").replace("problem", "question")
        + " }",
    ):
        plan = compiled(text)
        rows.append(run_all(plan, [{plan.params[0].name: texts(1)[0]}])[0].rows)
    assert rows[0] == rows[1] and len(rows[0]) == 4


def test_stop_strings_part_the_steps_and_the_text_goes_on() -> None:
    plan = compiled(
        HEADER + 'program p(problem: text) -> text {\n chat user=problem\n generate llm stop="\\n\\n" temperature=0\n'
        ' generate llm stop="\\n\\n" temperature=0\n}'
    )
    whole = compiled(HEADER + "program p(problem: text) -> text {\n chat user=problem\n generate llm temperature=0\n}")
    for text in texts(4):
        (stepwise,) = run_all(plan, [{"problem": text}])[0].rows
        (sample,) = run_all(whole, [{"problem": text}])[0].rows
        full, two = str(sample.columns["text"]), str(stepwise.columns["text"])
        parts = full.split("\n\n")
        assert full.startswith(two)
        assert two == "\n\n".join(parts[:2]) + ("\n\n" if len(parts) > 2 else "")
        assert stepwise.columns["step"] == parts[1]
        assert stepwise.columns["finished"] == (len(parts) <= 2)


def test_a_token_that_crosses_a_stop_string_is_cut() -> None:
    # The tokenizer has one token for a blank line, so the first newline ends inside it.
    plan = compiled(
        HEADER + 'program p(problem: text) -> text {\n chat user=problem\n generate llm stop="\\n" temperature=0\n}'
    )
    session = Session()
    for text in texts(3):
        (row,) = run_all(plan, [{"problem": text}], session=session)[0].rows
        assert str(row.columns["text"]).count("\n") == 1 and str(row.columns["text"]).endswith("\n")
        assert row.columns["step"] == str(row.columns["text"])[:-1]
        tokenizer = session._models["zoo/counting"]
        assert tokenizer.decode(row.generated.tokens) == row.columns["text"]


def test_failures_are_told_per_row() -> None:
    plan = compiled(
        HEADER + "program p(problem: text) -> text {\n chat user=problem\n generate llm max_tokens=5 temperature=0\n"
        " extract answer = /no such thing/\n vote answer\n}"
    )
    good, empty = run_all(plan, [{"problem": texts(1)[0]}, {"problem": "word " * 2000}])
    assert good.error is not None
    assert good.error.startswith("no row is left: `vote answer` found no answer, since `answer` is none in each row: ")
    assert "`/no such thing/` found nothing in the text, which was cut off" in good.error
    assert good.value is None
    assert empty.error is not None and "tokens, zoo/counting takes" in empty.error


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        ("generate llm n=k", "`n` must be a whole number of at least 1 and at most 65536, not 100000"),
        ("generate llm top_k=k - 100000", "`top_k` must be a whole number of at least 1, not 0"),
        ("generate llm temperature=0 - k", "`temperature` must be a number of at least 0, not -100000"),
        ("generate llm temperature=k * 1e300", "`temperature` must be a number of at least 0, not one this large"),
        ("generate llm max_tokens=k % 0", "`max_tokens` must be a whole number of at least 1, not none"),
        ("generate llm max_tokens=1 | keep k - 100000 by logprob", "`keep` must be a whole number of at least 1"),
        (
            "repeat 1 - k { generate llm }",
            "`repeat` must be a whole number of at least 0 and at most 1000000, not -99999",
        ),
    ],
)
def test_an_options_value_is_checked_where_only_the_run_knows_it(stages: str, reason: str) -> None:
    plan = compiled(HEADER + f"program p(problem: text, k: int) -> text {{\n chat user=problem\n {stages}\n}}")
    (result,) = run_all(plan, [{"problem": "x", "k": 100000}])
    assert result.error is not None and result.error.startswith(reason)


def test_stages_and_rounds_draw_their_own_noise() -> None:
    # With the context the same and next to no difference between tokens, equal noise would mean equal text.
    hot = "generate llm temperature=1000000 max_tokens=4"
    plan = compiled(HEADER + f"program p(problem: text) -> text {{\n chat user=problem\n {hot}\n return text\n}}")
    inner = compiled(
        HEADER + f"program p(problem: text) -> text {{\n chat user=problem\n repeat 1 {{ {hot} }}\n return text\n}}"
    )
    first, second = (run_all(which, [{"problem": "x"}])[0].value for which in (plan, inner))
    assert first != second


def test_a_session_runs_one_block_at_a_time() -> None:
    async def twice() -> None:
        session = Session()
        async with session.running(), session.running():
            pass

    with pytest.raises(RuntimeError, match="running already"):
        asyncio.run(twice())


def test_a_row_that_fails_leaves_no_request_behind() -> None:
    session = Session()
    plan = compiled(
        HEADER
        + "program p(problem: text) -> text {\n chat user=problem\n generate llm n=3 max_tokens=300\n score prm\n}"
    )
    rows = [{"problem": "word " * 500}, {"problem": "How many?"}]
    long, short = run_all(plan, rows, session=session)
    assert long.error is not None and short.error is None
    assert not session._local.has_work
    session._local.check_integrity()


def test_a_number_without_bounds_fails_its_row_alone() -> None:
    huge = "9" * 400
    plan = compiled(
        HEADER + f"program p(problem: text) -> text {{\n chat user=problem\n generate llm n=2 max_tokens=2\n"
        f" extract a = /./\n vote a weight=tokens * {huge}\n}}"
    )
    (result,) = run_all(plan, [{"problem": "x"}])
    assert result.error == "no row is left: `vote a` found no answer, since `a` or its weight is none in each row"


def test_every_operator_has_a_function_that_runs_it() -> None:
    kinds = {kind for kind in vars(ops).values() if isinstance(kind, type) and issubclass(kind, ops.Operator)}
    # A `best` is a `keep` of one; the ways of a strategy are run by `ways.py`, before any other operator.
    others = {ops.Operator, ops.SetContext, ops.Score, ops.Best, ops.Strategy, ops.BudgetedArms}
    assert set(_OPERATORS) == kinds - others
