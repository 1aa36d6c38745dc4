"""Every `qpdsl` command that the pages show has the options that it names, and runs, but for those that are listed.

What they print is compared where a page shows it in a block of `console`; `QPDSL_REGENERATE=1` writes it anew.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from qpdsl.cli.app import cli
from qpdsl.cli.exits import Exit
from qpdsl.session.programs import shipped_data
from tests.support.cli import Run, write_rows
from tests.support.documents import files
from tests.support.paths import ROOT
from tests.support.user_cache import own_cache

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUESTION = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
# What a built-in model takes the place of.
STAND_INS = ("./SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf", "Qwen/Qwen3-0.6B")
# What is not run here, and why not; its options are there all the same.
NOT_RUN = {
    r"qpdsl serve |qpdsl replay |--tui": "goes on until somebody ends it",
    r"qpdsl profile(?! --roofline)|--device cuda": "measures this machine, for minutes or with a GPU",
    r"ollama:|openai:|vllm:|llamacpp:|--probe": "asks a server",
    r"prm=|models/|--adapter|--roofline MODEL|--reflect": "asks a model that is not shipped, or trains one",
    r"--tool |--python ": "calls Python of the reader's, as tests/programs/test_tools.py does",
    r"qpdsl train ": "needs an extra, and trains",
    r"--ways|--budget|told\.qp": "needs what many runs left, as tests/docs/test_budgets_page.py has it",
    r"qpdsl eval self_consistency best_of_n": "takes a quarter of an hour; benchmarks recorded what it prints",
}
# Pages whose sessions go on from one another, or from what was there before: each has a test of its own.
SESSIONS = {"budgets.md", "cluster.md", "runs.md", "tutorial.md", "whatif.md"}
_CONSOLE = re.compile(r"^```console\n\$ ([^\n]*)\n(.*?)^```$", re.M | re.S)
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
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
        return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, self.text)), None)

    @property
    def small(self) -> list[str]:
        """The words of the same on two rows, by a built-in model."""
        text = re.sub(r"--limit \d+", "", self.text).replace("max_tokens=256", "max_tokens=24")
        for model in STAND_INS:
            text = text.replace(model, "zoo/counting")
        words = [QUESTION if word in ("…", "problem=…") else word for word in Shown(self.page, text).words]
        return [*words, "--limit", "2"] if "--input" in words else words


def commands(page: Path) -> list[Shown]:
    blocks = "".join(_BLOCK.findall(page.read_text("utf-8"))).replace("\\\n", " ")
    return [Shown(page, found) for found in re.findall(r"^(?:\w+=\S+ |.*\.venv/bin/)?(qpdsl .*)", blocks, re.M)]


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
def test_the_commands_of_a_page_run(page: Path, qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    monkeypatch.setenv("QPDSL_RUNS", str(tmp_path / "runs"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    prepare(page, Path())
    for shown in commands(page):
        if shown.why_not is None:
            ran = qpdsl(*shown.small)
            # A real question may have no answer by the stand-in.
            assert ran.code in (Exit.OK, Exit.ROW_FAILED), f"{shown.text}\n{ran.err}"


PRINTED = [page for page in PAGES if page.name not in SESSIONS and _CONSOLE.search(page.read_text("utf-8"))]


@pytest.mark.parametrize("page", PRINTED, ids=lambda page: page.name)
def test_a_page_shows_what_is_printed(page: Path, qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(tmp_path, monkeypatch)
    text = page.read_text("utf-8")
    for command, printed in _CONSOLE.findall(text):
        shown = Shown(page, command)
        if shown.why_not is None:
            ran = qpdsl(*shown.words)
            if os.environ.get("QPDSL_REGENERATE"):
                text = text.replace(f"$ {command}\n{printed}```", f"$ {command}\n{ran.err}{ran.out}```", 1)
            else:
                assert (ran.err + ran.out).splitlines() == printed.splitlines(), command
    if os.environ.get("QPDSL_REGENERATE"):
        page.write_text(text, "utf-8")


def test_what_is_not_run_is_shown_somewhere() -> None:
    texts = [shown.text for page in PAGES for shown in commands(page)]
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, text) for text in texts)] == []
