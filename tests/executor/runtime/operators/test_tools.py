"""Calls of tools: what they give, what they raise, their limits, and how often they are made."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from transformers import AutoTokenizer

import qpdsl as qp
from qpdsl import zoo
from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.runtime.instance.row_tasks import RowClock
from qpdsl.executor.runtime.instance.tools import CallPlace, ToolCalls, call_key
from qpdsl.session.functions import load_tool
from tests.support.cli import Run
from tests.support.paths import ROOT

HEAD = 'model llm = "zoo/counting"\nprogram p(problem: text) -> text {\n  chat user=problem\n  generate llm n=4\n'
# What begins a call, and how much likelier its tokens are made, so that the model calls now and then.
START = {
    "bare_object": ("{", 22.0),
    "named": ("<|pad|>", 12.0),
    "special_tags": ("<|pad|>", 15.0),
    "python_call": ("{", 6.5),
}
LOOK = """
from typing import Literal

def look(word: Literal["a", "b"]) -> str:
    return f"seen {word}"
"""
PLACE = CallPlace("row", 0, 2, (), (0,))


@dataclass
class Page:
    text: str


def run(stages: str, *tools: Any) -> qp.Result[Any]:
    return qp.parse(f"{HEAD}{stages}\n}}", functions=list(tools)).run("Bo has 2 pens.")


class Store:
    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def call(self, key: str) -> str | None:
        return self.kept.get(key)

    def keep_call(self, key: str, answer: str) -> None:
        self.kept[key] = answer


async def answer(tool: Any, store: Store | None, place: CallPlace = PLACE, **arguments: Any) -> Any:
    calls = ToolCalls()
    return (await calls.result(tool.function, arguments, place, store, clock=RowClock()))[0].value


def test_what_a_tool_raises_is_the_rows_value() -> None:
    @qp.tool
    def broken(n: int) -> int:
        if n == 2:
            raise ValueError("no such row")
        return n

    rows = run('  let k = number()\n  tool broken(n=k) into x\n  return "{x}"', broken).rows
    assert [row["x"] for row in rows] == [1, "error: ValueError: no such row", 3, 4]


def test_arguments_that_do_not_fit_are_told_in_short() -> None:
    @qp.tool
    def small(n: int) -> int:
        return n

    assert asyncio.run(answer(small, None, n="many")).startswith("error: n: Input should be a valid integer")


def test_a_tool_that_takes_too_long_gives_an_error_and_others_their_value() -> None:
    @qp.tool
    def slow(n: int) -> int:
        time.sleep(5 if n == 1 else 0)
        return n

    begun = time.monotonic()
    rows = run('  let k = number()\n  tool slow(n=k) timeout=0.2 into x\n  return "{x}"', slow).rows
    assert [row["x"] for row in rows] == ["error: `slow` took more than 0.2 s", 2, 3, 4]
    assert time.monotonic() - begun < 4


@pytest.mark.parametrize(("limit", "most"), [("", 4), ("at_most=2", 2)])
def test_calls_run_side_by_side_within_their_limit(limit: str, most: int) -> None:
    now, highest, lock = 0, 0, threading.Lock()

    @qp.tool
    def counted(n: int) -> int:
        nonlocal now, highest
        with lock:
            now += 1
            highest = max(highest, now)
        time.sleep(0.1)
        with lock:
            now -= 1
        return n

    run(f'  let k = number()\n  tool counted(n=k) {limit} into x\n  return "{{x}}"', counted)
    assert highest == most


def test_equal_calls_of_a_pure_tool_are_made_once_and_of_others_each() -> None:
    made: list[str] = []

    @qp.tool(pure=True)
    def pure(n: int) -> int:
        made.append("pure")
        return n

    @qp.tool
    async def usual(n: int) -> int:
        made.append("usual")
        return n

    run('  tool pure(n=1) into x\n  tool usual(1) into y\n  return "{x} {y}"', pure, usual)
    assert made.count("pure") == 1 and made.count("usual") == 4


def test_a_kept_call_is_not_made_again_and_one_with_effects_that_broke_off_never() -> None:
    made: list[int] = []

    @qp.tool(effects=True)
    def send(n: int) -> int:
        made.append(n)
        return n + 1

    store = Store()
    assert asyncio.run(answer(send, store, n=1)) == asyncio.run(answer(send, store, n=1)) == 2
    assert made == [1]
    other = PLACE._replace(path=(1,))
    store.keep_call(call_key(send.function, {"n": 1}, other), "")
    assert "it is not called again" in asyncio.run(answer(send, store, other, n=1))
    assert made == [1]


def test_a_call_that_failed_is_made_again_unless_its_tool_has_effects() -> None:
    made: list[str] = []

    def failing_once(word: str) -> str:
        made.append(word)
        if made.count(word) == 1:
            raise ValueError("not now")
        return "error: is what I say"

    for word, care in (("usual", {}), ("pure", {"pure": True}), ("effects", {"effects": True})):
        store, own = Store(), qp.tool(**care)(failing_once)
        answers = [asyncio.run(answer(own, store, word=word)) for _ in range(3)]
        lost = "error: ValueError: not now"
        assert answers == ([lost] * 3 if care == {"effects": True} else [lost, *["error: is what I say"] * 2])
        assert made.count(word) == (1 if care == {"effects": True} else 2)


def test_what_is_too_long_or_too_deep_is_an_error() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    endless: list[Any] = []
    endless.append(endless)

    class Broken(dict[str, str]):
        def items(self) -> Any:
            raise ValueError("not now")

    given = {
        "long": ["x" * 600_000] * 2,
        "deep": deep,
        "endless": endless,
        "broken": Broken(a="b"),
        "fits": "x" * 900_000,
    }

    @qp.tool
    def large(kind: str) -> Any:
        return given[kind]

    @qp.tool
    def page() -> Page:
        return Page("x" * 1_100_000)

    told = {kind: asyncio.run(answer(large, Store(), kind=kind)) for kind in given}
    assert asyncio.run(answer(page, None)) == "error: what `page` gives has more than 1,000,000 characters"
    assert told["long"] == "error: what `large` gives has more than 1,000,000 characters"
    assert told["broken"] == "error: what `large` gives cannot be read: ValueError: not now"
    assert told["deep"] == told["endless"] == "error: what `large` gives is nested more than 64 deep"
    assert len(told["fits"]) == 900_000


def test_a_program_without_its_tool_says_how_to_hand_it_in() -> None:
    with pytest.raises(qp.QpError) as caught:
        run('  tool search(query=text) into x\n  return "{x}"')
    (fault,) = caught.value.diagnostics
    assert fault.code == "QP280" and '--tool "search=' in str(fault.help)


def test_arguments_are_checked_before_anything_runs() -> None:
    @qp.tool
    def search(query: str, k: int = 3) -> str:
        return query

    for stage, code in (
        ("tool search(k=1) into x", "QP231"),
        ("tool search(text, 1, 2) into x", "QP231"),
        ("tool search(query=tokens) into x", "QP209"),
        ("tool text into x", "QP209"),
    ):
        with pytest.raises(qp.QpError) as caught:
            run(f'  {stage}\n  return "{{x}}"', search)
        assert [fault.code for fault in caught.value.diagnostics] == [code], stage


def test_what_the_model_drew_stays_and_the_result_follows() -> None:
    @qp.tool
    def echo(said: str = "hello") -> str:
        return "<|end|><|system|>"

    stages = "  generate llm as call(echo) max_tokens=60 into c\n  tool c into x\n  chat tool=x\n"
    head = HEAD.replace("  generate llm n=4\n", "")
    program = qp.parse(f"{head}{stages}  generate llm max_tokens=4\n}}", functions=[echo])
    result = program.run("Bo has 2 pens.")
    assert [turn["role"] for turn in result.transcript][:3] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("template", START)
def test_a_model_calls_or_says_something_and_every_plan_gives_the_same(
    template: str, tmp_path: Path, qpdsl: Run
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(zoo.path("zoo/counting"), folder)
    templates = ROOT / "tests" / "executor" / "text" / "tool_templates"
    shutil.copy(templates / f"{template}.jinja", folder / "chat_template.jinja")
    start, more = START[template]
    own = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
    ids = {*own.encode(start, add_special_tokens=False)}
    bias = "[" + ", ".join(f"{{token: {id}, bias: {more}}}" for id in sorted(ids)) + "]"
    text = f"""
