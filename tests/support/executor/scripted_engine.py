"""An engine without a model: a script says what each sample writes, and a hash what is read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from hashlib import blake2b

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from qpdsl import zoo
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.drawing import DrawFigures, LogitContrast
from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import (
    Finish,
    GenerateRequest,
    LogitsRequest,
    LogProbRequest,
    ReadRequest,
    Request,
    Sample,
    TreeRequest,
    WatchAround,
)
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.runtime.instance.instance import Services
from qpdsl.executor.runtime.run import InstanceResult, run
from qpdsl.planner.plan.physical import PhysicalPlan

# From the text of a prompt and a sample's key (0 at temperature 0) to what the sample writes: a text, or tokens.
Script = Callable[[str, int], str | list[int]]
CAPABILITIES = Capabilities(frozenset({"sampling", "seeds"}))
ALL_CAPABILITIES = Capabilities(
    CAPABILITIES.features | {"logits", "logprobs", "json_schema", "regex", "grammar", "choice", "figures", "contrast"}
)
# After so many tokens, where it serves in any order, others may go on.
_PAUSES = 0.3


class ScriptedEngine:
    """Serves one request at a time, as a client of a server elsewhere would.

    With `chance`, in any order, the samples of a request too; what only reads is served between two tokens as well.
    Masks are left to the script.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        script: Script,
        capabilities: Capabilities = CAPABILITIES,
        chance: random.Random | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self._tokenizer = tokenizer
        self._script = script
        self._capabilities = capabilities
        self._chance = chance
        self._waiting: list[Ticket] = []
        self._given_up: set[Ticket] = set()

    def capabilities(self, model: str) -> Capabilities:
        return self._capabilities

    def submit(self, model: str, request: Request) -> Ticket:
        if (inability := self._capabilities.refusal(request.features)) is not None:
            raise EngineError(f"{model} {inability}")
        ticket = Ticket(request, self._give_up)
        self.requests.append(request)
        self._waiting.append(ticket)
        return ticket

    def _give_up(self, ticket: Ticket) -> None:
        """Nothing is left to do of a request that is being served."""
        self._given_up.add(ticket)
        if ticket in self._waiting:
            self._waiting.remove(ticket)

    def busy(self, model: str) -> int:
        return sum(ticket.request.samples for ticket in self._waiting)

    async def drive(self) -> None:
        while True:
            if self._waiting:
                next_ = 0 if self._chance is None else self._chance.randrange(len(self._waiting))
                await self._serve(self._waiting.pop(next_))
            await asyncio.sleep(0)

    async def _serve(self, ticket: Ticket) -> None:
        request = ticket.request
        if isinstance(request, LogitsRequest):
            befores = [request.tokens[: place + 1] for place in request.positions]
            ticket.finish_read([np.array([_logit(own, id) for id in range(3)], np.float32) for own in befores], 0)
            return
        if not isinstance(request, GenerateRequest):
            values = [
                tuple(sum(_logit(context, id) - 3.0 for id in ids) for ids in read) for context, read in _reads(request)
            ]
            ticket.finish_read(values, 0)
            return
        prompt = self._tokenizer.decode(request.prompt)
        order = list(enumerate(request.keys))
        if self._chance is not None:
            self._chance.shuffle(order)
        for index, key in order:
            apart = 0 if request.contrast is None else _apart(request.contrast)
            ids = self._script(prompt, (0 if request.sampling.greedy else key) + apart)
            if isinstance(ids, str):
                ids = self._tokenizer.encode(ids, add_special_tokens=False)
            if apart % 7 == 6:
                ids = []
            sample = await self._sample(request, index, [*ids, min(request.eos)])
            if ticket in self._given_up:
                return
            ticket.finish_sample(index, sample, 0)
            if self._chance is not None:
                await asyncio.sleep(0)

    async def _sample(self, request: GenerateRequest, index: int, ids: list[int]) -> Sample:
        """The sample that `ids` come to: eos, the request's watch and its length may end it."""
        watch = None if request.watch is None else request.watch(index)
        tokens: list[int] = []
        finish: Finish = "length"
        for token in ids[: request.max_tokens]:
            tokens.append(token)
            if isinstance(watch, WatchAround):
                watch.logprob = _logprob(tokens)
            if token in request.eos:
                finish = "eos"
            elif watch is not None and watch.push(token):
                finish = "stop"
                break
            if self._chance is not None and self._chance.random() < _PAUSES:
                await self._read_some()
        logprob = _logprob(tokens) if request.logprobs else 0.0
        told = tuple(DrawFigures(token % 5, token % 7, token % 3) for token in tokens) if request.figures else ()
        return Sample(tuple(tokens), finish, logprob, 0, watch, figures=told)

    async def _read_some(self) -> None:
        """Lets others go on, and serves what they want to read."""
        await asyncio.sleep(0)
        for ticket in [ticket for ticket in self._waiting if not isinstance(ticket.request, GenerateRequest)]:
            self._waiting.remove(ticket)
            await self._serve(ticket)
        await asyncio.sleep(0)


def _reads(
    request: ReadRequest | LogProbRequest | TreeRequest,
) -> list[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]:
    """The tokens up to each position, and the ids of each value that is read there."""
    contexts = [request.tokens[: at + 1] for at in request.positions]
    if isinstance(request, ReadRequest):
        return [(context, tuple((id,) for id in request.ids)) for context in contexts]
    if isinstance(request, TreeRequest):
        contexts = [request.prompt]
        for node, parent in zip(request.nodes, request.parents, strict=True):
            contexts.append((*contexts[parent + 1], node))
    return [(context, request.read_ids(place)) for place, context in enumerate(contexts)]


def _logit(tokens: tuple[int, ...], id: int) -> float:
    """A number in [0, 3) that stands for the logit of an id after these tokens."""
    digest = blake2b(repr((tokens, id)).encode(), digest_size=4).digest()
    return 3.0 * int.from_bytes(digest, "big") / 2**32


def _apart(contrast: LogitContrast) -> int:
    """A number that stands for what a contrast changes."""
    return int(1000 * (contrast.smaller.sum() + contrast.alpha + contrast.beta))


def _logprob(tokens: list[int]) -> float:
    return -0.25 * sum(1 + token % 7 for token in tokens)


def scripted_model(name: str, tokenizer: PreTrainedTokenizerFast) -> TextModel:
    """A model of such an engine: a name, a tokenizer and a few numbers."""
    return TextModel(name, tokenizer, frozenset({int(tokenizer.eos_token_id)}), 512, len(tokenizer))


def result_of(
    plan: PhysicalPlan, script: Script, capabilities: Capabilities = CAPABILITIES
) -> tuple[InstanceResult, ScriptedEngine]:
    """What a program with the model `llm` gives for one problem on an engine that writes by the script."""
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
    engine = ScriptedEngine(tokenizer, script, capabilities)
    services = Services(engine, {"llm": scripted_model("remote", tokenizer)}, {}, EventStream())

    async def main() -> InstanceResult:
        driver = asyncio.create_task(engine.drive())
        try:
            return await run(plan, {"problem": "What is 2 + 2?"}, 0, services)
        finally:
            driver.cancel()

    return asyncio.run(main()), engine
