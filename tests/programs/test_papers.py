"""Programs from papers and practice, each as its authors describe it: they can be said, and what they give is known."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import qpdsl as qp
from tests.support.golden import check

FOLDER = Path(__file__).parent / "papers"


@pytest.mark.filterwarnings("ignore::qpdsl.QpWarning")
def test_all_can_be_said_and_give_what_they_say() -> None:
    functions = qp.load_functions(FOLDER / "functions.py")
    shapes = {}
    for path in sorted(FOLDER.glob("*.qp")):
        program = qp.load(path, functions=functions)
        shapes[path.stem] = inspect.formatannotation(inspect.signature(program).return_annotation)
        assert program.explain()
    check(FOLDER / "results.txt", "\n".join(f"{name}: {shape}" for name, shape in shapes.items()))
