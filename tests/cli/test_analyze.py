"""`--analyze`, `qpdsl profile` and `qpdsl analyze`, as a user meets them. (What the text says: tests/planner.)"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.caches import folder, measured_device, write_device
from qpdsl.cli.exits import Exit
from qpdsl.planner.device import nominal
from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


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
    pipeline = "chat user=q | generate llm n=6 temperature=0.8 max_tokens=40 | extract a = /(\\d)/ | vote a"
    ran = qpdsl("explain", "-e", pipeline, "--set", "q=Mia has 3 cards.", "--analyze", "--format", "json")
    assert ran.code == Exit.OK
    drawn = next(node for node in json.loads(ran.out)["operators"] if node["operator"] == "Generate")
    assert drawn["measured"]["sampled_tokens"] > 0 and drawn["measured"]["seconds"] > 0


def test_analyze_shows_and_forgets(qpdsl: Run, sampled: Path) -> None:
    assert "there are no statistics yet" in qpdsl("analyze").err
    qpdsl("explain", sampled, "--analyze", "--set", "problem=two")
    shown = qpdsl("analyze")
    assert shown.out.startswith("sampled n=2 limit=12   1 problem") and "tokens a sample" in shown.out
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
    folder().parent.mkdir(parents=True)
    folder().write_text("a file in the folder's place")
    assert qpdsl("explain", sampled, "--analyze", "--set", "problem=two").code == Exit.OK
    assert qpdsl("analyze").code == Exit.OK


def test_a_measured_device_lets_the_cost_choose(qpdsl: Run) -> None:
    before = json.loads(qpdsl("explain", "beam_search", "--format", "json").out)
    write_device(replace(nominal(), measured=True))
    assert measured_device() is not None
    after = json.loads(qpdsl("explain", "beam_search", "--format", "json").out)
    verbose = qpdsl("explain", "beam_search", "--verbose")
    assert "choice_by_cost" in verbose.out
    assert before["operators"][1]["cost"] is None and after["operators"][1]["cost"]["seconds"] > 0
    assert after["rules"] == before["rules"]


def test_profile_measures_a_model_once(qpdsl: Run) -> None:
    ran = qpdsl("profile", "zoo/counting-mini", "--no-tables")
    assert ran.code == Exit.OK and ran.err == "measuring zoo/counting-mini\n"
    assert "GB/s" in ran.out and "a step that decodes" in ran.out
    again = qpdsl("profile", "zoo/counting-mini", "--no-tables", "--format", "json")
    assert again.err == ""
    (model,) = json.loads(again.out)["models"].values()
    times = [seconds for _, seconds in model["decode"]["points"]]
    assert times == sorted(times) and times[0] > 0
