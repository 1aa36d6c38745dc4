"""The page about data: its commands print the notes that it shows, and its tables are what the code has."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from qpdsl.cli.commands.run import command
from qpdsl.cli.runs.run_options import RunOptions
from qpdsl.planner.plan.naive import plan
from qpdsl.runs.data.known_sets import FORMS
from qpdsl.session.programs import load_program
from qpdsl.session.surroundings import Surroundings
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "use" / "data.md").read_text("utf-8")
SHOWN = re.findall(r"^```sh\n([^`]*)^```\n\n```\n(note: .*?)^```$", PAGE, re.M | re.S)


@pytest.mark.parametrize(("commands", "printed"), SHOWN)
def test_commands_print_the_notes_that_are_shown(
    commands: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qpdsl.cli.shared_options import read_input

    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "tests" / "qpdsl" / "runs" / "data" / "published", tmp_path, dirs_exist_ok=True)
    for name, text in re.findall(r"^```csv (\S+)\n(.*?)^```$", PAGE, re.M | re.S):
        (tmp_path / name).write_text(text, "utf-8")
    for line in commands.splitlines():
        words = shlex.split(line)
        assert words[:2] == ["qpdsl", "run"]
        with command.make_context("run", words[2:]) as context:
            options = RunOptions(**context.params)
        program = load_program(options.target, None, None, Surroundings(), ())
        notes = read_input(options, plan(program), {}).notes
    assert [*notes] == printed.splitlines()


def test_every_known_form_stands_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\w+) \|$", PAGE, re.M)
    assert dict(rows) == {name: form.grader for name, form in FORMS.items()}
