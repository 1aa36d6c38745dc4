"""Shell completion: what is proposed, and that a real bash takes the script."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from tests.support.cli import Run
from tests.support.paths import ROOT


@pytest.fixture
def propose(qpdsl: Run, monkeypatch: pytest.MonkeyPatch) -> object:
    def run(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", "\n".join(["qpdsl", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setenv("_QPDSL_COMPLETE", "bash_complete")
        ran = qpdsl()
        monkeypatch.delenv("_QPDSL_COMPLETE")
        assert (ran.code, ran.err) == (0, "")
        return [line.partition(",")[2] for line in ran.out.splitlines() if line]

    return run


def test_commands_and_options(propose) -> None:  # type: ignore[no-untyped-def]
    assert {"run", "fmt", "explain-error"} <= set(propose(""))
    assert propose("explain-") == ["explain-error"]
    assert "--input" in propose("run", "--in")
    assert "QP203" in propose("explain-error", "qp20")


def test_what_profile_takes(propose) -> None:  # type: ignore[no-untyped-def]
    assert "llama-3-70b" in propose("profile", "--roofline", "llama-3")
    assert propose("profile", "--roofline", "zoo/counting", "--hardware", "h") == ["H100", "H200", "here"]
    assert propose("profile", "--surface", "beam") == ["beam_search"]


def test_programs_shipped_and_files(propose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beach.qp").touch()
    (tmp_path / "beach.txt").touch()
    (tmp_path / "bed").mkdir()
    (tmp_path / "bed" / "one.qp").touch()
    assert propose("run", "be") == ["beam_search", "best_of_n", "best_of_n_logprob", "beach.qp", "bed/"]
    assert propose("run", "bed/") == ["bed/one.qp"]
    assert propose("fmt", "be") == ["beach.qp", "bed/"]
    assert propose("run", "nowhere/x") == []


def test_names_of_the_program_on_the_line(propose, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    names = ["problem=", "width=", "expand=", "depth=", "system=", "temperature=", "max_tokens="]
    assert propose("run", "beam_search", "--set", "") == names
    names.remove("width=")
    assert propose("run", "beam_search", "--set", "width=2", "--set", "") == names
    assert propose("run", "beam_search", "--set", "wi") == ["width="]
    assert propose("run", "beam_search", "--model", "") == ["llm=", "prm="]
    assert propose("run", "beam_search", "--model", "llm=zoo/counting-p") == ["llm=zoo/counting-prm"]
    assert propose("run", "beam_search", "--model", "llm", "=", "zoo/counting-p") == ["zoo/counting-prm"]
    assert propose("run", "beam_search", "--adapter", "p") == ["prm="]
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora.qp").touch()
    assert propose("run", "beam_search", "--adapter", f"prm={tmp_path}/lo") == [f"prm={tmp_path}/lora/"]
    assert "counting-500" in propose("run", "beam_search", "--input", "cou")
    broken = tmp_path / "broken.qp"
    broken.write_text('program p(a: text) { chat user="\n')
    for name in (str(broken), "nowhere.qp", str(tmp_path)):
        assert propose("run", name, "--set", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(qpdsl: Run, shell: str) -> None:
    ran = qpdsl("completion", shell)
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert f"_QPDSL_COMPLETE={shell}_complete" in ran.out
    assert qpdsl("completion", "tcsh").code == Exit.USAGE


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script(qpdsl: Run, tmp_path: Path) -> None:
    tool = tmp_path / "qpdsl"
    tool.write_text(f'#!/bin/sh\ncd "{ROOT}" && exec "{sys.executable}" -m qpdsl "$@"\n')
    tool.chmod(0o755)
    (tmp_path / "script").write_text(qpdsl("completion", "bash").out)
    line = f"""
    PATH={tmp_path}:$PATH; source {tmp_path}/script 2>/dev/null
    compopt() {{ :; }}
    COMP_WORDS=(qpdsl run beam_search --set wi); COMP_CWORD=4
    _qpdsl_completion qpdsl wi --set; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "--norc", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.stdout == "width=\n", done.stderr
