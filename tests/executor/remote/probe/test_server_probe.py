"""The probe against stubs of all kinds: what it sees of each, of their lies, and where there is nothing to see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.probe.server_probe import probe
from qpdsl.executor.remote.server.abilities import Abilities
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.connection import Connection
from qpdsl.grammar.model_id import DialectName
from tests.support.remote.answers import Writer
from tests.support.remote.language import language
from tests.support.remote.recordings import NAMES, recording
from tests.support.remote.stub_server import StubServer, stub

DIALECTS: dict[str, DialectName] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llama-server": "llamacpp",
    "llama_cpp.server": "llamacpp",
    "transformers serve": "openai",
    "openai": "openai",
}


def seen(server: StubServer, dialect: DialectName | None = None, *, ids: bool = False, name: str = "stub") -> Abilities:
    address = Address(dialect or DIALECTS[server.traits.name], server.url, name, "zoo/counting" if ids else None)

    async def ask() -> Abilities:
        connection = Connection(address.url)
        try:
            return await probe(connection, address, language().tokenizer if ids else None)
        finally:
            await connection.close()

    return asyncio.run(ask())


def probed(kind: str, *, by_ids: bool = False, **lies: Any) -> Abilities:
    with stub(kind, **lies) as server:
        return seen(server, ids=by_ids)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("qpdsl.executor.remote.probe.probe_client._PAUSE", 0.01)
    yield


@pytest.mark.parametrize("way", ["text", "ids"])
@pytest.mark.parametrize("name", NAMES)
def test_a_stub_is_seen_as_the_server_that_it_stands_for(name: str, way: str) -> None:
    recorded = recording(name)
    if way not in recorded.probes:
        pytest.skip("it takes no token ids")
    found, real = probed(recorded.kind, by_ids=way == "ids", **recorded.traits), recorded.probes[way]
    assert replace(found, notes=tuple(sorted(found.notes)), context=None) == replace(
        real, notes=tuple(sorted(real.notes)), context=None
    )


def test_sglang_with_and_without_deterministic_inference() -> None:
    able = probed("sglang", by_ids=True)
    assert able.seeds and able.endpoint == "ids" and able.named_logprobs and able.names_stop
    assert able.constraints == {"json_schema", "regex", "choice"} and able.version == "SGLang 0.5.9"
    usual = probed("sglang", by_ids=True, seeds=False)
    assert not usual.seeds and usual.temperature and usual.capabilities.repeats == "recorded"
    assert "takes a seed and draws by chance all the same" in usual.notes


def test_openai_is_sent_messages_alone() -> None:
    found = probed("openai")
    assert (found.endpoint, found.chat, found.constraints) == ("chat", True, {"json_schema"})
    assert found.top_p and not found.top_k and not found.min_p


LIES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("vllm", {"n": "ignored"}, {"n": False}),
    ("vllm", {"seeds": False}, {"seeds": False, "greedy": True, "temperature": True}),
    ("vllm", {"sampled": False}, {"seeds": False, "temperature": False, "top_k": False, "top_p": False}),
    ("vllm", {"top_k": "ignored"}, {"top_k": False, "top_p": True, "min_p": True}),
    ("vllm", {"min_p": "ignored"}, {"min_p": False, "top_k": True}),
    ("vllm", {"top_p": "ignored"}, {"top_p": False, "top_k": True}),
    ("vllm", {"held": {}}, {"constraints": frozenset()}),
    ("vllm", {"logprobs": None}, {"logprobs": False}),
    ("vllm", {"answers_ids": False}, {"token_ids": False}),
    ("vllm", {"names_stop": None}, {"names_stop": False, "stops": True}),
    ("vllm", {"prefill": None}, {"prefill": False}),
    ("openai", {"prefill": "always"}, {"prefill": True}),
    ("vllm", {"cached_tokens": True}, {"cached_tokens": True}),
    ("openai", {"json_schema": "ignored"}, {"constraints": frozenset()}),
    ("openai", {"max_completion_tokens": "ignored"}, {"max_tokens_name": "max_tokens"}),
    ("vllm", {"seed_modulus": 2**63}, {"seeds": True, "largest_seed": 2**63 - 1}),
    ("vllm", {"completions": False}, {"endpoint": "chat", "chat": True}),
    ("vllm", {"chat": False}, {"endpoint": "text", "chat": False, "seeds": True}),
]


@pytest.mark.parametrize(("kind", "lies", "expected"), LIES)
def test_a_lie_is_seen(kind: str, lies: dict[str, Any], expected: dict[str, Any]) -> None:
    found = probed(kind, **lies)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("lies", "expected"),
    [
        ({"prompt_logprobs": False}, {"prompt_logprobs": False, "endpoint": "ids"}),
        ({"ids": 400}, {"endpoint": "text", "prompt_logprobs": False}),
        ({"answers_ids": False}, {"token_ids": False, "endpoint": "ids"}),
    ],
)
def test_a_lie_about_token_ids_is_seen(lies: dict[str, Any], expected: dict[str, Any]) -> None:
    found = probed("vllm", by_ids=True, **lies)
    assert {name: getattr(found, name) for name in expected} == expected


def test_another_tokenizer_is_seen() -> None:
    """The server's ids mean other text: they are not sent."""
    from transformers import AutoTokenizer

    from qpdsl import zoo

    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
    tokenizer.add_tokens(["zz"])
    ids = language().tokenizer.get_vocab()
    swapped = {text: (id + 1 if id % 2 == 0 else id - 1) for text, id in ids.items()}

    class Other:
        def encode(self, text: str, **how: Any) -> list[int]:
            return [swapped[token] for token in tokenizer.tokenize(text)]

        def decode(self, ids: list[int], **how: Any) -> str:
            back = {id: text for text, id in swapped.items()}
            return str(tokenizer.convert_tokens_to_string([back[id] for id in ids]))

    with stub("vllm") as server:
        address = Address("vllm", server.url, "stub", "other")

        async def ask() -> Abilities:
            connection = Connection(address.url)
            try:
                return await probe(connection, address, Other())  # type: ignore[arg-type]
            finally:
                await connection.close()

        found = asyncio.run(ask())
    assert found.endpoint == "text" and any("token ids" in note for note in found.notes)


