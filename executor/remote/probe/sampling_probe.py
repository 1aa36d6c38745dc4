"""What decides the tokens that are drawn: seeds, the temperature, filters. And how many samples a request gives."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.executor.remote.probe.probe_client import LENGTH, SEEDS, ProbeClient, ProbeRequest
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from qpdsl.executor.requests.request import SamplingParams

_FREE = (SamplingParams(temperature=1.0), SamplingParams(temperature=2.0))
_LARGE = 2**63 - 1
# So much as a model has to say where its greedy text is to be told from others.
_WORDS, _TOKENS = 4, 8


async def greedy_text(client: ProbeClient) -> tuple[int, str] | None:
    """The number of a prompt and its greedy text, the longest where none is long; None where the form is refused."""
    found: list[tuple[int, str]] = []
    for number, prompt in enumerate(client.prompts):
        answer = await client.ask(ProbeRequest(prompt))
        if answer is None:
            return max(found, key=lambda one: len(one[1]), default=None)
        found.append((number, answer.text))
        if len(answer.text.split()) >= _WORDS and (answer.sampled_tokens or LENGTH) >= _TOKENS:
            return found[-1]
    return max(found, key=lambda one: len(one[1]))


async def sampling(client: ProbeClient, number: int, text: str) -> ServerCapabilities:
    """What decides the draws after a prompt whose greedy text is known.

    Seeds count where each of two gives its own text twice. Where they did nothing, two free texts would have to be the
    same twice over. A filter counts where it leaves the greedy text alone, out of a draw that was another: so tight
    that no second token passes which a small model takes for nearly as likely.
    """
    prompt = client.prompts[number]

    async def drawn(sampling: SamplingParams, seed: int) -> str | None:
        answer = await client.ask(ProbeRequest(prompt, sampling, seed))
        return None if answer is None else answer.text

    again = await drawn(SamplingParams(temperature=0.0), SEEDS[1])
    free, texts = _FREE[0], [text]
    for free in _FREE:
        texts = [one for seed in SEEDS if (one := await drawn(free, seed)) is not None]
        if len(texts) < len(SEEDS) or set(texts) != {text}:
            break
    differs = len(texts) == len(SEEDS) and set(texts) != {text}
    temperature = differs and client.greedy
    greedy = again == text and bool(text)
    seeds = differs and texts[0] != texts[1] and [await drawn(free, seed) for seed in SEEDS] == texts
    other = next((seed for seed, one in zip(SEEDS, texts, strict=False) if one != text), None)

    async def leaves_greedy(sampling: SamplingParams) -> bool:
        return greedy and temperature and other is not None and await drawn(sampling, other) == text

    two = await _two(client, number, free)
    notes = []
    if two == 1:
        notes.append("accepts `n` and returns one answer")
    if not differs and texts:
        notes.append("accepts a temperature and stays greedy")
    elif texts and not seeds:
        notes.append("accepts a seed and samples at random")
    return ServerCapabilities(
        greedy=greedy,
        temperature=temperature,
        seeds=seeds,
        largest_seed=_LARGE if seeds and await _distinguishes_large(client, number, free, texts[1]) else 2**31 - 1,
        top_k=await leaves_greedy(replace(free, top_k=1)),
        top_p=await leaves_greedy(replace(free, top_p=1e-4)),
        min_p=await leaves_greedy(replace(free, min_p=0.9999)),
        n=two == 2,
        notes=tuple(notes),
    )


async def _distinguishes_large(client: ProbeClient, number: int, free: SamplingParams, text: str) -> bool:
    """Whether a seed of more than 32 bits is told from the one that its lower bits are."""
    large = SEEDS[1] + 2**32
    answers = [await client.ask(ProbeRequest(client.prompts[number], free, large)) for _ in range(2)]
    texts = {answer.text if answer is not None else text for answer in answers}
    return len(texts) == 1 and text not in texts


async def _two(client: ProbeClient, number: int, free: SamplingParams) -> int | None:
    """How many answers a request for two gives, None where it is refused."""
    written = client.written(ProbeRequest(client.prompts[number], free, most=4))
    answer = None if written is None else await client.post(written.path, {**written.body, "n": 2})
    choices = answer.get("choices") if isinstance(answer, dict) else None
    return len(choices) if isinstance(choices, list) else None
