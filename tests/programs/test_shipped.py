"""The programs that ship: in the one layout, without a warning, and with an answer on the built-in models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from family.tasks.records import SCHEMAS, evaluation_notes
from qpdsl import zoo
from qpdsl.cli.exits import Exit
from qpdsl.session.programs import shipped_programs
from tests.support.cli import Run

PROBLEM = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
SMALL = {
    "beam_search": ("width=2", "expand=2"),
    "best_of_n": ("n=4",),
    "best_of_n_logprob": ("n=4",),
    "dvts": ("subtrees=2", "expand=2"),
    "lookahead": ("width=2", "expand=2"),
    "rebase": ("budget=4",),
    # The built-in models know no system turn, which search-and-learn brings.
    "sal_beam_search": ("width=2", "expand=2", "depth=8", "system="),
    "sal_best_of_n": ("n=4", "system="),
    "sal_dvts": ("subtrees=2", "expand=2", "depth=8", "system="),
    "self_consistency": ("n=4",),
    "weighted_best_of_n": ("n=4",),
}
_SOLVES = re.compile(r"\(\s*problem: text")
SOLVERS = [name for name, text in shipped_programs().items() if _SOLVES.search(text.read_text("utf-8"))]
# Where the small model is not there, the large one stands in for it.
MINI = [] if zoo.path("zoo/counting-mini").is_dir() else ["--model", "slm=zoo/counting"]


@pytest.mark.parametrize("name", shipped_programs())
def test_layout_and_checks(qpdsl: Run, name: str) -> None:
    ran = qpdsl("check", name)
    assert (ran.code, ran.out, ran.err) == (Exit.OK, f"{name}.qp: ok\n", "")
    assert qpdsl("fmt", "--check", Path(str(shipped_programs()[name]))).code == Exit.OK


@pytest.mark.parametrize("name", SOLVERS)
def test_problems_are_answered(qpdsl: Run, name: str) -> None:
    models = MINI if name == "filter_decoding" else []
    small = [part for setting in SMALL.get(name, ()) for part in ("--set", setting)]
    ran = qpdsl("run", name, "--set", f"problem={PROBLEM}", *small, *models, "--json", "--no-greedy")
    assert ran.code == Exit.OK
    assert json.loads(ran.out)["answer"].lstrip("-").isdigit()


@pytest.mark.parametrize("kind", SCHEMAS)
def test_records_are_read_from_notes(qpdsl: Run, kind: str) -> None:
    note = next(note for note in evaluation_notes(30) if note.kind == kind)
    program = "constrained_json" if kind == "person" else kind
    ran = qpdsl("run", "constrained_json", "--program", program, "--set", f"note={note.text}", "--json", "--no-greedy")
    assert ran.code == Exit.OK
    answer = json.loads(ran.out)["answer"]
    assert set(SCHEMAS[kind]["required"]) <= set(answer) <= set(SCHEMAS[kind]["properties"])


def test_text_goes_from_one_call_to_the_next(qpdsl: Run) -> None:
    ran = qpdsl("run", "outline_then_write", "--set", "topic=cards", *MINI, "--json", "--no-greedy", "--rows")
    assert ran.code == Exit.OK
    (row,) = json.loads(ran.out)["rows"]
    assert row["points"] and row["text"] == json.loads(ran.out)["answer"] != row["points"]
