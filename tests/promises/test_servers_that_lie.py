"""A server with random lies, and random needs: refused before anything is sent, or done as the program says."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Run
from tests.support.remote.language import language
from tests.support.remote.stub_server import StubServer, stub

KEY = "sk-nobody-else-may-see-this"
PROBLEM = "Zoe has 3 boxes with 4 cards in each box. How many cards does Zoe have?"
LIES: tuple[dict[str, Any], ...] = (
    {"n": "ignored"},
    {"seeds": False},
    {"sampled": False},
    {"top_k": "ignored"},
    {"min_p": "ignored"},
    {"json_schema": "ignored", "text_json_schema": "ignored", "held": {}},
    {"ids": 400},
    {"prefill": None},
    {"max_completion_tokens": "ignored"},
    {"echo": "ignored", "prompt_logprobs": False, "named_logprobs": False},
    {"names_stop": None, "stop_included": None},
    {"keeps_stop": True, "names_stop": None, "stop_included": None},
    {"logprobs": None},
    {"unlimited_zero": True},
)
# How a model thinks, and what its server takes and ignores of that.
SWITCHED = {"switches": ("chat_template_kwargs",)}
THOUGHTS: tuple[dict[str, Any], ...] = (
    {},
    {"thoughts": "reasoning", **SWITCHED, "thought_bound": "thinking_token_budget"},
    {"thoughts": "reasoning", **SWITCHED, "thinks": False, "returns_thoughts": False},
    {"thoughts": "reasoning_content", "counts_thoughts": True},
    {"thoughts": "hidden", "counts_thoughts": True, "efforts": ("low", "high")},
)
THINKING_STAGES = (
    "generate llm n=3 think=off temperature=0.8 max_tokens=12",
    "generate llm n=3 think=6 temperature=0.8 max_tokens=12",
    'generate llm n=3 think="low" temperature=0.8 max_tokens=12',
    "generate llm n=2 think=on as /[0-9]{2} [a-c]/ temperature=0.8",
    "generate llm n=2 only=thought temperature=0.8 max_tokens=12",
)
STAGES = (
    "generate llm n=3 temperature=0.8 max_tokens=12",
    "generate llm n=3 temperature=0.8 top_k=5 max_tokens=12",
    "generate llm n=3 temperature=0.8 min_p=0.1 max_tokens=12",
    "generate llm temperature=0 max_tokens=12",
    'generate llm n=3 temperature=0.8 stop="e" max_tokens=12',
    "generate llm n=2 as /[0-9]{2} [a-c]/ temperature=0.8",
    'generate llm n=3 temperature=0.8 stop="e" max_tokens=12 | generate llm temperature=0.8 max_tokens=5',
)


def lying(server: StubServer, rng: random.Random) -> None:
    for lie in rng.sample(LIES, rng.randint(0, 3)):
        server.becomes(**lie)
    server.becomes(**rng.choice(THOUGHTS))


def shown(body: dict[str, Any]) -> str:
    """What the server is to go on from, as text."""
    prompt = body.get("prompt")
    ids = isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)
    return language().tokenizer.decode(prompt) if ids else json.dumps(body)


@pytest.mark.parametrize("seed", range(8))
def test_refused_or_done(seed: int, tmp_path: Path, qpdsl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    with stub("vllm") as server:
        lying(server, rng)
        monkeypatch.setenv("QPDSL_API_KEYS", f"{server.origin}={KEY}")
        tokenizer = rng.choice(("", " tokenizer=zoo/counting"))
        model = f"llm=vllm:{server.url}#{server.model}{tokenizer}"
        stages = rng.sample(STAGES, 3) + ([] if tokenizer else rng.sample(THINKING_STAGES, 2))
        for stage in stages:
            pipeline = f"chat user=problem | {stage} | return text"
            trace = tmp_path / "trace.jsonl"
            asking = ("run", "-e", pipeline, "--set", f"problem={PROBLEM}", "--model", model)
            own = (*asking, "--no-greedy", "--json", "--rows")
            server.asked.clear()
            first = qpdsl(*own, "--trace", trace, "--overwrite")
            assert KEY not in first.out + first.err
            assert KEY.encode() not in b"".join(path.read_bytes() for path in cache.rglob("*") if path.is_file())
            if first.code in (2, 4):
                # The probe's requests are short; the program's problem is in none of them.
                assert not any("Zoe" in shown(body) for body in server.bodies)
                assert re.search(r"server|within|tokenizer", first.err)
                continue
            assert first.code == 0, first.err
            assert KEY not in trace.read_text("utf-8")
            (record,) = first.records
            rows = [row["text"] for row in record["rows"]]
            if "top_k" not in stage and "n=3" in stage:
                assert len(rows) == 3 and len(set(rows)) > 1
            if " as " in stage:
                assert all(re.fullmatch(r"[0-9]{2} [a-c]", row) for row in rows)
            if 'stop="e"' in stage and stage.count("generate") == 1:
                assert all("e" not in row[:-1] for row in rows)
            asked = server.counts.requests
            (again,) = qpdsl(*own, "--plan", "naive").records
            assert [row["text"] for row in again["rows"]] == rows
            assert again["servers"]["requests"] == 0 and server.counts.requests == asked
