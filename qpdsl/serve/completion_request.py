"""A request for an answer: the fields of its body with their types, and what may not be ignored among the others.

A field that OpenAI's API knows is honoured by the model that is asked, or it says nothing of the answer, or it stands
at the value that changes nothing, or it is refused. A field that nobody knows is refused with the nearest known name.
"""

from __future__ import annotations

import math
import sys
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from qpdsl.errors import shorten, unknown
from qpdsl.executor.requests.request import Client

# "chat": /v1/chat/completions; "text": /v1/completions.
Endpoint = Literal["chat", "text"]
# What every model of the server takes.
SHARED = ("model", "stream", "stream_options")
# What says which request goes first, from clients that may say so.
ORDER = ("priority", "deadline")
# What labels a request, and says nothing of its answer.
LABELS = (
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "session_id",
)
# Other fields of OpenAI's API and of vLLM's, with the values that ask for nothing; none always asks for nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "priority": (0,),
    "deadline": (),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    # Without tools nothing is chosen and nothing is called.
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "thinking_token_budget": (),
    "verbosity": (),
    "moderation": (),
    "web_search_options": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "temperature": (1,),
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_special_tokens": (True, False),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "truncate_prompt_tokens": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "prompt_logprobs": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "allowed_token_ids": (),
    "logits_processors": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "seed": (),
    "stop": ([],),
    "max_tokens": (),
    "max_completion_tokens": (),
}
# The numbers that these fields may have, whether or not they have a place.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1.0, math.inf),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.0, math.inf),
}
# Which of the two endpoints has a field that the other has not.
PROMPT_FIELD: Mapping[Endpoint, str] = {"chat": "messages", "text": "prompt"}
_LARGEST = 2**63 - 1
_MAX_PRIORITY = 1 << 31
_MAX_SECONDS = 7 * 86400.0
_STREAM_OPTIONS = ("include_usage", "include_obfuscation", "continuous_usage_stats")
_MAX_CHOICES = 128
_MAX_STOPS = 16