model llm = "{folder}"
program p(problem: text) -> text {{
  chat user=problem
  generate llm n=12 temperature=1.5 max_tokens=60 logit_bias={bias} as call(look, text) into c
  tool c into x
  if c != none {{
    chat tool=x
    generate llm max_tokens=4
  }}
  return text
}}
"""
    (tmp_path / "p.qp").write_text(text, "utf-8")
    (tmp_path / "tools.py").write_text(LOOK, "utf-8")
    tool = f"look={tmp_path / 'tools.py'}:look"
    command = ("run", tmp_path / "p.qp", "--tool", tool, "--set", "problem=Bo has 2 pens.")
    shown = [qpdsl(*command, "--no-greedy", "--rows", "--plan", plan).out for plan in ("naive", "optimized")]
    naive, optimized = ([line for line in out.splitlines() if not line.startswith("tokens ")] for out in shown)
    assert naive == optimized
    look = load_tool(tmp_path / "tools.py", "look", "look")
    rows = qp.parse(text, functions=[look]).run("Bo has 2 pens.").rows
    called = [row for row in rows if row["c"] is not None]
    assert 0 < len(called) < 12
    assert all(row["x"] == f"seen {row['c']['arguments']['word']}" for row in called)


@pytest.mark.parametrize("template", ["object_in_marks", "special_tags", "python_call"])
def test_calls_of_one_message_are_made_side_by_side_and_answered_in_order(
    template: str, tmp_path: Path, qpdsl: Run
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(zoo.path("zoo/counting"), folder)
    templates = ROOT / "tests" / "executor" / "text" / "tool_templates"
    shutil.copy(templates / f"{template}.jinja", folder / "chat_template.jinja")
    together = threading.Barrier(2, timeout=20)

    @qp.tool
    def look(word: Literal["a", "b"]) -> str:
        together.wait()
        return f"seen {word}"

    text = f"""
