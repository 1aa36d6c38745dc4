"""What a request asks of a bare model, and the engine's requests that come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

from qpdsl.executor.requests.request import (
    Constraint,
    GenerateRequest,
    LogProbRequest,
    Mask,
    Owner,
    SamplingParams,
    TreeRequest,
    Watch,
)
from qpdsl.executor.runtime.instance.noise import noise_key
from qpdsl.serve.served_model import Endpoint


@dataclass(frozen=True, slots=True)
class BareRequest:
    """`count` samples of each of `prompts`, which are token ids.

    A prompt with `max_tokens` 0 is only read. `eos` are the ids that end a sample. A sample ends behind the first of
    `stops`, which its text has where `keeps_stop`. `logprobs`: those of the sampled tokens are told, with `greedy_top`
    as the likeliest ones too, or those of `named_ids` in their place, where one token is sampled; `prompt_logprobs`:
    those of the prompt. `echo`: the text begins with the prompt's. `token_ids`: the ids are told; `ids_as_text`: and
    stand for the texts of tokens in log-probabilities. `continuous_usage`: each piece of a stream says what the
    request has cost up to there.
    """

    endpoint: Endpoint
    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams
    max_tokens: int
    seed: int
    count: int = 1
    eos: frozenset[int] = frozenset()
    stops: tuple[str, ...] = ()
    keeps_stop: bool = False
    mask: Callable[[], Mask] | None = None
    constraint: Constraint | None = None
    logprobs: bool = False
    greedy_top: bool = False
    named_ids: tuple[int, ...] = ()
    prompt_logprobs: bool = False
    echo: bool = False
    token_ids: bool = False
    ids_as_text: bool = False
    continuous_usage: bool = False
    owner: Owner = field(default=Owner())

    def generate(self, prompt: tuple[int, ...], watch: Callable[[int], Watch] | None) -> GenerateRequest:
        """The engine's request for the samples of a prompt."""
        return GenerateRequest(
            prompt,
            sample_keys(self.seed, prompt, self.count),
            self.sampling,
            self.max_tokens,
            self.eos,
            watch,
            self.mask,
            # A constraint leaves few ids, and forces many: neither changes a token.
            jump=self.mask is not None,
            sparse=self.mask is not None,
            logprobs=self.logprobs,
            constraint=self.constraint,
            stops=self.stops,
            owner=self.owner,
        )

    def read(self, prompt: tuple[int, ...]) -> LogProbRequest:
        """The engine's request for the log-probabilities of a prompt of two tokens or more."""
        return LogProbRequest(prompt[:1], prompt[1:], owner=self.owner)

    def read_named(self, prompt: tuple[int, ...]) -> TreeRequest:
        """The engine's request for the log-probabilities of the ids that are named, as the token after a prompt."""
        return TreeRequest(prompt, tuple((id,) for id in self.named_ids), owner=self.owner)


def sample_keys(seed: int, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The noise keys of the samples of a prompt: sample i has that of the first one under seed + i."""
    context = blake2b(",".join(map(str, prompt)).encode(), digest_size=16).digest()
    return tuple(noise_key(seed + number, context, 0, (), ()) for number in range(count))
