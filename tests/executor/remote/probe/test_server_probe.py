"""The probe against stubs of all kinds: what it sees of each, of their lies, and where there is nothing to see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from qpdsl import zoo
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.probe.server_probe import probe
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.connection import Connection
from qpdsl.executor.remote.server.server_capabilities import (
    ServerCapabilities,
    ServerThinking,
    capabilities_from_json,
    capabilities_json,
)
from qpdsl.grammar.model_id import DialectName
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


def seen(
    server: StubServer,
    dialect: DialectName | None = None,
    *,
    ids: bool = False,
    name: str = "stub",
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> ServerCapabilities:
    tokenizer = language().tokenizer if ids else tokenizer
    sign = None if tokenizer is None else "zoo/counting"
    address = Address(dialect or DIALECTS[server.traits.name], server.url, name, sign)

    async def ask() -> ServerCapabilities:
        connection = Connection(address.url)
        try:
            return await probe(connection, address, tokenizer)
        finally:
            await connection.close()

    return asyncio.run(ask())


def thinking_tokenizer() -> PreTrainedTokenizerFast:
    """The stub's tokens under a template that writes thoughts."""
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
    tokenizer.chat_template = (zoo.path("zoo/counting-thinker") / "chat_template.jinja").read_text("utf-8")
    return tokenizer


def probed(kind: str, *, by_ids: bool = False, **lies: Any) -> ServerCapabilities:
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
    with stub(recorded.kind, **recorded.traits) as server:
        tokens = thinking_tokenizer() if server.traits.thoughts else language().tokenizer
        found, real = seen(server, tokenizer=tokens if way == "ids" else None), recorded.probes[way]
    assert replace(found, notes=tuple(sorted(found.notes)), context=None) == replace(
        real, notes=tuple(sorted(real.notes)), context=None
    )


def test_sglang_with_and_without_deterministic_inference() -> None:
    able = probed("sglang", by_ids=True)
    assert able.seeds and able.endpoint == "ids" and able.named_logprobs and able.names_stop
    assert able.constraints == {"json_schema", "regex", "choice"} and able.version == "SGLang 0.5.9"
    usual = probed("sglang", by_ids=True, seeds=False)
    assert not usual.seeds and usual.temperature and usual.for_engine.repeats == "recorded"
    assert "accepts a seed and samples at random" in usual.notes


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

        async def ask() -> ServerCapabilities:
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
    assert "sampling" not in found.for_engine.features and "logits" in found.for_engine.features


def test_another_dialect_than_the_server_s_is_told() -> None:
    with stub("llama-server") as server:
        notes, url = seen(server, "vllm").notes, server.url
    assert any(note.startswith(f"is llama-server; `llamacpp:{url}#") for note in notes)


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
        with pytest.raises(ModelError, match=r"not a model server|returns no text|redirects"):
            seen(server)


OFF = {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}
ON = {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}
EFFORTS = {word: {"reasoning_effort": word} for word in ("low", "medium", "high")}
DISABLED = {"thinking": {"type": "disabled"}}
BUDGET = "thinking_token_budget"


@pytest.mark.parametrize(
    ("kind", "lies", "expected"),
    [
        ("vllm", {}, None),
        ("vllm thinking", {}, ServerThinking("reasoning", "on", {"on": {}, "off": OFF}, BUDGET, True, True)),
        (
            "vllm thinking",
            {"thinks": False, "thought_bound": None, "returns_thoughts": False},
            ServerThinking("reasoning", "off", {"on": ON, "off": OFF}, None, True, False),
        ),
        (
            "vllm thinking",
            {"switches": (), "thought_bound": None},
            ServerThinking("reasoning", "on", {"on": {}}, None, True),
        ),
        (
            "vllm thinking",
            {"efforts": ("low", "medium", "high")},
            ServerThinking("reasoning", "on", {"on": {}, "off": OFF, **EFFORTS}, BUDGET, True),
        ),
        (
            "deepseek",
            {},
            ServerThinking(
                "reasoning_content", "on", {"on": {}, "off": {"thinking": {"type": "disabled"}}}, None, True
            ),
        ),
        ("openai thinking", {}, ServerThinking(None, "on", {"on": {}, **EFFORTS}, None, True)),
    ],
)
def test_what_a_server_does_with_thoughts_is_seen(kind: str, lies: dict[str, Any], expected: ServerThinking) -> None:
    found = probed(kind, **lies)
    returned = expected is not None and expected.field is not None and lies.get("returns_thoughts", True)
    assert found.thinking == (expected and replace(expected, returned=returned))
    assert found.chat and found.seeds is (kind != "openai thinking")
    assert capabilities_from_json(capabilities_json(found)) == found


def test_a_model_with_a_temperature_of_its_own_is_sampled_at_that() -> None:
    found = probed("openai thinking")
    assert found.own_temperature and not (found.seeds or found.greedy or found.top_p)
    assert found.max_tokens_name == "max_completion_tokens" and found.constraints == {"json_schema"}


def test_a_model_that_never_comes_to_an_answer_is_told() -> None:
    def writes(prompt: str, seed: int) -> str:
        return f"<think>{' so' * 2000}</think>!"

    with (
        stub("deepseek", switches=(), writes=writes) as server,
        pytest.raises(ModelError, match="no answer within 768 tokens"),
    ):
        seen(server)


def test_thoughts_that_are_left_in_the_text_are_told() -> None:
    with stub("vllm", writes=lambda prompt, seed: "<think>one two</think>It was a long day by the river.") as server:
        assert any("start it with a reasoning parser" in note for note in seen(server).notes)


def test_a_server_that_ends_no_thought_is_sent_no_chats() -> None:
    found = probed("vllm thinking", unended=True)
    assert (found.endpoint, found.chat, found.thinking) == ("text", False, None)
    assert any("another reasoning parser, or `tokenizer=`" in note for note in found.notes)


def test_a_count_of_no_tokens_is_none_of_a_thought() -> None:
    found = probed("vllm thinking", counts_thoughts="zero")
    assert found.thinking is not None and not found.thinking.counted


def test_constraints_that_wait_for_the_end_of_a_thought_are_the_answers() -> None:
    held = {"json_schema", "regex", "grammar", "choice"}
    with stub("vllm thinking") as server:
        text, ids = seen(server), seen(server, tokenizer=thinking_tokenizer())
    assert (text.constraints, text.answer_constraints) == (set(), held)
    assert (ids.endpoint, ids.constraints, ids.answer_constraints) == ("ids", set(), held)
    assert all(note.endswith("before a thought has ended") for note in ids.notes)
    everywhere = probed("vllm thinking", answers_held=False)
    assert (everywhere.constraints, everywhere.answer_constraints) == (held, set())


@pytest.mark.parametrize(("written", "held"), [('{"zq": "kp3",', True), ('{"zq": "no",', False)])
def test_a_record_that_is_filled_with_white_space_was_held_to(written: str, held: bool) -> None:
    with stub("vllm", writes=lambda prompt, seed: written + " \n" * 200) as server:
        found = seen(server)
    assert (found.constraints == {"json_schema"}) is held
    assert any("white space in it without end" in note for note in found.notes) is held
