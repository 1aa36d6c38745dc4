"""The promise that nothing from outside reaches a terminal raw: no text of a user, a model, a trace or a path."""

from __future__ import annotations

import ast
import asyncio
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from textual.color import Color

from qpdsl.cli import main
from qpdsl.cli.exits import Exit
from qpdsl.executor.text.detokenizer import Detokenizer
from qpdsl.grammar.diagnostic import MAX_DIAGNOSTICS
from qpdsl.grammar.printable import one_line, printable
from qpdsl.tui.terminal import PrintableOnly
from tests.support.cli import Terminal
from tests.support.paths import ROOT
from tests.support.tui.screen import LARGE, SMALL, dashboard, press, settle
from tests.support.tui.traces import BEAM
from tests.support.user_cache import own_cache

# What a terminal obeys, what turns the direction of writing, what nobody sees, and what is no character.
PARTS = (
    "\x1b]0;title\x07", "\x1b[31m", "\x1b[2J", "\x1b[?1049h", "\x1bP+q\x1b\\", "\x9b31m", "\x9d0;x\x9c",
    *map(chr, (*range(1, 9), *range(11, 32), 127, *range(128, 160))),
    *"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u200b\u2060\ufeff\u00ad\u2028\u2029",
    "a\u200db", "x\ufe0f", "\u3164", "\U000e0041", "\ufff9", "\ue000",
)  # fmt: skip
SURROGATES = ("\ud800", "\udfff")
# What may stand in a program: no control characters.
UNSEEN = tuple(part for part in PARTS if category(part[0]) != "Cc")
_COLOUR = re.compile(r"\x1b\[(?:0|1|1;3[15])m")
_CURSOR = re.compile(r"\x1b\[\?25[hl]|\x1b\[\d*[AK]|\x1b\[2K|\r")

FUNCTIONS = """
import qpdsl as qp

BAD = {bad}

@qp.scorer
def raises(text):
    raise ValueError(BAD)

@qp.scorer
def wrong(text):
    return BAD

@qp.extractor
def hostile(text):
    return BAD
"""
PROGRAM = """
model llm = "zoo/counting-mini"
program p(problem: text) -> text {
  chat user=problem
  generate llm n=2 temperature=0.9 max_tokens=8
  STAGE
}
"""


def hostile(seed: int, parts: Sequence[str] = PARTS, count: int = len(PARTS)) -> str:
    """So many of the parts in an order of its own, with letters between them."""
    chosen = random.Random(seed).sample(parts, min(count, len(parts)))
    return "h" + "o".join(chosen) + "e"


def raw(text: str) -> list[str]:
    """The characters that may not reach a terminal; by Unicode's categories, not by the function that is tested."""
    return [
        char for char in text if char not in "\n\t" and (category(char)[0] == "C" or category(char) in ("Zl", "Zp"))
    ]


@dataclass(frozen=True)
class Shown:
    """What a command line came to on a terminal."""

    code: int
    out: str
    err: str