def test_a_reward_model_is_scored_by() -> None:
    found = probed("vllm", by_ids=True, reward=True, completions=False, chat=False)
    assert (found.scores, found.score_width, found.endpoint, found.chat) == ("pooling", 2, "ids", False)
    assert "sampling" not in found.capabilities.features and "logits" in found.capabilities.features


def test_another_dialect_than_the_server_s_is_told() -> None:
    with stub("llama-server") as server:
        notes = seen(server, "vllm").notes
    assert any("is llama-server: name it `llamacpp:…`" in note for note in notes)


def test_a_model_that_is_not_there_is_named_with_those_that_are() -> None:
    with stub("vllm") as server, pytest.raises(ModelError, match="no model of that name, only `stub`"):
        seen(server, name="nope")


def test_a_key_is_asked_for() -> None:
    with stub("vllm", key="secret") as server, pytest.raises(ModelError, match="set QPDSL_API_KEYS") as refused:
        seen(server)
    assert "secret" not in str(refused.value)


def test_nothing_listens() -> None:
    with stub("vllm") as server:
        server.stop()
        with pytest.raises(ModelError, match="cannot be reached"):
            seen(server)
        server.start()


@pytest.mark.parametrize("kind", ["too_many", "overloaded", "drop", "half_json", "gateway"])
def test_what_passes_is_waited_for(kind: Any) -> None:
    with stub("vllm") as server:
        server.fail(kind, times=2)
        assert seen(server).seeds


@pytest.mark.parametrize("kind", ["html", "empty", "redirect"])
def test_what_is_no_such_server_is_told(kind: Any) -> None:
    with stub("vllm") as server:
        server.fail(kind, times=None, location="http://127.0.0.1:1/v1/completions")
        with pytest.raises(ModelError, match=r"no such server|whatever it is asked|not where the model is"):
            seen(server)


def test_a_model_whose_reasoning_is_kept_apart_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Writer.whole

    def apart(self: Writer, *given: Any) -> Any:
        answer = whole(self, *given)
        for choice in answer["choices"]:
            choice["message"] = {"role": "assistant", "content": None, "reasoning": choice["message"]["content"]}
        return answer

    monkeypatch.setattr(Writer, "whole", apart)
    with pytest.raises(ModelError, match="without a parser of reasoning"):
        probed("vllm", completions=False)
