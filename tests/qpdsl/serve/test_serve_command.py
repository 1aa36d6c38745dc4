"""`qpdsl serve` from the command line: a real process, and what it refuses before it loads anything."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")

from qpdsl.cli.exits import Exit
from qpdsl.executor.events.trace import LineReader, read_trace
from qpdsl.tui.state.run_state import RunState
from tests.support.cli import Run
from tests.support.paths import ROOT
from tests.support.serving.replies import until

MODEL = 'model llm = "zoo/counting"\n'
MINE = """\
program {name}(problem: text, n: int = 2) -> text {{
  chat user=problem
  generate llm n=n temperature=0.8 max_tokens=64
  return text
}}
"""


def test_it_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    command = [sys.executable, "-m", "qpdsl", "serve", "greedy", "--expose", "llm", "--port", "0", "--trace", trace]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stdout is not None
        try:
            # Where it takes long, it says before what it does.
            told = next((line for line in process.stderr if line.startswith("serving")), "")
            url = re.search(r"serving `greedy` and `llm` at (http://127\.0\.0\.1:\d+/v1)", told)
            assert url is not None, told
            turns = [
                {"role": "user", "content": "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"}
            ]
            for model, answer in (("greedy", "12"), ("llm", "3 * 4 = 12. The answer is 12.")):
                body = {"model": model, "messages": turns, "temperature": 0}
                given = httpx.post(f"{url[1]}/chat/completions", json=body, timeout=60, trust_env=False).json()
                assert given["choices"][0]["message"]["content"] == answer
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == Exit.OK
            lines = process.stderr.read().splitlines()
            assert [re.sub(r"\S+ ", "", line, count=1).split(" prompt")[0] for line in lines] == [
                f"method=POST path=/v1/chat/completions model={model} status=200" for model in ("greedy", "llm")
            ]
            assert process.stdout.read() == ""
        finally:
            process.kill()
    state = RunState()
    for event in read_trace(trace, LineReader()):
        state.add(event)
    assert [(one.program, one.status) for one in state.requests.values()] == [
        ("greedy", "answered"),
        ("llm", "answered"),
    ]


def test_with_a_dashboard_it_ends_as_without(tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
    file = tmp_path / "same.qp"
    file.write_text("program same(q: text) -> text {\n  chat user=q\n  return q\n}\n")
    env = {**os.environ, "TERM": "xterm-256color", "QPDSL_RUNTIME_DIR": str(tmp_path / "rt")}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ["-m", "qpdsl", "serve", str(file), "--port", str(port), "--tui"]
    with pexpect.spawn(sys.executable, arguments, dimensions=(24, 80), timeout=60, cwd=str(ROOT), env=env) as shown:

        def serves() -> bool:
            # What it draws has to be taken.
            shown.expect([pexpect.TIMEOUT, "never drawn"], timeout=0.1)
            try:
                return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5, trust_env=False).status_code == 200
            except httpx.TransportError:
                return False

        until(serves, 60)
        shown.kill(signal.SIGTERM)
        # What it printed comes once the terminal is as it was before.
        shown.expect(f"serving `same` at http://127\\.0\\.0\\.1:{port}")
        shown.expect(pexpect.EOF)
        shown.wait()
        assert shown.exitstatus == Exit.OK


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give programs to serve"),
        (["no_such"], "no file or shipped program"),
        (["-"], "not from standard input"),
        (["greedy", "--model", "lm=x"], "did you mean `llm`?"),
        (["greedy", "--set", "wdth=3"], "no program has the parameter `wdth`"),
        (["greedy", "--set", "problem"], "NAME=VALUE"),
        (["beam_search", "--set", "width=x"], "`width` takes a whole number"),
        (["beam_search", "--set", "width=0"], "`keep`"),
        (["beam_search", "--set", "width=2", "--default", "width=3"], "both give `width`"),
        (["greedy", "--expose", "prm"], "no program has the model `prm`"),
        (["greedy", "--expose", "greedy=zoo/counting"], "is a program here"),
        (["greedy", "--expose", "llm", "--expose", "llm"], "twice"),
        (["greedy", "--tls-key", "x"], "--tls-cert"),
        (["greedy", "--new-key", "ann"], "needs `--keys FILE`"),
        (["greedy", "--keys", "/nowhere/keys"], "cannot read `/nowhere/keys`"),
        (["greedy", "--max-cost", "1"], "--prices"),
        (["greedy", "--host", "no.such.host.invalid", "--port", "0", "--allow-anyone"], "cannot listen"),
        (["greedy", "--host", "0.0.0.0", "--port", "0"], "--allow-anyone"),
        (["greedy", "--shared-cache"], "needs `--keys`"),
        (["greedy", "--cluster", "nowhere"], "names no cluster"),
        (["greedy", "--cluster", "local:2", "--max-tokens-total", "9"], "each replica would spend as much"),
        (["greedy", "--max-per-key", "2"], "needs `--keys`"),
        (["greedy", "--access-log", "/nowhere/log"], "cannot write"),
    ],
)
def test_bad_usage(qpdsl: Run, arguments: list[str], words: str) -> None:
    ran = qpdsl("serve", *arguments)
    assert ran.code == Exit.USAGE and words in ran.err, ran.err
    assert ran.out == ""


def test_a_port_that_is_taken(qpdsl: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = qpdsl("serve", "greedy", "--port", port)
    assert ran.code == Exit.USAGE
    assert f"cannot listen at 127.0.0.1:{port}: address already in use" in ran.err and "--port 0" in ran.err


def test_bad_tls_files(qpdsl: Run, tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("none")
    ran = qpdsl("serve", "greedy", "--port", 0, "--tls-cert", tmp_path / "cert.pem")
    assert ran.code == Exit.USAGE and "--tls-cert" in ran.err
    ran = qpdsl("serve", "greedy", "--port", 0, "--tls-cert", tmp_path / "no.pem")
    assert ran.code == Exit.USAGE and "no.pem" in ran.err


def test_a_new_key_is_shown_once(qpdsl: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    first = qpdsl("serve", "--keys", file, "--new-key", "ann")
    assert first.code == Exit.OK and first.out.startswith("sk-qpdsl-")
    assert first.out.strip() not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    assert qpdsl("serve", "--keys", file, "--new-key", "bob").code == Exit.OK
    assert [line.split()[0] for line in file.read_text().splitlines()] == ["ann", "bob"]
    again = qpdsl("serve", "--keys", file, "--new-key", "ann")
    assert again.code == Exit.USAGE and "has a key of the name `ann`" in again.err
    file.write_text("nonsense\n")
    assert "line 1" in qpdsl("serve", "greedy", "--keys", file, "--port", 0).err


def test_no_file_is_read_and_written(qpdsl: Run, tmp_path: Path) -> None:
    texts = {"mine.qp": MODEL + MINE.format(name="mine"), "prices.json": "{}", "keys": "", "notes.md": "# Notes\n\na\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    named = ("--keys", tmp_path / "keys", "--prices", tmp_path / "prices.json", "--port", 0)
    qpdsl("serve", "--keys", tmp_path / "keys", "--new-key", "ann")
    for name, words in (
        ("mine.qp", "the program"),
        ("prices.json", "the file of `--prices`"),
        ("keys", "the file of `--keys`"),
        ("notes.md", "does not hold completions"),
    ):
        before = (tmp_path / name).read_bytes()
        ran = qpdsl("serve", tmp_path / "mine.qp", *named, "--completions", tmp_path / name)
        assert ran.code == Exit.USAGE and words in ran.err, ran.err
        assert (tmp_path / name).read_bytes() == before
    for name in ("mine.qp", "prices.json", "notes.md"):
        ran = qpdsl("serve", "--keys", tmp_path / name, "--new-key", "ann")
        assert ran.code == Exit.USAGE and "does not hold keys of clients" in ran.err
        assert (tmp_path / name).read_text() == texts[name]


def test_programs_of_one_name(tmp_path: Path) -> None:
    from qpdsl.serve.offered_models import offered_programs
    from qpdsl.session.settings import Settings
    from qpdsl.session.surroundings import Surroundings

    for name in ("a", "b"):
        (tmp_path / f"{name}.qp").write_text(MODEL + MINE.format(name="mine") + MINE.format(name=f"only_{name}"))
    offered = offered_programs(
        Settings(assigned=("n=3",)), [str(tmp_path / "a.qp"), str(tmp_path / "b.qp"), "greedy"], Surroundings()
    )
    assert [one.name for one in offered] == ["a/mine", "only_a", "b/mine", "only_b", "greedy"]
    assert [one.fixed for one in offered] == [("n",)] * 4 + [()]
