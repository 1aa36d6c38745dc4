"""`qpdsl profile --roofline` and `--surface`: what is printed, what is refused, and that nothing is loaded for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qpdsl import zoo
from qpdsl.cli.exits import Exit
from tests.support.cli import Run
from tests.support.user_cache import own_cache

MODELLESS = """\
program modelless(problem: text) -> text {
  prompt "{problem}"
  return text
}
"""
FOUR = ("--hardware", "4x A100-80GB")


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(tmp_path / "cache", monkeypatch)


def data(qpdsl: Run, *args: object) -> Any:
    ran = qpdsl("profile", *args, "--json")
    assert (ran.code, ran.err) == (Exit.OK, "")
    return json.loads(ran.out)


def test_the_table_of_the_lesson(qpdsl: Run) -> None:
    """126, 252 and 504 sequences of 4,096 tokens, with the lesson's round 140 GB; 70.55 G parameters take more."""
    lesson = data(qpdsl, "--roofline", "llama-3-70b", *FOUR, "--weights", "140GB")
    (four,) = lesson["hardware"]
    assert [part["users"]["4096"] for part in four["memory_parts"]] == [126, 252, 504]
    assert [part["kv_type"] for part in four["memory_parts"]] == ["fp16", "fp8", "int4"]
    counted = data(qpdsl, "--roofline", "Llama-3-70B", *FOUR)
    assert [part["users"]["4096"] for part in counted["hardware"][0]["memory_parts"]] == [125, 250, 501]
    assert counted["weight_bytes"] == 2 * counted["model"]["parameters"] == 2 * 70_553_706_496


def test_the_text_for_all_hardware(qpdsl: Run) -> None:
    ran = qpdsl("profile", "--roofline", "zoo/counting")
    assert (ran.code, ran.err) == (Exit.OK, "")
    for name in ("A100-80GB", "4x A100-80GB", "H100", "H200", "L4", "RTX 4090", "Xeon"):
        assert name in ran.out
    for words in ("zoo/counting: 2.6M parameters", "ops:byte", "activations", "what to try next", "sources"):
        assert words in ran.out


def test_options_choose_the_columns(qpdsl: Run) -> None:
    shown = data(
        qpdsl, "--roofline", "zoo/counting-mini", "--hardware", "l4", "--hardware", "here", "--context", "1k",
        "--context", "100", "--batch", 2, "--batch", 2, "--kv", "int8", "--weights", "int8",
    )  # fmt: skip
    l4, here = shown["hardware"]
    assert (l4["name"], here["name"]) == ("L4", "here") and "nominal" in here["source"]
    assert list(l4["memory_parts"][0]["users"]) == ["1024", "100"]
    assert list(shown["intensities"]) == ["2"] and shown["weight_bytes"] == shown["model"]["parameters"]


