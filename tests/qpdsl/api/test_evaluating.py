"""`qp.evaluate`: the table and the saved runs of `qpdsl eval`, from Python, with what Python alone has."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import qpdsl as qp
from qpdsl.cli.exits import Exit
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import Grade
from qpdsl.runs.graders.python_answer import FunctionAnswer
from qpdsl.runs.store.recording import Recording
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.session.session import Session
from tests.support.cli import SWEPT, Run, write_rows

ASKED = "Mia has {} boxes with 4 cards in each box. How many cards does Mia have?"
ROWS = [{"problem": ASKED.format(n), "answer": str(n), "level": n % 2} for n in range(2, 8)]
llm = qp.model("zoo/counting-mini")


@qp.program
def drawn(problem: str, n: int = 2) -> str:
    rows = qp.chat(user=problem)
    rows.generate(llm, n=n, temperature=1.5, max_tokens=6)
    rows.best(by=rows.score(qp.logprob))
    return qp.col.text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with two programs in a file, six rows, and no runs."""
    (tmp_path / "p.qp").write_text(SWEPT, "utf-8")
    write_rows(tmp_path / "in.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QPDSL_RUNS", str(tmp_path / "runs"))
    return tmp_path


@pytest.fixture
def table(folder: Path) -> qp.Evaluation:
    return qp.evaluate("p.qp", "in.jsonl", set={"n": [2, 4], "limit": 8}, seeds=2, by="level")


def both() -> list[qp.Program[..., Any]]:
    return [qp.load("p.qp", "sampled"), qp.load("p.qp", "plain")]


def ids() -> set[str]:
    return {*RunFolder().ids()}


