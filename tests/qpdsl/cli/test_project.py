"""`qpdsl.toml`: what it gives to commands, that it is said, and what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qpdsl import zoo
from qpdsl.cli.exits import Exit
from qpdsl.session.project import project_file
from tests.support.cli import Run, write_rows

PROGRAM = """\
model llm = "zoo/counting"

program echo(problem: text, style: text = "plain", n: int = 1) -> text {
  chat user=problem
  generate llm n=n max_tokens=2
  best by logprob
  return "{style} {n}"
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    monkeypatch.chdir(place)
    (place / "echo.qp").write_text(PROGRAM)
    write_rows(place / "rows.jsonl", [{"problem": "one"}, {"problem": "two"}, {"problem": "three"}])
    return place


def test_it_gives_what_the_command_line_does_not(qpdsl: Run, folder: Path) -> None:
    (folder / "other.qp").write_text(PROGRAM.replace("style", "other"))
    (folder / "qpdsl.toml").write_text(
        '[models]\nllm = "zoo/counting-mini"\nother = "./none"\n[set]\nstyle = "long, and odd"\nn = 2\nother = 1\n'
        "stile = 1\n"
        '[data]\nrows = "rows.jsonl"\n[defaults]\nlimit = 2\nseed = 3\nserver-timeout = 5\n'
    )
    ran = qpdsl("run", "echo.qp", "x", "--set", "n=4", "--no-greedy", "--json")
    assert json.loads(ran.out)["answer"] == "long, and odd 4"
    noted, warned = ran.err.splitlines()
    assert noted == "note: by qpdsl.toml: llm is zoo/counting-mini, style=long, and odd, seed=3"
    vain = "warning: qpdsl.toml: [set] is for parameters, and no program here has `stile`; did you mean `style`?"
    assert warned == vain and vain in qpdsl("settings").err
    rows = qpdsl("run", "echo.qp", "--input", "rows", "--model", "llm=zoo/counting", "--no-greedy")
    assert len(rows.out.splitlines()) == 2 and "counting-mini" not in rows.err and "limit=2" in rows.err
    compared = qpdsl("eval", "echo.qp", "--input", "rows", "--limit", "1", "--format", "json")
    assert compared.code == Exit.OK, compared.err
    assert "by qpdsl.toml" not in qpdsl("run", "echo.qp", "x", "--no-greedy", "-q").err
    assert "llm is zoo/counting-mini" in qpdsl("explain", "echo.qp").err
    shown = {one["name"]: one for one in json.loads(qpdsl("settings", "--format", "json").out)}
    assert shown["--seed"] == {"name": "--seed", "value": "3", "from": str(folder / "qpdsl.toml")}
    assert shown["--device"]["from"] == "built in" and shown["models.llm"]["value"] == "zoo/counting-mini"


def test_a_run_is_saved_with_what_the_project_gave(qpdsl: Run, folder: Path) -> None:
    (folder / "qpdsl.toml").write_text(
        '[servers]\ngpu = "vllm:http://127.0.0.1:9/v1"\n[models]\nllm = "zoo/counting-mini"\n[set]\nn = 2\n'
        '[data]\nrows = "rows.jsonl"\n[defaults]\nlimit = 2\ndeterministic = false\n'
    )
    assert qpdsl("run", "echo.qp", "--input", "rows", "--no-greedy").code == Exit.OK
    assert qpdsl("eval", "echo.qp", "--input=rows", "--set", "n=2,3", "--limit", "1").code == Exit.OK
    (folder / "qpdsl.toml").unlink()
    for run in ("last", "last-2"):
        again = qpdsl("verify", run, "--rows", "1")
        assert again.code == Exit.OK and "the same to the byte" in again.out, again.err
    command = json.loads(qpdsl("runs", "show", "last-2", "--format", "json").out)["command"]
    added = ["--model=llm=zoo/counting-mini", "--set=n=2", "--limit=2"]
    assert command == ["run", "echo.qp", "--input", "rows.jsonl", "--no-greedy", *added]


def test_a_row_is_known_by_its_own_text(qpdsl: Run, folder: Path) -> None:
    style = "a style that is longer than the problem"
    ran = qpdsl("run", "echo.qp", "--input", "rows.jsonl", "--set", f"style={style}", "--trace", "rows.trace")
    assert ran.code == Exit.OK
    assert qpdsl("run", "echo.qp", "one", "--set", f"style={style}", "--trace", "one.trace").code == Exit.OK
    for trace, asked in (("rows.trace", ["one", "two", "three"]), ("one.trace", ["one"])):
        events = map(json.loads, (folder / trace).read_text().splitlines())
        assert next(event["asked"] for event in events if event.get("kind") == "InputListed") == asked


def test_a_folder_that_the_environment_moves_says_so(qpdsl: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QPDSL_RUNS", str(folder / "runs"))
    shown = {one["name"]: one for one in json.loads(qpdsl("settings", "--format", "json").out)}
    wanted = {"name": "saved runs", "value": str(folder / "runs"), "from": "the environment, QPDSL_RUNS"}
    assert shown["saved runs"] == wanted


def test_the_only_model_of_a_program_needs_no_name(qpdsl: Run, folder: Path) -> None:
    ran = qpdsl("run", "greedy", "--input", "counting-500", "--limit", "1", "--model", "zoo/counting-mini")
    assert ran.code == Exit.OK
    assert "--model llm=zoo/counting-mini" in qpdsl("runs", "show", "last").out
    assert qpdsl("check", "greedy", "--model", "zoo/counting-mini").code == Exit.OK
    assert qpdsl("check", "beam_search", "--model", "zoo/counting-mini").code == Exit.USAGE
    assert "memory" in qpdsl("profile", "--surface", "greedy", "--model", "zoo/counting-mini").out


def test_a_server_has_a_name(qpdsl: Run, folder: Path) -> None:
    (folder / "qpdsl.toml").write_text('[servers]\ngpu = "vllm:http://127.0.0.1:9/v1"\n[defaults]\ndevice = "cuda"\n')
    ran = qpdsl("explain", "echo.qp", "--model", "llm=gpu:org/name")
    assert ran.code == Exit.OK and ran.err == "note: by qpdsl.toml: llm is vllm:http://127.0.0.1:9/v1#org/name\n"
    assert "127.0.0.1:9" in ran.out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[data]\nrows = "../secret.jsonl"', "is not in"),
        ('[data]\nrows = "link.jsonl"', "is not in"),
        ('[defaults]\npython = "evil.py"', "[defaults] takes no `python`"),
        ("[defaults]\nallow-code = true", "[defaults] takes no `allow-code`"),
        ('[defaults]\noutput = "x"', "[defaults] takes no `output`"),
        ('[defaults]\ngrader = "python:evil.py:f"', "[defaults] takes no `grader`"),
        ('[servers]\nollama = "openai:http://evil/v1"', "names no server of yours"),
        ('[servers]\ngpu = "http://evil/v1"', "a server is"),
        ('[model]\nllm = "x"', "there is no section `model`; did you mean `models`?"),
        ("models = 3", "is a section"),
        ("[models", "qpdsl.toml"),
        ("[models]\nllm = ../x.gguf # mine", 'put the text in quotes: `llm = "../x.gguf"`'),
        ('[defaults]\nseed = "x"', "seed"),
    ],
)
def test_what_it_cannot_say(qpdsl: Run, folder: Path, text: str, words: str) -> None:
    (folder.parent / "secret.jsonl").write_text('{"problem": "secret"}\n')
    (folder / "link.jsonl").symlink_to(folder.parent / "secret.jsonl")
    (folder / "qpdsl.toml").write_text(text)
    ran = qpdsl("run", "echo.qp", "--input", "rows")
    assert ran.code == Exit.USAGE and words in ran.err and ran.out == ""


