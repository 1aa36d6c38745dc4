"""What a server was seen to do for one model. All that was not seen counts as absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf

from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.request import ConstraintKind, Feature, Repeats

# How continued text is asked for: by token ids, by text, or by chat messages alone.
Endpoint = OneOf["ids", "text", "chat"]
# Where the numbers of a reward model come from.
ScoreSource = OneOf["pooling", "classify"]
# The field that bounds a chat completion.
BoundName = OneOf["max_tokens", "max_completion_tokens"]


@dataclass(frozen=True, slots=True)
class Abilities:
    """Probed by value (`probe/`); each field says what was seen.

    `endpoint`: the best way in which the model goes on from what it is given; "ids" needs a tokenizer here that agrees
    with the server's. `chat`: chat completions work. `prefill`: a chat completion goes on with the last assistant turn.
    `seeds`: one seed gave the same text twice, and two seeds two texts; `largest_seed` is the largest that is told from
    others. `greedy`: temperature 0 gave the same text twice. `temperature`, `top_k`, `top_p`, `min_p`: they change what
    is drawn. `n`: a request for two gives two. `logprobs`: log-probabilities of sampled tokens; `token_ids`: their ids.
    `prompt_logprobs`: log-probabilities of given tokens, by that name or by echo; `top_logprobs`: of so many ids at
    each. `named_logprobs`: of ids that the request names, for the next token. `scores`: where the numbers of a reward
    model come from, "pooling" for those at every token and "classify" for those at the last one; `score_width`: how
    many these are, 0 where that was not seen; `score_shares`: they are probabilities, whatever is asked for.
    `constraints`: what output is held to. `stops`: a stop string ends the text, `names_stop`: and the answer says which
    did. `max_tokens_name`: the field that bounds a chat completion. `context`: tokens with what is generated, None
    where the server does not say. `cached_tokens`: usage tells what the server's cache had. `streams`: text comes as it
    is written. `cancels`: it stops when the connection is closed. `version`: the server's name and version, as it says.
    `notes`: what it takes and ignores, for people, to be read after "the server".
    """

    endpoint: Endpoint = "chat"
    chat: bool = False
    prefill: bool = False
    seeds: bool = False
    largest_seed: int = 2**31 - 1
    greedy: bool = False
    temperature: bool = False
    top_k: bool = False
    top_p: bool = False
    min_p: bool = False
    n: bool = False
    logprobs: bool = False
    token_ids: bool = False
    prompt_logprobs: bool = False
    top_logprobs: int = 0
    named_logprobs: bool = False
    scores: ScoreSource | None = None
    score_width: int = 0
    score_shares: bool = False
    constraints: frozenset[ConstraintKind] = frozenset()
    stops: bool = False
    names_stop: bool = False
    max_tokens_name: BoundName = "max_tokens"
    context: int | None = None
    cached_tokens: bool = False
    streams: bool = False
    cancels: bool = False
    version: str = ""
    notes: tuple[str, ...] = ()

    @property
    def capabilities(self) -> Capabilities:
        """What the engine says of the model."""
        # Text could be cut into other tokens at the place that is asked about.
        reads = self.endpoint == "ids" and (self.prompt_logprobs or self.named_logprobs)
        features: dict[Feature, bool] = {
            "sampling": self.scores is None and (self.endpoint != "chat" or self.chat),
            "seeds": self.seeds,
            "logprobs": reads,
            "logits": reads or self.scores is not None,
            "forks": True,
        }
        kept: Repeats = "replayable" if self.seeds else "recorded"
        found = {feature for feature, there in features.items() if there}
        return Capabilities(frozenset({*found, *self.constraints}), None, kept)
