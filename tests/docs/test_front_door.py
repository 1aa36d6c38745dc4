"""What a newcomer types first: the project of the first model, and verifiers that know what they judge."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qpdsl.session.project import read_project
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "start" / "first_model.md"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_the_pages_project_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    Path("qpdsl.toml").write_text(re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0])
    project = read_project()
    assert project.data == {"gsm": "gsm8k.jsonl"} and project.defaults == {"limit": 10} and project.servers
    assert project.models["llm"].endswith(FILE)


def test_no_example_has_a_built_in_verifier_judge_another_model() -> None:
    """A program that asks `prm` is given one wherever its model is replaced."""
    judging = r"\b(?:best_of_n|beam_search|dvts|rebase|lookahead)\b"
    judged = re.compile(rf"qpdsl (?:run|eval|serve)[^\n]*{judging}[^\n]*--model[^\n]*llm=[^\n]*")
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for command in judged.findall(path.read_text("utf-8").replace("\\\n", " ")):
            assert "prm=" in command or "zoo/" in command, f"{path.name}: {command}"
