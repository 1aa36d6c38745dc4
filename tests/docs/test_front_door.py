"""What a newcomer types first does what the pages say: the README's answers, and the commands of the first model."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.session.project import read_project
from tests.docs.test_tutorial import is_shown
from tests.support.cli import Run
from tests.support.paths import ROOT
from tests.support.user_cache import own_cache

README, PAGE = (ROOT / name for name in ("README.md", "docs/start/first_model.md"))
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = ("Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?", "What is 2 + 2?")


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


def commands(path: Path) -> list[str]:
    """The commands in blocks of shell, lines that go on joined."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.partition("  #")[0] for line in lines if line.startswith("qpdsl ")]


def test_the_readmes_answers_are_those_that_are_given(qpdsl: Run) -> None:
    text = README.read_text("utf-8")
    line = next(line for line in text.splitlines() if "&& .venv/bin/qpdsl run" in line)
    ran = qpdsl(*shlex.split(line.rpartition(".venv/bin/qpdsl ")[2]))
    assert ran.out.splitlines() == shown_after(text, "qpdsl run beam_search")
    compared = [
        shlex.split(command)[1:] for command in commands(README) if re.search("counting-500 --limit 40|diff", command)
    ]
    assert [words[0] for words in compared] == ["run", "run", "diff"]
    out = [qpdsl(*words) for words in compared][-1].out
    assert is_shown([" ".join(line.split()) for line in out.splitlines()], shown_after(text, "qpdsl diff"))


def test_the_first_models_commands_run(qpdsl: Run) -> None:
    """With a built-in model in the place of the file, which is not here."""
    rows = [{"question": question, "answer": "#### 12"} for question in QUESTIONS]
    Path("gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = {}
    for command in commands(PAGE):
        words = shlex.split(command.replace(FILE, "zoo/counting").replace("max_tokens=256", "max_tokens=24"))
        ran[words[1]] = qpdsl(*words[1:])
        assert ran[words[1]].code in (Exit.OK, Exit.ROW_FAILED), ran
    assert "found" in ran["run"].err and Path("smol.jsonl").exists() and "reference" in ran["runs"].out


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
