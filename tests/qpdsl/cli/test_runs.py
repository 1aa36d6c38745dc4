"""`qpdsl runs`: listing, showing, exporting and removing what is kept."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import pexpect
import pytest

from qpdsl.cli.exits import Exit
from qpdsl.runs.graders.grader import EqualAnswer
from qpdsl.runs.store.recording import Recording
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.cli import Run
from tests.support.saved_runs import damage_row, inputs, outcome, record, recorded


def test_without_a_command_runs_are_listed(qpdsl: Run, runs: RunFolder) -> None:
    done = recorded(runs, 8, end=True, started=1.75e9)
    killed = recorded(runs, 3, started=1.76e9, seed=7, program="other")
    with RunFile.writing(runs.file(killed)):
        lines = qpdsl("runs").out.splitlines()
    assert lines[0].split() == ["run", "state", "rows", "accuracy", "tokens", "program"]
    assert lines[1].split() == [
        done,
        "finished",
        "8/10",
        "100.0%",
        "(67.6",
        "to",
        "100.0)",
        "16",
        "p",
        "n=4",
        "zoo/counting",
    ]
    assert lines[2].split()[:3] == [killed, "running", "3/10"] and "other n=4 seed=7" in lines[2]
    assert qpdsl("runs", "list").out.splitlines()[2].split()[1] == "stopped"
    assert qpdsl("runs", "--unfinished").out.count("\n") == 2
    assert done in qpdsl("runs", "--program", "p").out and killed not in qpdsl("runs", "--program", "p").out
    assert done not in qpdsl("runs", "--limit", 1).out


def test_the_list_for_programs(qpdsl: Run, runs: RunFolder) -> None:
    id = recorded(runs, 8, end=True)
    (listed,) = json.loads(qpdsl("runs", "--format", "json").out)
    assert (listed["run"], listed["state"], listed["done"], listed["rows"]) == (id, "finished", 8, 10)
    assert listed["accuracy"]["share"] == 1.0 and 0.6 < listed["accuracy"]["low"] < 0.7
    assert json.loads(qpdsl("runs", "--program", "none", "--format", "json").out) == []


def test_no_runs_yet(qpdsl: Run, runs: RunFolder) -> None:
    ran = qpdsl("runs")
    assert (ran.code, ran.out) == (Exit.OK, "") and str(runs.path) in ran.err


def test_a_run_is_shown(qpdsl: Run, runs: RunFolder) -> None:
    id = recorded(runs, 3)
    ran = qpdsl("runs", "show", "last", "--rows")
    for words in (id, "stopped", "a plan", "begun", "3 of 10", "3 of 3: 100.0%", "row 2", str(runs.file(id))):
        assert words in ran.out
    assert qpdsl("runs", "show", id[-6:], "--source").out == "program p() {}\n"
    shown = json.loads(qpdsl("runs", "show", id, "--format", "json").out)
    assert shown["fingerprint"] == {"version": "1", "seed": "0"} and shown["events"][0]["event"] == "begun"


@pytest.mark.parametrize("command", [["show"], ["export"], ["rm", "--yes"]])
def test_a_run_that_there_is_not(qpdsl: Run, runs: RunFolder, command: list[str]) -> None:
    recorded(runs, 1)
    ran = qpdsl("runs", command[0], "nothing", *command[1:])
    assert ran.code == Exit.USAGE and "there is no saved run `nothing`" in ran.err and "`qpdsl runs`" in ran.err
    assert "did you mean `last`?" in qpdsl("runs", command[0], "lst", *command[1:]).err


def test_a_command_that_there_is_not(qpdsl: Run) -> None:
    ran = qpdsl("runs", "shwo")
    assert ran.code == Exit.USAGE and "did you mean `show`?" in ran.err


@pytest.mark.parametrize("command", [["show", "--rows"], ["export"]])
def test_a_damaged_row_is_left_out_with_a_word(qpdsl: Run, runs: RunFolder, command: list[str]) -> None:
    damage_row(runs.file(recorded(runs, 3, end=True)), 1)
    told = qpdsl("runs", *command, "last")
    assert told.code == Exit.OK and "row 1" not in told.out and "row 2" in told.out
    assert told.err == "warning: damaged, and left out here: row 2\n"


def test_exports_hold_every_row(qpdsl: Run, runs: RunFolder, tmp_path: Path) -> None:
    with Recording.begin(runs, record(), inputs(10), EqualAnswer()) as kept:
        kept.add(0, outcome(0, answer='a "quoted",\nanswer', correct=False))
        kept.add(1, outcome(1, error="timed out", answer=None))
    lines = [json.loads(line) for line in qpdsl("runs", "export", "last").out.splitlines()]
    assert [(line["id"], line["answer"], line["correct"], line["error"]) for line in lines] == [
        ("row 0", 'a "quoted",\nanswer', False, None),
        ("row 1", None, None, "timed out"),
    ]
    assert lines[1]["fields"] == {"level": 1} and lines[1]["reference"] == "1"
    whole = json.loads(qpdsl("runs", "export", "last", "--format", "json").out)
    assert whole["run"] == kept.id and whole["finished_rows"] == lines
    table = list(csv.DictReader(io.StringIO(qpdsl("runs", "export", "last", "--format", "csv").out)))
    assert [(row["answer"], row["correct"], row["error"], row["level"]) for row in table] == [
        ('a "quoted",\nanswer', "false", "", "0"),
        ("", "", "timed out", "1"),
    ]


def test_an_export_is_a_log_of_inspect(qpdsl: Run, runs: RunFolder, tmp_path: Path) -> None:
    with Recording.begin(runs, record(), inputs(10), EqualAnswer()) as kept:
        kept.add(0, outcome(0, answer="5", correct=False))
        kept.add(1, outcome(1, error="timed out", answer=None))
        kept.add(2, outcome(2, answer="2", correct=True))
    output = tmp_path / "log.json"
    assert qpdsl("runs", "export", "last", "--as", "inspect", "--output", output).code == 0
    log = json.loads(output.read_text("utf-8"))
    assert (log["version"], log["status"], log["eval"]["run_id"]) == (2, "started", kept.id)
    wrong, failed, right = log["samples"]
    assert [sample["id"] for sample in log["samples"]] == log["eval"]["dataset"]["sample_ids"]
    assert wrong["scores"] == {"equal": {"value": "I", "answer": "5"}} and right["scores"]["equal"]["value"] == "C"
    assert "scores" not in failed and failed["error"]["message"] == "timed out"
    assert right["target"] == ["2"] and right["output"]["choices"][0]["message"]["content"] == "2"
    assert log["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 0.5
    again = ("runs", "export", "last", "--as", "inspect", "--output", output)
    assert "already" in qpdsl(*again).err and qpdsl(*again, "--overwrite").code == 0
    refused = qpdsl("runs", "export", "last", "--as", "inspect", "--format", "csv")
    assert refused.code == 2 and "`--as inspect` writes JSON, not csv" in refused.err


@pytest.mark.parametrize("form", ["jsonl", "json", "csv"])
def test_an_export_replaces_an_export_on_request_only(qpdsl: Run, runs: RunFolder, tmp_path: Path, form: str) -> None:
    recorded(runs, 2)
    output = tmp_path / "out"
    args = ("runs", "export", "last", "--format", form, "--output", output)
    assert qpdsl(*args).code == Exit.OK
    first = output.read_bytes()
    ran = qpdsl(*args)
    assert ran.code == Exit.USAGE and "`--overwrite` replaces it" in ran.err
    assert qpdsl(*args, "--overwrite").code == Exit.OK and output.read_bytes() == first
    output.write_text("notes\n")
    assert qpdsl(*args, "--overwrite").code == Exit.USAGE and output.read_text() == "notes\n"
    inside = qpdsl("runs", "export", "last", "--output", runs.path / "out")
    assert inside.code == Exit.USAGE and "the folder of the saved runs" in inside.err


def test_runs_are_removed_when_that_is_confirmed(qpdsl: Run, runs: RunFolder) -> None:
    first, second, third = (recorded(runs, 1, end=number == 0, started=1.75e9 + number) for number in range(3))
    assert qpdsl("runs", "rm").code == Exit.USAGE
    ran = qpdsl("runs", "rm", first)
    assert ran.code == Exit.USAGE and "1 run would be removed" in ran.err and len(runs.ids()) == 3
    with RunFile.writing(runs.file(second)):
        assert qpdsl("runs", "rm", "--unfinished", "--yes").err == "removed 1 run\n"
        assert runs.ids() == [first, second]
        ran = qpdsl("runs", "rm", second, "--yes")
        assert ran.code == Exit.USAGE and "another process is writing" in ran.err
    assert third not in runs.ids()
    assert qpdsl("runs", "rm", second, "last", "--yes").err == "removed 1 run\n"
    assert [path.name for path in runs.path.iterdir()] == [runs.file(first).name]


def test_old_runs_are_removed_by_their_age(qpdsl: Run, runs: RunFolder) -> None:
    recorded(runs, 1, started=time.time() - 40 * 86400)
    new = recorded(runs, 1, started=time.time() - 20 * 86400)
    ran = qpdsl("runs", "rm", "--older-than", "month", "--yes")
    assert ran.code == Exit.USAGE and "such as `30d`" in ran.err
    assert qpdsl("runs", "rm", "--older-than", "30d", "--yes").err == "removed 1 run\n"
    assert runs.ids() == [new]


def test_on_a_terminal_it_is_asked(runs: RunFolder) -> None:
    import os
    import sys

    from tests.support.paths import ROOT

    id = recorded(runs, 1)
    for answer, left in (("n", [id]), ("y", [])):
        child = pexpect.spawn(
            sys.executable, ["-m", "qpdsl", "runs", "rm", id], cwd=str(ROOT), env=dict(os.environ), timeout=60
        )
        child.expect("remove 1 run for good")
        child.sendline(answer)
        child.expect(pexpect.EOF)
        assert runs.ids() == left
