"""Asks a server what it does for one model: also whether its token ids are those of a tokenizer here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.dialects.dialect import Message, Messages, Question, Values
from qpdsl.executor.remote.dialects.known_dialects import named
from qpdsl.executor.remote.probe.constraint_probe import calls_tools, constraints, prefills
from qpdsl.executor.remote.probe.identity import Identity, identify
from qpdsl.executor.remote.probe.probe_client import LENGTH, ProbeClient, ProbeRequest, posted
from qpdsl.executor.remote.probe.response_probe import cancels, response
from qpdsl.executor.remote.probe.sampling_probe import greedy_text, sampling
from qpdsl.executor.remote.probe.scoring_probe import with_scoring
from qpdsl.executor.remote.probe.thinking_probe import ROOM, SeenThinking, answering, thinking
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.connection import Connection
from qpdsl.executor.remote.server.failures import ServerError
from qpdsl.executor.remote.server.server_capabilities import (
    BoundName,
    Endpoint,
    ServerCapabilities,
    ServerThinking,
)
from qpdsl.executor.requests.request import Calls
from qpdsl.executor.text.thinking import find_thinking
from qpdsl.executor.text.thought_marks import ThoughtMarks
from qpdsl.grammar.suggest import listed

if TYPE_CHECKING:
    from qpdsl.executor.text.text_tokenizer import TextTokenizer

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
_UNENDED = "the model thinks on, or the server's reasoning parser does not find where its thoughts end"
_ENDPOINTS: Mapping[Endpoint, str] = {"ids": "completions", "text": "completions", "chat": "chat completions"}


# Words, figures, white space, letters beside a to z, and signs of code: what tokenizers cut in different ways.
_TOKENIZED = (
    "The answer is 42, not 1077.",
    "  two\n\n\tlines ",
    "naïve café, 日本語 🙂",
    "for x in y[2:]: z = {'a': x}",
)
# What gives the ids of a text, and the text of ids: path, name of what is sent, name of what comes back.
_TO_IDS = (
    ("/tokenize", "prompt", "tokens"),
    ("/tokenize", "content", "tokens"),
    ("/extras/tokenize", "input", "tokens"),
)
_TO_TEXT = (
    ("/detokenize", "tokens", "prompt"),
    ("/detokenize", "tokens", "content"),
    ("/detokenize", "tokens", "text"),
)
_PLAIN: Mapping[str, Any] = {"add_special_tokens": False, "add_special": False}


async def probe(
    connection: Connection,
    address: Address,
    tokenizer: TextTokenizer | None = None,
    begins: Callable[[str], object] = lambda kind: None,
) -> ServerCapabilities:
    """What the server was seen to do for the model, by some fifty requests for a few tokens each.

    `tokenizer` is that of the address, where it names one. `begins` is told what the server is, before all but the
    first requests. Raises ModelError where the server does not answer or does
    not have the model.
    """
    try:
        async with asyncio.timeout(_PATIENCE):
            identity = await identify(connection, address.dialect)
            if address.name in identity.programs:
                models = [name for name in identity.models if name not in identity.programs]
                there = f"; of models it serves {listed(models[:8], last='and')}" if models else ""
                instead = "`qpdsl serve … --expose NAME=ID` serves one"
                raise ModelError(str(address), f"it is a program there, and no model itself{there}; {instead}")
            begins(_better_dialect(address, identity) or f"is {identity.named or 'of no known kind'}")
            return await _probed(connection, address, tokenizer, identity)
    except ServerError as error:
        raise ModelError(str(address), str(error)) from error
    except TimeoutError:
        raise ModelError(str(address), f"a probe of the server took more than {_PATIENCE:g} s") from None


async def _probed(
    connection: Connection, address: Address, tokenizer: TextTokenizer | None, identity: Identity
) -> ServerCapabilities:
    known = ServerCapabilities(context=identity.context_of(address.name), version=identity.named)
    clients = await _clients(connection, address, tokenizer)
    own = tokenizer if "ids" in clients else None
    thinks = SeenThinking(None)
    if "chat" in clients and own is None:
        thinks = await thinking(clients["chat"])
    if thinks.thinking is not None:
        clients["chat"] = answering(clients["chat"], thinks.thinking)
    seen: dict[Endpoint, list[ServerCapabilities]] = {}
    best: tuple[ProbeClient, int] | None = None
    prefill, answers = False, ServerCapabilities()
    for endpoint, client in clients.items():
        # Where token ids are sent, nothing else is.
        if "ids" in clients and endpoint != "ids":
            continue
        found = await greedy_text(client)
        if found is None or not found[1]:
            continue
        best = best or (client, found[0])
        seen[endpoint] = [
            await sampling(client, *found),
            await constraints(client, *found),
            await response(client, *found, own),
        ]
        if own is not None and (closed := _behind_thoughts(client, own)) is not None:
            answers = await constraints(closed, *found)
            seen[endpoint][1] = replace(seen[endpoint][1], notes=_before_answers(seen[endpoint][1], answers))
        elif endpoint == "chat":
            answers = seen[endpoint][1]
        prefill = prefill or (endpoint == "chat" and await prefills(client, *found))
    if best is None:
        scored = known if tokenizer is None else await _scores(connection, address, tokenizer, known)
        if scored.scores is not None:
            return replace(scored, endpoint="ids", notes=_notes(address, identity, scored.scores, {}))
        raise ModelError(str(address), await _no_answer(connection, address, identity, thinks.thinking))
    notes = (*_notes(address, identity, None, seen), *thinks.notes)
    common = _common(known, seen)
    # What else differs between the two is not told apart.
    parts = thinks.thinking is not None or own is not None
    held = answers.constraints - common.constraints if parts else frozenset()
    chats = "chat" in (clients if own is not None else seen)
    if "chat" in clients and not chats:
        notes = (*notes, _silent(thinks.thinking))
    if "ids" not in clients and tokenizer is not None:
        notes = (*notes, f"does not continue from token ids of `{address.tokenizer}`")
    capabilities = replace(
        common,
        endpoint=next(iter(seen)),
        chat=chats,
        answer_constraints=held,
        prefill=prefill,
        tools="chat" in seen and await calls_tools(clients["chat"]),
        thinking=thinks.thinking if chats else None,
        max_tokens_name=clients["chat"].shape.max_tokens_name if "chat" in clients else "max_tokens",
        cancels=await cancels(*best),
        notes=notes,
    )
    return capabilities if own is None else await _scores(connection, address, own, capabilities)


def _behind_thoughts(client: ProbeClient, tokenizer: TextTokenizer) -> ProbeClient | None:
    """A client whose prompts end with a thought that is closed; None of a model that does not think."""
    thinking = find_thinking(tokenizer)
    if thinking is None:
        return None
    closing = ThoughtMarks(thinking, tokenizer).closing
    return replace(client, prompts=[(*prompt, *closing) for prompt in client.prompts if isinstance(prompt, tuple)])


def _before_answers(anywhere: ServerCapabilities, answers: ServerCapabilities) -> tuple[str, ...]:
    """The notes on both, with what is said of one alone."""
    early = [note if note in answers.notes else f"{note} before a thought has ended" for note in anywhere.notes]
    return (*early, *(note for note in answers.notes if note not in anywhere.notes))


def _silent(thinking: ServerThinking | None) -> str:
    """Why no chat is sent to a server that answers chats."""
    if thinking is None:
        return "answers chats without text"
    return (
        f"writes no answer within {ROOM} tokens of a thought: {_UNENDED}; a chat needs another reasoning parser, or "
        "`tokenizer=`"
    )


async def _clients(
    connection: Connection, address: Address, tokenizer: TextTokenizer | None
) -> dict[Endpoint, ProbeClient]:
    """A client for each form of prompts that the server answers, the best first."""
    dialect = named(address.dialect)
    text = ProbeClient(connection, dialect, address.name, _TEXTS)
    chat = ProbeClient(
        connection, dialect, address.name, [Messages((Message("user", message),)) for message in _MESSAGES]
    )
    clients: dict[Endpoint, ProbeClient] = {}
    written = await text.ask(ProbeRequest())
    if tokenizer is not None:
        prompts = [tuple(tokenizer.encode(prompt)) for prompt in _TEXTS]
        ids = ProbeClient(connection, dialect, address.name, prompts)
        agree = await _same_tokens(connection, address.name, tokenizer)
        counted = await ids.ask(ProbeRequest()) if agree is not False else None
        if counted is not None and counted.prompt_tokens == len(prompts[0]):
            # Where nothing is told of ids, that text and ids are continued alike shows that they are read.
            alike = written is not None and (written.text, written.prompt_tokens) == (counted.text, len(prompts[0]))
            if agree or alike:
                clients["ids"] = ids
    if written is not None:
        clients["text"] = text
    # Some models have a temperature of their own, and their servers refuse another.
    for greedy, name in product((True, False), get_args(BoundName)):
        bounded = replace(chat, shape=ServerCapabilities(max_tokens_name=name), greedy=greedy)
        answer = await bounded.ask(ProbeRequest(most=LENGTH // 2))
        if answer is not None and (answer.sampled_tokens is None or answer.sampled_tokens <= LENGTH // 2):
            clients["chat"] = bounded
            break
    return clients


# Who finds out which fields, in the order in which a form of prompts is probed.
_PROBED = (
    ("seeds", "largest_seed", "greedy", "temperature", "top_k", "top_p", "min_p", "n"),
    ("constraints", "stops", "names_stop"),
    ("logprobs", "token_ids", "streams", "cached_tokens"),
)


def _common(known: ServerCapabilities, seen: Mapping[Endpoint, Sequence[ServerCapabilities]]) -> ServerCapabilities:
    """With what all forms of prompts have that will be used."""
    common: dict[str, Any] = {}
    for place, names in enumerate(_PROBED):
        for name in names:
            values = [getattr(found[place], name) for found in seen.values()]
            # Of flags all, of numbers the least, of sets what is in each.
            common[name] = frozenset.intersection(*values) if isinstance(values[0], frozenset) else min(values)
    return replace(known, **common)


async def _scores(
    connection: Connection, address: Address, tokenizer: TextTokenizer, known: ServerCapabilities
) -> ServerCapabilities:
    """With what the server reads of given tokens."""

    async def send(question: Question) -> tuple[Values, Calls]:
        return question.read(await posted(connection, question.path, question.body)), Calls(requests=1)

    return await with_scoring(known, address, tokenizer.encode(_SCORED), send)


async def _no_answer(
    connection: Connection, address: Address, identity: Identity, thinking: ServerThinking | None
) -> str:
    """Why the server gives no text for the model, in words."""
    if thinking is not None:
        return f"it writes no answer within {ROOM} tokens of a thought, whatever it is asked: {_UNENDED}"
    if identity.models and address.name not in identity.models:
        return f"the server has no model of that name, only {listed(identity.models[:8], last='and')}"
    body = {
        "model": address.name,
        "messages": [{"role": "user", "content": _MESSAGES[0]}],
        "max_tokens": LENGTH,
        "seed": 1,
    }
    try:
        await connection.post("chat/completions", body)
    except ServerError as error:
        hint = "" if address.url.endswith("/v1") else f"; the URL of most servers ends with `/v1`: `{address.url}/v1`"
        return f"{error}{hint}"
    return "the server returns no text: it is of no known kind"


def _better_dialect(address: Address, identity: Identity) -> str:
    """Which dialect is the server's own; empty where that is the address's, or nobody knows."""
    if identity.dialect in (None, address.dialect):
        return ""
    better = "supports more" if address.dialect == "openai" else "has the names of its fields"
    return f"is {identity.kind}; `{identity.dialect}:{address.url}#{address.name}` {better}"


def _notes(
    address: Address, identity: Identity, scores: str | None, seen: Mapping[Endpoint, Sequence[ServerCapabilities]]
) -> tuple[str, ...]:
    """What people should know, each once."""
    notes: list[str] = []
    if better := _better_dialect(address, identity):
        notes.append(better)
    if identity.models and address.name not in identity.models:
        notes.append(
            f"does not list the model, only {listed(identity.models[:8], last='and')}; it may answer with another"
        )
    if scores is not None:
        notes.append("serves a reward model, which writes no text")
    by_endpoint = {endpoint: [note for one in found for note in one.notes] for endpoint, found in seen.items()}
    for endpoint, own in by_endpoint.items():
        for note in own:
            everywhere = all(note in others for others in by_endpoint.values())
            notes.append(note if everywhere else f"{note}, in {_ENDPOINTS[endpoint]}")
    return tuple(dict.fromkeys(notes))


async def _same_tokens(connection: Connection, model: str, tokenizer: TextTokenizer) -> bool | None:
    """Whether ids mean the same there and here, None where the server does not say.

    A server that reads our ids as our text has our vocabulary, whatever it makes of text itself: text is cut here.
    """
    here = [list(tokenizer.encode(text, add_special_tokens=False)) for text in _TOKENIZED]
    there = await _all(connection, model, _TO_TEXT, here)
    if there is not None:
        read = [tokenizer.decode(ids, clean_up_tokenization_spaces=False) for ids in here]
        return all(_alike(said, text) for said, text in zip(there, read, strict=True))
    ids = await _all(connection, model, _TO_IDS, _TOKENIZED)
    return None if ids is None else ids == here


async def _all(
    connection: Connection, model: str, forms: Sequence[tuple[str, str, str]], given: Sequence[Any]
) -> list[Any] | None:
    """What the server makes of all that is given, in the first form that it understands; None where in none."""
    for path, sent, told in forms:
        first = await _one(connection, model, path, sent, told, given[0])
        if first is not None:
            rest = [await _one(connection, model, path, sent, told, one) for one in given[1:]]
            return [first, *rest]
    return None


async def _one(connection: Connection, model: str, path: str, sent: str, told: str, given: Any) -> Any:
    plain = {} if sent == "tokens" else _PLAIN
    answer = await posted(connection, path, {"model": model, sent: given, **plain})
    return answer.get(told) if isinstance(answer, dict) else None


def _alike(said: object, text: str) -> bool:
    # SentencePiece tokenizers put a space in front, and take it away, in different places.
    return isinstance(said, str) and said.lstrip(" ") == text.lstrip(" ")
