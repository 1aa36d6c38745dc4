"""A candidate's thought: in the trace of a run, after the codec, and on the screen above the answer. And its tokens,
whose probabilities are known or not.
"""

from __future__ import annotations

from pathlib import Path

from qpdsl.executor.events.codec import decode, encode
from qpdsl.executor.events.events import CandidateRecord, Expanded
from qpdsl.tui.screens.candidate import solution, step_text, sureness, token_table, writers
from qpdsl.tui.state.search import SearchTree
from qpdsl.tui.widgets.palette import Palette
from tests.support.cli import Run

PALETTE = Palette(*["white"] * 13)
PROGRAM = """\
model llm = "zoo/counting-thinker"

program p(problem: text) -> text {
  chat user=problem
  generate llm n=2 think=THINK max_tokens=6
}
"""


def candidates(qpdsl: Run, folder: Path, think: object) -> tuple[list[str], tuple[CandidateRecord, ...]]:
    """The lines of a run's trace, and the rows that it made."""
    program, trace = folder / "p.qp", folder / f"{think}.trace"
    program.write_text(PROGRAM.replace("THINK", str(think)), "utf-8")
    assert qpdsl("run", program, "--set", "problem=Mia has 2 boxes.", "--trace", trace).code == 0
    lines = trace.read_text("utf-8").splitlines()
    events = [decode(line) for line in lines if '"Expanded"' in line]
    return lines, tuple(one for event in events if isinstance(event, Expanded) for one in event.candidates)


def test_a_trace_has_the_thoughts(qpdsl: Run, tmp_path: Path) -> None:
    lines, found = candidates(qpdsl, tmp_path, 8)
    assert len(found) == 2
    for candidate in found:
        assert candidate.thought and candidate.thought not in candidate.step
        assert 0 < candidate.thought_tokens <= 8 < candidate.tokens
    lines, found = candidates(qpdsl, tmp_path, "off")
    assert all((one.thought, one.thought_tokens) == (None, 0) for one in found)
    assert not [line for line in lines if '"Expanded"' in line and "thought" in line]


def test_the_screen_shows_the_thought_above_the_answer() -> None:
    record = CandidateRecord(path=(0,), step="The answer is 8.", tokens=20, thought="2 * 4\n= 8", thought_tokens=12)
    plain = CandidateRecord(path=(1,), step="8", tokens=1)
    event = Expanded(instance="a", operator="1", rounds=(), candidates=(record, plain))
    again = decode(encode(event, 0.0))
    assert isinstance(again, Expanded) and again.candidates == event.candidates
    tree = SearchTree()
    tree.expanded(again)
    first, second = tree.node((0,)), tree.node((1,))
    shown = solution(tree, first, None, PALETTE).plain.splitlines()
    assert [line.strip() for line in shown[:3]] == ["thought, 12 tokens", "2 * 4", "= 8"]
    assert shown[3].endswith("The answer is 8.")
    assert sureness(first, PALETTE).plain.startswith("20 tokens, 12 of them thought")
    assert "thought" not in solution(tree, second, None, PALETTE).plain + sureness(second, PALETTE).plain


def test_tokens_are_shown_with_the_probabilities_that_are_known() -> None:
    how = {"step": "4 = 4.", "tokens": 3, "pieces": ("4", " = ", "4."), "written": {"forced": (1,)}}
    known = CandidateRecord(path=(0,), logprobs=(-0.7, 0.0, -0.01), **how)  # type: ignore[arg-type]
    unknown = CandidateRecord(path=(1,), **how)  # type: ignore[arg-type]
    tree = SearchTree()
    tree.expanded(decode(encode(Expanded(instance="a", operator="1", candidates=(known, unknown)), 0.0)))  # type: ignore[arg-type]
    first, second = tree.node((0,)), tree.node((1,))
    assert step_text(first, PALETTE).plain == step_text(second, PALETTE).plain == "4 = 4."
    told, untold = (token_table(node, 80, PALETTE).plain for node in (first, second))
    assert "0.50" in told and "0.99" in told and "0." not in untold and "1.00" not in untold
    assert "4." in untold and "! forced" in writers(second, PALETTE).plain
    assert sureness(second, PALETTE).plain == "3 tokens, 1 forced"