def loads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is loaded from here on."""
    loaded: list[object] = []
    real = Session.load

    def load(self: Session, plan: Any, *rest: Any) -> None:
        loaded.append(plan)
        real(self, plan, *rest)

    monkeypatch.setattr(Session, "load", load)
    return loaded


def test_the_command_goes_on_with_its_runs_and_shows_the_same(qpdsl: Run, table: qp.Evaluation) -> None:
    before = ids()
    words = ("eval", "p.qp", "--input", "in.jsonl", "--set", "n=2,4", "--set", "limit=8", "--seeds", 2, "--by", "level")
    shown = {form: qpdsl(*words, "--format", form) for form in ("text", "json", "csv", "markdown")}
    assert ids() == before and len(before) == 6
    assert all(ran.code == Exit.OK and " rows in " not in ran.err for ran in shown.values())
    assert str(table) + "\n" == shown["text"].out
    assert table.to_csv() + "\n" == shown["csv"].out and table.to_markdown() + "\n" == shown["markdown"].out
    assert table.to_json() == json.loads(shown["json"].out)


def test_parameters_are_keywords_too(folder: Path) -> None:
    found = qp.evaluate(drawn, ROWS, n=[1, 2], limit=2)
    assert found.to_json() == qp.evaluate(drawn, ROWS, set={"n": [1, 2]}, limit=2).to_json()
    with pytest.raises(qp.ArgumentError, match="two values for `n`, by `set` and as a keyword"):
        qp.evaluate(drawn, ROWS, n=1, set={"n": 2})


def test_it_goes_on_with_runs_of_the_command(qpdsl: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = qpdsl("eval", "p.qp", "--input", "in.jsonl", "--set", "n=2", "--limit", 4, "--format", "json")
    loaded = loads(monkeypatch)
    again = qp.evaluate(both(), Path("in.jsonl"), set={"n": 2}, limit=4)
    assert again.to_json() == json.loads(ran.out) and loaded == []
    more = qp.evaluate(both(), Path("in.jsonl"), set={"n": [2, 4]}, limit=4)
    assert loaded and more.to_json()["cells"][0]["runs"] == again.to_json()["cells"][0]["runs"]


def test_cells_have_the_figures_of_the_table(table: qp.Evaluation) -> None:
    assert [cell.name for cell in table.cells] == ["sampled(n=2)", "sampled(n=4)", "plain"]
    assert table.baseline in [cell.name for cell in table.cells]
    for cell, record in zip(table.cells, csv.DictReader(io.StringIO(table.to_csv())), strict=True):
        assert cell.interval is not None and cell.accuracy is not None
        figures = [cell.accuracy, *cell.interval, cell.tokens, cell.seconds]
        names = ("accuracy", "low", "high", "tokens", "seconds")
        assert figures == [pytest.approx(float(record[name]), rel=1e-4, abs=1e-5) for name in names]
        assert (cell.points is None) == (cell.name == table.baseline) == (cell.p_value is None)
        assert cell.groups.keys() == {"level 0", "level 1"} and len(cell.runs) == 2 and cell.failed == 0
        if cell.points is not None and cell.points_interval is not None:
            assert cell.points == pytest.approx(100 * float(record["difference"]), rel=1e-4)
            assert cell.points_interval[0] <= cell.points <= cell.points_interval[1]
    assert table.cells[0].parameters == {"n": "2", "limit": "8"}


def test_what_fewer_samples_come_to_is_that_of_runs(qpdsl: Run, folder: Path) -> None:
    found = qp.evaluate(qp.load("p.qp", "sampled"), "in.jsonl", set={"n": 4, "limit": 8}, seeds=2, candidates=True)
    [cell] = found.cells
    shares = []
    for seed in (0, 1):
        words = ("--program", "sampled", "--set", "n=4", "--set", "limit=8", "--seed", seed, "--input", "in.jsonl")
        ran = qpdsl("run", "p.qp", *words, "--candidates", "--no-greedy", "--json", "--output", f"{seed}.jsonl")
        shares.append({k: own["accuracy"] for k, own in json.loads(ran.out)["at_k"]["pass"].items()})
    assert shares[0].keys() == {"1", "2", "4"}
    for k, own in cell.at_k["pass"].items():
        assert own.accuracy == pytest.approx((shares[0][str(k)] + shares[1][str(k)]) / 2, abs=1e-4)
        assert own.interval.low <= own.accuracy <= own.interval.high
        assert found.to_json()["cells"][0]["at_k"]["pass"][str(k)]["accuracy"] == round(own.accuracy, 5)
    row = next(line.split() for line in str(found).splitlines() if "pass@k" in line)
    assert row[row.index("pass@k") + 1 :][:3] == [f"{cell.at_k['pass'][k].accuracy:.1%}" for k in (1, 2, 4)]


def test_a_notebook_shows_tables_and_the_picture(table: qp.Evaluation, tmp_path: Path) -> None:
    html = table._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 2
    assert "<td>n=4</td>" in html and "accuracy by level" in html and "on the front" in html
    table.plot("f.svg")
    picture = Path("f.svg").read_text("utf-8")
    assert picture.startswith("<svg ") and picture.strip() in html
    with pytest.raises(qp.UsageError, match="cannot write"):
        table.plot(tmp_path / "none" / "f.svg")


def test_rows_of_python_and_a_program_of_python(folder: Path) -> None:
    found = qp.evaluate(drawn, iter(ROWS), set={"n": range(1, 3)}, where="level == 1", grader="number")
    assert str(found).startswith("rows: 3 problems x 1 seed\n")
    results = {result.id: result for result in drawn.map([{**row, "id": n} for n, row in enumerate(ROWS)])}
    taken = [results[str(n)].tokens.sampled for n, row in enumerate(ROWS) if row["level"] == 1]
    assert found.cells[1].tokens == sum(taken) / 3
    with qp.using(session=qp.Session()):
        assert qp.evaluate(drawn, ROWS, set={"n": [1, 2]}, where="level == 1", grader="number").to_json() == (
            found.to_json()
        )


def test_samples_are_shared_and_then_forgotten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    totals = []
    real = Session.sharing_samples

    @contextlib.contextmanager
    def sharing(self: Session) -> Iterator[None]:
        with real(self):
            yield
            assert self.sample_memory is not None
            totals.append(self.sample_memory.totals)

    monkeypatch.setattr(Session, "sharing_samples", sharing)
    with qp.using(session=qp.Session()) as session:
        qp.evaluate(drawn, ROWS, set={"n": [2, 4]})
    assert [(one.samples, one.shared_samples) for one in totals] == [(6 * (2 + 4), 6 * 2)]
    assert session.sample_memory is None
    half = qp.Session(dtype="bfloat16")
    with real(half):
        assert half.sample_memory is None


def _is(right: str) -> Callable[..., bool]:
    return lambda answer, reference: bool(reference == right)


@dataclass
class Said:
    text: str


def scoring(bonus: float) -> qp.Program[..., Any]:
    @qp.scorer
    def length(text: str) -> float:
        return bonus - len(text)

    @qp.program
    def shortest(problem: str) -> str:
        rows = qp.chat(user=problem)
        rows.generate(llm, n=2, temperature=1.5, max_tokens=6)
        rows.best(by=rows.score(length))
        return qp.col.text

    return shortest


def test_functions_are_part_of_what_is_kept(folder: Path) -> None:
    first = qp.evaluate(scoring(1.0), ROWS[:2])
    assert first.cells[0].failed == 0
    assert qp.evaluate(scoring(1.0), ROWS[:2]).cells[0].runs == first.cells[0].runs
    assert qp.evaluate(scoring(2.0), ROWS[:2]).cells[0].runs != first.cells[0].runs


def test_a_function_that_cannot_be_told_runs_anew(folder: Path) -> None:
    said = Said("2")
    first = qp.evaluate(drawn, ROWS[:2], grader=lambda answer, reference: reference == said.text)
    said.text = "neither"
    again = qp.evaluate(drawn, ROWS[:2], grader=lambda answer, reference: reference == said.text)
    assert (first.cells[0].accuracy, again.cells[0].accuracy) == (0.5, 0.0)
    # The rows are the same, which are graded again alone.
    assert first.cells[0].tokens == again.cells[0].tokens


def test_a_grader_that_can_be_told_grades_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graded: list[str] = []
    real = FunctionAnswer.grade

    async def grade(self: FunctionAnswer, answer: Any, row: InputRow) -> Grade:
        graded.append(row.id)
        return await real(self, answer, row)

    monkeypatch.setattr(FunctionAnswer, "grade", grade)
    for right in ("2", "2", "3"):
        found = qp.evaluate(drawn, ROWS[:3], grader=_is(right))
        assert found.cells[0].accuracy == pytest.approx(1 / 3)
    assert sorted(graded) == ["1", "1", "2", "2", "3", "3"]


def test_an_interruption_loses_no_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graded: list[str] = []
    main, two, ended = threading.get_ident(), threading.Event(), threading.Event()
    real = Recording.add_all

    def add_all(self: Recording, rows: Any) -> None:
        real(self, rows)
        if len(self.outcomes) == 2:
            two.set()

    monkeypatch.setattr(Recording, "add_all", add_all)

    def interrupting(answer: Any, reference: str) -> bool:
        graded.append(reference)
        if len(graded) == 3:
            assert two.wait(30)
            signal.pthread_kill(main, signal.SIGINT)
            ended.wait(30)
        return True

    with pytest.raises(KeyboardInterrupt):
        qp.evaluate(drawn, ROWS, grader=interrupting)
    ended.set()
    (info,) = RunFolder().infos()
    with RunFile.reading(RunFolder().file(info.id)) as file:
        assert info.status == "interrupted" and len([*file.rows()]) == 2
    # The session is there for others, and for the rest of the rows.
    assert qp.evaluate(drawn, ROWS, grader="number").cells[0].failed == 0
    assert ids() == {info.id}


async def _beside(done: Callable[[], Any]) -> tuple[Any, str]:
    return await asyncio.gather(asyncio.to_thread(done), drawn.acall(ASKED.format(3), n=3))


def test_it_runs_beside_programs_but_blocks_no_loop(folder: Path) -> None:
    async def blocked() -> None:
        qp.evaluate(drawn, ROWS)

    with pytest.raises(RuntimeError, match=r"await asyncio\.to_thread\(qp\.evaluate, …\)"):
        asyncio.run(blocked())
    found, text = asyncio.run(_beside(lambda: qp.evaluate(drawn, ROWS)))
    assert text == drawn(ASKED.format(3), n=3) and found.cells[0].failed == 0


def test_models_are_values_too(folder: Path) -> None:
    @qp.program
    def of(problem: str, slm: qp.Model) -> str:
        rows = qp.chat(user=problem)
        rows.generate(slm, temperature=0, max_tokens=4)
        return qp.col.text

    found = qp.evaluate(of, ROWS[:1], set={"slm": [llm, "zoo/counting"]})
    assert [cell.name for cell in found.cells] == ["of(slm=zoo/counting-mini)", "of(slm=zoo/counting)"]
    with qp.using(models={"slm": "zoo/counting"}):
        again = qp.evaluate(of, ROWS[:1], set={"slm": [llm, "zoo/counting"]})
        (alone,) = qp.evaluate(of, ROWS[:1]).cells
    assert again.to_json() == found.to_json() and alone.runs == found.cells[1].runs
    with pytest.raises(qp.ArgumentError, match="no model for `slm`"):
        qp.evaluate(of, ROWS[:1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"set": {"m": 1}}, "no program has the parameter `m`; there is `n` and `problem`"),
        ({"set": {"n": "many"}}, "drawn: `n` takes a whole number"),
        ({"set": {"n": []}}, "`set` has no value for `n`"),
        ({"set": {"n": [2, "2"]}}, "`set` has a value of `n` twice"),
        ({"set": {"n": None}}, "cannot have None for `n`"),
        ({"set": {".n": 2}}, "names of parameters"),
        ({"set": {"n": object()}}, "no parameter takes"),
        ({"by": "size"}, "the rows have no field `size`"),
        ({"baseline": "plain"}, "there is no single cell"),
        ({"grader": "rigt"}, "there is no grader `rigt`"),
        ({"grader": 3}, "`grader` takes a function"),
        ({"grader": lambda text: True}, "must take some of answer, reference, row"),
        ({"where": "level == 7"}, "level == 7"),
        ({"seeds": 0}, "`seeds`"),
    ],
)
def test_mistakes_are_told_before_anything_runs(folder: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((qp.UserError, qp.ArgumentError)) as caught:
        qp.evaluate(drawn, ROWS, **settings)
    assert message in str(caught.value) and ids() == set()


def test_mistakes_in_programs_and_rows(folder: Path) -> None:
    for programs, data, message in (
        ([], ROWS, "names no program"),
        ([3], ROWS, "not a int"),
        ("none.qp", ROWS, "there is no file `none.qp`"),
        (drawn, 3, "`data` takes rows"),
        (drawn, [3], "row 1 is of type int"),
        (drawn, [{"problem": {1, 2}}], "row 1"),
        (drawn, [{"answer": "3"}], "problem"),
        (drawn, "none.jsonl", "there is no input data"),
        (drawn.using(seed=3), ROWS, "sets the seeds itself"),
        ([drawn, both()[0].using(row_timeout=3.0)], ROWS, "other sessions"),
    ):
        with pytest.raises((qp.UserError, qp.ArgumentError)) as caught:
            qp.evaluate(programs, data)  # type: ignore[arg-type]
        assert message in str(caught.value)
    assert ids() == set()
