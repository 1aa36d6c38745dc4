"""What is made of the outcomes of a sweep: figures, fronts, comparisons, and the four ways to write them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from qpdsl.errors import UsageError
from qpdsl.runs.evaluation import CellFigures, SweepEvaluation, evaluation, named_cell
from qpdsl.runs.evaluation_text import begins_evaluation, csv_text, json_text, markdown_lines, text_lines, to_json
from qpdsl.runs.grid import cells_of, read_axes
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.statistics import wilson
from tests.support.golden import check

HERE = Path(__file__).parent
CELLS = cells_of({"best_of_n": ["n"], "beam_search": ["width"]}, read_axes(["n=4,16,64", "width=1,4"]))
PROBLEMS = 60


def row(number: int, correct: bool | None, tokens: int, seconds: float = 0.01, error: str | None = None) -> Outcome:
    return Outcome(
        id=str(number),
        answer="1",
        score=None,
        tokens_in=40,
        tokens_out=tokens,
        near_ties=0,
        seconds=1.0,
        engine_seconds=seconds,
        correct=correct,
        error=error,
    )


def made(*, graded: bool = True, baseline: str | None = None, seeds: int = 2) -> SweepEvaluation:
    """Cells of which each is a little better and four times as dear as the one before, but for one that is worse."""
    random = Random(7)
    chances = (0.4, 0.55, 0.5, 0.7, 0.8)
    runs = {
        cell: [
            {
                number: row(number, random.random() < chance if graded else None, 100 * 4**place, 0.01 * 4**place)
                for number in range(PROBLEMS)
            }
            for _ in range(seeds)
        ]
        for place, (cell, chance) in enumerate(zip(CELLS, chances, strict=True))
    }
    ids = {cell: [f"{place}-{seed}" for seed in range(seeds)] for place, cell in enumerate(CELLS)}
    groups = {number: str(number % 3 + 1) for number in range(PROBLEMS)}
    return evaluation(
        "a-sweep", "problems.jsonl", range(seeds), runs, ids, baseline=baseline, by="level", groups=groups
    )


def test_text() -> None:
    check(HERE / "table.txt", "\n".join(text_lines(made())))


def test_markdown() -> None:
    check(HERE / "table.md", "\n".join(markdown_lines(made(baseline="n=16"))))


def test_csv_has_a_line_a_cell() -> None:
    found = made()
    lines = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert [(line["program"], line["parameters"]) for line in lines] == [
        (cell.program, cell.parameters) for cell in CELLS
    ]
    assert float(lines[0]["tokens"]) == 100 and lines[0]["front_tokens"] == "True"
    assert lines[-1]["difference"] == "" and float(lines[0]["difference"]) < 0


def test_json_has_everything() -> None:
    record = json.loads(json_text(made()))
    assert record == to_json(made())
    assert record["qpdsl_eval"] == 1 and record["baseline"] == "beam_search(width=4)"
    first = record["cells"][0]
    assert first["parameters"] == {"n": "4"} and first["runs"] == ["0-0", "0-1"] and first["groups"].keys() == {
        "1", "2", "3",
    }  # fmt: skip


@pytest.mark.parametrize("form", [text_lines, markdown_lines])
def test_without_right_answers_there_is_no_accuracy(form: object) -> None:
    found = made(graded=False)
    text = "\n".join(form(found))  # type: ignore[operator]
    assert "accuracy." in text and "accuracy |" not in text and "%" not in text and "100" in text
    with pytest.raises(UsageError, match="no accuracy to plot"):
        found.scatter()


def test_the_front_and_the_baseline() -> None:
    results = {result.cell.name: result for result in made().results}
    assert [name for name, result in results.items() if not result.cheap] == ["best_of_n(n=64)"]
    assert results["beam_search(width=4)"].against is None
    against = made(baseline="best_of_n(n=4)").results[-1].against
    assert against is not None and against.difference > 0.2 and against.p_value < 0.01


def test_seconds_that_are_not_known_are_left_out() -> None:
    figures = CellFigures.of([{0: row(0, True, 5, 0.0)}])
    assert figures.seconds is None and figures.accuracy == 1.0


def test_one_seed_has_wilsons_interval_and_several_that_over_problems() -> None:
    once = CellFigures.of([{number: row(number, number < 30, 5) for number in range(40)}])
    assert once.interval == wilson(30, 40)
    # The same answers with each of four seeds tell no more of the problems than one.
    again = CellFigures.of([{number: row(number, number < 30, 5) for number in range(40)}] * 4)
    interval, single = again.interval, once.interval
    assert interval is not None and single is not None
    assert interval.high - interval.low == pytest.approx(single.high - single.low, rel=0.15)
    assert CellFigures.of([{0: row(0, True, 5)}] * 3).interval == wilson(1, 1)


def test_figures_do_not_depend_on_the_order_in_which_rows_ended() -> None:
    random = Random(3)
    runs, base = ([{n: row(n, random.random() < 0.5, 10) for n in range(40)} for _ in range(2)] for _ in range(2))
    baseline = CellFigures.of(base)
    figures = CellFigures.of(runs)
    for seed in range(5):
        order = Random(seed).sample(range(40), 40)
        again = CellFigures.of([{number: run[number] for number in order} for run in runs])
        assert again.interval == figures.interval
        assert again.against(baseline) == figures.against(baseline)


def test_a_row_without_a_verdict_counts_for_tokens_alone() -> None:
    rows: Mapping[int, Outcome] = {0: row(0, None, 100), 1: row(1, True, 300), 2: row(2, False, 200, error="failed")}
    figures = CellFigures.of([rows])
    assert (figures.accuracy, figures.tokens, figures.failed, figures.problems) == (0.5, 200, 1, 3)


@pytest.mark.parametrize("name", ["best_of_n(n=16)", "best_of_n( n=16 )", "n=16"])
def test_names_of_cells(name: str) -> None:
    assert named_cell(CELLS, name) == CELLS[1]


@pytest.mark.parametrize("name", ["best_of_n", "n=17", ""])
def test_names_of_no_single_cell(name: str) -> None:
    with pytest.raises(UsageError, match="there is no single cell"):
        named_cell(CELLS, name)


@pytest.mark.parametrize("form", [text_lines, markdown_lines, csv_text, json_text])
def test_a_table_is_known_by_its_beginning(form: object) -> None:
    written = form(made())  # type: ignore[operator]
    text = written if isinstance(written, str) else "\n".join(written)
    assert begins_evaluation(io.BytesIO(text.encode()))


OTHERS = ("", "{}", '{"a": 1}', "program,n\n", "# notes\n\n| a |\n", "a problem and a seed x 3\n")


@pytest.mark.parametrize("text", OTHERS)
def test_other_files_are_no_tables(text: str) -> None:
    assert not begins_evaluation(io.BytesIO(text.encode()))
