"""Models that are not there are told before torch is imported, and what is being loaded is said on a terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from tests.support.cli import Run
from tests.support.executor.model_files import weights, write_model
from tests.support.paths import ROOT

PROBLEM = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
COMMANDS = """
import sys
from qpdsl.cli import main
for command in sys.argv[1:]:
    print(main(command.split()), 'torch' in sys.modules, flush=True)
"""


def test_a_missing_model_is_told_before_torch_is_imported(tmp_path: Path) -> None:
    commands = [
        "run greedy --set problem=x --model llm=./nothere",
        "run greedy --set problem=x --model llm=zoo/cuonting",
        "run beam_search --set problem=x --model prm=zoo/counting",
        "run greedy --set problem=x --adapter llm=./nothere",
        "explain beam_search --model llm=./nothere",
        "explain beam_search --against naive --model prm=./nothere",
        "explain greedy --analyze --model llm=./nothere",
        "profile ./nothere",
    ]
    code = [sys.executable, "-c", COMMANDS, *commands]
    done = subprocess.run(code, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    model, usage = f"{Exit.MODEL.value} False", f"{Exit.USAGE.value} False"
    assert done.stdout.splitlines() == [model, model, usage, *[model] * 5]
    errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
    missing = "error: model `./nothere` cannot be loaded: there is no folder `nothere`"
    assert errors[0] == missing and errors[4:] == [missing] * 4
    assert errors[1].endswith("did you mean `zoo/counting`?")
    assert errors[2] == "error[QP262]: `prm`, which is `zoo/counting`, is no verifier: it writes text"
    assert errors[3].endswith("adapter `nothere`: there is no such folder")


def test_a_damaged_model_is_told_by_explain(qpdsl: Run, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    assert qpdsl("explain", "greedy", "--model", f"llm={folder}").code == Exit.OK
    (folder / "model.safetensors").write_bytes(weights("a")[:-1])
    ran = qpdsl("explain", "greedy", "--model", f"llm={folder}")
    assert ran.code == Exit.MODEL and "`model.safetensors` is cut off" in ran.err and ran.out == ""


def test_what_is_loading_is_said_where_that_is_asked(qpdsl: Run) -> None:
    run = ("run", "-e", "chat user=q | generate slm max_tokens=2", "x", "--no-greedy")
    said = "loading zoo/counting-mini …\n"
    assert said in qpdsl(*run, "-v").err and said not in qpdsl(*run).err
    assert qpdsl(*run, "-q").err == ""
    assert qpdsl(*run, "-q", "-v").code == Exit.USAGE


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("prm=./m kind=rlhflo", "there is no kind of verifier `rlhflo`; did you mean `rlhflow`?"),
        ("prm= kind=rlhflow", "`--model` takes NAME=ID or NAME=PATH"),
    ],
)
def test_a_setting_of_a_kind_is_checked(qpdsl: Run, setting: str, message: str) -> None:
    ran = qpdsl("run", "beam_search", "--set", "problem=x", "--model", setting)
    assert ran.code == Exit.USAGE and message in ran.err


def test_the_command_line_says_the_kind_of_a_verifier(qpdsl: Run, tmp_path: Path) -> None:
    """A folder of one's own, whose files do not tell it."""
    from qpdsl import zoo

    (tmp_path / "prm").symlink_to(zoo.path("zoo/counting-prm"))
    run = ("run", "best_of_n", "--set", "n=2", "--set", f"problem={PROBLEM}", "--no-greedy", "--json")
    untold = qpdsl(*run, "--model", f"prm={tmp_path / 'prm'}")
    assert untold.code == Exit.MODEL and "nothing in its files says that it is a verifier" in untold.err
    assert "`score judge(" in untold.err and "loading" not in untold.err
    (tmp_path / "own.qp").write_text(
        f'model llm = "{tmp_path / "prm"}"\nprogram own(q: text) {{ chat user=q | generate llm | score llm }}\n'
    )
    assert qpdsl("check", tmp_path / "own.qp").err == untold.err
    told = qpdsl(*run, "--model", f"prm={tmp_path / 'prm'} kind=rlhflow")
    assert told.code == Exit.OK and told.out == qpdsl(*run).out
