"""`qpdsl models ID`: how a model thinks; and what a program or `--model` says of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from qpdsl import zoo
from qpdsl.cli.exits import Exit
from tests.support.cli import Run
from tests.support.paths import ROOT

TEMPLATES = ROOT / "tests" / "executor" / "text" / "chat_templates"


def tokenizer(folder: Path, template: str) -> Path:
    """A folder with a tokenizer and a configuration, and no weights."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(zoo.path("zoo/counting") / name, folder)
    shutil.copy(TEMPLATES / f"{template}.jinja", folder / "chat_template.jinja")
    return folder


def test_a_model_that_thinks_is_described(qpdsl: Run, tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "m", "fields")
    done = qpdsl("models", folder)
    assert (done.code, done.err) == (Exit.OK, "")
    assert done.out == (
        f"{folder} thinks before it answers; found in the chat template\n"
        r"""    opened by              "<think>\n", which the model writes
    closed by              "\n</think>\n\n"
    think=                 on (by default), off
    thoughts of past turns are kept since the last user turn
    field of a message     reasoning_content
"""
    )
    found = json.loads(qpdsl("models", folder, "--format", "json").out)["thinking"]
    assert found["switches"] == {"on": {"enable_thinking": True}, "off": {"enable_thinking": False}}
    assert (found["open"], found["history"], found["opened"]) == ("<think>\n", "since_user", [])


@pytest.mark.parametrize("id", ["zoo/counting", "zoo/counting think=none"])
def test_a_model_that_does_not_think(qpdsl: Run, id: str) -> None:
    done = qpdsl("models", id)
    assert (done.code, done.out) == (Exit.OK, f"{id} does not think before it answers\n")
    assert json.loads(qpdsl("models", id, "--format", "json").out) == {"model": id, "thinking": None}


def test_a_note_says_why_it_is_used_as_one_that_does_not_think(qpdsl: Run, tmp_path: Path) -> None:
    done = qpdsl("models", tokenizer(tmp_path / "m", "elsewhere"))
    assert done.code == Exit.OK and "does not think" in done.out
    assert done.err == "note: its chat template does not keep a thought between <think> and </think>\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["zoo/cuonting"], Exit.MODEL, "did you mean `zoo/counting`?"),
        (["zoo/counting think=<think>"], Exit.USAGE, "what opens and what closes a thought"),
        (["vllm:http://127.0.0.1:1/v1#m"], Exit.USAGE, "only the server knows the chat template"),
        (["zoo/counting", "--probe", "http://127.0.0.1:1/v1"], Exit.USAGE, "goes without ID"),
    ],
)
def test_what_cannot_be_described_is_refused(qpdsl: Run, arguments: list[str], code: Exit, words: str) -> None:
    done = qpdsl("models", *arguments)
    assert done.code == code and words in done.err


def test_a_model_option_says_how_it_thinks(qpdsl: Run) -> None:
    options = ("greedy", "--set", "problem=What is 3 times 4?")
    whole = qpdsl("run", *options)
    said = qpdsl("run", *options, "--model", "llm=zoo/counting think=none")
    assert (said.code, said.out) == (Exit.OK, whole.out)
    wrong = qpdsl("run", *options, "--model", "llm=zoo/counting think=<think>")
    assert wrong.code == Exit.USAGE
    assert 'error: `--model`: `think` takes what opens and what closes a thought, as in "<think>|</think>"' in wrong.err
