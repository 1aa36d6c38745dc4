"""Plans on the command line: how one came about, what two do otherwise, and running without rules."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.planner.cost.device import Curve, Device, KVProfile, nominal
from qpdsl.planner.rules import RULES
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.session.user_cache import folder, write_device
from tests.support.cli import Run, write_rows
from tests.support.saved_runs import cut_short
from tests.support.user_cache import own_cache

SUM = "chat user=problem | generate llm n=3 temperature=0 max_tokens=6 | score prm | best by score"


def test_verbose_shows_the_plan_after_each_rule_that_changed_it(qpdsl: Run) -> None:
    ran = qpdsl("explain", "beam_search", "--verbose", "--disable-rule", "score_cache")
    assert ran.code == Exit.OK
    heads = [line.partition(":")[0] for line in ran.out.splitlines() if line.split(":")[0] in {r.name for r in RULES}]
    assert heads == [
        *("unread_logprobs", "collapse_greedy", "share_prefixes", "incremental_score", "speculative_expansion"),
        "in_flight",
    ]
    assert ran.out.startswith("the naive plan\n\nbeam_search.qp") and "disabled: score_cache" in ran.out
    assert "score cache" not in ran.out


def test_verbose_as_json(qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing was measured that a choice could go by.
    own_cache(tmp_path, monkeypatch)
    data = json.loads(qpdsl("explain", "beam_search", "--verbose", "--format", "json").out)
    trace = data["trace"]
    assert [change["rule"] for change in trace["changes"]] == data["rules"]
    assert list(trace["seconds"]) == [rule.name for rule in RULES]
    assert trace["changes"][-1]["plan"]["operators"] == data["operators"]
    assert trace["naive"]["rules"] == [] and trace["naive"]["in_flight"] is None


def test_a_plan_against_the_naive_one(qpdsl: Run) -> None:
    lines = qpdsl("explain", "best_of_n", "--against", "naive").out.splitlines()
    removed = [line for line in lines if line.startswith("- ") and "score prm" in line]
    added = [line for line in lines if line.startswith("+ ") and "score prm" in line]
    assert removed[0].endswith("paged prefill") and added[0].endswith("paged prefill · incremental · score cache")
    assert any(line.startswith("  return answer") for line in lines)
    # Of the notes that neither plan has there is no line.
    plain = qpdsl("explain", "greedy", "--plan", "naive", "--against", "naive").out
    assert plain.startswith("  greedy.qp") and "" not in plain.splitlines()


def test_settings_go_to_the_first_program_and_models_to_both(qpdsl: Run) -> None:
    more = ("--set", "depth=3", "--model", "llm=zoo/counting-mini", "--format", "json")
    data = json.loads(qpdsl("explain", "beam_search", "--against", "dvts", *more).out)
    values = [
        next(param["value"] for param in data[side]["parameters"] if param["name"] == "depth")
        for side in ("plan", "against")
    ]
    assert values == ["3", "40"]
    assert data["plan"]["models"]["llm"] == data["against"]["models"]["llm"] == "zoo/counting-mini"


def test_two_programs_against_each_other(qpdsl: Run) -> None:
    data = json.loads(qpdsl("explain", "beam_search", "--against", "dvts", "--format", "json").out)
    assert (data["plan"]["program"], data["against"]["program"]) == ("beam_search", "dvts")
    assert "keep 1 by score per group" in [line["text"] for line in data["removed"]]
    assert "keep 4 by score" in [line["text"] for line in data["added"]]
    same = json.loads(qpdsl("explain", "dvts", "--against", "dvts", "--format", "json").out)
    assert same["removed"] == same["added"] == []


def test_what_is_read_is_part_of_the_plan(qpdsl: Run) -> None:
    asked = ("explain", "greedy", "--answer", r"/The answer is (-?\d+)/", "--format", "json")
    answer, rows = (json.loads(qpdsl(*asked, *more).out) for more in ((), ("--rows",)))
    assert (answer["reads"], rows["reads"]) == ([], None)
    assert [plan["operators"][1]["how"]["until"] for plan in (answer, rows)] == [r"The answer is (-?\d+)", None]


def test_no_rules_give_the_same_answer_at_other_costs(qpdsl: Run) -> None:
    common = ("run", "-e", SUM, "--set", "problem=Mia has 3 boxes.", "--json", "--no-greedy", "--rows")
    plain, naive = (qpdsl(*common, *more) for more in ((), ("--plan", "naive")))
    without = qpdsl(*common, "--disable-rule", "collapse_greedy", "--disable-rule", "share_prefixes")
    with_rules, unplanned, with_fewer = (json.loads(ran.out) for ran in (plain, naive, without))
    assert with_rules["rows"] == unplanned["rows"] == with_fewer["rows"]
    assert with_rules["answer"] == unplanned["answer"]
    assert with_rules["tokens_out"] < unplanned["tokens_out"] == with_fewer["tokens_out"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("explain", "greedy", "--disable-rule", "score_cash"),
            "there is no rule `score_cash`",
        ),
        (("run", "greedy", "--plan", "naive", "--disable-rule", "score_cache"), "`--plan naive` uses no rule"),
        (("explain", "greedy", "--verbose", "--against", "naive"), "give one of them"),
        (("explain", "greedy", "--against", "no_such"), "no_such"),
    ],
)
def test_options_that_do_not_do(qpdsl: Run, args: tuple[str, ...], message: str) -> None:
    ran = qpdsl(*args)
    assert ran.code == Exit.USAGE and message in ran.err


LOOSE = """\
model llm = "zoo/counting-mini"
program loose(problem: text, n: int = 4) -> text within epsilon(5) {
  chat user=problem
  generate llm n=n temperature=0.8 max_tokens=12
  return text
}
"""


def test_a_program_that_lets_logits_differ_may_get_eight_bits(
    qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    write_device(measured_with_int8("float32", 0.5))
    loose, strict = tmp_path / "loose.qp", tmp_path / "strict.qp"
    loose.write_text(LOOSE)
    strict.write_text(LOOSE.replace(" within epsilon(5)", "").replace("program loose", "program strict"))

    def run(path: Path, *more: str) -> dict[str, object]:
        ran = qpdsl("run", path, "--set", "problem=Mia has 3 boxes.", "--json", "--no-greedy", "--rows", *more)
        record: dict[str, object] = json.loads(ran.out)
        return {name: record[name] for name in ("answer", "rows")}

    shown = qpdsl("explain", loose, "--verbose").out
    assert "keys and values: int8" in shown and "within epsilon(5)" in shown
    plain = ("--disable-rule", "choice_by_cost")
    assert run(loose) == run(loose, "--kv-type", "int8", *plain) != run(loose, *plain)
    assert run(strict) == run(strict, *plain)
    refused = qpdsl("explain", strict, "--verbose").out
    assert "outside `within exact`" in refused and "keys and values: int8" not in refused


def measured_with_int8(dtype: str, epsilon: float) -> Device:
    slow, quick = Curve(((1.0, 0.03), (64.0, 0.06))), Curve(((1.0, 0.01), (64.0, 0.02)))
    kept = {"int8": KVProfile(500.0, epsilon, quick, quick)}
    profile = replace(nominal().profile("zoo/counting-mini"), decode=slow, prefill=slow, kv_types=kept)
    return replace(nominal(), measured=True, dtype=dtype).with_model("zoo/counting-mini", profile)


def test_the_error_of_another_dtype_is_not_what_a_program_permits(
    qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    loose = tmp_path / "loose.qp"
    loose.write_text(LOOSE)
    write_device(measured_with_int8("float32", 50.0))
    write_device(measured_with_int8("bfloat16", 0.5))
    os.utime(folder() / "device-cpu-float32-1.json", (1, 1))
    assert "keys and values: int8" not in qpdsl("explain", loose).out
    assert "keys and values: int8" in qpdsl("explain", loose, "--dtype", "bfloat16").out
    assert "keys and values: int8" not in qpdsl("explain", loose, "--dtype", "bfloat16", "--device", "cuda").out


@pytest.mark.parametrize(("before", "after"), [(0.5, 50.0), (50.0, 0.5)])
def test_a_run_is_gone_on_with_by_the_type_it_began_with(
    qpdsl: Run, runs: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: float, after: float
) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    loose, output, whole = tmp_path / "loose.qp", tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    loose.write_text(LOOSE)
    rows = write_rows(tmp_path / "rows.jsonl", [{"problem": f"Mia has {number} boxes."} for number in range(3)])
    write_device(measured_with_int8("float32", before))
    assert qpdsl("run", loose, "--input", rows, "--output", output).code == Exit.OK
    output.rename(whole)
    cut_short(runs, 1)
    write_device(measured_with_int8("float32", after))
    strict = tmp_path / "strict.qp"
    strict.write_text(LOOSE.replace(" within epsilon(5)", ""))
    refused = qpdsl("run", strict, "--input", rows, "--output", output, "--resume")
    assert refused.code == Exit.USAGE and "changed since it began: the program" in refused.err
    assert qpdsl("run", loose, "--input", rows, "--output", output, "--resume").code == Exit.OK
    assert output.read_bytes() == whole.read_bytes()


def test_the_choice_by_cost_can_be_left_out(qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    before = qpdsl("explain", "beam_search", "--verbose").out
    assert "`qpdsl profile`" in before.splitlines()[-2]
    device = replace(nominal(), measured=True)
    for model in ("zoo/counting", "zoo/counting-prm"):
        device = device.with_model(model, device.profile(model))
    write_device(device)
    chosen = json.loads(qpdsl("explain", "beam_search", "--verbose", "--format", "json").out)
    assert {candidate["knob"] for candidate in chosen["trace"]["choice"]["candidates"]} >= {
        "problems at once",
        "keys and values",
    }
    left = json.loads(
        qpdsl("explain", "beam_search", "--verbose", "--format", "json", "--disable-rule", "choice_by_cost").out
    )
    assert left["trace"]["choice"] is None and left["trace"]["disabled"] == ["choice_by_cost"]
