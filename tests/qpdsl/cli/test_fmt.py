"""`fmt`: what is written, what is left alone, and what it exits with. The layout itself is tested with the grammar."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.errors import UsageError
from qpdsl.output import replace_text
from tests.support.cli import Run, stdin

NEAT = """\
# A comment.
model llm = "zoo/counting"

program p(problem: text) -> text {
  chat user=problem
  generate llm n=4
}
"""
UNTIDY = """\
# A comment.
model   llm="zoo/counting"
program p( problem:text )->text{
chat user = problem | generate llm   n=4
}
"""
BROKEN = "program p( {\n  generate\n}\n"


@pytest.fixture
def untidy(tmp_path: Path) -> Path:
    path = tmp_path / "untidy.qp"
    path.write_text(UNTIDY)
    return path


def test_a_file_is_laid_out_in_its_place(qpdsl: Run, untidy: Path, tmp_path: Path) -> None:
    neat = tmp_path / "neat.qp"
    neat.write_text(NEAT)
    before = neat.stat()
    ran = qpdsl("fmt", untidy, neat)
    assert (ran.code, ran.out, ran.err) == (Exit.OK, "", f"{untidy}: formatted\n")
    assert untidy.read_text() == NEAT
    assert (neat.stat().st_ino, neat.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert qpdsl("fmt", "--check", untidy, neat).code == Exit.OK
    assert {path.name for path in tmp_path.iterdir()} == {"untidy.qp", "neat.qp"}


def test_check_changes_nothing_and_says_which(qpdsl: Run, untidy: Path) -> None:
    ran = qpdsl("fmt", "--check", untidy)
    assert (ran.code, ran.out, ran.err) == (Exit.ROW_FAILED, "", f"{untidy}: would change\n")
    assert untidy.read_text() == UNTIDY


def test_diff_changes_nothing_and_shows_how(qpdsl: Run, untidy: Path) -> None:
    ran = qpdsl("fmt", "--diff", untidy)
    assert (ran.code, ran.err) == (Exit.OK, "") and untidy.read_text() == UNTIDY
    lines = ran.out.splitlines()
    assert lines[:2] == [f"--- {untidy}", f"+++ {untidy}"]
    assert '-model   llm="zoo/counting"' in lines and '+model llm = "zoo/counting"' in lines
    both = qpdsl("fmt", "--diff", "--check", untidy)
    assert (both.code, both.out) == (Exit.ROW_FAILED, ran.out)


def test_a_dash_is_stdin_to_stdout(qpdsl: Run) -> None:
    with stdin(UNTIDY.encode()):
        ran = qpdsl("fmt", "-")
    assert (ran.code, ran.out, ran.err) == (Exit.OK, NEAT, "")
    with stdin(BROKEN.encode()):
        ran = qpdsl("fmt", "-")
    assert (ran.code, ran.out) == (Exit.USAGE, "") and "--> standard input:1:" in ran.err


def test_what_does_not_parse_is_left_and_shown_and_the_rest_goes_on(qpdsl: Run, untidy: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.qp"
    broken.write_text(BROKEN)
    for option in ((), ("--check",), ("--diff",)):
        ran = qpdsl("fmt", *option, broken, tmp_path / "none.qp", tmp_path)
        assert ran.code == Exit.USAGE and broken.read_text() == BROKEN
        assert "error[QP" in ran.err and "no such file" in ran.err.lower() and "is a folder" in ran.err
    assert qpdsl("fmt", broken, untidy).code == Exit.USAGE
    assert untidy.read_text() == NEAT


def test_faults_of_meaning_do_not_matter(qpdsl: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.qp"
    path.write_text(UNTIDY.replace("llm   n", "lmm   n"))
    assert qpdsl("fmt", path).code == Exit.OK
    assert path.read_text() == NEAT.replace("generate llm", "generate lmm")


def test_a_file_that_changes_meanwhile_is_left(qpdsl: Run, untidy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qpdsl.grammar.format import formatter

    real = formatter.format_source

    def saved_by_an_editor(*given: Any) -> str:
        untidy.write_text(UNTIDY + "# more\n")
        return real(*given)

    monkeypatch.setattr(formatter, "format_source", saved_by_an_editor)
    ran = qpdsl("fmt", untidy)
    assert ran.code == Exit.USAGE and "was changed in the meantime" in ran.err
    assert untidy.read_text() == UNTIDY + "# more\n"


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.qp"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="not a regular file"):
        replace_text(pipe, NEAT)


def test_mode_and_links_stay(qpdsl: Run, untidy: Path, tmp_path: Path) -> None:
    untidy.chmod(0o640)
    link = tmp_path / "link.qp"
    link.symlink_to("untidy.qp")
    assert qpdsl("fmt", link).code == Exit.OK
    assert link.is_symlink() and untidy.read_text() == NEAT and untidy.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_file_is_not_replaced(qpdsl: Run, untidy: Path) -> None:
    untidy.chmod(0o444)
    ran = qpdsl("fmt", untidy)
    assert ran.code == Exit.USAGE and "it is read-only" in ran.err and untidy.read_text() == UNTIDY


def test_line_ends_of_windows_and_a_mark_at_the_start(qpdsl: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.qp"
    path.write_bytes(b"\xef\xbb\xbf" + UNTIDY.replace("\n", "\r\n").encode())
    assert qpdsl("fmt", path).code == Exit.OK
    assert path.read_bytes() == NEAT.encode()
