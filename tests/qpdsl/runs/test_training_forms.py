"""Saved runs as data to train on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qpdsl.cli.commands.runs import FORMS as NAMES
from qpdsl.cli.exits import Exit
from qpdsl.executor.sample_memory.row_trajectory import RowTrajectory, TrajectoryEnd
from qpdsl.executor.sample_memory.saved_samples import RowSamples
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RowRecord
from qpdsl.runs.training_forms import FORMS, SavedRow
from tests.support.cli import Run
from tests.support.saved_runs import outcome
from tests.support.saved_runs import record as run_record

TREE = """\
model llm = "zoo/counting"

program tree(problem: text) -> text {
  chat system="Count." user=problem
  repeat 6 until all(finished) {
    generate llm n=2 stop="\\n\\n" temperature=1.2 max_tokens=20
    keep 3 by logprob
  }
  vote text
}
"""
Export = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def export(qpdsl: Run, problems: Path, tmp_path: Path) -> Export:
    """Runs a program once and exports its run."""

    def exported(form: str, *more: object) -> list[dict[str, Any]]:
        (tmp_path / "p.qp").write_text(TREE, "utf-8")
        if not RunFolder().ids():
            how = ("--input", problems, "--limit", "4", "--no-greedy", "--save-trajectories")
            ran = qpdsl("run", tmp_path / "p.qp", *how)
            assert ran.code == Exit.OK, ran.err
        made = qpdsl("runs", "export", "last", "--as", form, *more)
        assert made.code == Exit.OK, made.err
        return [json.loads(line) for line in made.out.splitlines()]

    return exported


def test_every_form_is_offered() -> None:
    assert tuple(FORMS) == NAMES


def test_trajectories_have_every_token_once(export: Export) -> None:
    records = export("trajectories")
    with RunFile.reading(RunFolder().find("last")) as run:
        kept = {row.outcome.id: RowSamples.decoded(run.samples(row.number) or b"").trajectory for row in run.rows()}
    for id, trajectory in kept.items():
        assert trajectory is not None
        own = [record for record in records if record["id"] == id]
        paths = [tuple(place["path"]) for record in own for place in json.loads(record["draws"])]
        assert set(paths) == {draw.path for draw in trajectory.draws}
        assert sum(record["chosen"] for record in own) == 1
        assert all(record["final"] for record in own if record["chosen"])
    drawn = {(id, own.path, own.rounds): own for id, told in kept.items() if told for own in told.draws}
    for record in records:
        assert len({len(record[f"response_{name}"]) for name in ("ids", "mask", "logprobs")}) == 1
        for place in json.loads(record["draws"]):
            own = drawn[record["id"], tuple(place["path"]), tuple(place["rounds"])]
            span = slice(place["start"], place["end"])
            assert tuple(record["response_ids"][span]) == own.tokens
            assert tuple(record["response_logprobs"][span]) == own.logprobs
            assert tuple(record["drawn_logprobs"][span]) == own.drawn_logprobs
            assert set(record["response_mask"][span]) == {1}
        zeros = [
            value for value, on in zip(record["response_logprobs"], record["response_mask"], strict=True) if not on
        ]
        assert not any(zeros)


def test_messages_are_those_of_the_program(export: Export) -> None:
    answers = export("trl-kto")
    assert {type(record["label"]) for record in answers} == {bool}
    assert all([turn["role"] for turn in record["prompt"]] == ["system", "user"] for record in answers)
    assert all(record["completion"][0]["role"] == "assistant" for record in answers)


def test_steps_are_right_where_a_right_answer_follows(export: Export) -> None:
    candidates = {(record["id"], record["completion"][0]["content"]): record["label"] for record in export("trl-kto")}
    steps = export("trl-prm")
    assert {record["id"] for record in steps} == {id for id, _ in candidates}
    for record in steps:
        assert len(record["completions"]) == len(record["labels"]) == len(record["rates"])
        assert record["labels"] == [rate > 0 for rate in record["rates"]]
        text = next(text for id, text in candidates if id == record["id"] and text.startswith(record["completions"][0]))
        assert record["completions"][-1] and text


def test_what_a_run_does_not_hold_is_named(qpdsl: Run, sampled: Path, problems: Path) -> None:
    assert qpdsl("run", sampled, "--input", problems, "--save-samples", "--no-greedy").code == Exit.OK
    refused = qpdsl("runs", "export", "last", "--as", "sft")
    assert refused.code == Exit.USAGE and "has no trajectories" in refused.err
    assert "--save-trajectories" in refused.err
    assert "is for data to train on" in qpdsl("runs", "export", "last", "--per-row", "2").err


def test_a_run_with_trajectories_is_the_same_again(export: Export, qpdsl: Run) -> None:
    export("trajectories")
    ran = qpdsl("verify", "last", "--all")
    assert ran.code == Exit.OK and "the same to the byte: 4 rows" in ran.out


ASKED = ({"role": "user", "content": "1 + 1?"},)


def made_row(*candidates: tuple[str, float | None, bool | None, int | None], prompt: Any = ASKED) -> SavedRow:
    """A row of candidates: text, score, right or not, and ballot. The first one's answer was given."""
    known = [
        {"answer": text, "score": score, "tokens": 1, "text": text, "ballot": ballot, "correct": correct}
        for text, score, correct, ballot in candidates
    ]
    ends = tuple(TrajectoryEnd(path=(at,), prompt=prompt, text=own[0]) for at, own in enumerate(candidates))
    result = outcome(0, answer=candidates[0][0], candidates=known)
    row = RowRecord(number=0, key="k", outcome=result, reference="2")
    return SavedRow("run", run_record(), row, RowTrajectory(ends=ends, chosen=0), None)


def test_pairs_are_those_furthest_apart() -> None:
    row = made_row(("a", 0.9, True, None), ("b", 0.2, False, None), ("c", 0.7, True, None), ("d", 0.8, False, None))
    (pair,) = FORMS["trl-dpo"](row)
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("a", "b")
    assert pair["margin"] == pytest.approx(0.7) and pair["prompt"] == [*ASKED]
    every = list(FORMS["trl-dpo"](replace(row, most=9)))
    margins = [own["margin"] for own in every]
    assert len(every) == 4 and margins == sorted(margins, reverse=True)
    assert [own["completion"][0]["content"] for own in FORMS["sft"](replace(row, most=2))] == ["a", "c"]
    assert [own["label"] for own in FORMS["trl-kto"](row)] == [True, False, True, False]


def test_votes_have_margins_too() -> None:
    row = made_row(("x", None, None, 0), ("x", None, None, 0), ("y", None, None, 1), ("z", None, None, None))
    (pair,) = FORMS["trl-dpo"](row)
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("x", "y")
    assert pair["margin"] == pytest.approx(1 / 3)
    assert [own["completion"][0]["content"] for own in FORMS["sft"](row)] == ["x"]
    assert not list(FORMS["trl-kto"](row))


def test_arguments_of_tool_calls_are_json_text() -> None:
    calls = {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]}
    turns = (*ASKED, {"role": "assistant", "content": "", "calls": json.dumps(calls)})
    (learned,) = FORMS["sft"](made_row(("2", None, True, None), prompt=turns))
    assert learned["prompt"][1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert "calls" not in learned["prompt"][1]


def test_problems_for_verl() -> None:
    (problem,) = FORMS["verl"](made_row(("2", None, True, None), prompt="1 + 1 ="))
    assert problem["prompt"] == [{"role": "user", "content": "1 + 1 ="}]
    assert problem["reward_model"] == {"style": "rule", "ground_truth": "2"}