class Refusal(Exception):
    """A request that is not answered: an HTTP status, and the body `{"error": {"message", "type", "param", "code"}}`.

    `param` names the field of the body that is at fault. `retry_after`: in how many seconds to ask again.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code
        self.retry_after = retry_after

    @property
    def type(self) -> str:
        """The class of the error, as OpenAI names it."""
        match self.status:
            case 401:
                return "authentication_error"
            case 422:
                return "program_error"
            case 429:
                return "rate_limit_error"
            case status if status < 500:
                return "invalid_request_error"
        return "server_error"

    def body(self) -> dict[str, Any]:
        """The body of the answer, and of an error event in a stream."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class NoPlace(Refusal):
    """What a model has no place for: these `fields` of the body, or of its conversation the turns of these numbers.

    A server that may leave it out answers the rest of the request (`lenience.py`).
    """

    def __init__(
        self,
        message: str,
        param: str,
        *,
        code: str | None = "unsupported_parameter",
        fields: Collection[str] = (),
        turns: Collection[int] = (),
    ) -> None:
        super().__init__(message, param, code=code)
        self.turns = frozenset(turns)
        self.fields = frozenset(fields or (() if turns else (param,)))


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One request for an answer, whose fields are read one by one.

    `body` is the JSON object as it came. Every reader raises Refusal where a value is not of the type that is asked
    for; a field that is null counts as absent. `id` names the request in the answer and in events, and `client` is who
    asks, with the priority and the deadline of the body where the client `orders`: where it may say them.
    """

    endpoint: Endpoint
    body: Mapping[str, Any]
    id: str = ""
    client: Client = field(default=Client())
    orders: bool = False

    @classmethod
    def of(
        cls, endpoint: Endpoint, body: Mapping[str, Any], arrived: float, *, owner: str = "", orders: bool = False
    ) -> CompletionRequest:
        """The request of a body that arrived then, on the clock of `time.monotonic`. Raises Refusal.

        `owner`: see `Client`.
        """
        id = ("chatcmpl-" if endpoint == "chat" else "cmpl-") + uuid.uuid4().hex
        request = cls(endpoint, body, id, Client(uuid.uuid4().hex, owner=owner), orders)
        # What is wrong with a stream is reported before what is wrong with other fields.
        _ = request.streams, request.stream_options
        if not orders:
            return request
        # As in vLLM the lower `priority` goes first.
        priority = request.whole("priority", -_MAX_PRIORITY, _MAX_PRIORITY) or 0
        deadline = request.number("deadline", 0.0, _MAX_SECONDS)
        due = None if deadline is None else arrived + deadline
        return replace(request, client=replace(request.client, urgency=-priority, deadline=due))

    @property
    def streams(self) -> bool:
        return self.flag("stream")

    @property
    def stream_options(self) -> Mapping[str, bool | None]:
        """What a stream is to have besides: `include_usage` at its end, `continuous_usage_stats` in each chunk."""
        options = self.mapping("stream_options")
        if options and not self.streams:
            raise Refusal("`stream_options` needs `stream`", "stream_options")
        for name, value in options.items():
            if name not in _STREAM_OPTIONS:
                raise Refusal(unknown(name, _STREAM_OPTIONS, "`stream_options` has no field"), "stream_options")
            if not isinstance(value, bool | None):
                raise Refusal(f"`stream_options.{name}` must be true or false", "stream_options")
        return options

    def get(self, name: str) -> Any:
        return self.body.get(name)

    def flag(self, name: str) -> bool:
        """True or false, and false where it is absent."""
        value = self.body.get(name)
        if value is not None and not isinstance(value, bool):
            raise Refusal(f"`{name}` must be true or false, not {_shown(value)}", name)
        return bool(value)

    def whole(self, name: str, least: int = -_LARGEST, most: int = _LARGEST) -> int | None:
        """A whole number within bounds."""
        value = self.body.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refusal(f"`{name}` must be a whole number, not {_shown(value)}", name)
        if not least <= value <= most:
            bounds = f"at least {least}" if most == _LARGEST else f"from {least} to {most}"
            raise Refusal(f"`{name}` must be {bounds}, not {_shown(value)}", name)
        return value

    def number(self, name: str, least: float = -math.inf, most: float = math.inf) -> float | None:
        """A number within bounds."""
        value = self.body.get(name)
        if value is None:
            return None
        # A whole number of JSON may be larger than any float.
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise Refusal(f"`{name}` must be a number, not {_shown(value)}", name)
        if not least <= value <= most:
            bounds = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            raise Refusal(f"`{name}` must be {bounds}, not {_shown(value)}", name)
        return float(value)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """One text, or a list of up to `most`; none of them is empty."""
        value = self.body.get(name)
        if value is None:
            return ()
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise Refusal(f"`{name}` must be a text or a list of texts, not {_shown(value)}", name)
        if len(texts) > most:
            raise Refusal(f"`{name}` takes up to {most} texts, not {len(texts)}", name)
        if "" in texts:
            raise Refusal(f"`{name}` has an empty text", name)
        return tuple(texts)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A JSON object, and an empty one where it is absent."""
        value = self.body.get(name)
        if value is not None and not isinstance(value, dict):
            raise Refusal(f"`{name}` must be a JSON object, not {_shown(value)}", name)
        return value or {}

    def choices(self) -> int:
        """`n`, how many answers are asked for."""
        return self.whole("n", 1, _MAX_CHOICES) or 1

    def stops(self) -> tuple[str, ...]:
        """`stop`, the texts at which an answer ends."""
        return self.texts("stop", _MAX_STOPS)

    def bound(self) -> int | None:
        """The most tokens that an answer may have: `max_completion_tokens`, or `max_tokens`, its older name."""
        newer, older = self.whole("max_completion_tokens", 1), self.whole("max_tokens", 1)
        if newer is not None and older is not None and newer != older:
            message = f"`max_tokens` says {older} and `max_completion_tokens`, its newer name, says {newer}"
            raise Refusal(message, "max_tokens")
        return older if newer is None else newer

    def refuse_others(self, honoured: Collection[str], why: Mapping[str, str]) -> None:
        """Raises NoPlace for the fields that are neither `honoured`, nor labels, nor at a value that changes nothing.

        A number out of its `BOUNDS` is refused for that, so that it is never left out.

        `why` says of fields what to do instead; the message is about the first of them.
        """
        prompt = PROMPT_FIELD[self.endpoint]
        taken = {prompt, *SHARED, *LABELS, *honoured, *(ORDER if self.orders else ())}
        others = [name for name, value in self.body.items() if name not in taken and not _asks_nothing(name, value)]
        if not others:
            return
        for name in BOUNDS.keys() & set(others):
            self.number(name, *BOUNDS[name])
        name, other = others[0], PROMPT_FIELD["text" if self.endpoint == "chat" else "chat"]
        if other in others:
            raise Refusal(f"this endpoint takes `{prompt}`, not `{other}`", other, code="unknown_parameter")
        if name not in NEUTRAL:
            message = why.get(name) or unknown(name, sorted({*taken, *NEUTRAL}), "there is no field")
            raise NoPlace(message, name, code="unknown_parameter", fields=others)
        unordered = "leave it out, or start the server with `--allow-priority`"
        instead = why.get(name) or (unordered if name in ORDER else "leave it out")
        raise NoPlace(f"`{name}` is not supported here: {instead}", name, fields=others)


def check_fields(given: Mapping[str, Any], known: Collection[str], where: str, field: str) -> None:
    """Raises Refusal for a field of an object within `field` that is not known; null counts as absent."""
    for name, value in given.items():
        if name not in known and value is not None:
            raise Refusal(unknown(name, known, f"`{where}` has the unknown field"), field)


def _asks_nothing(name: str, value: Any) -> bool:
    """Whether a field is known to change nothing at this value."""
    return name in NEUTRAL and (value is None or any(_same(value, neutral) for neutral in NEUTRAL[name]))


def _same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal; true is not 1."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f'the text "{shorten(value)}"'
    return shorten("null" if value is None else str(value).lower() if isinstance(value, bool) else str(value))
