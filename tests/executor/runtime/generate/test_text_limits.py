"""What a text may not have and where it may end: `without`, `min_tokens`, `stop_text`, penalties; under every plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.rules import RULES
from qpdsl.session.session import Session
from tests.support.cli import Run
from tests.support.executor.programs import HEADER, compiled, run_all, texts
from tests.support.planner.lowered import program_of

THINKS = 'model llm = "zoo/counting-thinker"\n'
SMALL = f'{HEADER}model slm = "zoo/counting-mini"\n'
BANNED = ("answer", "ox", " is")
BANS = 'without=["answer", "ox", " is"]'
PENALTIES = 'repetition_penalty=1.2 frequency_penalty=0.4 logit_bias=[{token: " The", bias: 1.5}]'
# Stages, and the texts that none of their rows may have.
WRITING = {
    "free": (HEADER, f"generate llm n=2 temperature=1.0 {BANS} max_tokens=50", BANNED),
    "drafts": (
        HEADER,
        f"generate llm temperature=0.8 {BANS} max_tokens=50 draft ngram(tokens=4)",
        BANNED,
    ),
    "filters": (
        SMALL,
        f"generate llm temperature=0.8 {BANS} max_tokens=50 via filter(slm, 0.8)",
        BANNED,
    ),
    "exits": (HEADER, f"generate llm temperature=0.8 {BANS} max_tokens=50 via amortized(0.5)", BANNED),
    "pieces": (HEADER, 'repeat 20 {\n generate llm n=1 temperature=0 max_tokens=1 without="answer" \n }', ("answer",)),
    "thinks": (THINKS, f"generate llm think=12 temperature=1.0 {BANS} max_tokens=40", BANNED),
    "least": (HEADER, 'generate llm n=2 temperature=1.0 min_tokens=40 stop="." max_tokens=60', ()),
    "penalties": (HEADER, f"generate llm n=4 temperature=0.8 {PENALTIES}", ()),
    "penalized drafts": (HEADER, f"generate llm n=2 temperature=0.8 {PENALTIES} draft ngram(tokens=4)", ()),
    "contrasted": (SMALL, f"generate llm n=2 temperature=1.0 {BANS} max_tokens=20 via contrast(slm, 0)", BANNED),
    "thinks apart": (
        f'{THINKS}model slm = "zoo/counting-thinker"\n',
        f"generate llm think=8 temperature=1.0 {BANS} max_tokens=12 via contrast(slm, 0, beta=0)",
        BANNED,
    ),
    "penalized filter": (SMALL, f"generate llm n=2 temperature=0.8 {PENALTIES} via filter(slm, 0.8)", ()),
    "penalized form": (HEADER, f"generate llm n=3 as /\\d{{1,3}} units/ temperature=1.0 {PENALTIES}", ()),
    "ranks": (HEADER, "generate llm n=4 first_tokens=likeliest temperature=0 draft ngram(tokens=3)", ()),
    "dropped": (HEADER, 'repeat 3 {\n generate llm stop=["oxes", /\\d\\./] stop_text=drop temperature=0.7\n }', ()),
}


@cache
def naive_plan(name: str) -> PhysicalPlan:
    head, stages, _ = WRITING[name]
    body = f" chat user=problem\n {stages}\n return text\n"
    return plan(program_of(f"{head}program p(problem: text) -> text {{\n{body}}}", "p"))


def rows_of(physical: PhysicalPlan, **more: object) -> list[Row]:
    results = run_all(replace(physical, floor=64), [{"problem": text} for text in texts(2)], **more)  # type: ignore[arg-type]
    assert [result.error for result in results] == [None, None]
    return [row for result in results for row in result.rows]


def told(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    return [(row.path, row.columns["text"], row.columns["finish"], row.generated.tokens) for row in rows]


@pytest.mark.parametrize("name", WRITING)
def test_the_rows_of_every_plan_hold_to_it(name: str) -> None:
    naive = naive_plan(name)
    rows = rows_of(naive)
    for row in rows:
        assert not any(text in str(row.columns["text"]) for text in WRITING[name][2])
        if name == "least":
            assert int(str(row.columns["tokens"])) >= 40 and row.columns["finish"] in ("eos", "stop", "length")
    expected = told(rows)
    small = {"config": EngineConfig(max_sequences=3, token_budget=60), "kv_bytes": 3 << 19}
    assert told(rows_of(optimize(naive).plan, **small)) == expected
    if name in ("drafts", "penalties"):
        alone = [result.changes[-1].plan for rule in RULES if (result := optimize(naive, rules=[rule])).changes]
        assert all(told(rows_of(physical)) == expected for physical in alone)
        memory = Session(share_samples=True)
        assert [told(rows_of(optimize(naive).plan, session=memory)) for _ in range(2)] == [expected] * 2


def test_what_stopped_is_dropped_and_the_turn_goes_on_without_it() -> None:
    stages = (
        ' chat user=problem\n generate llm temperature=0 stop="nswer i" STOP into first\n say " at"\n return text\n'
    )
    values = []
    for drop in ("", "stop_text=drop"):
        program = f"{HEADER}program p(problem: text) -> text {{\n{stages.replace('STOP', drop)}}}"
        (result,) = run_all(compiled(program), [{"problem": texts(1)[0]}])
        values.append((str(result.value), result.rows[0].columns["first"]))
    (kept, first), (dropped, second) = values
    assert kept.endswith("The answer i at") and dropped == kept.replace("nswer i", "") and first == second
    assert dropped == f"{second} at"


def test_what_has_no_meaning_is_refused(qpdsl: Run, tmp_path: Path) -> None:
    cases = {
        'generate llm as choice("a", "b") presence_penalty=1': "`presence_penalty` cannot stand beside `as choice`",
        'generate llm as /a+/ without="b"': "`without` cannot stand beside `as`",
        "generate llm as int(1..5) min_tokens=3": "`min_tokens` cannot stand beside `as`",
        "generate llm stop_text=drop": "`stop_text=drop` leaves out what stopped, but nothing stops this",
        'generate llm without=""': "a text of `without` cannot be empty",
        "generate llm logit_bias=2": "`logit_bias` takes a list of records",
        "generate llm repetition_penalty=0": "`repetition_penalty` is over 0",
        'generate llm logit_bias=[{token: "nowhere else", bias: 1.0}]': "and a bias is for one",
        "generate llm logit_bias=[{id: 3, bias: 1.0}]": "records of a `token` and its `bias`",
    }
    for stage, message in cases.items():
        path = tmp_path / "p.qp"
        path.write_text(f'{HEADER}program p() -> text {{\n chat user="hi"\n {stage}\n}}')
        ran = qpdsl("run", path)
        assert ran.code and message in ran.out + ran.err, (stage, ran.err)
