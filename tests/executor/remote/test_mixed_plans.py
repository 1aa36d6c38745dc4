"""Programs of which one model is on a server and another one here, and what a server is asked to judge."""

from __future__ import annotations

import asyncio
import math
import re
import time
from pathlib import Path

import pytest

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.session.session import Session
from tests.support.executor.programs import run_all, texts
from tests.support.remote.stub_server import StubServer, language, reward_of, stub
from tests.support.user_cache import own_cache

LIES = {
    "blind vllm": {"prompt_logprobs": False, "named_logprobs": False},
    "silent vllm": {"logprobs": None, "named_logprobs": False},
}
DIALECTS = {"vllm": "vllm", "sglang": "sglang", "llama-server": "llamacpp"}


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found out about another server on the same port is not kept."""
    own_cache(tmp_path / "cache", monkeypatch)


def place(server: StubServer, tokenizer: str = "zoo/counting") -> str:
    return f"{DIALECTS[server.traits.name]}:{server.url}#{server.model} tokenizer={tokenizer}"


def ran(
    program: str, *, naive: bool = False, rows: int = 2, seed: int = 1, session: Session | None = None
) -> list[InstanceResult]:
    """The results of a program's text on a few problems."""
    plan = planned(lower(parse_file(Source("p.qp", program)), None, Environment()), naive=naive)
    session = session or Session(threads=1, completions="none")
    return run_all(plan, [{"problem": text} for text in texts(rows)], seed=seed, session=session)


def outcome(results: list[InstanceResult]) -> list[object]:
    assert [result.error for result in results] == [None] * len(results)
    return [(result.value, [row.generated.tokens for row in result.rows]) for result in results]


def gateway(server: StubServer, options: str) -> str:
    return f"""model llm = "{place(server)}"
model slm = "zoo/counting-mini"
program p(problem: text) -> text {{
  chat user=problem
  generate llm n=2 via filter(slm, 0.9) {options} max_tokens=20
  vote text
  return text
}}"""


@pytest.mark.parametrize(
    ("kind", "options"),
    [("vllm", "temperature=0"), ("vllm", 'temperature=0.9 stop="."'), ("sglang", "temperature=0.9")],
)
def test_small_model_here_and_large_one_there(kind: str, options: str, tmp_path: Path) -> None:
    with stub(kind) as server:
        program = gateway(server, options)
        kept = tmp_path / "kept.sqlite"
        expected = outcome(ran(program, naive=True))
        server.bodies.clear()
        results = ran(program, session=Session(threads=1, completions=kept))
        assert outcome(results) == expected
        large = sum(result.counts["large_draws"] for result in results)
        assert large > 4 and sum(result.counts["filter_sure"] for result in results) > 0
        asked = sum(result.counts["requests"] for result in results)
        assert asked >= large
        before = server.counts.requests
        again = ran(program, session=Session(threads=1, completions=kept))
        assert outcome(again) == expected
        # Another session asks who the server is, and for nothing that was drawn.
        assert sum(result.counts["requests"] for result in again) == 0
        assert sum(result.counts["replayed"] for result in again) == asked
        assert server.counts.requests - before < 8


def test_what_is_given_up_leaves_nothing_at_the_server() -> None:
    with stub("vllm") as server:
        session = Session(threads=1, completions="none")
        plan = planned(lower(parse_file(Source("p.qp", gateway(server, "temperature=0.9"))), None, Environment()))
        session.load(plan)
        server.pace = 0.5

        async def main() -> None:
            async with session.running():
                runs = [asyncio.ensure_future(session.run(plan, {"problem": text}, 1)) for text in texts(2)]
                while not server.counts.serving:
                    await asyncio.sleep(0.01)
                for run in runs:
                    run.cancel()
                await asyncio.gather(*runs, return_exceptions=True)

        asyncio.run(main())
        deadline = time.monotonic() + 20
        while server.counts.serving and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.counts.serving == 0 and server.counts.aborted > 0


def scored_here(server: StubServer) -> str:
    return f"""model llm = "{place(server)}"
model prm = "zoo/counting-prm" kind=rlhflow
program p(problem: text) -> float {{
  chat user=problem
  generate llm n=3 temperature=0.9 max_tokens=20
  score prm
  best by score
  return score
}}"""


def scored_there(server: StubServer, kind: str = "rlhflow") -> str:
    return f"""model llm = "zoo/counting-mini"
model prm = "{place(server)}" kind={kind}
program p(problem: text) -> float {{
  chat user=problem
  generate llm n=3 temperature=0.9 max_tokens=40
  score prm
  best by score
  return score
}}"""