def test_a_model_by_its_folder_its_configuration_or_its_file(qpdsl: Run, tmp_path: Path) -> None:
    folder = zoo.path("zoo/counting")
    by_name = data(qpdsl, "--roofline", "zoo/counting", "--hardware", "L4")
    assert by_name["model"]["parameters"] == zoo.builtin("zoo/counting").parameters  # type: ignore[union-attr]
    # The files of the weights hold little else than the weights.
    stored = (folder / "model.safetensors").stat().st_size
    assert by_name["weight_bytes"] == stored
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((folder / "config.json").read_bytes())
    for place in (bare, bare / "config.json"):
        alone = data(qpdsl, "--roofline", place, "--hardware", "L4")
        assert alone["model"]["stored_bytes"] is None
        assert {**alone["model"], "name": "", "stored_bytes": 0} == {**by_name["model"], "name": "", "stored_bytes": 0}


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--roofline", "nowhere/at/all"), Exit.MODEL, "no folder or file"),
        (("--roofline", "some/model"), Exit.MODEL, "nothing is downloaded"),
        (("--roofline", "broken.json"), Exit.MODEL, "cannot be read"),
        (("--roofline", "list.json"), Exit.MODEL, "no JSON object"),
        (("--roofline", "missing.json"), Exit.MODEL, "there is no file"),
        (("--roofline", "zoo/conting"), Exit.MODEL, "did you mean"),
        (("--roofline", "llama-3-8b", "--hardware", "H10"), Exit.USAGE, "did you mean `H100`"),
        (("--roofline", "llama-3-8b", "--weights", "heavy"), Exit.USAGE, "`--weights` takes"),
        (("--roofline", "llama-3-8b", "--weights", "50%"), Exit.USAGE, "`--weights` takes"),
        (("--roofline", "llama-3-8b", "--context", "0"), Exit.USAGE, "above 0"),
        (("--roofline", "llama-3-8b", "--context", "many"), Exit.USAGE, "above 0"),
        (("--roofline", "llama-3-8b", "--kv", "fp4"), Exit.USAGE, "fp4"),
        (("--roofline", "llama-3-8b", "zoo/counting"), Exit.USAGE, "measures nothing"),
        (("--roofline", "llama-3-8b", "--force"), Exit.USAGE, "measures nothing"),
        (("--roofline", "llama-3-8b", "--surface", "greedy"), Exit.USAGE, "give one of them"),
        (("--hardware", "L4"), Exit.USAGE, "`--hardware` needs `--roofline`"),
        (("--kv-memory", "1GiB"), Exit.USAGE, "`--kv-memory` needs `--surface`"),
        (("--surface", "nothing.qp"), Exit.USAGE, "nothing.qp"),
        (("--surface", "beam_search", "--kv-memory", "lots"), Exit.USAGE, "no amount of memory"),
        (("--surface", "modelless.qp"), Exit.USAGE, "calls no model"),
        (("--set", "width=8"), Exit.USAGE, "`--set` needs `--surface`"),
        (("--plan", "naive"), Exit.USAGE, "`--plan` needs `--surface`"),
        (("--surface", "best_of_n", "--set", "n=0"), Exit.USAGE, "at least 1"),
        (("--surface", "beam_search", "--set", "wdth=8"), Exit.USAGE, "did you mean `width`"),
        (("--surface", "beam_search", "--model", "lm=zoo/counting"), Exit.USAGE, "`--model`"),
        (("--surface", "beam_search", "--disable-rule", "dense"), Exit.USAGE, "there is no rule"),
        (("--surface", "beam_search", "zoo/counting"), Exit.USAGE, "measures nothing"),
    ],
)
def test_what_is_refused(
    qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], code: Exit, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text('{"model_type": ')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "modelless.qp").write_text(MODELLESS)
    ran = qpdsl("profile", *args)
    assert (ran.code, ran.out) == (code, "")
    assert words in ran.err


def test_the_surface_of_a_search(qpdsl: Run) -> None:
    ran = qpdsl("profile", "--surface", "beam_search", "--kv-memory", "8MiB")
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert "KV memory 8.0 MiB" in ran.out and "min-max:" in ran.out
    assert "a device that was not measured" in ran.out
    shown = data(qpdsl, "--surface", "beam_search", "--kv-memory", "8MiB")
    assert set(shown["rates"]) == {"zoo/counting", "zoo/counting-prm"}
    assert shown["optimum"]["rate"] > 0 and sum(shown["optimum"]["shares"].values()) == pytest.approx(1)


def test_the_surface_is_of_the_program_as_run_would_run_it(qpdsl: Run) -> None:
    usual = data(qpdsl, "--surface", "best_of_n")
    wide = data(qpdsl, "--surface", "best_of_n", "--set", "n=64")
    assert wide["optimum"]["rate"] < usual["optimum"]["rate"]
    small = data(qpdsl, "--surface", "best_of_n", "--model", "llm=zoo/counting-mini")
    assert set(small["rates"]) == {"zoo/counting-mini", "zoo/counting-prm"}
    assert data(qpdsl, "--surface", "best_of_n", "--plan", "naive")["rates"] != usual["rates"]
