"""Asks a server what it does for one model, and says what was seen."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.dialects.dialect import Messages
from qpdsl.executor.remote.dialects.known_dialects import named
from qpdsl.executor.remote.probe.drawn import Drawn, draws, greedy_text
from qpdsl.executor.remote.probe.held import Held, goes_on, holds
from qpdsl.executor.remote.probe.identity import Identity, identify
from qpdsl.executor.remote.probe.probe_client import LENGTH, ProbeClient, ProbeRequest, posted
from qpdsl.executor.remote.probe.told import Told, stops_when_left, tells
from qpdsl.executor.remote.probe.vocabulary import same_tokens
from qpdsl.executor.remote.scoring.reading import Reading, Values
from qpdsl.executor.remote.scoring.scoring_abilities import with_scoring
from qpdsl.executor.remote.server.abilities import Abilities, BoundName, Endpoint
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.connection import Connection
from qpdsl.executor.remote.server.errors import ServerError
from qpdsl.executor.requests.request import Calls
from qpdsl.grammar.suggest import listed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Seconds for all of it; a server that takes longer has other work.
_PATIENCE = 600.0
_TEXTS = (
    "The old man walked down to the river. He looked at the water for a while, and then he",
    "Anna opened the box that her grandmother had left to her. Inside of it there was",
    "It rained all day. When the train came at last,",
    "How many cards does Mia have? First,",
)
_MESSAGES = (
    "Tell me a short story about an old man and a river.",
    "What could be inside of a box that has been closed for a hundred years?",
    "Why does it rain?",
    "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?",
)
_SCORED = "Mia has 3 boxes with 4 cards in each box."
_WAYS: Mapping[Endpoint, str] = {"ids": "completions", "text": "completions", "chat": "chat completions"}
# What is seen of one form of prompts, but for the chat's own.
_Seen = tuple[ProbeClient, Drawn, Held, Told]


async def probe(
    connection: Connection, address: Address, tokenizer: PreTrainedTokenizerFast | None = None
) -> Abilities:
    """What the server was seen to do for the model, by some fifty requests for a few tokens each.

    `tokenizer` is that of the address, where it names one. Raises ModelError where the server does not answer or does
    not have the model.
    """
    try:
        async with asyncio.timeout(_PATIENCE):
            identity = await identify(connection, address.dialect)
            return await _probed(connection, address, tokenizer, identity)
    except ServerError as error:
        raise ModelError(str(address), str(error)) from error
    except TimeoutError:
        raise ModelError(str(address), f"the server did not answer a probe in {_PATIENCE:g} s") from None


async def _probed(
    connection: Connection, address: Address, tokenizer: PreTrainedTokenizerFast | None, identity: Identity
) -> Abilities:
    known = Abilities(context=identity.context_of(address.name), version=identity.named)
    clients = await _clients(connection, address, tokenizer)
    own = tokenizer if "ids" in clients else None
    seen: dict[Endpoint, _Seen] = {}
    prefill = False
    for endpoint, client in clients.items():
        # Where token ids are sent, nothing else is.
        if "ids" in clients and endpoint != "ids":
            continue
        found = await greedy_text(client)
        if found is None or not found[1]:
            continue
        seen[endpoint] = (
            client,
            await draws(client, *found),
            await holds(client, *found),
            await tells(client, *found, own),
        )
        prefill = prefill or (endpoint == "chat" and await goes_on(client, *found))
    if not seen:
        scored = known if tokenizer is None else await _scores(connection, address, tokenizer, known)
        if scored.scores is not None:
            return replace(scored, endpoint="ids", notes=_notes(address, identity, scored.scores, {}))
        raise ModelError(str(address), await _no_answer(connection, address, identity))
    abilities = _together(known, seen, prefill, clients)
    notes = _notes(address, identity, None, seen)
    if "ids" not in clients and tokenizer is not None:
        notes = (*notes, f"does not go on from token ids of `{address.tokenizer}`")
    first = next(iter(seen.values()))
    abilities = replace(abilities, cancels=await stops_when_left(first[0], first[1].prompt), notes=notes)
    return abilities if own is None else await _scores(connection, address, own, abilities)


async def _clients(
    connection: Connection, address: Address, tokenizer: PreTrainedTokenizerFast | None
) -> Mapping[Endpoint, ProbeClient]:
    """A client for each form of prompts that the server answers, the best first."""
    dialect = named(address.dialect)
    text = ProbeClient(connection, dialect, address.name, _TEXTS)
    chat = ProbeClient(connection, dialect, address.name, [Messages((("user", message),)) for message in _MESSAGES])
    clients: dict[Endpoint, ProbeClient] = {}
    written = await text.ask(ProbeRequest())
    if tokenizer is not None:
        prompts = [tuple(tokenizer.encode(prompt)) for prompt in _TEXTS]
        ids = ProbeClient(connection, dialect, address.name, prompts)
        agree = await same_tokens(connection, address.name, tokenizer)
        counted = await ids.ask(ProbeRequest()) if agree is not False else None
        if counted is not None and counted.prompt_tokens == len(prompts[0]):
            # Where nothing is told of ids, that text and ids are continued alike shows that they are read.
            alike = written is not None and (written.text, written.prompt_tokens) == (counted.text, len(prompts[0]))
            if agree or alike:
                clients["ids"] = ids
    if written is not None:
        clients["text"] = text
    for name in get_args(BoundName):
        bounded = replace(chat, shape=Abilities(max_tokens_name=name))
        answer = await bounded.ask(ProbeRequest(most=LENGTH // 2))
        if answer is not None and (answer.sampled_tokens is None or answer.sampled_tokens <= LENGTH // 2):
            clients["chat"] = bounded
            break
    return clients


def _together(
    known: Abilities, seen: Mapping[Endpoint, _Seen], prefill: bool, clients: Mapping[Endpoint, ProbeClient]
) -> Abilities:
    """What all forms have that will be used."""
    drawn = [found for _, found, _, _ in seen.values()]
    held = [found for _, _, found, _ in seen.values()]
    told = [found for _, _, _, found in seen.values()]
    constraints = held[0].constraints
    for found in held[1:]:
        constraints &= found.constraints
    return replace(
        known,
        endpoint=next(iter(seen)),
        chat="chat" in clients,
        prefill=prefill,
        seeds=all(found.seeds for found in drawn),
        largest_seed=min(found.largest_seed for found in drawn),
        greedy=all(found.greedy for found in drawn),
        temperature=all(found.temperature for found in drawn),
        top_k=all(found.top_k for found in drawn),
        top_p=all(found.top_p for found in drawn),
        min_p=all(found.min_p for found in drawn),
        n=all(found.n for found in drawn),
        logprobs=all(found.logprobs for found in told),
        token_ids=all(found.token_ids for found in told),
        constraints=constraints,
        stops=all(found.stops for found in held),
        names_stop=all(found.names_stop for found in held),
        max_tokens_name=clients["chat"].shape.max_tokens_name if "chat" in clients else "max_tokens",
        cached_tokens=all(found.cached_tokens for found in told),
        streams=all(found.streams for found in told),
    )


async def _scores(
    connection: Connection, address: Address, tokenizer: PreTrainedTokenizerFast, known: Abilities
) -> Abilities:
    """With what the server reads of given tokens."""

    async def read(reading: Reading) -> tuple[Values, Calls]:
        return reading.read(await posted(connection, reading.path, reading.body)), Calls(requests=1)

    return await with_scoring(known, address, tokenizer.encode(_SCORED), read)


async def _no_answer(connection: Connection, address: Address, identity: Identity) -> str:
    """Why the server gives no text for the model, in words."""
    if identity.models and address.name not in identity.models:
        return f"the server has no model of that name, only {listed(identity.models[:8], last='and')}"
    body = {"model": address.name, "messages": [{"role": "user", "content": _MESSAGES[0]}], "max_tokens": LENGTH}
    try:
        answer = await connection.post("chat/completions", body)
    except ServerError as error:
        hint = "" if address.url.endswith("/v1") else f"; the URL of most servers ends with `/v1`: `{address.url}/v1`"
        return f"{error}{hint}"
    if _reasons(answer):
        return "the server keeps the model's reasoning apart from its text; start it without a parser of reasoning"
    return "the server writes no text, whatever it is asked: it is none of a kind that is known"


def _reasons(answer: Any) -> bool:
    try:
        message = answer["choices"][0]["message"]
        return bool(message.get("reasoning") or message.get("reasoning_content"))
    except (KeyError, IndexError, TypeError, AttributeError):
        return False


def _notes(address: Address, identity: Identity, scores: str | None, seen: Mapping[Endpoint, _Seen]) -> tuple[str, ...]:
    """What people should know, each once."""
    notes: list[str] = []
    if identity.dialect not in (None, address.dialect):
        better = "it can do more there" if address.dialect == "openai" else "what it has goes by other names there"
        notes.append(f"is {identity.kind}: name it `{identity.dialect}:…`, {better}")
    if identity.models and address.name not in identity.models:
        notes.append(
            f"does not list the model, only {listed(identity.models[:8], last='and')}; it may answer with another"
        )
    if scores is not None:
        notes.append("serves a reward model, which writes no text")
    by_way = {endpoint: (*drawn.notes, *held.notes) for endpoint, (_, drawn, held, _) in seen.items()}
    for endpoint, own in by_way.items():
        for note in own:
            everywhere = all(note in others for others in by_way.values())
            notes.append(note if everywhere else f"{note}, in {_WAYS[endpoint]}")
    return tuple(dict.fromkeys(notes))
