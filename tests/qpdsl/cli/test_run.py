"""`qpdsl run` for one answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from qpdsl.cli import main
from qpdsl.cli.exits import Exit
from tests.support.cli import Run, Terminal

PROBLEM = "problem=Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"


def test_facts_are_aligned_and_the_text_stands_below(qpdsl: Run) -> None:
    ran = qpdsl("run", "best_of_n", "--set", "n=2", "--set", PROBLEM)
    assert ran.code == Exit.OK and ran.err == ""
    facts, _, text = ran.out.partition("\n\n")
    assert [line[:8] for line in facts.splitlines()] == ["answer  ", "score   ", "tokens  ", "greedy  "]
    answer = facts.splitlines()[0][8:]
    assert f"The answer is {answer}" in text


def test_greedy_is_left_out_where_it_is_not_wanted_or_the_program_itself(qpdsl: Run, sampled: Path) -> None:
    assert "greedy" in qpdsl("run", sampled, "--set", PROBLEM).out
    assert "greedy" not in qpdsl("run", sampled, "--set", PROBLEM, "--no-greedy").out
    assert "greedy" not in qpdsl("run", "greedy", "--set", PROBLEM).out


def test_greedy_beside_a_search_is_what_greedy_alone_gives(qpdsl: Run) -> None:
    beside = json.loads(qpdsl("run", "self_consistency", "--set", "n=2", "--set", PROBLEM, "--json").out)
    alone = json.loads(qpdsl("run", "greedy", "--set", PROBLEM, "--json").out)
    assert beside["greedy"] == {"answer": alone["answer"], "tokens_out": alone["tokens_out"]}


def test_json_is_one_object_and_repeats_itself(qpdsl: Run, sampled: Path) -> None:
    args = ("run", sampled, "--set", PROBLEM, "--json", "--rows", "--seed", "5")
    ran = qpdsl(*args)
    answer = json.loads(ran.out)
    assert list(answer) == [
        "program",
        "answer",
        "score",
        "tokens_in",
        "tokens_out",
        "near_ties",
        "text",
        "greedy",
        "rows",
    ]
    assert len(answer["rows"]) == 2 and answer["rows"][0]["text"] == answer["answer"]
    assert answer["tokens_out"] == sum(row["tokens"] for row in answer["rows"])
    assert qpdsl(*args).out == ran.out
    assert qpdsl(*args[:-1], "6").out != ran.out


def test_timing_adds_seconds(qpdsl: Run, sampled: Path) -> None:
    out = qpdsl("run", sampled, "--set", PROBLEM, "--timing").out
    assert "tokens/s)" in out and "\nfirst token  p50 " in out and "\neach token   p50 " in out
    record = json.loads(qpdsl("run", sampled, "--set", PROBLEM, "--timing", "--json").out)
    (waits,) = record["waits"].values()
    assert record["seconds"] > waits["first_token"]["p99"] >= waits["first_token"]["p50"] > 0
    assert set(waits["between_tokens"]) == {"p50", "p95", "p99"}


def test_rows_are_shown_with_all_their_columns(qpdsl: Run, sampled: Path) -> None:
    out = qpdsl("run", sampled, "--set", PROBLEM, "--rows").out
    assert "\nrow 1\n" in out and "\nrow 2\n" in out
    for column in ("text", "step", "finish", "finished", "logprob", "tokens", "group"):
        assert out.count(f"\n  {column} ") == 2


def test_rows_of_one_answer_show_what_it_was_chosen_from(qpdsl: Run) -> None:
    args = ("run", "self_consistency", "--set", "n=4", "--set", PROBLEM, "--rows")
    record = json.loads(qpdsl(*args, "--json").out)
    texts = [candidate["text"] for candidate in record["candidates"]]
    assert len(texts) == 4 and record["text"] in texts
    assert record["tokens_out"] == sum(candidate["tokens"] for candidate in record["candidates"])
    out = qpdsl(*args).out
    assert "\ncandidate 4\n" in out and texts[3].splitlines()[0] in out
    assert "`--rows` shows what" in qpdsl(*args[:-1], "--candidates").err


def test_a_pipeline_takes_its_open_names_from_set(qpdsl: Run) -> None:
    pipeline = "chat user=q | generate llm n=k temperature=0.8 max_tokens=4 | return text"
    ran = qpdsl("run", "-e", pipeline, "--set", "q=Mia has 3 cards.", "--set", "k=3", "--rows", "--json")
    assert ran.code == Exit.OK and len(json.loads(ran.out)["rows"]) == 3


def test_a_model_by_its_folder_is_the_same_model(qpdsl: Run, sampled: Path) -> None:
    from qpdsl import zoo

    args = ("run", sampled, "--set", PROBLEM)
    assert qpdsl(*args, "--model", f"llm={zoo.path('zoo/counting')}").out == qpdsl(*args).out


def test_a_failure_goes_to_stderr(qpdsl: Run) -> None:
    never = "chat user=q | generate llm max_tokens=3 | extract a = /zzz/ | vote a"
    ran = qpdsl("run", "-e", never, "--set", "q=1")
    assert (ran.code, ran.out) == (Exit.ROW_FAILED, "") and ran.err.startswith("error: no row is left")
    ran = qpdsl("run", "-e", never, "--set", "q=1", "--json")
    assert ran.code == Exit.ROW_FAILED and json.loads(ran.out)["error"].startswith("no row is left: `vote")


def test_an_empty_text_is_said_to_be(qpdsl: Run) -> None:
    assert qpdsl("run", "-e", "chat user=q | generate llm max_tokens=2", " ").err.startswith(
        "warning: the text is empty"
    )


def test_a_whole_text_is_an_answer_where_that_is_asked(qpdsl: Run) -> None:
    asked = ("run", "greedy", "1", "--set", "max_tokens=2", "--json")
    none = qpdsl(*asked)
    assert none.code == Exit.ROW_FAILED and "`--answer text`" in none.err
    text = json.loads(none.out)["text"]
    whole = qpdsl(*asked, "--answer", "text")
    assert whole.code == Exit.OK and json.loads(whole.out)["answer"] == text.strip()


@pytest.mark.parametrize(("target", "help"), [("p.qp:b", "p.qp --program b"), ("p.py", "python p.py")])
def test_what_is_no_program_says_how_it_is_run(
    qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, help: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.qp").touch()
    (tmp_path / "p.py").touch()
    ran = qpdsl("run", target, "x")
    assert ran.code == Exit.USAGE and f"`{help}" in ran.err


def test_escape_sequences_of_a_model_reach_a_pipe_but_no_terminal(qpdsl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("run", "-e", "chat user=q | generate llm max_tokens=1 | return q", "--set", "q=\033[31mred")
    assert qpdsl(*args).out.startswith("answer  \033[31mred\n")
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        assert main(list(args)) == Exit.OK
    assert terminal.text.startswith("answer  \\u001b[31mred\n") and "\033" not in terminal.text