OnTerminal = Callable[..., Shown]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OnTerminal:
    """Runs `qpdsl` with a terminal on both streams; nothing that it prints there may be raw."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    own_cache(tmp_path / "cache", monkeypatch)
    monkeypatch.setenv("QPDSL_RUNTIME_DIR", str(tmp_path / "rt"))

    def run(*args: object, codes: tuple[int, ...] = tuple(Exit)) -> Shown:
        out, err = Terminal(), Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = main([str(arg) for arg in args])
        shown = Shown(code, out.text, err.text)
        assert raw(shown.out) == [], ascii(shown.out)
        assert raw(_CURSOR.sub("", shown.err)) == [], ascii(shown.err)
        assert code in codes and code != Exit.INTERNAL and "Traceback" not in shown.err, shown
        return shown

    return run


@pytest.fixture
def bad_folder(tmp_path: Path) -> Path:
    """A folder whose name is hostile."""
    folder = tmp_path / hostile(1)[:60].replace("/", "")
    folder.mkdir()
    return folder


@pytest.mark.parametrize("seed", range(3))
def test_programs_and_their_names(on_terminal: OnTerminal, bad_folder: Path, seed: int) -> None:
    bad = hostile(seed, UNSEEN)
    path = bad_folder / "p.qp"
    texts = (
        PROGRAM.replace("STAGE", "return nothing") + f"# {hostile(seed)}\n",
        PROGRAM.replace("STAGE", "return nothing") + f"# {bad}\n",
        PROGRAM.replace("STAGE", "return text").replace("zoo/counting-mini", json.dumps(bad)[1:-1]),
        PROGRAM.replace("STAGE", f'where "{bad}" == txt\n  return text'),
        f"program p(x: {bad}) -> text {{ return x }}",
        PROGRAM.replace("STAGE", f"keep 1 by score{bad}\n  return text"),
        bad,
    )
    for text in texts:
        path.write_text(text, "utf-8")
        for args in (("check",), ("check", "--format", "json"), ("fmt", "--diff"), ("explain",)):
            on_terminal(*args, path)
        on_terminal("explain", "-e", text)
    path.write_text(f"# {bad}" + PROGRAM.replace("model llm", "model  llm").replace("STAGE", "return text"), "utf-8")
    assert "\\u202e" in on_terminal("fmt", "--diff", path).out and "\\u" in on_terminal("check", path).out


def test_words_of_the_command_line(on_terminal: OnTerminal, bad_folder: Path) -> None:
    bad = hostile(0)
    none = bad_folder / "none"
    for args in (
        (bad,), ("run", bad), ("run", "greedy", f"--{bad}"), ("run", "greedy", "--set", bad), ("check", none),
        ("run", "greedy", "--set", f"problem={bad}", "--device", bad), ("run", none), ("explain-error", bad),
        ("run", "greedy", "--set", f"{bad}=1"), ("run", "greedy", "--set", "problem=x", "--model", f"llm={bad}"),
        ("run", "greedy", "--set", "problem=x", "--model", f"llm={none}"), ("run", "greedy", "--input", bad),
        ("run", "greedy", "--set", "problem=x", "--kv-memory", bad), ("explain", "greedy", "--disable-rule", bad),
        ("explain", "greedy", "--against", bad), ("analyze", bad), ("report", none), ("replay", none), ("top", bad),
        ("fmt", none), ("run", "greedy", "--set", "problem=x", "--python", none), ("completion", bad), ("profile", bad),
        ("calibrate", bad, "--text", none, "--output", none), ("calibrate", "zoo/counting", "--text", none),
        ("explain", "greedy", "--model", f"llm={bad}"), ("explain", "greedy", "--program", bad), ("programs", bad),
        ("run", "greedy", "--set", "problem=x", "--trace", none / "t.jsonl"), ("check", "greedy", "--allow-read", bad),
    ):  # fmt: skip
        on_terminal(*args)


def test_folders_of_the_environment(on_terminal: OnTerminal, bad_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad_folder.chmod(0o755)
    monkeypatch.setenv("QPDSL_RUNTIME_DIR", str(bad_folder))
    assert "\\u" in on_terminal("top", codes=(Exit.USAGE,)).err
    monkeypatch.setenv("XDG_CACHE_HOME", str(bad_folder))
    assert "\\u" in on_terminal("analyze").err


@pytest.fixture
def hostile_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model writes something hostile in every answer."""
    honest = Detokenizer.text

    def text(self: Detokenizer, tokens: tuple[int, ...]) -> str:
        return re.sub("[aeiou2.]", lambda found: hostile(2, count=20), honest(self, tokens))

    monkeypatch.setattr(Detokenizer, "text", text)


def functions(folder: Path) -> Path:
    path = folder / "functions.py"
    path.write_text(FUNCTIONS.format(bad=ascii(hostile(3))), "utf-8")
    return path


