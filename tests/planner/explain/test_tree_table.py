"""Lines of a plan in the width that there is: none is wider, nothing is cut, and the tree's strokes go on."""

from __future__ import annotations

import random

import pytest

from qpdsl.grammar.printable import cells
from qpdsl.planner.explain.plan import explain
from qpdsl.planner.explain.tree_table import folded, laid_out
from qpdsl.planner.explain.versions import compare, trace
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan as naive
from tests.planner.explain.test_analyze import analysis
from tests.support.planner.lowered import lowered

WORDS = (
    "generate",
    "llm",
    "n=4",
    'stop="\n\n"',
    "日本語の列",
    "e\u0301",
    "temperature=0.8",
    "x" * 30,
    "·",
    "\u202e",
    "1 row",
)


def tree(chance: random.Random) -> list[list[str]]:
    """Lines with strokes before them and up to five cells beside them."""
    lines, depth = [], 0
    for _ in range(chance.randrange(1, 9)):
        strokes = "│ " * max(depth - 1, 0) + (chance.choice(["├ ", "└ "]) if depth else "")
        text = " ".join(chance.choices(WORDS, k=chance.randrange(1, 7)))
        cells_ = [" ".join(chance.choices(WORDS, k=chance.randrange(0, 4))) for _ in range(chance.randrange(0, 6))]
        lines.append([f"{strokes}{text}", *cells_])
        depth = max(0, min(depth + chance.choice([-1, 0, 1]), 4))
    return lines


def letters(texts: list[str]) -> str:
    """What is written, without the space and the strokes around it."""
    return "".join("".join(texts).replace("\\u202e", "\u202e").split()).translate(dict.fromkeys(map(ord, "│├└⏎")))


@pytest.mark.parametrize("seed", range(24))
def test_no_line_is_wider_and_nothing_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    lines, width = tree(chance), chance.choice([30, 40, 57, 80, 120, 200, 1000])
    entries = laid_out(lines, width=width, right=(1,))
    assert len(entries) == len(lines)
    for line, entry in zip(lines, entries, strict=True):
        assert all(cells(shown) <= width and shown == shown.rstrip() for shown in entry)
        assert letters(entry) == letters(line)
    assert all(len(entry) == 1 for entry in laid_out(lines))


def test_notes_are_folded_at_words() -> None:
    note = "rows: the most that parameters at their defaults can give, over all rounds"
    lines = list(folded(note, 30))
    assert all(len(line) <= 30 for line in lines) and lines[1].startswith("  ")
    assert " ".join(line.strip() for line in lines) == note and list(folded(note, None)) == [note]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_plans_analyses_and_comparisons_fit_a_terminal(width: int) -> None:
    analyzed = analysis()
    plan = analyzed.plan
    for shown in (analyzed.text(width), explain(plan, width), compare(plan, plan, width)):
        assert max(map(cells, shown.split("\n"))) <= width
    assert analyzed.text() == str(analyzed)


def test_how_a_plan_came_about_fits_too() -> None:
    text = 'chat user=q | generate "zoo/counting" n=8 temperature=0.8 | score "zoo/counting-prm" | best by score'
    shown = trace(optimize(naive(lowered(text))), 60)
    assert max(map(cells, shown.split("\n"))) <= 60 and "share_prefixes" in shown
