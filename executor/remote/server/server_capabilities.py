"""What a server was seen to do for one model; also as JSON, and in words for people.

All that was not seen counts as absent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.request import CONSTRAINT_NAMES, ConstraintKind, Feature, Repeats
from qpdsl.grammar.suggest import enumerated

# How continued text is asked for: by token ids, by text, or by chat messages alone.
Endpoint = Literal["ids", "text", "chat"]
# Where the numbers of a reward model come from.
ScoreSource = Literal["pooling", "classify"]
# The field that bounds a chat completion.
BoundName = Literal["max_tokens", "max_completion_tokens"]


@dataclass(frozen=True, slots=True)
class ServerThinking:
    """How a model thinks before it answers a chat, as its server was seen to report it and to be told.

    `field`: where a message has its thought, None where that is kept back and only counted. `default`: what is done
    where nothing is said. `switches` have the fields of a request by "on", "off", and the efforts that change
    something. `bound`: the field that bounds a thought in tokens, None where none does. `counted`: usage reports the
    tokens of thoughts. `returned`: the messages of a request may have their thoughts.
    """

    field: str | None = None
    default: Literal["on", "off"] = "on"
    switches: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict, hash=False)
    bound: str | None = None
    counted: bool = False
    returned: bool = False


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
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
    `constraints`: what output is held to; `answer_constraints`: and what the answers of chats alone are, where a server
    holds nothing to a constraint before a thought has ended. `tools`: a chat that has to call a tool does, and one that
    may is answered. `stops`: a stop string ends the text, `names_stop`: and the answer says which did.
    `max_tokens_name`: the field that bounds a chat completion. `context`: tokens with what is generated, None where the
    server does not say. `thinking`: how the model thinks, as far as the server keeps that apart from answers, None
    where it does not. `cached_tokens`: usage tells what the server's cache had. `streams`: text comes as it is written.
    `cancels`: it stops when the connection is closed. `version`: the server's name and version, as it says. `notes`:
    what it takes and ignores, for people, to be read after "the server".
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
    answer_constraints: frozenset[ConstraintKind] = frozenset()
    tools: bool = False
    stops: bool = False
    names_stop: bool = False
    max_tokens_name: BoundName = "max_tokens"
    context: int | None = None
    thinking: ServerThinking | None = None
    cached_tokens: bool = False
    streams: bool = False
    cancels: bool = False
    version: str = ""
    notes: tuple[str, ...] = ()

    @property
    def own_temperature(self) -> bool:
        """Whether the model is sampled at temperature 1, and its server takes no other."""
        return not self.temperature and not self.greedy

    @property
    def calls_in_fields(self) -> bool:
        """Whether tools, and calls of them, have fields of their own: of token ids, calls are parted here."""
        return self.tools and self.endpoint != "ids"

    @property
    def answers_held(self) -> frozenset[ConstraintKind]:
        """What the answers of chats are held to."""
        return self.constraints | self.answer_constraints

    @property
    def for_engine(self) -> Capabilities:
        """What an engine over the server can do for the model."""
        # Text could be cut into other tokens at the place that is asked about.
        reads = self.endpoint == "ids" and (self.prompt_logprobs or self.named_logprobs)
        features: dict[Feature, bool] = {
            "sampling": self.scores is None and (self.endpoint != "chat" or self.chat),
            "seeds": self.seeds,
            "logprobs": reads,
            "logits": reads or self.scores is not None,
            "forks": True,
            # Of token ids, thoughts are parted here.
            "thoughts": self.thinking is not None and self.endpoint != "ids",
        }
        kept: Repeats = "replayable" if self.seeds else "recorded"
        found = {feature for feature, there in features.items() if there}
        return Capabilities(frozenset({*found, *self.answers_held}), None, kept)


# What may stand in a field beside values of its default's type.
_VALUES: Mapping[str, tuple[object, ...]] = {
    "endpoint": get_args(Endpoint),
    "scores": (None, *get_args(ScoreSource)),
    "max_tokens_name": get_args(BoundName),
}
_CONSTRAINTS = ("constraints", "answer_constraints")
# No server has a longer context, and no file of ours a larger number.
_LARGEST = 2**63 - 1


def capabilities_json(capabilities: ServerCapabilities) -> dict[str, Any]:
    """A JSON object with all fields, in their order."""
    values = {one.name: getattr(capabilities, one.name) for one in fields(capabilities)}
    values |= {name: sorted(getattr(capabilities, name)) for name in _CONSTRAINTS}
    values |= {"notes": list(capabilities.notes)}
    thinking = capabilities.thinking
    return {**values, "thinking": None if thinking is None else asdict(thinking)}


def capabilities_from_json(value: object) -> ServerCapabilities:
    """Raises ValueError where a field is missing, unknown, or holds what it cannot."""
    if not isinstance(value, dict) or value.keys() != {one.name for one in fields(ServerCapabilities)}:
        raise ValueError("it has other fields")
    for name, one in value.items():
        if not _may_be(name, one):
            raise ValueError(f"`{name}` is {one!r}")
    thinking = None if value["thinking"] is None else ServerThinking(**value["thinking"])
    held = {name: frozenset(value[name]) for name in _CONSTRAINTS}
    return ServerCapabilities(**{**value, **held, "notes": tuple(value["notes"]), "thinking": thinking})


def _may_be(name: str, value: object) -> bool:
    if name in _VALUES:
        return value in _VALUES[name]
    if name in _CONSTRAINTS:
        return isinstance(value, list) and all(one in get_args(ConstraintKind) for one in value)
    if name == "notes":
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if name == "thinking":
        return value is None or _is_thinking(value)
    default = getattr(ServerCapabilities(), name)
    if isinstance(default, bool | str):
        return type(value) is type(default)
    # The only number that may be missing is the context.
    return (value is None and default is None) or (type(value) is int and 0 <= value <= _LARGEST)


def _is_thinking(value: object) -> bool:
    if not isinstance(value, dict) or value.keys() != {one.name for one in fields(ServerThinking)}:
        return False
    names = all(value[name] is None or isinstance(value[name], str) for name in ("field", "bound"))
    flags = all(isinstance(value[name], bool) for name in ("counted", "returned"))
    switches = value["switches"]
    switched = isinstance(switches, dict) and all(isinstance(given, dict) for given in switches.values())
    return names and flags and switched and value["default"] in ("on", "off")


def in_words(capabilities: ServerCapabilities) -> dict[str, str]:
    """What there is to say of each thing that programs need, by its name."""
    filters = [name for name in ("top_k", "top_p", "min_p") if getattr(capabilities, name)]
    return {
        "prompts": _sent(capabilities),
        "context": "unknown" if capabilities.context is None else f"{capabilities.context} tokens",
        "temperature": _yes(capabilities.temperature),
        "deterministic at temperature 0": _yes(capabilities.greedy),
        "reproducible by seed": _yes(capabilities.seeds) + (_seeds(capabilities) if capabilities.seeds else ""),
        "filters": enumerated(filters, last="and") or "no",
        "several samples per request": _yes(capabilities.n),
        "output constraints": _held(capabilities),
        "stop strings": "yes, and reports which" if capabilities.names_stop else _yes(capabilities.stops),
        "continues an answer": _prefill(capabilities),
        "thoughts": "parted here" if capabilities.endpoint == "ids" else _thoughts(capabilities.thinking),
        "token ids of samples": _yes(capabilities.token_ids),
        "log-probabilities of samples": _yes(capabilities.logprobs),
        "log-probabilities of given tokens": _given(capabilities),
        "reward model scores": _scores(capabilities),
        "streaming": _yes(capabilities.streams),
        "stops on disconnect": "yes" if capabilities.cancels else "unknown",
        "reports cached tokens": _yes(capabilities.cached_tokens),
    }


def _yes(there: bool) -> str:
    return "yes" if there else "no"


def _sent(capabilities: ServerCapabilities) -> str:
    if capabilities.endpoint == "chat":
        return "messages"
    if capabilities.endpoint == "text":
        return "text and messages" if capabilities.chat else "text"
    return "token ids"


def _seeds(capabilities: ServerCapabilities) -> str:
    return ", of 64 bits" if capabilities.largest_seed > 2**32 else ", of 31 bits"


def _held(capabilities: ServerCapabilities) -> str:
    everywhere, answers = (
        enumerated([name.removeprefix("a ") for kind, name in CONSTRAINT_NAMES.items() if kind in kinds], last="and")
        for kinds in (capabilities.constraints, capabilities.answers_held)
    )
    if everywhere == answers:
        return everywhere or "none"
    return f"{everywhere or 'none'}; {answers} of a chat's answer"


def _prefill(capabilities: ServerCapabilities) -> str:
    # Templates are rendered here then.
    return "yes" if capabilities.prefill or capabilities.endpoint == "ids" else "no"


def _thoughts(thinking: ServerThinking | None) -> str:
    if thinking is None:
        return "no"
    switches = [f"{name} (default)" if name == thinking.default else name for name in thinking.switches]
    told = ["kept back" if thinking.field is None else f"in `{thinking.field}`"]
    told += [f"`think` {enumerated(switches, last='or')}"] if switches else []
    told += [f"bounded by `{thinking.bound}`"] if thinking.bound else []
    told += ["counted"] if thinking.counted else []
    return "; ".join(told)


def _given(capabilities: ServerCapabilities) -> str:
    told = []
    if capabilities.prompt_logprobs:
        top = capabilities.top_logprobs
        told.append(f"yes, and of the {top} likeliest" if top > 1 else "yes")
    if capabilities.named_logprobs:
        told.append("of named ids")
    return ", ".join(told) or "no"


def _scores(capabilities: ServerCapabilities) -> str:
    if capabilities.scores is None:
        return "no"
    return "at every token" if capabilities.scores == "pooling" else "at the last token"
