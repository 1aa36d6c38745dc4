"""`check`, `explain` and `models`: no model is loaded, and nothing heavy is imported."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from tests.support.cli import MISTAKEN, Run
from tests.support.paths import ROOT

HEAVY = ("torch", "transformers", "numpy", "rich")
SCRIPT = """
import json, sys
from qpdsl.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, [name for name in {heavy!r} if name in sys.modules]]), file=sys.stderr)
"""


@pytest.fixture
def mistaken(tmp_path: Path) -> Path:
    path = tmp_path / "bad.qp"
    path.write_text(MISTAKEN, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--help"], 0),
        (["run", "--help"], 0),
        (["check", "beam_search", "greedy"], 0),
        (["check", "{bad}"], 2),
        (["run", "{bad}", "--set", "problem=x"], 2),
        (["run", "greedy", "--input", "nowhere.jsonl"], 3),
        (["explain", "beam_search"], 0),
        (["models"], 0),
    ],
)
def test_imports_nothing_heavy(mistaken: Path, args: list[str], code: int) -> None:
    args = [arg.replace("{bad}", str(mistaken)) for arg in args]
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(heavy=HEAVY), *args], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert json.loads(ran.stderr.splitlines()[-1]) == [code, []]


def test_importing_qpdsl_is_quick() -> None:
    def seconds(code: str) -> float:
        best = 60.0
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
            best = min(best, time.perf_counter() - start)
        return best

    # Twice as long, at the least: both start Python and read modules, so a busy machine slows both.
    assert seconds("import qpdsl") < seconds("import asyncio")


def test_every_mistake_is_shown_with_its_place(qpdsl: Run, mistaken: Path) -> None:
    for command in (["check", mistaken], ["run", mistaken, "--set", "problem=x"], ["explain", mistaken]):
        ran = qpdsl(*command)
        assert (ran.code, ran.out) == (Exit.USAGE, "")
        lines = ran.err.splitlines()
        assert sum(line.startswith("error[QP") for line in lines) == 3
        carets = [line.split("|", 1)[1].split()[0] for line in lines if "^" in line]
        assert carets == ["^" * len(word) for word in ("txt", "lmm", "anser")]
        for line, column in ((2, 22), (4, 12), (6, 8)):
            assert f"{mistaken}:{line}:{column}" in ran.err
        assert "did you mean `llm`?" in ran.err
        assert "\033" not in ran.err


def test_errors_beyond_a_hundred_are_counted(qpdsl: Run, tmp_path: Path) -> None:
    path = tmp_path / "many.qp"
    stages = "".join(f"  score v{number}\n" for number in range(105))
    path.write_text(f'model llm = "zoo/counting"\nprogram p(q: text) {{\n  chat user=q\n  generate llm\n{stages}}}\n')
    for command in ("check", "run", "explain"):
        ran = qpdsl(command, path)
        assert ran.code == Exit.USAGE
        assert ran.err.count("error[QP") == 100 and ran.err.endswith("\n\n… and 5 more errors\n")
    ran = qpdsl("check", path, "--format", "json")
    assert len(json.loads(ran.out)) == 100 and ran.err == "\n… and 5 more errors\n"


def test_diagnostics_as_json(qpdsl: Run, mistaken: Path) -> None:
    ran = qpdsl("check", "--format", "json", mistaken, "greedy")
    findings = json.loads(ran.out)
    assert ran.code == Exit.USAGE and ran.err == ""
    assert [(finding["line"], finding["column"]) for finding in findings] == [(2, 22), (4, 12), (6, 8)]


def test_good_files_each_have_a_line(qpdsl: Run, mistaken: Path) -> None:
    ran = qpdsl("check", "greedy", mistaken, "beam_search")
    assert ran.code == Exit.USAGE
    assert ran.out == "greedy.qp: ok\nbeam_search.qp: ok\n"


def test_warnings_do_not_fail_a_check(qpdsl: Run, tmp_path: Path) -> None:
    path = tmp_path / "warned.qp"
    path.write_text(
        'model llm = "zoo/counting"\nprogram p(q: text) {\n  chat user=q\n  generate llm n=3 temperature=0\n}\n'
    )
    ran = qpdsl("check", path)
    assert (ran.code, ran.out) == (Exit.OK, f"{path}: ok\n")
    assert ran.err.startswith("warning[QP")


def test_explain_uses_the_values_set(qpdsl: Run) -> None:
    def rows(*args: str) -> list[float]:
        plan = json.loads(qpdsl("explain", "self_consistency", "--format", "json", *args).out)
        return [operator["rows"] for operator in plan["operators"]]

    assert 32 in rows() and 7 not in rows()
    assert 7 in rows("--set", "n=7") and 32 not in rows("--set", "n=7")
    text = qpdsl(
        "explain", "-e", "chat user=q | generate llm n=k temperature=1 | extract a = /x/ | vote a", "--set", "k=5"
    )
    assert text.code == Exit.OK and "n=5" in text.out


def test_a_file_in_the_way_of_a_shipped_name_wins(qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beam_search").mkdir()
    assert qpdsl("check", "beam_search").out == "beam_search.qp: ok\n"
    (tmp_path / "greedy").write_text("nonsense")
    assert qpdsl("check", "greedy").code == Exit.USAGE


def test_models_lists_what_ships(qpdsl: Run) -> None:
    ran = qpdsl("models")
    assert ran.code == Exit.OK
    assert "zoo/counting " in ran.out and "zoo/counting-prm " in ran.out and "--model llm=" in ran.out
    listed = json.loads(qpdsl("models", "--format", "json").out)
    assert [model["role"] for model in listed] == ["generator", "draft", "generator", "verifier"]
