"""Tools on the command line: how they are handed in, and that a run that was killed calls nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.errors import UsageError
from qpdsl.session.surroundings import read_surroundings
from tests.support.cli import Run
from tests.support.paths import ROOT

TOOL = '''
import os, signal
from pathlib import Path

def look(q: str) -> str:
    """Looks something up."""
    log = Path(os.environ["TOOL_LOG"])
    with log.open("a") as file:
        file.write(q.encode().hex() + "\\n")
    if os.environ.get("TOOL_KILL") and len(log.read_text().splitlines()) >= int(os.environ["TOOL_KILL"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return q.upper()[:10]

def each(q: str):
    yield q

def some(*q: str) -> str:
    return q[0]

nameless = lambda q: q
'''
SEARCH = """
model llm = "zoo/counting"
program p(problem: text) -> text {
  chat user=problem
  repeat 3 {
    generate llm n=2 temperature=0.8 max_tokens=6
    tool look(q="{text} {problem}") at_most=1 into seen
    say " {seen} "
    keep 2 by logprob
  }
  best by logprob
}
"""
TREE = """
model llm = "zoo/counting"
program p(problem: text) -> text {
  chat user=problem
  search puct by tokens simulations=6 per_round=2 {
    generate llm n=2 temperature=0.8 max_tokens=6
    tool look(q="{text} {problem}") at_most=1 into seen
    say " {seen} "
  }
  join text = text sep="|"
  return text
}
"""
BAD = (
    ("look", "takes NAME=FILE.py:FUNCTION"),
    ("look=tools.py", "no Python function"),
    ("look=tools.py:nothing", "has no function `nothing`"),
    ("a b=tools.py:look", "takes NAME=FILE.py:FUNCTION"),
    ("look=tools.py:look safe", "`safe` is unknown"),
    ("look=tools.py:Path", "`look` is a class"),
    ("look=tools.py:each", "`look` is a generator"),
    ("look=tools.py:some", "its arguments have no schema"),
    ("look=tools.py:os", "has no function `os`"),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOL, "utf-8")
    return tmp_path / "tools.py"


@pytest.mark.parametrize(("setting", "why"), BAD)
def test_what_is_no_tool_is_said(setting: str, why: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    with pytest.raises(UsageError, match=why):
        read_surroundings(tools=[setting])


def test_a_function_is_a_tool_under_the_name_that_it_is_given(file: Path) -> None:
    surroundings = read_surroundings(tools=[f"web={file}:look effects"])
    form = surroundings.environment(None).tools["web"]
    assert form.schema == {
        "type": "object",
        "properties": {"q": {"type": "string"}},
        "required": ["q"],
        "additionalProperties": False,
    }
    assert (form.returns, form.description) == ("text", "Looks something up.")
    assert surroundings.python != read_surroundings(tools=[f"web={file}:look"]).python


def test_a_function_without_a_name_gets_one(file: Path) -> None:
    assert read_surroundings(tools=[f"web={file}:nameless"]).environment(None).tools["web"].returns == "unknown"


def test_a_run_with_tools_is_not_asked_again_and_their_file_is_not_run(
    qpdsl: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TOOL_LOG", str(tmp_path / "log"))
    (tmp_path / "p.qp").write_text(SEARCH, "utf-8")
    tool = ("--tool", f"look={file}:look")
    run = ("run", tmp_path / "p.qp", "--input", "counting-500", "--limit", 1, "--no-greedy", *tool)
    ran = qpdsl(*run, "--save-samples")
    assert ran.code == Exit.OK, ran.err
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", "utf-8")
    for command in (["verify", "last"], ["whatif", "last", "--set", "n=1"]):
        ran = qpdsl(*command)
        assert ran.code == Exit.USAGE and "would call tools again" in ran.err, ran.err
    assert not (tmp_path / "ran").exists()
    file.write_text(TOOL, "utf-8")
    over = qpdsl(*run, "--output", file)
    assert over.code == Exit.USAGE and "a file of `--tool`" in over.err


@pytest.mark.parametrize(("search", "care"), [(TREE, ""), (SEARCH, " effects")])
def test_a_search_that_was_killed_goes_on_and_calls_nothing_twice(
    qpdsl: Run, search: str, care: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, log = tmp_path / "p.qp", tmp_path / "log"
    program.write_text(search, "utf-8")
    for name, value in {"XDG_DATA_HOME": tmp_path / "data", "TOOL_LOG": log, "PYTHONPATH": ROOT}.items():
        monkeypatch.setenv(name, str(value))
    run = ["run", str(program), "--input", "counting-500", "--limit", "2", "--no-greedy"]
    run += ["--tool", f"look={file}:look{care}"]

    def run_apart(*more: str, kill: str = "") -> tuple[int, str, str]:
        command, own = [sys.executable, "-m", "qpdsl", *run, *more], {**os.environ, "TOOL_KILL": kill}
        # Files, as what a killed process leaves running would hold pipes open.
        with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
            code = subprocess.run(command, env=own, stdout=out, stderr=err, timeout=120, cwd=tmp_path).returncode
        return code, (tmp_path / "out").read_text("utf-8"), (tmp_path / "err").read_text("utf-8")

    assert run_apart(kill="9")[0] == -signal.SIGKILL
    before = log.read_text("utf-8").splitlines()
    code, shown, told = run_apart("--resume")
    assert code == 0 and "going on with run" in told, told
    calls = Counter(log.read_text("utf-8").splitlines())
    log.unlink()
    straight = qpdsl(*run)
    made = Counter(log.read_text("utf-8").splitlines())
    # The call in which the run was killed is made again, unless the tool has effects: its row is told then.
    lost = "error: it was called before this run was interrupted"
    if care:
        assert all(lost in bytes.fromhex(call).decode() for call in calls - made) and lost in shown
        assert calls[before[-1]] <= made[before[-1]]
    else:
        assert calls - made == Counter(before[-1:]) and not made - calls
        assert shown == straight.out