def test_generator_there_and_verifier_here() -> None:
    with stub("vllm") as server:
        expected = outcome(ran(scored_here(server), naive=True))
        assert outcome(ran(scored_here(server))) == expected


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_generator_here_and_verifier_there(kind: str) -> None:
    with stub(kind) as server:
        results = ran(scored_there(server))
        assert outcome(results) == outcome(ran(scored_there(server), naive=True))
        assert all(0 < result.value < 1 for result in results if isinstance(result.value, float))
        assert sum(result.counts["requests"] for result in results) > 0
        session = Session(threads=1, completions="none")
        ran(scored_there(server), session=session)
        verifier = session.text_model(place(server)).verifier
        assert verifier is not None
        for result, problem in zip(results, texts(2), strict=True):
            reads = verifier.reads(problem, result.rows[0].generated.text)
            assert reads is not None
            row = language().logits(reads.tokens[: reads.positions[-1] + 1])
            plus, minus = (float(row[id]) for id in reads.ids)
            assert result.value == pytest.approx(1 / (1 + math.exp(minus - plus)), abs=2e-5)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_reward_model_there(kind: str) -> None:
    with stub(kind, reward=True) as server:
        session = Session(threads=1, completions="none")
        results = ran(scored_there(server, "outcome"), session=session)
        assert outcome(results) == outcome(ran(scored_there(server, "outcome"), naive=True))
        verifier = session.text_model(place(server)).verifier
        assert verifier is not None
        for result, problem in zip(results, texts(2), strict=True):
            reads = verifier.reads(problem, result.rows[0].generated.text)
            assert reads is not None
            assert result.value == pytest.approx(reward_of(list(reads.tokens)), abs=2e-5)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize(
    "stages",
    [
        'SOME\n score judge(llm, "Mark it.") as int(0..12) reduce=expected\n best by score',
        'SOME\n score judge(llm, "Mark it.") as int(1..5)\n best by score',
        'SOME\n score prob(llm, "Is {text} right?", "Yes", "No") into sure\n best by sure',
        'SOME\n best by compare(llm, "{problem}: A: {a.text} or B: {b.text}?")',
        'generate llm n=4 temperature=0.9 as choice("12 apples", "12 pears", "seven")\n vote text',
    ],
)
def test_asked_there(kind: str, stages: str) -> None:
    with stub(kind) as server:
        program = f"""model llm = "{place(server)}"
model slm = "zoo/counting-mini"
program p(problem: text) -> text {{
  chat user=problem
  {stages}
  return text
}}"""
        program = program.replace("SOME", "generate slm n=3 temperature=1 max_tokens=20")
        results = ran(program)
        assert outcome(results) == outcome(ran(program, naive=True))
        assert sum(result.counts["requests"] for result in results) > 0


def test_the_probability_of_an_answer_is_the_servers() -> None:
    with stub("vllm") as server:
        program = f"""model llm = "{place(server)}"
program p(problem: text) -> float {{
  chat user=problem
  score prob(llm, "Is it? {{problem}}", "yes", "no") into sure
  return sure
}}"""
        (result,) = ran(program, rows=1)
    prompt = language().chat([{"role": "user", "content": f"Is it? {texts(1)[0]}"}])
    chances = []
    for answer in ("yes", "no"):
        ids = [*language().encode(answer), language().eos]
        logprobs = [language().logprobs([*prompt, *ids[:place]])[id] for place, id in enumerate(ids)]
        chances.append(math.exp(sum(logprobs)))
    assert result.value == pytest.approx(chances[0] / sum(chances), abs=2e-5)


@pytest.mark.parametrize(
    ("kind", "stages", "words"),
    [
        ("llama-server", 'generate llm as choice("a", "b")', "does not return the log-probabilities of given tokens"),
        ("blind vllm", 'generate llm as choice("a", "b")', r"with `as /A\|B/` this one can write"),
        ("llama-server", 'generate llm\n score prob(llm, "Is it?", "yes") into sure', "log-probabilities of given"),
        ("llama-server", "generate llm\n score prm", "does not return the logits of given tokens"),
        ("vllm", "generate llm as /a+/ via filter(slm, 0.9)", "only from the beginning of an answer"),
        ("silent vllm", "generate llm\n best by logprob", "does not return the log-probabilities of its text"),
        ("vllm", "generate slm via filter(llm, 0.9)", "does not report how sure it is of its tokens"),
        ("vllm", "generate slm via contrast(llm)", "does not take or return the logits of all tokens"),
        ("vllm", "generate llm via contrast(slm)", "does not take or return the logits of all tokens"),
    ],
)
def test_what_a_server_cannot_do_is_refused_before_anything_is_sent(kind: str, stages: str, words: str) -> None:
    with stub(kind.split()[-1], **LIES.get(kind, {})) as server:
        program = f"""model llm = "{place(server)}"
model slm = "zoo/counting-mini"
model prm = "{place(server)}" kind=rlhflow
program p(problem: text) -> text {{
  chat user=problem
  {stages}
  return text
}}"""
        with pytest.raises(ModelError, match=re.compile(words)):
            ran(program)