def test_a_text_is_never_the_name_of_a_file(qpdsl: Run, folder: Path) -> None:
    secret = folder.parent / "secret.txt"
    secret.write_text("secret")
    (folder / "qpdsl.toml").write_text(f'[set]\nstyle = "@{secret}"\n')
    ran = qpdsl("run", "echo.qp", "x", "--no-greedy", "--json")
    assert json.loads(ran.out)["answer"] == f"@{secret} 1"


def test_it_is_that_of_the_folder_or_of_its_checkout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "qpdsl.toml").write_text("")
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert project_file() is None
    (folder / ".git").mkdir()
    assert project_file() == folder / "qpdsl.toml"
    (folder / "a" / ".git").mkdir()
    assert project_file() is None


def test_a_project_is_begun(qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    begun = qpdsl("init")
    assert begun.code == Exit.OK and "set `llm` in qpdsl.toml" in begun.out
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {"solve.qp", "qpdsl.toml", "problems.jsonl"}
    ran = qpdsl("run", "solve.qp", "--input", "problems", "--set", "n=2", "--limit", "3")
    assert ran.code == Exit.OK and len(ran.out.splitlines()) == 3 and "answer" in ran.out
    own = "system=Solve the problem step by step. End with: The answer is N."
    assert "zoo/counting knows counting problems" in qpdsl("run", "solve.qp", "What is 2 + 3?", "--set", own).err
    again = qpdsl("init", "--model", "llm.gguf")
    assert again.code == Exit.USAGE and "is there already" in again.err
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert qpdsl("init", "--model", "zoo/counting-mini").code == Exit.OK
    assert "llm is zoo/counting-mini, system=Solve" in qpdsl("explain", "solve.qp").err
    assert Path("problems.jsonl").read_bytes() == before["problems.jsonl"]
    (tmp_path / "third").mkdir()
    monkeypatch.chdir(tmp_path / "third")
    assert "there is no `llm.gguf`" in qpdsl("init", "--model", "llm.gguf").err and not list(Path().iterdir())
    misspelt = qpdsl("init", "--model", "vlm:http://127.0.0.1:9/v1#m")
    assert "did you mean `vllm:`?" in misspelt.err and not list(Path().iterdir())
    assert "no config.json" in qpdsl("init", "--model", str(tmp_path)).err and not list(Path().iterdir())
    assert "the program's model is `llm`" in qpdsl("init", "--model", f"slm={tmp_path}").err
    model = str(zoo.path("zoo/counting"))
    assert qpdsl("init", "--model", f"llm={model}").code == Exit.OK
    assert f'llm = "{model}"' in Path("qpdsl.toml").read_text("utf-8")
    assert "Tim has 3 apples" in Path("problems.jsonl").read_text("utf-8")
