"""`--analyze`, `qpdsl profile` and `qpdsl analyze`, as a user meets them. (What the text says: tests/planner.)"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.errors import UsageError
from qpdsl.planner.cost.device import nominal
from qpdsl.planner.cost.run_figures import OperatorFigures, RunFigures
from qpdsl.planner.cost.statistics import STATISTICS_FILE
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.runs.row_outcome import Outcome
from qpdsl.session.programs import load_program
from qpdsl.session.user_cache import (
    changing_statistics,
    folder,
    measured_device,
    read_device,
    read_statistics,
    write_device,
)
from tests.support.cli import Run
from tests.support.user_cache import own_cache


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(tmp_path / "cache", monkeypatch)


def test_explain_analyze_runs_the_program_and_later_plans_know_it(qpdsl: Run, sampled: Path, problems: Path) -> None:
    ran = qpdsl("explain", sampled, "--analyze", "--input", problems, "--limit", 2, "--set", "n=3")
    assert ran.code == Exit.OK
    first = ran.out.splitlines()[0]
    assert "2 problems" in first and "KV peak" in first and "within exact" in first
    assert "estimates: rules of thumb" in ran.out
    again = qpdsl(
        "explain", sampled, "--analyze", "--input", problems, "--limit", 1, "--set", "n=3", "--format", "json"
    )
    data = json.loads(again.out)
    assert data["estimated"]["source"] == "2 problems measured"
    assert data["estimated"]["clock"] is not None
    drawn = next(node for node in data["operators"] if node["operator"] == "Generate")
    assert drawn["measured"]["rows_out"] == drawn["estimated"]["rows_out"] == 3
    assert drawn["measured"]["sampled_tokens"] <= 36


def test_run_analyze_says_it_on_stderr(qpdsl: Run, sampled: Path, problems: Path) -> None:
    ran = qpdsl("run", sampled, "--input", problems, "--analyze")
    assert ran.code == Exit.OK
    assert len(ran.records) == 10 and not any("greedy" in record for record in ran.records)
    assert "10 problems" in ran.err and "charged by token share" in ran.err


def test_a_vote_that_is_decided_early_is_told(qpdsl: Run) -> None:
    pipeline = "chat user=q | generate llm n=6 temperature=1.0 max_tokens=40 | extract a = /(\\d+)\\.$/ | vote a"
    problem = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
    asked = ("explain", "-e", pipeline, "--set", f"q={problem}", "--analyze")
    ran = qpdsl(*asked, "--format", "json")
    assert ran.code == Exit.OK
    drawn = next(node for node in json.loads(ran.out)["operators"] if node["operator"] == "Generate")
    given_up = drawn["measured"]["counts"]["given_up"]
    assert given_up > 0 and drawn["measured"]["rows_out"] == 6 - given_up
    assert drawn["measured"]["sampled_tokens"] > 0 and drawn["measured"]["seconds"] > 0
    analysis = qpdsl(*asked).out
    assert "stops when decided" in analysis and f"{given_up} sample" in analysis and " given up" in analysis


def test_analyze_shows_and_forgets(qpdsl: Run, sampled: Path) -> None:
    assert "there are no statistics yet" in qpdsl("analyze").err
    qpdsl("explain", sampled, "--analyze", "--set", "problem=two")
    shown = qpdsl("analyze")
    assert shown.out.startswith("sampled n=2 limit=12   1 problem") and "tokens a sample" in shown.out
    assert re.search(r"\n  1 +generate llm n=n temperature=1.5 max_tokens=limit +1 ", shown.out)
    assert qpdsl("analyze", "nothing").code == Exit.USAGE
    (entry,) = json.loads(qpdsl("analyze", "sampled", "--format", "json").out)["programs"].values()
    assert entry["problems"] == 1
    assert qpdsl("analyze", "--forget").err == "forgot 1 program\n"
    assert qpdsl("analyze").out == ""


def test_options_that_do_not_go_together(qpdsl: Run, sampled: Path) -> None:
    assert "`--seed` needs `--analyze`" in qpdsl("explain", sampled, "--seed", 1).err
    assert "`--limit` needs `--input`" in qpdsl("explain", sampled, "--analyze", "--limit", 1).err
    assert qpdsl("explain", sampled, "--analyze", "--verbose").code == Exit.USAGE
    missing = qpdsl("explain", sampled, "--analyze")
    assert missing.code == Exit.USAGE and "--set NAME=VALUE" in missing.err


def test_a_cache_that_cannot_be_read_or_written_is_no_trouble(qpdsl: Run, sampled: Path) -> None:
    shutil.rmtree(folder())
    folder().write_text("a file in the folder's place")
    assert qpdsl("explain", sampled, "--analyze", "--set", "problem=two").code == Exit.OK
    assert qpdsl("analyze").code == Exit.OK


def test_what_was_measured_counts_for_what_it_was_measured_in(tmp_path: Path) -> None:
    wanted = replace(nominal(), measured=True, name="wanted")
    for age, device in enumerate(
        [
            wanted,
            replace(wanted, dtype="bfloat16"),
            replace(wanted, kind="cuda"),
            replace(wanted, measured=False),
            replace(wanted, threads=2, name="of two threads"),
        ]
    ):
        write_device(device)
        for file in folder().glob("device-*.json"):
            if file.stat().st_mtime > 1e6:
                os.utime(file, (age, age))
    write_device(wanted)
    os.utime(folder() / "device-cpu-float32-1.json", (0, 0))
    damaged = folder() / "device-cpu-float32-4.json"
    damaged.write_text("[" * 100_000)
    names = [getattr(measured_device("cpu", "float32", threads), "name", None) for threads in (None, 1, 2, 4)]
    assert names == ["of two threads", "wanted", "of two threads", None]
    assert measured_device("cpu", "float16") is None and not read_device("cpu", "float32", 4).measured
    damaged.unlink()
    write_device(replace(wanted, measured=False))
    assert measured_device("cpu", "float32", 1) is None


def test_what_cannot_be_kept_is_said_where_it_was_asked_for(
    qpdsl: Run, sampled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qpdsl("explain", sampled, "--analyze", "--set", "problem=two")

    def full(path: Path, lines: object) -> None:
        raise UsageError(f"cannot write `{path}`: no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("qpdsl.session.user_cache.write_whole", full)
        ran = qpdsl("analyze", "--forget")
    assert ran.code == Exit.USAGE and "cannot write" in ran.err and "forgot" not in ran.err
    assert entries(qpdsl)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/x")
    ran = qpdsl("profile", "zoo/counting-mini", "--no-tables")
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert ran.err == "error: cannot make the folder `/dev/null/x/qpdsl`: not a directory\n"


def test_without_a_home_there_is_no_cache(qpdsl: Run, sampled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", none)
    assert read_statistics().programs == {} and measured_device("cpu", "float32") is None
    assert qpdsl("run", sampled, "--set", "problem=two", "--analyze").code == Exit.OK


def test_statistics_that_fail_are_no_failure_of_a_run(
    qpdsl: Run, sampled: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("of nothing")

    monkeypatch.setattr("qpdsl.session.analysis.learn", broken)
    ran = qpdsl("run", sampled, "--input", problems, "--output", tmp_path / "out.jsonl", "--no-greedy")
    assert ran.code == Exit.OK and len((tmp_path / "out.jsonl").read_text().splitlines()) == 10
    assert "ZeroDivisionError: of nothing" in ran.err


@pytest.mark.parametrize("command", ["run", "explain"])
def test_an_interrupted_analysis_adds_what_had_ended(
    qpdsl: Run, sampled: Path, problems: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Outcome.__init__
    outcomes = iter(range(100))

    def interrupting(self: Outcome, *args: object, **kwargs: object) -> None:
        real(self, *args, **kwargs)  # type: ignore[arg-type]
        if next(outcomes) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Outcome, "__init__", interrupting)
    ran = qpdsl(command, sampled, "--input", problems, "--analyze", "--concurrency", 1)
    assert ran.code == Exit.INTERRUPTED
    known = entries(qpdsl)["sampled"]
    assert 4 <= known["problems"] < 10 and known["clock"] == {}  # type: ignore[operator]


def test_a_measured_device_lets_the_cost_choose(qpdsl: Run) -> None:
    before = json.loads(qpdsl("explain", "beam_search", "--format", "json").out)
    device = replace(nominal(), measured=True)
    for model in ("zoo/counting", "zoo/counting-prm"):
        device = device.with_model(model, device.profile(model))
    write_device(device)
    assert measured_device("cpu", "float32") is not None
    after = json.loads(qpdsl("explain", "beam_search", "--format", "json").out)
    verbose = qpdsl("explain", "beam_search", "--verbose")
    assert "choice_by_cost" in verbose.out
    assert before["operators"][1]["cost"] is None and after["operators"][1]["cost"]["seconds"] > 0
    assert after["chosen_by_cost"] and not before["chosen_by_cost"]
    assert after["rules"] == before["rules"]
    assert "chosen by cost" in qpdsl("explain", "beam_search").out.splitlines()[0]


@pytest.mark.parametrize("many", [True, False], ids=["rows", "one"])
def test_a_first_run_lets_the_cost_choose_for_the_second(qpdsl: Run, many: bool) -> None:
    programs = (
        ("constrained_json", "person-100", "note=Ben is 40. His tags are tea and rain."),
        ("beam_search", "counting-500", "problem=Tom has 3 eggs. Ben gives Tom 4 eggs. How many eggs does Tom have?"),
    )
    for program, data, value in programs:
        first = qpdsl("explain", program, "--verbose").out
        assert "nothing was chosen by cost: no run has timed" in first
        asked = ("--input", data, "--limit", 2) if many else ("--set", value)
        assert qpdsl("run", program, *asked, "--no-greedy").code == Exit.OK
        explained = qpdsl("explain", program, "--verbose").out
        assert "choice_by_cost" in explained and "the device as an earlier run timed it" in explained
        assert "chosen by cost" in qpdsl("explain", program).out.splitlines()[0]


def test_what_is_profiled_takes_the_place_of_what_runs_timed(qpdsl: Run) -> None:
    assert qpdsl("run", "constrained_json", "--input", "person-100", "--limit", 2).code == Exit.OK
    assert qpdsl("profile", "zoo/counting", "--no-tables").err == "measuring zoo/counting\n"
    measured = (folder() / "device-cpu-float32-1.json").read_text()
    assert qpdsl("run", "constrained_json", "--input", "person-100", "--limit", 2).code == Exit.OK
    assert (folder() / "device-cpu-float32-1.json").read_text() == measured
    assert "the device as `qpdsl profile` measured it" in qpdsl("explain", "constrained_json", "--verbose").out


def test_profile_measures_a_model_once(qpdsl: Run) -> None:
    ran = qpdsl("profile", "zoo/counting-mini", "--no-tables")
    assert ran.code == Exit.OK and ran.err == "measuring zoo/counting-mini\n"
    assert "GB/s" in ran.out and "a step that decodes" in ran.out
    again = qpdsl("profile", "zoo/counting-mini", "--no-tables", "--format", "json")
    assert again.err == ""
    (model,) = json.loads(again.out)["models"].values()
    times = [seconds for _, seconds in model["decode"]["points"]]
    assert times == sorted(times) and times[0] > 0


def entries(qpdsl: Run) -> dict[str, dict[str, object]]:
    data = json.loads(qpdsl("analyze", "--format", "json").out or '{"programs": {}}')
    return {program["name"]: program for program in data["programs"].values()}


def test_every_run_leaves_statistics_for_later_plans(qpdsl: Run, sampled: Path, problems: Path) -> None:
    plain = qpdsl("run", sampled, "--input", problems, "--set", "n=3")
    assert plain.code == Exit.OK
    known = entries(qpdsl)["sampled"]
    assert known["problems"] == 10 and known["operators"]["1"]["rows_out"] == 3  # type: ignore[index]
    # Greedy decoding ran beside it: its seconds are not the plan's.
    assert known["clock"] == {}
    again = qpdsl("run", sampled, "--input", problems, "--set", "n=3", "--no-greedy")
    assert [record["answer"] for record in again.records] == [record["answer"] for record in plain.records]
    assert len(entries(qpdsl)["sampled"]["clock"]) == 1  # type: ignore[arg-type]
    explained = json.loads(
        qpdsl("explain", sampled, "--analyze", "--set", "n=3", "--set", "problem=two", "--format", "json").out
    )
    assert explained["estimated"]["source"] == "20 problems measured"


@pytest.mark.parametrize("how", ["option", "environment"])
def test_statistics_can_be_switched_off(qpdsl: Run, sampled: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    more = ("--no-statistics",) if how == "option" else ()
    if how == "environment":
        monkeypatch.setenv("QPDSL_STATISTICS", "0")
    for analyze in ((), ("--analyze",)):
        assert qpdsl("run", sampled, "--set", "problem=two", *more, *analyze).code == Exit.OK
    assert qpdsl("explain", sampled, "--set", "problem=two", *more, "--analyze").code == Exit.OK
    assert entries(qpdsl) == {}


def test_runs_that_end_together_lose_nothing() -> None:
    name = plan_of_greedy()

    def add() -> None:
        with changing_statistics() as statistics:
            known = len(statistics.programs)
            time.sleep(0.02)
            statistics.add(replace(name, name=f"p{known}"), figures())

    threads = [threading.Thread(target=add) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {program.name for program in read_statistics().programs.values()} == {f"p{number}" for number in range(6)}


def test_an_error_while_they_are_changed_leaves_them_as_they_were() -> None:
    with changing_statistics() as statistics:
        statistics.add(plan_of_greedy(), figures())
    before = (folder() / STATISTICS_FILE).read_text("utf-8")
    with pytest.raises(KeyboardInterrupt), changing_statistics() as statistics:
        statistics.programs.clear()
        raise KeyboardInterrupt
    assert (folder() / STATISTICS_FILE).read_text("utf-8") == before


def plan_of_greedy() -> PhysicalPlan:
    return planned(load_program("greedy", None, None))


def figures() -> RunFigures:
    return RunFigures(1, 0, 1, 1.0, {"1": OperatorFigures(runs=1, rows_in=1, rows_out=1, sampled_tokens=9)}, {})
