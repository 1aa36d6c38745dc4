"""Verifiers whose models are on servers: which can be had, and that they score as the same model would here."""

from __future__ import annotations

import asyncio
import math

import pytest
from transformers import AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.models.load import BY_CONFIGURATION
from qpdsl.executor.remote.remote_verifier import remote_verifier
from qpdsl.executor.remote.scoring.reading import Reading, Values
from qpdsl.executor.remote.scoring.scored import scored
from qpdsl.executor.remote.server.abilities import Abilities
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.connection import Connection
from qpdsl.executor.requests.request import Calls, ReadRequest
from qpdsl.executor.verifiers.verifier import two_way
from tests.support.remote.stub_server import language, reward_of, stub

ADDRESS = Address("vllm", "http://127.0.0.1:1/v1", "prm", "zoo/counting-prm")
LANGUAGE = Abilities("ids", prompt_logprobs=True, top_logprobs=20, named_logprobs=True)
REWARD = Abilities("ids", scores="pooling", score_width=2)
TEXT = "Ann has 12.\n\nShe buys 7, so 19."


@pytest.mark.parametrize(
    ("address", "kind", "abilities", "words"),
    [
        (Address("vllm", "http://127.0.0.1:1/v1", "prm"), "rlhflow", LANGUAGE, "give it its tokenizer"),
        (ADDRESS, BY_CONFIGURATION, LANGUAGE, "name its kind behind its id, `kind=…`: .*math_shepherd"),
        (ADDRESS, "math_shepherd", Abilities("ids"), "log-probabilities of given tokens, which the server does not"),
        (ADDRESS, "math_shepherd", REWARD, "does not tell, as it serves a reward model"),
        (ADDRESS, "outcome", LANGUAGE, "the server gives no scores; have it served with `vllm serve"),
        (ADDRESS, "skywork", REWARD, "its head gives 2 numbers; that of a skywork verifier gives 1"),
        (ADDRESS, "outcome", Abilities("ids", scores="classify", score_width=5), "tells 5 classes apart"),
        (ADDRESS, "qwen", REWARD, "has no token `<extra_0>`"),
    ],
)
def test_what_is_no_verifier_is_refused(address: Address, kind: str, abilities: Abilities, words: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting-prm"))
    with pytest.raises(ModelError, match=words):
        remote_verifier(address, kind, tokenizer, None, abilities)


@pytest.mark.parametrize(
    ("kind", "abilities", "lies"),
    [
        ("rlhflow", LANGUAGE, {}),
        ("outcome", REWARD, {"reward": True}),
        ("outcome", Abilities("ids", scores="classify", score_width=2), {"reward": True}),
    ],
)
def test_scores_are_those_of_the_servers_model(kind: str, abilities: Abilities, lies: dict[str, bool]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting-prm"))
    verifier = remote_verifier(ADDRESS, kind, tokenizer, None, abilities)
    reads = verifier.reads("How many has Ann?", TEXT)
    assert reads is not None

    async def asked(url: str) -> list[float]:
        connection = Connection(url)

        async def read(reading: Reading) -> tuple[Values, Calls]:
            return reading.read(await connection.post(reading.path, reading.body)), Calls(requests=1)

        request = ReadRequest(reads.tokens, reads.positions, reads.ids)
        address = Address("vllm", url, "stub", "zoo/counting-prm")
        try:
            completion = await scored(request, abilities, address, read)
        finally:
            await connection.close()
        return [verifier.score(values) for values in completion.logits]

    with stub("vllm", **lies) as server:
        scores = asyncio.run(asked(server.url))
    contexts = [reads.tokens[: position + 1] for position in reads.positions]
    if abilities.scores is None:
        rows = [language().logits(context) for context in contexts]
        wanted = [two_way(row[reads.ids[0]], row[reads.ids[1]]) for row in rows]
    else:
        wanted = [round(reward_of(list(context)), 5) for context in contexts]
    assert scores == pytest.approx(wanted, abs=1.1e-5)
    assert all(math.isfinite(score) for score in scores)
