"""What a newcomer types first does what the pages say: the README's answers, and the project of the first model."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from qpdsl.session.project import read_project
from tests.docs.test_commands import commands
from tests.docs.test_tutorial import is_shown
from tests.support.cli import Run
from tests.support.paths import ROOT
from tests.support.user_cache import own_cache

README, PAGE = (ROOT / name for name in ("README.md", "docs/start/first_model.md"))
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    monkeypatch.setenv("QPDSL_RUNS", str(tmp_path / "runs"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def shown_after(text: str, words: str) -> list[str]:
    """The lines of the block behind the first block of shell that has the words."""
    found = re.search(rf"```sh\n[^`]*{re.escape(words)}[^`]*```\n\n```\n(.*?)\n```", text, re.DOTALL)
    assert found, words
    return found[1].splitlines()


def test_the_readmes_answers_are_those_that_are_given(qpdsl: Run) -> None:
    text = README.read_text("utf-8")
    line = next(line for line in text.splitlines() if "&& .venv/bin/qpdsl run" in line)
    ran = qpdsl(*shlex.split(line.rpartition(".venv/bin/qpdsl ")[2]))
    assert ran.out.splitlines() == shown_after(text, "qpdsl run beam_search")
    compared = [shown.words for shown in commands(README) if re.search("counting-500 --limit 40|diff", shown.text)]
    assert [words[0] for words in compared] == ["run", "run", "diff"]
    out = [qpdsl(*words) for words in compared][-1].out
    assert is_shown([" ".join(line.split()) for line in out.splitlines()], shown_after(text, "qpdsl diff"))


def test_the_pages_project_is_read() -> None:
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
