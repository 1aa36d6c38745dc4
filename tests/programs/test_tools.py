"""The programs of the page on tools: short, run on the built-in model, and on the page as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

import qpdsl as qp
from qpdsl.cli import main
from tests.programs.tools.tools import calculator, search
from tests.support.paths import ROOT

FOLDER = Path(__file__).parent / "tools"
PROGRAMS = {path.stem: path for path in sorted(FOLDER.glob("*.qp"))}
QUESTION = "Ann has 80 stones. Ann buys 312 more. How many stones does Ann have?"


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_short_and_on_the_page(name: str) -> None:
    text = PROGRAMS[name].read_text("utf-8")
    assert len(text.splitlines()) <= 20
    assert f"```qp\n{text}```" in (ROOT / "docs" / "use" / "tools.md").read_text("utf-8")


def _loaded(name: str) -> qp.Program[..., object]:
    return qp.load(PROGRAMS[name], functions=[calculator, search])


def test_react_ends_in_an_answer() -> None:
    result = _loaded("react").run(QUESTION)
    assert 0 <= int(str(result.value)) <= 999
    called = result.rows[0]["call"]
    assert called["name"] == "Answer" and set(called["arguments"]) == {"number"}


def test_an_agent_ends_in_a_text() -> None:
    result = _loaded("agent").run(QUESTION)
    assert result.value == result.rows[0]["text"] and result.rows[0]["call"] is None


def test_calls_of_one_message_are_made_side_by_side() -> None:
    @qp.program
    def called(problem: str):
        rows = qp.chat(user=problem)
        calls = rows.generate(qp.model("zoo/counting"), as_=qp.call(calculator, calls=3), temperature=1.5, into="calls")
        seen = rows.tool("seen", calls)
        rows.chat(tool=seen)
        return seen

    result = called.run(QUESTION, seed=2)
    calls = result.rows[0]["calls"]
    assert result.value == [calculator(**call["arguments"]) for call in calls]
    assert len(calls) == len([turn for turn in result.transcript if turn["role"] == "tool"]) > 1


def test_what_is_searched_for_in_the_turn_leads_to_the_answer() -> None:
    result = _loaded("search_r1").run(QUESTION)
    assert result.value == "392" and result.rows[0]["found"] == "392"


def test_a_trajectory_is_chosen_by_what_its_tools_gave() -> None:
    result = _loaded("best_trajectory").run(QUESTION, n=4)
    (row,) = result.rows
    arguments = row["call"]["arguments"]
    assert result.value == calculator(**arguments) == row["seen"]


def test_what_fails_is_shown_to_the_model() -> None:
    with qp.using(allow_code=True):
        result = _loaded("interpreter").run("Write a function.", "assert True")
    assert "Error" in str(result.value) or result.value == "passes"
    mended = [turn for turn in result.transcript if turn["role"] == "user"][1:]
    assert all(turn["content"].startswith("It fails: ") for turn in mended)


@pytest.mark.parametrize("name", ["react", "agent", "best_trajectory", "search_r1"])
def test_every_plan_gives_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for plan in ("naive", "optimized"):
        command = ["run", str(PROGRAMS[name]), "--python", str(FOLDER / "tools.py"), "--set", f"problem={QUESTION}"]
        assert main([*command, "--seed", "3", "--no-greedy", "--rows", "--plan", plan]) == 0
        out = capsys.readouterr().out
        shown.append([line for line in out.splitlines() if not line.startswith("tokens ")])
    assert shown[0] == shown[1]


def test_python_says_the_same() -> None:
    llm = qp.model("zoo/counting")

    @qp.program
    def agent(problem: str, rounds: int = 4) -> str:
        rows = qp.chat(user=problem)
        with rows.repeat(rounds, until=qp.all(qp.col.finished)):
            call = rows.generate(llm, as_=qp.call(calculator, search, str), into="call")
            with rows.if_(call != None):  # noqa: E711
                seen = rows.tool("seen", call)
                rows.chat(tool=seen)
        return qp.col.text

    written = PROGRAMS["agent"].read_text("utf-8").replace("  return text\n", "")
    assert str(agent).strip().endswith(written[written.index("program") :].strip())
