"""`until confidence(window=N) < BAR`: a row is the beginning of the uncut one, up to the window that falls under."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.planner.rules import RULES
from qpdsl.planner.values.value import Value
from qpdsl.session.session import Session
from tests.support.cli import Run
from tests.support.executor.programs import HEADER, run_all, texts
from tests.support.planner.lowered import program_of

THINKS = 'model llm = "zoo/counting-thinker"\n'
# What is generated, each row by itself: a window, and the share of the uncut rows' windows that lies under the bar.
WRITING = {
    "free": (HEADER, "generate llm n=4 temperature=1.0 UNTIL", 6, 0.02),
    "one token": (HEADER, "generate llm n=4 temperature=1.0 UNTIL", 1, 0.005),
    "filters": (HEADER, "generate llm n=3 temperature=1.2 top_p=0.8 UNTIL", 5, 0.03),
    "steps": (HEADER, 'split 3\n repeat 6 {\n generate llm stop="\\n\\n" temperature=1.0 UNTIL\n }', 6, 0.02),
    "drafts": (HEADER, "generate llm n=3 temperature=1.0 draft ngram(tokens=4) UNTIL", 6, 0.02),
    "masks": (HEADER, "generate llm n=4 as /\\d{1,6} units/ temperature=1.0 UNTIL", 2, 0.1),
    "thoughts": (THINKS, "generate llm n=4 think=8 temperature=1.0 UNTIL", 6, 0.03),
    "long thoughts": (THINKS, "generate llm n=4 think=24 temperature=1.0 UNTIL", 6, 0.3),
    "unbounded": (THINKS, "generate llm n=4 temperature=1.2 UNTIL", 6, 0.02),
}
COUNT = 2


def naive_plan(name: str, *, cut: bool) -> PhysicalPlan:
    head, stages, window, _ = WRITING[name]
    clause = f"until confidence(window={window}) < bar" if cut else ""
    scores = "" if cut else " score confidence into told\n"
    body = f" chat user=problem\n {stages.replace('UNTIL', clause)}\n{scores} return text\n"
    text = f"{head}program p(problem: text, bar: float = 0.0) -> text {{\n{body}}}"
    return plan(program_of(text, "p"))


def rows_of(physical: PhysicalPlan, bar: float, **more: object) -> list[Row]:
    given: list[dict[str, Value]] = [{"problem": text, "bar": bar} for text in texts(COUNT)]
    results = run_all(replace(physical, floor=64), given, **more)  # type: ignore[arg-type]
    assert [result.error for result in results] == [None] * COUNT
    return [row for result in results for row in result.rows]


def means(row: Row, window: int) -> list[float | None]:
    """For each token of a row, the mean of the window that ends there, as a score would have it."""
    figures = [figures.confidence for figures in row.generated.figures or ()]
    found: list[float | None] = []
    for at, figure in enumerate(figures):
        last = [value for value in figures[: at + 1] if value][-window:]
        found.append(round(float(np.mean(last)), 5) if figure and len(last) == window else None)
    return found


@cache
def uncut(name: str) -> tuple[Sequence[Row], float]:
    """The rows without the clause, and a bar that some of them fall under."""
    _, _, window, share = WRITING[name]
    rows = rows_of(naive_plan(name, cut=False), 0.0)
    told = [mean for row in rows for mean in means(row, window) if mean is not None]
    return rows, float(np.quantile(told, share))


def ends(row: Row, window: int, bar: float) -> int | None:
    """How many tokens a row has where it is cut; None where it is not. A turn that the model ends has ended."""
    below = [at for at, mean in enumerate(means(row, window), 1) if mean is not None and mean < bar]
    ended = len(row.generated.figures or ()) if row.columns["finish"] == "eos" else None
    return below[0] if below and below[0] != ended else None


def assert_cut(name: str, rows: Sequence[Row], bar: float) -> int:
    """How many rows were cut, each of which is the beginning of the uncut one that ends at the right token."""
    whole, window, cut = uncut(name)[0], WRITING[name][2], 0
    for row, longer in zip(rows, whole, strict=True):
        assert row.path == longer.path[: len(row.path)]
        length = ends(longer, window, bar)
        if length is None:
            assert row.columns == {key: value for key, value in longer.columns.items() if key != "told"}
            continue
        cut += 1
        assert (row.columns["finish"], row.columns["finished"]) == ("until", True)
        assert row.columns["tokens"] == length
        assert row.generated.figures == (longer.generated.figures or ())[:length]
        assert row.generated.tokens == longer.generated.tokens[: len(row.generated.tokens)]
    return cut


@pytest.mark.parametrize("name", WRITING)
def test_a_row_ends_at_the_token_with_which_a_window_falls_under_the_bar(name: str) -> None:
    bar = uncut(name)[1]
    naive = naive_plan(name, cut=True)
    cut = assert_cut(name, rows_of(naive, bar), bar)
    assert cut > 0
    assert assert_cut(name, rows_of(optimize(naive).plan, bar), bar) == cut
    memory = Session(share_samples=True)
    for _ in range(2):
        assert assert_cut(name, rows_of(optimize(naive).plan, bar, session=memory), bar) == cut
    assert memory.sample_memory is not None and memory.sample_memory.totals.shared_samples > 0


@pytest.mark.parametrize("name", ["free", "steps", "drafts", "thoughts"])
def test_no_rule_batch_or_little_memory_moves_the_end(name: str) -> None:
    bar, naive = uncut(name)[1], naive_plan(name, cut=True)
    ruled = [result.changes[-1].plan for rule in RULES if (result := optimize(naive, rules=[rule])).changes]
    assert len(ruled) > 1
    for alone in ruled:
        assert_cut(name, rows_of(alone, bar), bar)
    small = {"config": EngineConfig(max_sequences=2, token_budget=40), "kv_bytes": 3 << 19}
    assert_cut(name, rows_of(optimize(naive).plan, bar, **small), bar)


def test_the_window_goes_on_from_the_thought_into_the_answer() -> None:
    window, rows = WRITING["thoughts"][2], uncut("thoughts")[0]
    found = []
    for number, row in enumerate(rows):
        told = [0.0 if mean is None else mean for mean in means(row, window)]
        # Its thought came to its bound: what was put behind it are no draws.
        answer = max(at for at, figures in enumerate(row.generated.figures or ()) if not figures.confidence) + 1
        for at in range(answer, answer + window - 1):
            if told[at] < min(mean for mean in told[:at] if mean):
                found.append((number, at, told[at] + 1e-4))
    assert found
    number, at, bar = found[0]
    cut = rows_of(naive_plan("thoughts", cut=True), bar)
    assert assert_cut("thoughts", cut, bar) and cut[number].columns["tokens"] == at + 1


def test_a_row_that_ends_in_its_thought_has_no_answer() -> None:
    rows = rows_of(naive_plan("long thoughts", cut=True), uncut("long thoughts")[1])
    open_rows = [row for row in rows if row.generated.thought.open]
    assert open_rows
    for row in open_rows:
        assert (row.columns["finish"], row.columns["text"], row.columns["step"]) == ("until", "", "")
        assert row.columns["thought"]


def test_explain_analyze_says_how_many_rows_were_ended(qpdsl: Run, tmp_path: Path) -> None:
    head, stages, window, _ = WRITING["free"]
    body = f" chat user=problem\n {stages.replace('UNTIL', f'until confidence(window={window}) < bar')}\n return text\n"
    (tmp_path / "p.qp").write_text(f"{head}program p(problem: text, bar: float) -> text {{\n{body}}}", encoding="utf-8")
    for bar, ended in ((0, 0), (1000, 4)):
        given = ("--set", f"problem={texts(1)[0]}", "--set", f"bar={bar}")
        shown = qpdsl("explain", "--analyze", "--no-statistics", tmp_path / "p.qp", *given)
        assert f"{ended} of 4 ended under the bar" in shown.out


@pytest.mark.parametrize("above", [0.0, 1e-5])
def test_a_row_at_the_bar_stays_and_counts_as_a_near_tie(above: float) -> None:
    rows, window = uncut("free")[0][:4], WRITING["free"][2]
    least = [min(mean for mean in means(row, window)[:-1] if mean is not None) for row in rows]
    bar = max(least) + above
    given: list[dict[str, Value]] = [{"problem": texts(1)[0], "bar": bar}]
    (result,) = run_all(naive_plan("free", cut=True), given)
    ended = [row.columns["finish"] == "until" for row in result.rows]
    assert ended == [value < bar for value in least] and all(ended) == bool(above)
    (told,) = run_all(naive_plan("free", cut=False), given)
    assert result.near_ties > told.near_ties


def test_a_bar_that_is_none_ends_nothing() -> None:
    clause = "generate llm n=2 temperature=1.0 until confidence(window=1) < bar max_tokens=20"
    text = f"{HEADER}program p(problem: text, bar: float?) -> text {{\n chat user=problem\n {clause}\n return text\n}}"
    for bar, finish in ((None, "length"), (1000.0, "until")):
        (result,) = run_all(plan(program_of(text, "p")), [{"problem": texts(1)[0], "bar": bar}])
        assert {row.columns["finish"] for row in result.rows} == {finish}


BEAM = ' repeat 4 {\n  generate llm n=3 stop="\\n\\n" temperature=1.0 CLAUSE\n  score prm\n  keep 2 by score\n }\n'
MATCHED = " generate llm n=8 temperature=1.0 CLAUSE\n extract answer = /The answer is (\\d+)\\./\n"
# Programs in which optimized plans run ahead, end samples once they have matched, or give up what a vote needs not.
ENDED_OTHERWISE = {
    "ahead": (f"{BEAM} best by score\n return text\n", "run_ahead"),
    "matched": (f"{MATCHED} return list(answer)\n", "until"),
    "decided": (MATCHED + ' where finish != "until"\n vote answer\n', "vote"),
}


@pytest.mark.parametrize("name", ENDED_OTHERWISE)
def test_what_else_ends_samples_early_changes_no_answer(name: str) -> None:
    stages, strategy = ENDED_OTHERWISE[name]
    stages = stages.replace("CLAUSE", f"until confidence(window={WRITING['free'][2]}) < bar")
    head = f"{HEADER}program p(problem: text, bar: float?) -> {'[text]' if name == 'matched' else 'text'} {{\n"
    naive = plan(program_of(f"{head} chat user=problem\n{stages}}}", "p"), ())
    ruled = optimize(naive).plan
    assert any(getattr(node.strategy, strategy, None) for node in everything(ruled.ops))
    given: list[dict[str, Value]] = [{"problem": text, "bar": uncut("free")[1]} for text in texts(2)]
    before, after = (run_all(replace(physical, floor=64), given) for physical in (naive, ruled))
    assert [(result.value, result.error) for result in before] == [(result.value, result.error) for result in after]
    endless = run_all(naive, [{**row, "bar": None} for row in given])
    assert [result.value for result in before] != [result.value for result in endless] or name == "decided"