@pytest.mark.usefixtures("hostile_model")
def test_one_answer(on_terminal: OnTerminal, bad_folder: Path) -> None:
    path = bad_folder / "p.qp"
    problem = f"problem={hostile(4, count=20)}"
    options = ("--set", problem, "--python", functions(bad_folder), "--no-statistics", "--no-greedy")
    path.write_text(PROGRAM.replace("STAGE", "extract answer = hostile\n  return answer"), "utf-8")
    assert "\\u" in on_terminal("run", path, *options, "--rows", codes=(Exit.OK,)).out
    data = on_terminal("run", path, *options, "--json", "--analyze", codes=(Exit.OK,))
    assert json.loads(data.out)["answer"] == hostile(3).strip()
    path.write_text(PROGRAM.replace("STAGE", "score raises\n  best by score"), "utf-8")
    assert "\\u" in on_terminal("run", path, *options, codes=(Exit.ROW_FAILED,)).err


@pytest.mark.usefixtures("hostile_model")
def test_rows_their_traces_and_reports(on_terminal: OnTerminal, bad_folder: Path) -> None:
    path, rows, trace = bad_folder / "p.qp", bad_folder / "in.jsonl", bad_folder / "t.jsonl"
    path.write_text(PROGRAM.replace("STAGE", "return text"), "utf-8")
    texts = {"problem": hostile(9, count=9), "answer": hostile(8)}
    records = [{"id": f"{number}{hostile(number, count=30)}", **texts} for number in range(3)]
    rows.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    ran = on_terminal("run", path, "--input", rows, "--trace", trace, codes=(Exit.OK, Exit.ROW_FAILED))
    assert [json.loads(line)["id"] for line in ran.out.split("\n")[:-1]] == [record["id"] for record in records]
    on_terminal("run", path, "--input", rows, "--output", bad_folder / "out.jsonl", codes=(Exit.OK, Exit.ROW_FAILED))
    assert json.loads((bad_folder / "out.jsonl").read_text("utf-8").split("\n")[0])["id"] == records[0]["id"]
    for form in ("html", "chrome"):
        assert on_terminal("report", trace, "--format", form, codes=(Exit.OK,)).out.startswith("/")
    on_terminal("replay", rows, codes=(Exit.USAGE,))
    wrong = [{hostile(5): 1, "problem": "x"}, {"problem": "x", "id": "\ud800" + hostile(6)}, [hostile(7)]]
    rows.write_text("".join(f"{json.dumps(record)}\n" for record in wrong) + hostile(1), "utf-8")
    on_terminal("run", path, "--input", rows, codes=(Exit.DATA,))


def test_in_a_pipe_data_is_what_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path, hostile_model: None) -> None:
    path = tmp_path / "p.qp"
    path.write_text(PROGRAM.replace("STAGE", "return text"), "utf-8")
    args = ["run", str(path), "--set", "problem=x", "--no-statistics", "--no-greedy"]
    assert main([*args, "--json"]) == Exit.OK
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert main(args) == Exit.OK
    assert hostile(2, count=20) in answer and answer.split("\n")[0].strip() in capsys.readouterr().out


@pytest.mark.parametrize("colour", [True, False])
def test_colours_are_ours_alone_and_long_lists_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], colour: bool
) -> None:
    path = tmp_path / "p.qp"
    bad = hostile(0, UNSEEN)
    models = "".join(f'model m{number} = "{bad}"\n' for number in range(MAX_DIAGNOSTICS + 7))
    path.write_text(models + PROGRAM.replace("STAGE", "return text"), "utf-8")
    monkeypatch.setenv("NO_COLOR", "" if colour else "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["explain", str(path)])
    shown = capsys.readouterr().err
    assert bool(_COLOUR.findall(shown)) == colour and raw(_COLOUR.sub("", shown)) == []
    assert "\\u202e" in shown and shown.endswith("… and 7 more warnings\n")


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("".join(PARTS)))))
def test_a_printable_text_is_that_and_json_stays_what_it_was(text: str) -> None:
    shown = printable(text)
    joiners = "\u200c\u200d"
    assert [char for char in raw(shown) if char not in joiners] == [] and printable(shown) == shown
    assert "\n" not in one_line(text) and raw(one_line(text).replace("\u200c", "").replace("\u200d", "")) == []
    document = json.dumps({text: [text]}, ensure_ascii=False)
    assert json.loads(printable(document)) == {text: [text]}
    if not raw(text) and text.isascii():
        assert shown == text


