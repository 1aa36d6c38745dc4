"""The front end stays light: checking a program needs no tensor library."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from qpdsl.grammar import codes, format, parse, render
from qpdsl.planner import baseline, explain, lower, plan
heavy = {"torch", "transformers", "numpy", "rich", "click"} & set(sys.modules)
assert not heavy, heavy
"""


def test_front_end_imports_nothing_heavy() -> None:
    subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, check=True)


def test_the_grammar_knows_nothing_of_the_planner() -> None:
    for path in (ROOT / "grammar").glob("*.py"):
        text = path.read_text("utf-8")
        assert "qpdsl.planner" not in text, path.name
        assert "qpdsl.executor" not in text, path.name
    for path in (ROOT / "planner").glob("*.py"):
        assert "qpdsl.executor" not in path.read_text("utf-8"), path.name
