"""A program's texts, replaced and chosen by GEPA with a reflection that a script says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from qpdsl.errors import UsageError
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.optimizing import ProgramTexts, optimized
from qpdsl.runs.row_outcome import Outcome
from tests.support.planner.lowered import program_of

SOURCE = """model llm = "zoo/counting"

program solve(problem: text, hint: text = "Say \\"hm\\".") -> text {
  chat system=hint user="Please: {problem}"
  generate llm temperature=0
  say "\\nSo "
  return text
}
"""


def texts_of(source: str) -> ProgramTexts:
    return ProgramTexts.of(program_of(source))


def test_texts_are_found_and_replaced() -> None:
    found = texts_of(SOURCE)
    assert found.texts == {"hint": 'Say "hm".', "user_1": "Please: {problem}", "say_1": "\nSo "}
    assert found.with_texts(found.texts) == SOURCE
    made = texts_of(found.with_texts({"user_1": 'Q:\n"{problem}" \\', "hint": "x"}))
    assert made.texts == {"hint": "x", "user_1": 'Q:\n"{problem}" \\', "say_1": "\nSo "}
    shots = texts_of(SOURCE.replace("chat system=hint", 'chat system=hint user="1 + 1" assistant="2"'))
    assert shots.texts["user_1"] == "1 + 1" and shots.texts["assistant_1"] == "2"
    bare = "program solve(problem: text) -> text {\n  chat user=problem\n  generate llm\n  return text\n}\n"
    with pytest.raises(UsageError, match="has no text to optimize"):
        texts_of('model llm = "zoo/counting"\n' + bare)


def test_a_better_text_is_kept_and_a_broken_one_scores_nothing(tmp_path: Path) -> None:
    pytest.importorskip("gepa", reason="needs gepa: pip install 'qpdsl[optimize]'")
    program = texts_of(SOURCE)
    rows = [InputRow(str(number), {"problem": str(number)}, reference=str(number)) for number in range(16)]
    proposals = iter(["Please: {unknown}", "{problem}, step by step"] + ["Please: {problem}"] * 50)
    asked: list[str] = []

    def run(source: str, given: Sequence[InputRow]) -> list[Outcome]:
        own = texts_of(source).texts["user_1"]
        program_of(source)
        right = "step by step" in own
        told = {"score": None, "tokens_in": 1, "tokens_out": 1, "near_ties": 0, "seconds": 0.0, "correct": right}
        return [Outcome(id=row.id, answer=row.id if right else "?", **told) for row in given]

    def reflect(prompt: str) -> str:
        asked.append(prompt)
        return f"```\n{next(proposals) if 'Please' in prompt else 'Say hm.'}\n```"

    found = optimized(program, rows, run, reflect, 60, folder=tmp_path)
    assert found.after["user_1"] == "{problem}, step by step"
    assert found.held_out == (0.0, 1.0)
    assert found.gain.pairs == 8 and found.gain.interval.low > 0
    assert "It is wrong. Right is: " in asked[0]
    texts_of(found.source)
    before = len(asked)
    again = optimized(program, rows, run, reflect, 60, folder=tmp_path)
    # The state in the folder has spent the budget already.
    assert again.after == found.after and len(asked) <= before + 1


def test_few_rows_are_refused() -> None:
    pytest.importorskip("gepa", reason="needs gepa: pip install 'qpdsl[optimize]'")
    rows = [InputRow("a", {"problem": "a"}, reference="a")] * 4
    with pytest.raises(UsageError, match="too few"):
        optimized(texts_of(SOURCE), rows, lambda source, rows: [], lambda prompt: "", 10)
