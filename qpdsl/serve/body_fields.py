"""The fields of a request's body, read one by one with their types, and what may not be ignored among the others.

A field that OpenAI's API knows is honoured by the model that is asked, or it says nothing of the answer, or it stands
at the value that changes nothing, or it is refused. A field that nobody knows is refused with the nearest known name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from typing import Any

from qpdsl.errors import shorten, unknown
from qpdsl.serve.refusal import Refusal
from qpdsl.serve.served_model import Endpoint

# What the HTTP side itself reads (see `CompletionRequest`).
SHARED = ("model", "stream", "stream_options", "priority", "deadline")
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
# Which of the two endpoints has a field that the other has not.
PROMPT_FIELD: Mapping[Endpoint, str] = {"chat": "messages", "text": "prompt"}
_LARGEST = 2**63 - 1
_MOST_CHOICES = 128
_MOST_STOPS = 16


class BodyFields:
    """Reads the fields of a body. Every reader raises Refusal where a value is not of the type that is asked for.

    A field that is none counts as absent.
    """

    def __init__(self, body: Mapping[str, Any], endpoint: Endpoint) -> None:
        self.body = body
        self.endpoint = endpoint

    def get(self, name: str) -> Any:
        return self.body.get(name)

    def flag(self, name: str) -> bool:
        """True or false, and false where it is absent."""
        value = self.body.get(name)
        if value is not None and not isinstance(value, bool):
            raise Refusal(f"`{name}` is true or false, not {_shown(value)}", name)
        return bool(value)

    def whole(self, name: str, least: int = -_LARGEST, most: int = _LARGEST) -> int | None:
        """A whole number within bounds."""
        value = self.body.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refusal(f"`{name}` is a whole number, not {_shown(value)}", name)
        if not least <= value <= most:
            bounds = f"at least {least}" if most == _LARGEST else f"from {least} to {most}"
            raise Refusal(f"`{name}` is {bounds}, not {_shown(value)}", name)
        return value

    def number(self, name: str, least: float = -math.inf, most: float = math.inf) -> float | None:
        """A number within bounds."""
        value = self.body.get(name)
        if value is None:
            return None
        # A whole number of JSON may be larger than any float.
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise Refusal(f"`{name}` is a number, not {_shown(value)}", name)
        if not least <= value <= most:
            bounds = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            raise Refusal(f"`{name}` is {bounds}, not {_shown(value)}", name)
        return float(value)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """One text, or a list of up to `most`; none of them is empty."""
        value = self.body.get(name)
        if value is None:
            return ()
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise Refusal(f"`{name}` is a text or a list of texts, not {_shown(value)}", name)
        if len(texts) > most:
            raise Refusal(f"`{name}` has up to {most} texts, not {len(texts)}", name)
        if "" in texts:
            raise Refusal(f"a text in `{name}` is empty", name)
        return tuple(texts)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A JSON object, and an empty one where it is absent."""
        value = self.body.get(name)
        if value is not None and not isinstance(value, dict):
            raise Refusal(f"`{name}` is a JSON object, not {_shown(value)}", name)
        return value or {}

    def choices(self) -> int:
        """`n`, how many answers are asked for."""
        return self.whole("n", 1, _MOST_CHOICES) or 1

    def stops(self) -> tuple[str, ...]:
        """`stop`, the texts at which an answer ends."""
        return self.texts("stop", _MOST_STOPS)

    def bound(self) -> int | None:
        """The most tokens that an answer may have: `max_completion_tokens`, or `max_tokens`, its older name."""
        newer, older = self.whole("max_completion_tokens", 1), self.whole("max_tokens", 1)
        if newer is not None and older is not None and newer != older:
            message = f"`max_tokens` says {older} and `max_completion_tokens`, its newer name, says {newer}"
            raise Refusal(message, "max_tokens")
        return older if newer is None else newer

    def refuse_others(self, honoured: Collection[str], why: Mapping[str, str], ignored: Collection[str] = ()) -> None:
        """Raises Refusal for each field that is neither `honoured`, nor a label, nor at a value that changes nothing.

        `why` says of fields what to do instead; `ignored` are fields that the server was told to drop.
        """
        prompt = PROMPT_FIELD[self.endpoint]
        taken = {prompt, *SHARED, *LABELS, *honoured, *ignored}
        for name, value in self.body.items():
            if name in taken or (value is None and name in NEUTRAL):
                continue
            if name not in NEUTRAL:
                other = PROMPT_FIELD["text" if self.endpoint == "chat" else "chat"]
                if name == other:
                    raise Refusal(f"this endpoint takes `{prompt}`, not `{other}`", name, code="unknown_parameter")
                message = why.get(name) or unknown(name, sorted({*taken, *NEUTRAL}), "there is no field")
                raise Refusal(message, name, code="unknown_parameter")
            if not any(_same(value, neutral) for neutral in NEUTRAL[name]):
                instead = why.get(name) or "leave it out"
                raise Refusal(f"`{name}` is not supported here: {instead}", name, code="unsupported_parameter")


def _same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal; true is not 1."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f'the text "{shorten(value)}"'
    return shorten("null" if value is None else str(value).lower() if isinstance(value, bool) else str(value))
