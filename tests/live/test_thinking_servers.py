"""Models that think, on the real vLLM with a reasoning parser, which parts thoughts from answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from qpdsl.cli.exits import Exit
from tests.live.servers import vllm_thinking
from tests.live.test_remote_engines import PROGRAMS, Place, answers, is_settled, started
from tests.support.paths import ROOT

pytestmark = pytest.mark.live

IDIOMS = {file.stem: file for file in sorted((ROOT / "programs" / "idioms" / "thinking").glob("*.qp"))}
# What takes a thought without its answer, or an answer without its thought, or keeps the tokens of a turn.
BY_IDS_ALONE = {"budget_forcing", "deer", "dynasor", "hot_thoughts", "thoughts_over_turns"}
STEPS = """
model llm = "zoo/counting-thinker"

program steps(problem: text) -> text {{
  chat user=problem
  {stages}
  return text
}}
"""
WHOLE = "generate llm temperature=0"
IN_STEPS = 'repeat 9 until all(finished) { generate llm temperature=0 stop="\\n\\n" }'
IN_TWO = 'generate llm temperature=0 stop="\\n\\n"\n  generate llm temperature=0 max_tokens=2048'


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from started(vllm_thinking, tmp_path_factory)


@pytest.fixture(scope="module")
def by_messages(place: Place) -> Place:
    """The same server, of which no tokenizer is known."""
    return replace(place, server=replace(place.server, tokenizer=None))


@pytest.mark.parametrize("program", [*PROGRAMS, *IDIOMS])
def test_a_program_runs_by_messages_or_is_refused(by_messages: Place, program: str, tmp_path: Path) -> None:
    ran = by_messages.run(str(IDIOMS.get(program, program)), tmp_path / "out.jsonl")
    if program in BY_IDS_ALONE or program == "filter_decoding":
        assert (ran.code, ran.rows) == (Exit.USAGE, {}) and "QP403" in ran.err and "tokenizer=" in ran.err
        return
    assert ran.code in (Exit.OK, Exit.ROW_FAILED), ran.err
    assert ran.rows and all(is_settled(row) for row in ran.rows.values())
    again = by_messages.run(str(IDIOMS.get(program, program)), tmp_path / "again.jsonl")
    assert answers(again) == answers(ran)


@pytest.mark.parametrize("program", IDIOMS)
def test_an_idiom_runs_by_token_ids(place: Place, program: str, tmp_path: Path) -> None:
    ran = place.run(str(IDIOMS[program]), tmp_path / "out.jsonl")
    assert ran.code == Exit.OK, ran.err
    assert all(row["answer"] is not None for row in ran.rows.values())


@pytest.mark.parametrize("way", ["place", "by_messages"])
def test_an_answer_in_parts_is_the_answer(way: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    where: Place = request.getfixturevalue(way)
    whole, *others = (told(where, stages, tmp_path) for stages in (WHOLE, IN_STEPS, IN_TWO))
    assert whole["text"].endswith(".") and whole["thought_tokens"] > 0
    assert all((one["text"], one["thought"]) == (whole["text"], whole["thought"]) for one in others)


def test_a_parser_that_counts_no_thoughts(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """`deepseek_r1` says 0 tokens of each thought, and takes the rest of an answer for one."""
    places = started(partial(vllm_thinking, parser="deepseek_r1", plain_marks=True), tmp_path_factory)
    for place in places:
        where = replace(place, server=replace(place.server, tokenizer=None))
        whole, *others = (told(where, stages, tmp_path) for stages in (WHOLE, IN_STEPS, IN_TWO))
        assert whole["text"].endswith(".") and 0 < whole["thought_tokens"] < whole["tokens"]
        assert all(one["text"] == whole["text"] for one in others)


def test_a_parser_that_finds_no_end_of_a_thought(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """`deepseek_r1` never sees special tokens: all of an answer is told as its thought."""
    for place in started(partial(vllm_thinking, parser="deepseek_r1"), tmp_path_factory):
        where = replace(place, server=replace(place.server, tokenizer=None))
        refused = where.run("greedy", tmp_path / "out.jsonl")
        assert refused.code == Exit.USAGE and "answers no chat messages" in refused.err and "tokenizer=" in refused.err
        assert place.run("greedy", tmp_path / "ids.jsonl").code == Exit.OK


def told(place: Place, stages: str, folder: Path) -> dict[str, Any]:
    """The row that a program of these stages ends with."""
    file = folder / "steps.qp"
    file.write_text(STEPS.format(stages=stages), "utf-8")
    line = [sys.executable, "-m", "qpdsl", "run", str(file), "--model", f"llm={place.server.model_id}", "--json"]
    line += ["--rows", "--set", "problem=Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"]
    line += ["--no-greedy", "--no-statistics", "--completions", "none"]
    done = subprocess.run(line, env=place.environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == Exit.OK, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    return dict(row)
