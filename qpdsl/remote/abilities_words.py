"""What a server was seen to do, in words: the lines of `qpdsl models --probe` and of the table in the documents."""

from __future__ import annotations

from qpdsl.executor.remote.server.abilities import Abilities
from qpdsl.executor.requests.request import CONSTRAINT_NAMES
from qpdsl.grammar.suggest import enumerated


def in_words(abilities: Abilities) -> dict[str, str]:
    """What there is to say of each thing that programs need, by its name."""
    held = [name.removeprefix("a ") for kind, name in CONSTRAINT_NAMES.items() if kind in abilities.constraints]
    filters = [name for name in ("top_k", "top_p", "min_p") if getattr(abilities, name)]
    return {
        "is sent": _sent(abilities),
        "context": "not told" if abilities.context is None else f"{abilities.context} tokens",
        "temperature": _yes(abilities.temperature),
        "temperature 0 gives the same text": _yes(abilities.greedy),
        "a seed gives the same sample": _yes(abilities.seeds) + (_seeds(abilities) if abilities.seeds else ""),
        "filters": enumerated(filters, last="and") or "no",
        "several samples a request": _yes(abilities.n),
        "holds output to": enumerated(held, last="and") or "nothing",
        "stop strings": "yes, and names the one" if abilities.names_stop else _yes(abilities.stops),
        "goes on with a begun answer": _prefill(abilities),
        "token ids of samples": _yes(abilities.token_ids),
        "log-probabilities of samples": _yes(abilities.logprobs),
        "log-probabilities of given tokens": _given(abilities),
        "scores of a reward model": _scores(abilities),
        "streams": _yes(abilities.streams),
        "stops when it is left": "yes" if abilities.cancels else "not told",
        "tells what its cache had": _yes(abilities.cached_tokens),
    }


def _yes(there: bool) -> str:
    return "yes" if there else "no"


def _sent(abilities: Abilities) -> str:
    if abilities.endpoint == "chat":
        return "messages"
    if abilities.endpoint == "text":
        return "text and messages" if abilities.chat else "text"
    return "token ids"


def _seeds(abilities: Abilities) -> str:
    return ", of 64 bits" if abilities.largest_seed > 2**32 else ", of 31 bits"


def _prefill(abilities: Abilities) -> str:
    # Templates are rendered here then.
    return "yes" if abilities.prefill or abilities.endpoint == "ids" else "no"


def _given(abilities: Abilities) -> str:
    told = []
    if abilities.prompt_logprobs:
        top = abilities.top_logprobs
        told.append(f"yes, and of the {top} likeliest" if top > 1 else "yes")
    if abilities.named_logprobs:
        told.append("of ids that are named")
    return ", ".join(told) or "no"


def _scores(abilities: Abilities) -> str:
    if abilities.scores is None:
        return "no"
    return "at every token" if abilities.scores == "pooling" else "at the last token"
