"""A bare model whose letters are spread over tokens: its text, in pieces too, and the places of tokens in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.models.load import load
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.model_location import locate
from qpdsl.serve.completion_request import CompletionRequest, Endpoint
from qpdsl.serve.passthrough_model import PassthroughModel
from qpdsl.serve.served_model import CompletionChoice, CompletionResponse
from tests.support.executor import letters

PROMPT = "b🙂 é".encode()


@dataclass(frozen=True)
class Served:
    """A model of a kind of vocabulary, and its answers."""

    kind: str
    model: PagedTextModel

    def happenings(self, body: Mapping[str, Any], streams: bool) -> list[Any]:
        endpoint: Endpoint = "chat" if "messages" in body else "text"

        async def main() -> list[Any]:
            engine = PagedEngine(kv_bytes="16MiB")
            engine.add(self.model.name, self.model.paged)
            driver = asyncio.create_task(engine.drive())
            try:
                work = PassthroughModel("llm", self.model, engine, "fp").read(CompletionRequest(endpoint, body, "id"))
                return [happening async for happening in work.stream()] if streams else [await work.answer()]
            finally:
                driver.cancel()

        return asyncio.run(main())

    def choices(self, **body: Any) -> tuple[CompletionChoice, ...]:
        """The choices of an answer, which a stream tells in pieces too."""
        body = {"n": 6, "seed": 1, "temperature": 0.9, "max_tokens": 9, "return_token_ids": True, **body}
        (whole,) = self.happenings(body, False)
        *pieces, last = self.happenings(body, True)
        assert isinstance(whole, CompletionResponse) and isinstance(last, CompletionResponse)
        for index, choice in enumerate(whole.choices):
            assert "".join(piece.text for piece in pieces if piece.index == index) == choice.text
            assert last.choices[index].text == choice.text
        return whole.choices

    def ids(self, data: bytes) -> list[int]:
        known = letters.bytes_of(self.kind)
        return [known.index(bytes([byte])) for byte in data]


@pytest.fixture(scope="module", params=letters.KINDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    name = letters.save(request.param, tmp_path_factory.mktemp(request.param))
    return Served(request.param, load(name, locate(name), "cpu", None))


def test_an_answer_in_a_conversation_is_the_text_of_its_tokens(served: Served) -> None:
    for choice in served.choices(messages=[{"role": "user", "content": "é"}]):
        assert choice.text == letters.text_of(served.kind, choice.extra["token_ids"])


@pytest.mark.parametrize("length", range(1, len(PROMPT) + 1))
def test_prompt_and_answer_together_are_the_text_of_all_tokens(served: Served, length: int) -> None:
    """A letter that the prompt begins is a part of the answer."""
    prompt = served.ids(PROMPT[:length])
    begun = PROMPT[:length].decode("utf-8", "ignore")
    for choice in served.choices(prompt=prompt):
        whole = letters.text_of(served.kind, [*prompt, *choice.extra["token_ids"]])
        assert begun + choice.text == whole
    for choice in served.choices(prompt=prompt, echo=True):
        assert choice.text == letters.text_of(served.kind, [*prompt, *choice.extra["token_ids"]])


@pytest.mark.parametrize("stop", ["é", "🙂", "b", " "])
def test_a_stop_text_ends_an_answer_also_where_the_prompt_begins_it(served: Served, stop: str) -> None:
    met = 0
    for length in (2, 5, 7):
        prompt = served.ids(PROMPT[:length])
        begun = PROMPT[:length].decode("utf-8", "ignore")
        alone = served.choices(prompt=prompt, n=8)
        for choice, plain in zip(served.choices(prompt=prompt, stop=stop, n=8), alone, strict=True):
            assert (begun + choice.text) == begun + plain.text.partition(stop)[0]
            met += choice.extra["stop_reason"] == stop
    assert met


def test_tokens_are_told_by_their_places_and_bytes(served: Served) -> None:
    """A letter's tokens stand where it begins, and their bytes together are the letter."""
    prompt = served.ids(PROMPT)
    for choice in served.choices(prompt=prompt, logprobs=0, echo=True):
        assert choice.logprobs is not None
        own = prompt + choice.extra["token_ids"]
        texts = [letters.text_of(served.kind, own[:number]) for number in range(len(own))]
        for text, place in zip(texts, choice.logprobs["text_offset"], strict=True):
            assert choice.text[:place] == text[:place] and set(text[place:]) <= {"\ufffd"}
    for choice in served.choices(messages=[{"role": "user", "content": "é"}], logprobs=True):
        assert choice.logprobs is not None
        told = b"".join(bytes(entry["bytes"]) for entry in choice.logprobs["content"] if entry["token"] != "</s>")
        known = b"".join(letters.bytes_of(served.kind)[token] for token in choice.extra["token_ids"])
        # A space that begins a word is not told by some tokenizers.
        assert told.replace(b" ", b"") == known.replace(b" ", b"")