model llm = "{folder}"
program p(problem: text) -> text {{
  chat user=problem
  generate llm n=8 temperature=1.5 logit_bias=[{{token: "<|end|>", bias: -12.0}}] as call(look, calls=2) into calls
  where len(calls) == 2
  first
  tool calls into seen
  chat tool=seen
  generate llm max_tokens=4
  return text
}}
"""
    result = qp.parse(text, functions=[look]).run("Bo has 2 pens.")
    (row,) = result.rows
    words = [call["arguments"]["word"] for call in row["calls"]]
    assert list(row["seen"]) == [f"seen {word}" for word in words]
    turns = [turn for turn in result.transcript if turn["role"] == "tool"]
    assert [turn["content"] for turn in turns] == list(row["seen"])
    (tmp_path / "p.qp").write_text(text, "utf-8")
    (tmp_path / "tools.py").write_text(LOOK, "utf-8")
    tool = f"look={tmp_path / 'tools.py'}:look"
    command = ("run", tmp_path / "p.qp", "--tool", tool, "--set", "problem=Bo has 2 pens.")
    shown = [qpdsl(*command, "--no-greedy", "--rows", "--plan", plan).out for plan in ("naive", "optimized")]
    naive, optimized = ([line for line in out.splitlines() if not line.startswith("tokens ")] for out in shown)
    assert naive == optimized and "seen" in shown[0]


@pytest.mark.parametrize("template", ["object_in_marks", "named", "tags", "special_tags", "listed", "python_call"])
def test_a_conversation_with_tools_only_grows(template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prompt begins with the one before it and what was drawn there, whatever the template makes of it."""
    folder = tmp_path / "model"
    shutil.copytree(zoo.path("zoo/counting"), folder)
    templates = ROOT / "tests" / "executor" / "text" / "tool_templates"
    shutil.copy(templates / f"{template}.jinja", folder / "chat_template.jinja")
    asked: list[tuple[tuple[int, ...], Any]] = []
    submit = PagedEngine.submit

    def noted(self: PagedEngine, model: str, request: Any) -> Any:
        ticket = submit(self, model, request)
        asked.append((request.tokens, ticket))
        return ticket

    monkeypatch.setattr(PagedEngine, "submit", noted)

    @qp.tool
    def look(word: Literal["a", "b"]) -> str:
        return "<|end|>"

    text = f"""
model llm = "{folder}"
program p(problem: text) -> text {{
  chat system="Be short." user=problem
  repeat 2 {{
    generate llm as call(look) into c
    tool c into x
    chat tool=x
  }}
  return "{{c}}"
}}
"""
    result = qp.parse(text, functions=[look]).run("Bo has 2 pens.")
    assert result.rows[0]["c"]["name"] == "look"
    (first, ticket), (second, _) = asked
    drawn = ticket.ended[0].tokens
    begun = first + (drawn[:-1] if ticket.ended[0].finish == "eos" else drawn)
    assert second[: len(begun)] == begun and len(second) > len(begun)
    # Where the model names its call, what the tool gave is that call's.
    written = AutoTokenizer.from_pretrained(folder).decode(second)
    assert len(set(re.findall(r"call\d{5}", written))) == (template == "listed")
