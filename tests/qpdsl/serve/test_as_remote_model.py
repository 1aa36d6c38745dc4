"""Our own server is a remote engine for qpdsl: the probe sees all that it does, and programs run on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.probe.known_servers import known_or_probed
from qpdsl.executor.remote.server.address import Address
from qpdsl.model_location import locate
from qpdsl.session.planning import Planning, reads_of
from qpdsl.session.programs import load_program
from qpdsl.session.session import Session
from qpdsl.session.settings import SessionSettings
from qpdsl.session.surroundings import Surroundings
from tests.support.serving.running_server import Running, running
from tests.support.user_cache import own_cache

ID = "zoo/counting"
QUESTION = {"q": "3 + 4 * 2 = ?"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """What is found out about it is kept for all tests, in a cache of their own."""
    with pytest.MonkeyPatch.context() as patch, running([], expose=[f"llm={ID}"]) as running_server:
        own_cache(tmp_path_factory.mktemp("cache"), patch)
        yield running_server


def model_at(server: Running) -> str:
    return f"vllm:{server.url}#llm tokenizer={ID}"


def answers(model: str, program: str, completions: Path | None = None, seeds: int = 1) -> list[Any]:
    """What a program returns under the first seeds with this model."""
    logical = load_program(None, program, None, Surroundings(models={"llm": model}))
    session = Session(completions=completions)
    plan = Planning().optimized(logical, reads_of(logical, text=True), SessionSettings()).plan
    session.load(plan)

    async def run() -> list[Any]:
        async with session.running():
            return [(await session.run(plan, QUESTION, seed)).value for seed in range(seeds)]

    return asyncio.run(run())


def test_the_probe_sees_all_that_our_server_does(server: Running) -> None:
    address = Address.of(model_at(server))
    seen = asyncio.run(known_or_probed(address, locate(ID), again=True))
    assert seen.endpoint == "ids" and seen.version.startswith("qpdsl serve") and seen.notes == ()
    assert seen.constraints == {"json_schema", "regex", "grammar", "choice"} and seen.context == 1024
    does = ("chat", "seeds", "greedy", "temperature", "top_k", "top_p", "min_p", "n", "logprobs", "token_ids")
    does += ("prompt_logprobs", "named_logprobs", "stops", "names_stop", "cached_tokens", "streams", "cancels")
    assert [name for name in does if not getattr(seen, name)] == []


@pytest.mark.parametrize(
    "program",
    [
        "chat user=q | generate llm temperature=0 max_tokens=40",
        'chat user=q | repeat 4 { generate llm temperature=0 max_tokens=20 stop="\\n" }',
        'chat user=q | generate llm temperature=0 max_tokens=40 as choice("yes", "no")',
    ],
    ids=["text", "steps", "choice"],
)
def test_a_greedy_program_gives_what_it_gives_here(server: Running, program: str) -> None:
    assert answers(model_at(server), program) == answers(ID, program)


def test_samples_are_drawn_again_by_their_seeds(server: Running, tmp_path: Path) -> None:
    program = "chat user=q | generate llm temperature=1.3 max_tokens=20"
    first = answers(model_at(server), program, tmp_path / "a.sqlite", seeds=4)
    again = answers(model_at(server), program, tmp_path / "b.sqlite", seeds=4)
    assert first == again and len(set(first)) > 1


def test_a_program_there_is_told_from_a_model() -> None:
    told = "a program there, and no model itself; of models it serves `llm`;"
    with running(["greedy"], expose=[f"llm={ID}"]) as programs, pytest.raises(ModelError, match=told):
        asyncio.run(known_or_probed(Address.of(f"vllm:{programs.url}#greedy"), None, again=True))


def test_what_a_server_has_cached_counts_once(server: Running, tmp_path: Path) -> None:
    file = tmp_path / "asked.qp"
    file.write_text(
        f'model llm = "{model_at(server)}"\n'
        "program asked(q: text) -> text {\n  chat user=q\n  generate llm temperature=0 max_tokens=4\n}\n"
    )
    with running([str(file)]) as door:
        first, second = (door.chat("asked", QUESTION["q"], seed=seed).json()["usage"] for seed in (1, 2))
    assert first["prompt_tokens"] == second["prompt_tokens"] > second["prompt_tokens_details"]["cached_tokens"] > 0
