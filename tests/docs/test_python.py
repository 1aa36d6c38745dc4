"""The examples of `docs/use/python.md` run, one after another, as one file."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import qpdsl as qp
from tests.support.paths import ROOT

DOCUMENT = ROOT / "docs" / "use" / "python.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def example(text: str) -> str:
    """The Python blocks at the lines where they stand in the document."""
    lines = [""] * text.count("\n")
    for match in _BLOCK.finditer(text):
        if match[1] == "python":
            start = text.count("\n", 0, match.start(2))
            block = match[2].splitlines()
            lines[start : start + len(block)] = block
    return "\n".join(lines)


def test_the_examples_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "document.py"
    file.write_text(example(DOCUMENT.read_text("utf-8")), "utf-8")
    names = runpy.run_path(str(file))
    assert names["answer"] and "generate llm n=4" in capsys.readouterr().out


def test_the_error_is_what_python_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = DOCUMENT.read_text("utf-8")
    first, *_ = (match[2] for match in _BLOCK.finditer(text) if match[1] == "python")
    program = first.partition("\n\n\nanswer")[0]
    for right, wrong in (("score = rows.score(prm)", "rows.score(prm)"), ("width, by=score", "width, by=qp.col.scor")):
        assert right in program
        program = program.replace(right, wrong)
    program = program.replace("best(by=score", "best(by=qp.col.score")
    monkeypatch.chdir(tmp_path)
    Path("search.py").write_text(program)
    with pytest.raises(qp.QpError) as caught:
        runpy.run_path(str(tmp_path / "search.py"))
    (shown,) = (match[2] for match in _BLOCK.finditer(text) if not match[1])
    assert str(caught.value) + "\n" == shown


def test_the_document_names_all_that_there_is() -> None:
    text = DOCUMENT.read_text("utf-8")
    types = {"Extractor", "Model", "Plan", "Program", "Result", "Rows", "Scorer", "Tokens", "UserError"}
    named = set(re.findall(r"qp\.(\w+)", text))
    assert set(qp._HOME) - named <= types | {"amortized", "epsilon", "exact"}
    assert named <= set(qp._HOME)
