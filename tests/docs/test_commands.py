"""Every `qpdsl` command that the pages show has the options that it names, runs, and prints what stands behind it.

What is not run, and what is printed elsewhere, is listed with its reason.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from qpdsl.cli.app import cli
from qpdsl.cli.exits import Exit
from qpdsl.session.programs import shipped_data
from tests.support.cli import Run, write_rows
from tests.support.documents import files, is_shown, masked
from tests.support.paths import ROOT
from tests.support.user_cache import own_cache

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUESTION = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
# What a built-in model takes the place of.
STOOD_FOR = re.compile(r"(\.\.?/)?SmolLM2-135M-Instruct\.Q4_1\.gguf|Qwen/Qwen3-0\.6B")
# Pages that show what such a model said, which its stand-in does not.
REAL = {"first_model.md", "models.md"}
# What is not run here, and why not; its options are there all the same.
NOT_RUN = {
    r"qpdsl serve |qpdsl replay |--tui": "goes on until somebody ends it",
    r"qpdsl profile(?! --roofline)|--device cuda": "measures this machine, for minutes or with a GPU",
    r"ollama:|openai:|vllm:|llamacpp:|--probe": "asks a server",
    r"prm=|models/|--adapter|--roofline MODEL|--reflect": "asks a model that is not shipped, or trains one",
    r"--tool |--python ": "calls Python of the reader's, as tests/programs/test_tools.py does",
    r"qpdsl train ": "needs an extra, and trains",
    r"--ways|--budget|--policy|told\.qp": "needs what many runs left, as tests/docs/test_budgets_page.py has it",
    r"qpdsl eval self_consistency best_of_n": "takes a quarter of an hour; benchmarks recorded what it prints",
}
# Pages whose sessions go on from one another, or from what was there before: each has a test of its own.
SESSIONS = {"budgets.md", "cluster.md", "cost.md", "runs.md", "tutorial.md", "whatif.md"}
# Blocks that no command before them prints, by page and beginning, and what holds them true.
ELSEWHERE = {
    r"architecture\.md: ": "a drawing",
    r"language\.md: error\[QP203\]": "tests/docs/test_readme.py",
    r"python\.md: error\[QP203\]": "tests/docs/test_python.py",
    r"reading_a_search\.md: ": "tests/tui/test_twenty_questions_search.py",
    r"runs\.md: (A and B|B is|no diff)": "tests/docs/test_comparing_page.py",
    r"evaluation\.md: best_of_n\(n=4\)": "tests/docs/test_evaluation_page.py",
    r"evaluation\.md: note: 1,100 rows": "the quarter of an hour of the command above",
    r"remote_models\.md: error\[QP403\]": "tests/executor/remote/test_runs_on_servers.py",
    r"runs\.md: first div|models\.md: error: model `…`|decoding\.md: models/": "asks a model that is not shipped",
    r"decoding\.md: (shadows|zoo/counting: router)": "needs exit heads that were fitted for minutes",
    r"runs\.md: count-003": "a file that somebody changed",
    r"serving\.md: time=": "a line of a server that goes on",
    r"training\.md: (654|  +A)": "trains for minutes",
}
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)
# What a block of commands prints stands right behind it.
_SHELL = re.compile(r"^```sh\n(.*?)^```$(?:\n\n```(?:text)?\n(.*?)^```$)?", re.M | re.S)
_PROGRAM = re.compile(r"^```qp\n(.*?)^```$", re.M | re.S)
_PUBLISHED = ROOT / "tests" / "qpdsl" / "runs" / "data" / "published"


@dataclass(frozen=True)
class Shown:
    """A command of a page."""

    page: Path
    text: str

    @property
    def words(self) -> list[str]:
        """What stands behind `qpdsl`, without what a shell reads."""
        words = shlex.split(self.text, comments=True)[1:]
        return words[: words.index(">")] if ">" in words else words

    @property
    def why_not(self) -> str | None:
        text = f"qpdsl {' '.join(self.words)} "
        return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, text)), None)

    @property
    def small(self) -> list[str]:
        """The words of the same on two rows, by a built-in model."""
        text = re.sub(r"--limit \d+", "", self.text).replace("max_tokens=256", "max_tokens=24")
        text = STOOD_FOR.sub("zoo/counting", text)
        words = [QUESTION if word in ("…", "problem=…") else word for word in Shown(self.page, text).words]
        return [*words, "--limit", "2"] if "--input" in words else words


def sessions(page: Path) -> Iterator[tuple[list[Shown], str]]:
    """The blocks of commands, and what the last command of each is said to print: "" where nothing is said."""
    for block, printed in _SHELL.findall(page.read_text("utf-8")):
        lines = block.replace("\\\n", " ")
        found = re.findall(r"^(?:\w+=\S+ |.*\.venv/bin/|mkdir \w+ && )?((?:qpdsl|cd) .*)", lines, re.M)
        yield [Shown(page, text) for text in found], printed


def commands(page: Path) -> list[Shown]:
    return [shown for block, _ in sessions(page) for shown in block if shown.text.startswith("qpdsl ")]


def prepare(page: Path, folder: Path) -> None:
    """Makes the files that the page speaks of: those that it shows, programs by their names, and rows of data."""
    text = page.read_text("utf-8")
    for name, content in files(page).items():
        (folder / name).write_text(content, "utf-8")
    for content in _PROGRAM.findall(text):
        if found := re.search(r"^program (\w+)", content, re.M):
            (folder / f"{found[1]}.qp").write_text(content, "utf-8")
    rows = [json.loads(line) for line in shipped_data()["counting-500"].read_text("utf-8").splitlines()[:2]]
    for name in {word for shown in commands(page) for word in shown.words if word.endswith(".jsonl")}:
        if (_PUBLISHED / name).exists():
            shutil.copy(_PUBLISHED / name, folder)
        elif any(f"--input {name}" in shown.text for shown in commands(page)):
            write_rows(folder / name, rows)


SHOWN = [pytest.param(shown, id=f"{shown.page.name}:{shown.text[6:50]}") for page in PAGES for shown in commands(page)]


@pytest.mark.parametrize("shown", SHOWN)
def test_the_options_of_a_command_are_there(shown: Shown) -> None:
    with click.Context(cli, info_name="qpdsl") as root:
        name, command, rest = cli.resolve_command(root, shown.words)
        assert command is not None
        with command.make_context(name, rest, parent=root):
            pass


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_a_page_shows_what_is_printed(page: Path, qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    monkeypatch.setenv("QPDSL_RUNS", str(tmp_path / "runs"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    prepare(page, Path())
    for block, printed in sessions(page):
        compared = printed and page.name not in REAL and not any(shown.why_not for shown in block)
        out = ""
        for shown in block:
            if shown.text.startswith("cd "):
                Path(shown.text[3:]).mkdir(exist_ok=True)
                os.chdir(shown.text[3:])
            elif shown.why_not is None:
                ran = qpdsl(*(shown.words if compared else shown.small))
                out = ran.err + ran.out
                # A real question may have no answer by the stand-in.
                assert ran.code in (Exit.OK, Exit.ROW_FAILED), f"{shown.text}\n{ran.err}"
        assert not compared or is_shown(masked(out), masked(printed)), f"{block[-1].text}\n{out}"


def test_all_that_is_printed_is_compared_or_listed() -> None:
    own: list[str] = []
    reasons: set[str | None] = set()
    for page in PAGES:
        text = page.read_text("utf-8")
        behind = {found.start(2) for found in _SHELL.finditer(text) if "qpdsl " in found[1]}
        blocks = [found for found in _BLOCK.finditer(text) if found[1] in ("", "text") and found.start(2) not in behind]
        # The pages of errors are made of those that tests/docs/test_pages.py looks at.
        own += [f"{page.name}: {found[2]}" for found in blocks if page.name != "errors.md"]
        reasons |= {shown.why_not for shown in commands(page)}
        assert page.name in SESSIONS or "```console\n" not in text, f"{page.name} has no test of its session"
    assert [text for text in own if not any(re.match(pattern, text) for pattern in ELSEWHERE)] == []
    assert [pattern for pattern in ELSEWHERE if not any(re.match(pattern, text) for text in own)] == []
    assert [why for why in NOT_RUN.values() if why not in reasons] == []