@pytest.mark.parametrize(
    "text", ["日本語　テスト", "naïve café", "👨‍👩‍👧 ❤️‍🔥 1️⃣", "می‌خواهم", "क्‍ष", "x\u00a0y", "a\tb\nc", "e\u0301"]
)
def test_what_people_write_stays(text: str) -> None:
    assert printable(text) == text


def test_the_last_look_at_a_line_of_a_screen() -> None:
    segments = PrintableOnly().apply([Segment(f"a{part}b") for part in PARTS], Color.parse("black"))
    assert all(raw(segment.text) == [] and "\t" not in segment.text for segment in segments)


def spoilt(value: Any, key: str = "") -> Any:
    """A record of a trace with something hostile in every text, the same in the same."""
    if isinstance(value, dict):
        return {
            spoilt(name) if key in ("models", "columns") else name: spoilt(part, name) for name, part in value.items()
        }
    if isinstance(value, list):
        return [spoilt(part, key) for part in value]
    if isinstance(value, str) and key not in ("kind", "status"):
        return f"{value[:40]}{hostile(len(value), (*PARTS, *SURROGATES), 5)}\x1b\n\t{value[40:]}"
    return value


@pytest.fixture(scope="module")
def hostile_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run with something hostile in every text of it."""
    first, *lines = BEAM.read_text("utf-8").splitlines()
    path = tmp_path_factory.mktemp("hostile") / "beam.jsonl"
    path.write_text("\n".join([first, *(json.dumps(spoilt(json.loads(line))) for line in lines)]) + "\n", "utf-8")
    return path


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_no_cell_of_the_dashboard(hostile_trace: Path, size: tuple[int, int]) -> None:
    async def look() -> None:
        async with dashboard(hostile_trace, size) as pilot:
            for key in ("1", "enter", "escape", "2", "enter", "escape", "v", "3", "4", "d", "escape", "n"):
                shown = await press(pilot, key)
                assert raw(shown.replace("\n", "")) == [] and "\t" not in shown, (key, ascii(shown))
                assert len(shown.split("\n")) == size[1]
                if key in ("1", "2", "3", "4"):
                    assert "\\u" in shown
            await settle(pilot)

    asyncio.run(look())


def test_reports_of_hostile_traces(on_terminal: OnTerminal, hostile_trace: Path, tmp_path: Path) -> None:
    for form in ("html", "chrome"):
        target = tmp_path / f"report.{form}"
        on_terminal("report", hostile_trace, "--format", form, "--output", target, codes=(Exit.OK,))
        assert raw(target.read_text("utf-8")) == []


def _printing(path: Path) -> Iterator[str]:
    """The calls in a file that print something other than a constant."""
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)) if re.search(r"print|echo|std(out|err)\.write", text) else ():
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            prints = re.fullmatch(r"print|click\.s?echo|traceback\.print\w+|sys\.std(out|err)\.write(lines)?", name)
            if prints and not all(isinstance(arg, ast.Constant) for arg in node.args):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def test_nothing_prints_but_the_console() -> None:
    # A process of its own, whose standard output is a pipe to ours.
    others = ("executor/runtime/instance/mathematics.py",)
    files = [path for top in ("grammar", "planner", "executor", "tui", "qpdsl") for path in (ROOT / top).rglob("*.py")]
    files = [path for path in files if not str(path.relative_to(ROOT)).startswith(others)]
    assert [call for path in files for call in _printing(path)] == []
