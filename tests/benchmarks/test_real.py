"""The benchmark on real models, on a tiny one: sides in processes of their own, the record, its tables and goals."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.common.subjects import Subject, bytes_tokenizer
from benchmarks.engine import real, real_tables
from benchmarks.peers.peer import OnStep, Tokens
from benchmarks.peers.process import Absent, Process
from benchmarks.peers.worker import Worker

COMMAND = ["--models", "0.5B", "--dtypes", "float32", "--rows", "1", "8", "--prompts", "24", "--repeats", "1"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "f32")
    bytes_tokenizer(300).save_pretrained(folder / "f32")
    return Subject("tiny", folder / "f32", folder / "bf16", folder / "tiny.gguf")


def test_a_run_measures_its_sides_and_is_not_measured_again(
    tiny: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real, "subjects", lambda folder: {"0.5B": tiny})
    argv = ["real", "--folder", str(tmp_path), "--output", str(tmp_path), "--peers", "generate", *COMMAND]
    monkeypatch.setattr(sys, "argv", argv)
    real.main()
    record = json.loads((tmp_path / "real.json").read_text())
    assert [(case["rows"], case["lengths"]) for case in record["cases"]] == [(1, "equal"), (8, "equal"), (8, "ragged")]
    for case in record["cases"]:
        assert case["same"] == {"generate": case["rows"]}
        for replies in case["rounds"].values():
            assert len(replies) == 1
            assert all(0 < a < b for a, b in zip(replies[0]["first"], replies[0]["total"], strict=True))
            assert case["rows"] <= replies[0]["first_tokens"] < case["asked"]
    assert "| 24 | 8 | ragged |" in (tmp_path / "real.md").read_text()

    # Nothing is left to do, so nothing is started.
    monkeypatch.setattr(real, "Process", None)
    capsys.readouterr()
    real.main()
    assert "==" not in capsys.readouterr().out
    assert json.loads((tmp_path / "real.json").read_text())["cases"] == record["cases"]


def test_figures_of_another_machine_are_not_mixed_with_these(
    tiny: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real, "subjects", lambda folder: {"0.5B": tiny})
    argv = ["real", "--folder", str(tmp_path), "--output", str(tmp_path), *COMMAND]
    monkeypatch.setattr(sys, "argv", argv)
    (tmp_path / "real.json").write_text(json.dumps({"machine": {"processor": "another"}}))
    with pytest.raises(SystemExit, match="another machine"):
        real.main()


def test_a_side_that_does_not_start_or_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="does not start"):
        Process(tmp_path / "no-python", 1, 1, tmp_path / "log")
    process = Process(Path(sys.executable), 1, 1, tmp_path / "log")
    try:
        with pytest.raises(Absent, match="no side is called other"):
            process.load("other", tmp_path, "float32", real.Room(1, 8))
    finally:
        process.close()
    broken = tmp_path / "broken-python"
    broken.write_text("#!/bin/sh\nread line; echo no such library >&2; exit 3\n")
    broken.chmod(0o755)
    process = Process(broken, 1, 1, tmp_path / "log")
    with pytest.raises(Absent, match="its process ended with 3: no such library"):
        process.load("generate", tmp_path, "float32", real.Room(1, 8))
    process.close()


def test_the_first_token_of_the_last_row_ends_the_prefill() -> None:
    """What a side prints does not count, and rows may be ahead of others."""

    class Side:
        def run(self, prompts: Tokens, lengths: list[int], on_step: OnStep) -> Tokens:
            for started, tokens in ((1, 1), (1, 2), (2, 4), (2, 6)):
                on_step(started, tokens)
            return [(1, 2, 3), (4, 5, 6)]

    worker = Worker()
    with pytest.raises(ValueError, match="cannot do 'run' now"):
        worker.answer({"do": "run", "prompts": [[1], [2]], "lengths": [3, 3]})
    worker.side = Side()
    reply = worker.answer({"do": "run", "prompts": [[1], [2]], "lengths": [3, 3]})
    assert reply["tokens"] == [(1, 2, 3), (4, 5, 6)]
    assert reply["first_tokens"] == 4
    assert all(0 <= a <= b for a, b in zip(reply["first"], reply["total"], strict=True))


def record_of(dtype: str, rows: int, seconds: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """A record with a case of 64 prompt tokens and 11 tokens a row: of each side (first, total) of the rounds."""
    key = {"model": "m", "dtype": dtype, "threads": 1}
    rounds = {
        side: [
            {"first": [a, 2 * a], "total": [b, 2 * b], "first_tokens": rows, "resident": 3 << 20, "peak": 4 << 20}
            for a, b in of_side
        ]
        for side, of_side in seconds.items()
    }
    case = {**key, "prompt": 64, "rows": rows, "lengths": "equal", "tokens": 11, "asked": 11 * rows}
    return {
        "machine": {"processor": "P", "cores": 2, "python": "3", "torch": "2", "transformers": "5"},
        "sides": dict.fromkeys(seconds, "1.0"),
        "models": {"m": {"multiply_adds": 100, "bytes": {dtype: 400}}},
        "rooflines": [{**key, "read": [1000, 500], "multiply_adds": [4000, 2000], "bfloat16_multiply_adds": None}],
        "loads": [{**key, "side": side, "seconds": 1.5, "resident": 2 << 20} for side in seconds],
        "cases": [{**case, "rounds": rounds, "same": {side: rows - 1 for side in seconds if side != "qpdsl"}}],
        "absent": [{**key, "side": "llama.cpp", "why": "llama_cpp is not\ninstalled"}],
    }


def test_tables_tell_speeds_ratios_and_shares_of_the_roofline() -> None:
    # Ten tokens after the first: in 5 s of ours, 10 and 20 s of theirs.
    record = record_of("float32", 1, {"qpdsl": [(1.0, 6.0), (1.0, 6.0)], "vllm": [(2.0, 12.0), (3.0, 23.0)]})
    text = real_tables.page(record, "wall")
    # 2 steps a second of 400 bytes each, of 1000 bytes a second.
    assert "| 64 | 1 | equal | 2.0 | 80% memory | 0.8 | 3.00 (2.00–4.00) | 0/1 |" in text
    assert "| 64 | 1 | equal | 1.00 | 2.50 | 2.50 |" in text
    assert "| vllm | 1.5 s | 2 | 3 | 4 |" in text
    assert "- m float32, 1 thread(s), llama.cpp: llama_cpp is not installed" in text
    # By processor time all take twice as long, and so does the loop over memory.
    assert "| 64 | 1 | equal | 1.0 | 80% memory | 0.4 | 3.00 (2.00–4.00) | 0/1 |" in real_tables.page(record, "cpu")


def test_goals_depend_on_rows_and_weights() -> None:
    def goals(dtype: str, rows: int, peer: str) -> list[tuple[float, float, bool]]:
        record = record_of(dtype, rows, {"qpdsl": [(1.0, 2.0)], peer: [(1.0, 2.1)]})
        return [(goal.goal, goal.reached, goal.met) for goal in real_tables.goals_of(record, "wall")]

    assert goals("float32", 1, "vllm") == [(1.0, 1.1, True), (0.7, 4.0, True)]
    assert goals("bfloat16", 8, "vllm") == [(1.0, 1.1, True)]
    assert goals("bfloat16", 64, "generate") == [(1.5, 1.1, False)]
    # A row of the 64 has other tokens than `generate`.
    assert goals("float32", 64, "generate") == [(1.5, 1.1, False), (64, 63, False)]
    assert goals("quantized", 1, "llama.cpp") == [(0.9, 1.1, True)]
    assert goals("quantized", 8, "llama.cpp") == [(1.2, 1.1, False)]
    assert goals("float32", 2, "vllm") == []


@pytest.fixture
def gguf_file(tiny: Subject, tmp_path: Path) -> Iterator[Path]:
    pytest.importorskip("gguf")
    from benchmarks.peers.gguf_file import write_gguf

    file = tmp_path / "tiny.F32.gguf"
    write_gguf(LlamaForCausalLM.from_pretrained(tiny.float32, dtype=torch.float32), file)
    yield file


def test_a_recoded_file_has_the_values_of_its_type(gguf_file: Path, tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType, GGUFReader, quants

    from benchmarks.peers.gguf_file import matrix_bytes, recoded

    eight, floats = tmp_path / "tiny.Q8_0.gguf", tmp_path / "again.F32.gguf"
    recoded(gguf_file, eight, GGMLQuantizationType.Q8_0)
    recoded(eight, floats, GGMLQuantizationType.F32)
    stored, made = GGUFReader(eight), GGUFReader(floats)
    assert {str(tensor.tensor_type.name) for tensor in stored.tensors} == {"F32", "Q8_0"}
    for a, b in zip(stored.tensors, made.tensors, strict=True):
        assert a.name == b.name
        assert (quants.dequantize(a.data, a.tensor_type) == b.data).all()
    # Embeddings that are the head too, and of two layers all that is a matrix; 34 bytes hold 32 weights.
    weights = 300 * 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 64 * 128 * 3)
    assert matrix_bytes(gguf_file) == 4 * weights
    assert matrix_bytes(eight) == 34 * weights // 32


def test_bytes_and_multiply_adds_are_counted_from_the_matrices(tiny: Subject) -> None:
    weights = 300 * 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 64 * 128 * 3)
    assert tiny.multiply_adds == weights
    assert (tiny.step_bytes("float32"), tiny.step_bytes("bfloat16")) == (4 * weights, 2 * weights)
    assert tiny.token_bytes == 2 * 2 * 2 * 16 * 4
