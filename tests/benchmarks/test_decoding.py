"""The benchmarks of decode plans: records and what is one, sides that agree, records of figures, tables and goals."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.decoders import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.common.subjects import Subject, bytes_tokenizer
from benchmarks.decoding import draft_tables, drafts, json_output, json_tables
from benchmarks.decoding.records import is_record, notes, tasks
from benchmarks.peers.peer import Room, Tokens
from benchmarks.peers.process import Absent
from benchmarks.peers.worker import Worker

PERSON = {
    "full_name": "Maria Lopez",
    "age": 34,
    "city_of_residence": "Lisbon",
    "occupation": "nurse",
    "marital_status": "married",
    "years_of_experience": 11,
    "languages": ["Spanish"],
}


def test_a_record_is_what_its_schema_allows() -> None:
    person = tasks(1)[0]
    assert "Maria Lopez" in person.prompt
    assert is_record(json.dumps(PERSON), person.schema)
    wrong: list[Mapping[str, Any]] = [
        {**PERSON, "age": 121},
        {**PERSON, "age": True},
        {**PERSON, "full_name": "M" * 31},
        {**PERSON, "marital_status": "engaged"},
        {**PERSON, "languages": []},
        {**PERSON, "languages": [7]},
        {**PERSON, "more": 1},
        {name: value for name, value in PERSON.items() if name != "age"},
    ]
    assert not any(is_record(json.dumps(record), person.schema) for record in wrong)
    assert not is_record(json.dumps(PERSON)[:-1], person.schema)
    assert len({task.prompt for task in tasks(16)}) == len(set(notes())) == 16


class _Here:
    """A worker in this process, in the place of one of its own. llama.cpp is not there."""

    def __init__(self, python: Path, threads: int, kv_gib: int, log: Path) -> None:
        self._worker = Worker()

    def load(self, side: str, model: Path, dtype: str, room: Room, options: Mapping[str, Any]) -> dict[str, Any]:
        if side.startswith("llama.cpp"):
            raise Absent("it is not\ninstalled")
        sizes = {"slots": room.slots, "context": room.context, "threads": room.threads}
        request = {"do": "load", "side": side, "model": str(model), "dtype": dtype, "options": options}
        return self._worker.answer({**request, **sizes})

    def write(self, prompts: Tokens, schemas: Sequence[str], limit: int, plan: Mapping[str, Any]) -> dict[str, Any]:
        request = {"do": "write", "prompts": prompts, "schemas": schemas, "limit": limit, "plan": plan}
        return self._worker.answer(request)

    def close(self) -> None:
        pass


def test_all_sides_write_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=299,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "f32")
    tokenizer = bytes_tokenizer(300)
    tokenizer.backend_tokenizer.decoder = ByteLevel()
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(299)
    tokenizer.save_pretrained(tmp_path / "f32")
    tiny = Subject("tiny", tmp_path / "f32", tmp_path / "bf16", tmp_path / "f32.gguf")
    monkeypatch.setattr(json_output, "subjects", lambda folder: {"SmolLM2-135M": tiny})
    monkeypatch.setattr(json_output, "Process", _Here)
    monkeypatch.setattr(Subject, "weights", lambda self, dtype, gguf: self.float32)
    argv = ["json_output", "--models", "SmolLM2-135M", "--rows", "1", "3", "--alone", "1", "--limit", "32"]
    monkeypatch.setattr(sys, "argv", [*argv, "--peers", "generate", "llama.cpp", "--output", str(tmp_path)])
    json_output.main()
    record = json.loads((tmp_path / "json_output.json").read_text())
    assert [case["rows"] for case in record["cases"]] == [1, 3]
    for case in record["cases"]:
        assert set(case["rounds"]) == {*json_output.PLANS, "generate"}
        assert all(same == [case["rows"]] * 2 for same in case["same"].values())
        verdicts = [verdict for of in case["rounds"].values() for reply in of for verdict in reply["verdicts"]]
        assert set(verdicts) <= {"valid", "cut"}
        jumped = case["rounds"]["without draft"][0]["counts"][0]
        assert jumped["forced"] > 10 and jumped["draws"] + jumped["forced"] == 32
        assert case["rounds"]["masked dense"][0]["counts"][0]["forced"] == 0
    assert {(row["side"], row["why"]) for row in record["absent"]} == {("llama.cpp", "it is not installed")}
    assert "| 3 | generate |" in (tmp_path / "json_output.md").read_text()
    assert (tmp_path / "json_output.svg").is_file()

    # Nothing is left to do, so nothing is started.
    monkeypatch.setattr(json_output, "Process", None)
    capsys.readouterr()
    json_output.main()
    assert "==" not in capsys.readouterr().out


def json_record(seconds: Mapping[str, Sequence[float]]) -> json_tables.Record:
    """One record of ten tokens at a time on Gemma: of each side the seconds of its rounds."""
    parts = {"steps": 1.0, "masks": 0.01, "head": 0.5, "drafts": 0.25}
    counts = {"draws": 4, "rounds": 2, "forced": 6, "drafted": 4, "accepted": 3, "allowed": [1, 3, 5], "near_ties": 0}
    rounds = {
        side: [
            {"total": [each, 2 * each], "first": [0.5, 1.0], "count": 10, "verdicts": [verdict], "parts": parts}
            | {"counts": [counts] if side in json_output.PLANS else []}
            for each, verdict in zip(of, ("valid", "cut"), strict=True)
        ]
        for side, of in seconds.items()
    }
    case = {"model": "Gemma-3-270M", "dtype": "float32", "threads": 1, "limit": 10, "rows": 1, "rounds": rounds}
    return {
        "machine": {"processor": "P", "cores": 2, "python": "3", "torch": "2", "transformers": "5"},
        "sides": [{"side": side, "version": "1.0"} for side in seconds],
        "cases": [{**case, "same": {side: [1, 2] for side in seconds}, "sample": "{}"}],
        "absent": [],
    }


def test_tables_of_json_tell_how_much_faster_and_what_the_plans_did() -> None:
    record = json_record({"qpdsl": [1.0, 2.0], "masked dense": [4.0, 12.0], "vllm": [1.0, 3.0]})
    text = json_tables.page(record, "wall")
    assert "| 1 | masked dense | 8.00 | 1.7 | 0.50 | 5.00 (4.00–6.00) | 1 | 1 | 0 | 1/2 |" in text
    # Six tokens of ten are forced, ten come of two forwards.
    assert "| 1 | qpdsl | 60% | 5.00 | 8 | 75% | 3 | 5 | 0 | 1.0% | 50.0% | 25.0% |" in text
    goals = {goal.what.split(": ")[1]: (goal.reached, goal.met) for goal in json_tables.goals_of(record, "wall")}
    assert goals == {
        "times masked dense": (5.0, True),
        "times vllm": (1.25, False),
        "share of valid or cut records": (1.0, True),
    }


def draft_record(sides: Mapping[str, Mapping[str, Any]]) -> draft_tables.Record:
    """A case of one row and 60 tokens: of each side what differs from decoding without drafts in 6 s."""
    plain = {"seconds": [6.0, 6.0], "step_seconds": 6.0, "draft_seconds": 0.0, "near_ties": 0}
    plain |= {"draws": 60, "rounds": 60, "drafted": 0, "accepted": 0}
    rounds = {side: [{**plain, **of}] for side, of in {draft_tables.NONE: {}, **sides}.items()}
    case = {
        "model": "m",
        "task": "t",
        "temperature": 0.8,
        "rows": 1,
        "tokens": 60,
        "threads": 1,
        "prompts": 1,
        "count": 60,
    }
    return {
        "machine": {"processor": "P", "cores": 2, "python": "3", "torch": "2", "transformers": "5"},
        "cases": [{**case, "rounds": rounds, "same": dict.fromkeys(rounds, 1)}],
        "absent": [{"model": "m", "side": "eagle", "why": "no head"}] * 2,
    }


def test_tables_of_drafts_tell_chance_cost_and_goals() -> None:
    # 20 rounds of three tokens; two drafted tokens a round, each right: the chance is 1.
    right = {"seconds": [2.5, 2.5], "rounds": 20, "drafted": 40, "accepted": 40, "draft_seconds": 0.2}
    # 40 rounds of 1.5 tokens of one drafted token each, half of them right.
    half = {"seconds": [6.1, 6.1], "rounds": 40, "drafted": 40, "accepted": 20, "draft_seconds": 2.0}
    record = draft_record({"model": right, "model, 4 tokens": right, "model, tree of 2 x 3": half, "ngram": half})
    text = draft_tables.page(record, "wall")
    assert "| 1 | no draft | 10.0 | | | | | | | | 1/1 |" in text
    assert "| 1 | model | 24.0 | 2.40 (2.40–2.40) | 2.0 | 100% | 100% | 3.00 | 0.05 | 8% | 1/1 |" in text
    assert "| 1 | model, tree of 2 x 3 | 9.8 | 0.98 (0.98–0.98) | 1.0 | 50% |  | 1.50 | 0.49 | 33% | 1/1 |" in text
    assert "| 1 | ngram | 9.8 | 0.98 (0.98–0.98) | 1.0 | 50% | 50% | 1.50 | 0.49 | 33% | 1/1 |" in text
    assert text.count("no head") == 1
    goals = [(goal.what.split(", ")[-1], goal.goal, goal.met) for goal in draft_tables.goals_of(record, "wall")]
    assert goals == [("model: times no draft", 2.0, True), ("ngram: times no draft", 0.97, True)]


def test_every_way_to_draft_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "LENGTHS", (4,))
    monkeypatch.setattr(drafts, "_MOST", 3)
    argv = ["drafts", "--models", "counting", "--rows", "2", "--temperatures", "0.8", "--tokens", "6"]
    monkeypatch.setattr(sys, "argv", [*argv, "--repeats", "1", "--output", str(tmp_path)])
    drafts.main()
    (case,) = json.loads((tmp_path / "drafts.json").read_text())["cases"]
    assert {"no draft", "model", "model, 4 tokens", "ngram"} <= set(case["rounds"])
    assert set(case["same"].values()) == {3}
    assert case["rounds"]["model, 4 tokens"][0]["drafted"] > 0
    assert (tmp_path / "drafts.svg").is_file()
