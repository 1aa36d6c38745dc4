"""An engine without a model: a script says what each sample writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from transformers import PreTrainedTokenizerFast

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Finish, GenerateRequest, Request, Sample
from qpdsl.executor.requests.ticket import Ticket

# From the text of a prompt and a sample's key to what the sample writes.
Script = Callable[[str, int], str]
CAPABILITIES = Capabilities(frozenset({"sampling", "seeds"}))


class ScriptedEngine:
    """Serves one request at a time, as a client of a server elsewhere would."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, script: Script) -> None:
        self.requests: list[Request] = []
        self._tokenizer = tokenizer
        self._script = script
        self._waiting: list[Ticket] = []

    def capabilities(self, model: str) -> Capabilities:
        return CAPABILITIES

    def submit(self, model: str, request: Request) -> Ticket:
        if (inability := CAPABILITIES.refusal(request.features)) is not None:
            raise EngineError(f"{model} {inability}")
        ticket = Ticket(request, self._waiting.remove)
        self.requests.append(request)
        self._waiting.append(ticket)
        return ticket

    def busy(self, model: str) -> int:
        return sum(ticket.request.samples for ticket in self._waiting)

    async def drive(self) -> None:
        while True:
            if self._waiting:
                self._serve(self._waiting.pop(0))
            await asyncio.sleep(0)

    def _serve(self, ticket: Ticket) -> None:
        request = ticket.request
        assert isinstance(request, GenerateRequest)
        prompt = self._tokenizer.decode(request.prompt)
        for index, key in enumerate(request.keys):
            ids = self._tokenizer.encode(self._script(prompt, key), add_special_tokens=False)
            ticket.finish_sample(index, _sample(request, index, [*ids, min(request.eos)]), 0)


def _sample(request: GenerateRequest, index: int, ids: list[int]) -> Sample:
    """The sample that `ids` come to: eos, the request's watch and its length may end it."""
    watch = None if request.watch is None else request.watch(index)
    tokens: list[int] = []
    finish: Finish = "length"
    for token in ids[: request.max_tokens]:
        tokens.append(token)
        if token in request.eos:
            finish = "eos"
        elif watch is not None and watch.push(token):
            finish = "stop"
            break
    return Sample(tuple(tokens), finish, -1.0 * len(tokens), 0, watch)


def scripted_model(name: str, tokenizer: PreTrainedTokenizerFast) -> TextModel:
    """A model of such an engine: a name, a tokenizer and a few numbers."""
    return TextModel(name, tokenizer, frozenset({int(tokenizer.eos_token_id)}), 512, len(tokenizer))
