"""Text models of addresses: the tokenizer of text alone, and verifiers whose model is on a server."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.dialects.dialect import Message, Messages, Question, Values
from qpdsl.executor.remote.remote_model import (
    ANSWER,
    BYTES,
    EOS,
    THOUGHT,
    WIDTH,
    is_text,
    messages_of,
    remote_verifier,
    text_model,
    text_of,
    text_tokenizer,
    tokens_of,
)
from qpdsl.executor.remote.scoring import scored
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.connection import Connection
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities, ServerThinking
from qpdsl.executor.requests.request import Calls, ReadRequest
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.constraint import Constrainer
from qpdsl.executor.text.context import Context, Turn, encode
from qpdsl.executor.text.detokenizer import Detokenizer
from qpdsl.executor.verifiers.registry import BY_CONFIGURATION
from qpdsl.executor.verifiers.verifier import two_way
from tests.support.remote.stub_server import language, reward_of, stub

ADDRESS = Address("vllm", "http://127.0.0.1:1/v1", "prm", "zoo/counting-prm")
LANGUAGE = ServerCapabilities("ids", prompt_logprobs=True, top_logprobs=20, named_logprobs=True)
REWARD = ServerCapabilities("ids", scores="pooling", score_width=2)
TEXT = "Ann has 12.\n\nShe buys 7, so 19."


@pytest.mark.parametrize(
    ("address", "kind", "capabilities", "words"),
    [
        (Address("vllm", "http://127.0.0.1:1/v1", "prm"), "rlhflow", LANGUAGE, "add its tokenizer"),
        (ADDRESS, BY_CONFIGURATION, LANGUAGE, "name its kind after its id, `kind=…`: .*math_shepherd"),
        (
            ADDRESS,
            "math_shepherd",
            ServerCapabilities("ids"),
            "log-probabilities of given tokens, which the server does not",
        ),
        (ADDRESS, "math_shepherd", REWARD, "does not return, as it serves a reward model"),
        (ADDRESS, "outcome", LANGUAGE, "the server returns no scores; serve it with `vllm serve"),
        (ADDRESS, "skywork", REWARD, "its head gives 2 numbers; that of a skywork verifier gives 1"),
        (ADDRESS, "outcome", ServerCapabilities("ids", scores="classify", score_width=5), "tells 5 classes apart"),
        (ADDRESS, "qwen", REWARD, "has no token `<extra_0>`"),
    ],
)
def test_what_is_no_verifier_is_refused(
    address: Address, kind: str, capabilities: ServerCapabilities, words: str
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting-prm"))
    with pytest.raises(ModelError, match=words):
        remote_verifier(address, kind, tokenizer, None, capabilities)


@pytest.mark.parametrize(
    ("kind", "capabilities", "lies"),
    [
        ("rlhflow", LANGUAGE, {}),
        ("outcome", REWARD, {"reward": True}),
        ("outcome", ServerCapabilities("ids", scores="classify", score_width=2), {"reward": True}),
    ],
)
def test_scores_are_those_of_the_servers_model(
    kind: str, capabilities: ServerCapabilities, lies: dict[str, bool]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting-prm"))
    verifier = remote_verifier(ADDRESS, kind, tokenizer, None, capabilities)
    reads = verifier.reads("How many has Ann?", TEXT)
    assert reads is not None

    async def asked(url: str) -> list[float]:
        connection = Connection(url)

        async def read(reading: Question) -> tuple[Values, Calls]:
            return reading.read(await connection.post(reading.path, reading.body)), Calls(requests=1)

        request = ReadRequest(reads.tokens, reads.positions, reads.ids)
        address = Address("vllm", url, "stub", "zoo/counting-prm")
        try:
            completion = await scored(request, capabilities, address, read)
        finally:
            await connection.close()
        return [verifier.score(values) for values in completion.logits]

    with stub("vllm", **lies) as server:
        scores = asyncio.run(asked(server.url))
    contexts = [reads.tokens[: position + 1] for position in reads.positions]
    if capabilities.scores is None:
        rows = [language().logits(context) for context in contexts]
        wanted = [two_way(row[reads.ids[0]], row[reads.ids[1]]) for row in rows]
    else:
        wanted = [round(reward_of(list(context)), 5) for context in contexts]
    assert scores == pytest.approx(wanted, abs=1.1e-5)
    assert all(math.isfinite(score) for score in scores)


TEXTS = st.text(st.characters(exclude_categories=("Cs",)))


@given(TEXTS)
def test_tokens_are_the_bytes_of_a_text(text: str) -> None:
    tokenizer = text_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert tuple(ids) == tokens_of(text) == tuple(text.encode())
    assert text_of(ids) == text == tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True)
    assert is_text(tokenizer) and len(tokenizer.get_vocab()) == WIDTH


@given(TEXTS, TEXTS, TEXTS)
def test_a_conversation_is_found_again_whatever_is_said_in_it(system: str, asked: str, begun: str) -> None:
    # A name of a mark in a message is text like any other.
    said = (("system", system), ("user", f"<|qpdsl user|>{asked}"), ("assistant", "1"), ("user", asked))
    turns = tuple(Message(*turn) for turn in said)
    ids = encode(text_tokenizer(), Context(turns=said))
    assert messages_of(ids) == Messages(turns)
    begins = Message("assistant", begun) if begun else None
    assert messages_of(ids + tokens_of(begun)) == Messages(turns, begins)
    plain = encode(text_tokenizer(), Context(prompt=((f"x{asked}", False),)))
    assert messages_of(plain) is None and text_of(plain) == f"x{asked}"


@given(TEXTS, TEXTS)
def test_thoughts_are_found_again_whatever_they_say(thought: str, asked: str) -> None:
    server = ServerThinking("reasoning", switches={"off": {}, "low": {}}, returned=True)
    model = text_model("m", ADDRESS, ServerCapabilities(thinking=server), None, None)
    said = (Turn("user", asked), Turn("assistant", "1", f"x{thought}"), Turn("user", "<|qpdsl answer|>"))
    ids = encode(model.tokenizer, Context(turns=said), model.thinking, "low")
    turns = tuple(Message(*turn[:3]) for turn in said)
    assert messages_of(ids) == Messages(turns, think="low")
    begun = (THOUGHT, *tokens_of(thought), ANSWER, *tokens_of("It is"))
    assert messages_of(ids + begun) == Messages(turns, Message("assistant", "It is", thought), "low")
    # A thought that is only opened is the model's to write.
    assert messages_of((*ids, THOUGHT)) == Messages(turns, think="low")


def test_a_role_that_no_server_knows_is_refused() -> None:
    with pytest.raises(ContextError, match="there is no role critic"):
        encode(text_tokenizer(), Context(turns=(("critic", "x"),)))


def test_characters_come_whole_and_constraints_hold_bytes() -> None:
    text = Detokenizer(text_tokenizer().backend_tokenizer).begin()
    assert [text.push(token) for token in tokens_of("é😀")] == ["", "é", "", "", "", "😀"]
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    for text, any_spacing, fits in (('{"a": 1}', False, True), ('{"a":1}', False, False), ('{ "a":1\n}', True, True)):
        constrainer = Constrainer(text_tokenizer(), WIDTH, {EOS}, any_spacing=any_spacing)
        assert (constrainer.masks("json_schema", schema)().admits(tokens_of(text)) == len(text)) is fits
    assert BYTES < EOS < WIDTH
