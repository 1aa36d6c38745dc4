"""`if` and `each`: which rows go through their blocks, and in which order they come out; options that read columns."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.naive import plan as naive_plan
from tests.support.executor.programs import HEADER, compiled, run_all, texts
from tests.support.planner.lowered import program_of

Paths = list[tuple[int, ...]]
# What stages do to rows, by their paths below the one row that they were split from.
_BLOCKS: dict[str, Callable[[Paths], Paths]] = {
    "let a = group": lambda rows: rows,
    "split 2": lambda rows: [(*row, copy) for row in rows for copy in (0, 1)],
    "order by -group": lambda rows: rows,
    "where group % 4 != 1": lambda rows: [row for row in rows if row[0] % 4 != 1],
    "keep 2 by group": lambda rows: sorted(rows, key=lambda row: -row[0])[:2],
    'each x in ["p", "q", "r"] { where x != "q" }': lambda rows: [(*row, copy) for row in rows for copy in (0, 2)],
    "if group > 3 { split 2 }": lambda rows: [
        new for row in rows for new in ([(*row, 0), (*row, 1)] if row[0] > 3 else [row])
    ],
}
_CONDITIONS: dict[str, Callable[[int], bool]] = {
    "group % 3 == 0": lambda group: group % 3 == 0,
    "group >= mean(group)": lambda group: group >= 3.5,
    "group in [2]": lambda group: group == 2,
    "group > 90": lambda group: group > 90,
    "count(per group) == 1": lambda group: True,
}


def result_of(stages: str, head: str = "", end: str = "return count()") -> InstanceResult:
    program = f"{HEADER}{head}program p(problem: text) {{\n chat user=problem\n{stages}\n {end}\n}}"
    return run_all(compiled(program), [{"problem": "What is 3 + 4?"}])[0]


@pytest.mark.parametrize("seed", range(6))
def test_rows_come_out_of_an_if_in_the_order_in_which_they_came_in_and_none_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    written = [name for name in _CONDITIONS if " in " not in name]
    condition, blocks = chance.choice(written), chance.sample(sorted(_BLOCKS), 2)
    chosen = blocks if chance.random() < 0.7 else blocks[:1]
    stages = f" split 8\n if {condition} {{ {' } else { '.join(chosen)} }}"
    through: Paths = [(group,) for group in range(8) if _CONDITIONS[condition](group)]
    others: Paths = [(group,) for group in range(8) if not _CONDITIONS[condition](group)]
    expected = _BLOCKS[chosen[0]](through) + (_BLOCKS[chosen[1]](others) if len(chosen) > 1 else others)
    rows = result_of(stages).rows
    assert [row.path for row in rows] == sorted(expected)


def test_a_column_that_one_block_makes_is_none_in_the_rows_of_the_other() -> None:
    rows = result_of(' split 3\n if group == 1 { let a = "x" } else if group == 2 { let b = 2 }').rows
    assert [(row.columns["a"], row.columns["b"]) for row in rows] == [(None, None), ("x", None), (None, 2)]


def test_an_empty_arm_passes_the_rows_as_they_are() -> None:
    stages = " generate llm n=2 max_tokens=3\n branch { {} { split 2 | let more = step } }"
    plain, rows = result_of(" generate llm n=2 max_tokens=3").rows, result_of(stages).rows
    assert [row.generated for row in rows[:2]] == [row.generated for row in plain]
    assert [row.columns["more"] is None for row in rows] == [True] * 2 + [False] * 4


def test_an_if_in_a_peek_leaves_the_rows_as_they_were() -> None:
    stages = " generate llm n=3 max_tokens=4\n"
    look = " peek { if tokens > 3 { generate llm max_tokens=3 into more } else { let more = step } }"
    plain, peeked = result_of(stages), result_of(stages + look)
    assert [row.generated for row in plain.rows] == [row.generated for row in peeked.rows]
    assert all(row.columns["more"] is not None for row in peeked.rows)


def test_options_that_read_columns_draw_what_constant_ones_do() -> None:
    """Noise does not depend on them, so that a row's tokens are those of a program with its values written out."""
    by_row = result_of(" split 3\n generate llm n=1 + group temperature=0.4 * group max_tokens=4 + group")
    for group in range(3):
        temperature = f"{0.4 * group:.1f}"
        alone = result_of(f" split 3\n generate llm n={1 + group} temperature={temperature} max_tokens={4 + group}")
        own = [row.generated for row in alone.rows if row.columns["group"] == group]
        assert own == [row.generated for row in by_row.rows if row.columns["group"] == group]
        assert len(own) == 1 + group


def test_an_option_out_of_range_in_one_row_is_said_with_its_value() -> None:
    assert result_of(" split 2\n generate llm temperature=0 - group max_tokens=2").error == (
        "`temperature` must be a number of at least 0, not -1"
    )


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        (" split 2\n where group > 5", "`where` held for none of the rows, by `group`"),
        (" split 2\n if group > 0 { where group > 5 } else { where group > 6 }", "`where` held for none of the rows"),
        (
            " branch { { split 2 | where group > 5 } { split 2 | where group > 6 } }",
            "`where` held for none of the rows",
        ),
        (' generate llm max_tokens=3\n each x in .steps { where x != "" }', "`each x` found nothing to go through"),
        (" extract all xs = /zzz/\n each x in xs { let y = x }", "`each x` found nothing to go through"),
    ],
)
def test_an_error_where_no_row_is_left_names_the_stage(stages: str, reason: str) -> None:
    begin = "" if "generate" in stages else " generate llm max_tokens=3\n"
    result = result_of(begin + stages + "\n best by tokens", end="join t = text")
    assert result.error is not None and result.error.startswith(f"no row is left: {reason}")


@pytest.mark.parametrize(
    ("value", "of_none"),
    [
        ("count()", 0),
        ("list(text)", []),
        ("sum(tokens) + 1", 1),
        ("any(finished)", False),
        ("all(finished)", True),
        ('{kept: list(text), n: count(), q: "{problem}"}', {"kept": [], "n": 0, "q": "What is 3 + 4?"}),
        ("max(tokens)", None),
        ("max(tokens) + count()", None),
        ("rank(tokens) + count()", None),
        ("tokens - mean(tokens) + count()", None),
        ("len(problem)", None),
    ],
)
def test_what_looks_at_all_rows_has_a_value_where_none_is_left(value: str, of_none: object) -> None:
    result = result_of(" split 2\n where group > 5", end=f"return {value}")
    assert result.value == of_none and type(result.value) is type(of_none)
    assert (result.error or "").startswith("no row is left" if of_none is None else "")


@pytest.mark.parametrize("found", ["[0-9]", "zzz"])
def test_what_is_left_is_the_same_by_every_plan(found: str) -> None:
    stages = f" generate llm n=3 temperature=1.2 max_tokens=6\n extract a = /{found}/\n where a != none\n"
    end = " order by rank(logprob)\n return {n: count(), all: list(text)}"
    lowered = program_of(
        f"{HEADER}program p(problem: text) {{\n chat user=problem\n{stages}{end}\n}}", "p", Environment()
    )
    plans = (naive_plan(lowered), planned(lowered))
    values = [run_all(plan, [{"problem": "What is 3 + 4?"}])[0].value for plan in plans]
    assert values[0] == values[1] and isinstance(values[0], dict)
    assert (values[0]["n"] == 0) is (found == "zzz")


@pytest.mark.parametrize(("value", "of_none"), [("count()", 0), ("list(group)", ()), ("max(group)", None), ("q", None)])
def test_what_a_called_program_gives_back_where_it_leaves_no_row(value: str, of_none: object) -> None:
    called = f"program part(q: text) {{\n chat user=q\n split 2\n where group > 5\n return {value}\n}}\n"
    (row,) = result_of(" call part(problem) into a", called).rows
    assert row.columns["a"] == of_none


def test_maps_and_reduces_over_a_list_without_a_conversation_of_its_own() -> None:
    head = "program part(x: text) -> text {\n chat user=x\n generate llm max_tokens=5\n}\n"
    stages = ' each x in ["1 + 2", "3 + 4"] { call part(x) into a }\n order by x\n join all = "{i}. {x}: {a}"'
    program = f"{HEADER}{head}program p(problem: text) -> text {{\n{stages}\n return all\n}}"
    (result,) = run_all(compiled(program), [{"problem": texts(1)[0]}])
    assert result.error is None and str(result.value).startswith("1. 1 + 2: ") and "\n2. 3 + 4: " in str(result.value)


def test_a_peek_may_make_several_rows_of_each_and_looks_at_those_of_one() -> None:
    """What it draws of a row is what the row itself would go on with."""
    begin = 'chat user=problem | generate llm n=3 stop="\\n" temperature=0.9 | let me = number()'
    draw = "generate llm n=4 temperature=0.9 max_tokens=9"
    peeked = f"{begin} | peek {{ {draw} | let m = mean(tokens) | let all_ = list(step) | where tokens > 9 | first }}"
    looked = f"{begin} | {draw} | let m = mean(tokens per me) | let all_ = list(step per me) | first per me"
    program = (HEADER + "program p(problem: text) -> text {{ {} | return problem }}").format
    given = [{"problem": text} for text in texts(1)]
    for naive in (True, False):
        plans = [planned(program_of(program(stages)), naive=naive) for stages in (peeked, looked)]
        results = [run_all(plan, given) for plan in plans]
        for one, other in zip(*results, strict=True):
            rows = [row.columns for row in one.rows]
            assert [(row["m"], row["all_"]) for row in rows if row["m"] is not None] == [
                (row.columns["m"], row.columns["all_"])
                for row, own in zip(other.rows, rows, strict=True)
                if own["m"] is not None
            ]
            assert len(rows) == 3 and any(row["m"] is not None for row in rows)


@pytest.mark.parametrize(
    ("stages", "left"),
    [
        (" repeat int(count() / 2) { split 2 }", 1),
        (" split 3\n repeat int(count() / 2) { split 2 }", 6),
        (" repeat int(count() / 2) gather { split 2 }", 0),
        (" split 3\n repeat 0 { split 2 }", 3),
        (" repeat 0 gather { split 2 }", 0),
        (" keep int(count() / 2) by group", 0),
        (" split 2\n keep int(count() / 2) by group", 1),
    ],
)
def test_rounds_and_rows_that_come_to_none_in_a_run(stages: str, left: int) -> None:
    assert result_of(stages).value == left


@pytest.mark.parametrize("waits", [0, 1, 2])
def test_a_loop_of_so_many_rounds_gives_the_tokens_of_the_stages_written_out(waits: int) -> None:
    step = ' say " Wait" | generate llm n=2 max_tokens=6\n'
    loop = f"{HEADER}program p(problem: text, waits: int) {{\n chat user=problem | generate llm max_tokens=6\n"
    loop += f" repeat waits {{ {step} }}\n return count()\n}}"
    given = [{"problem": text, "waits": waits} for text in texts(3)]
    naive, ruled = (run_all(planned(program_of(loop), naive=naive), given) for naive in (True, False))
    texts_of = [[[row.columns["text"] for row in one.rows] for one in results] for results in (naive, ruled)]
    assert texts_of[0] == texts_of[1] and [len(rows) for rows in texts_of[0]] == [2**waits] * 3
