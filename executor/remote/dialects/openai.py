"""OpenAI's own API: chat completions and completions. What other servers add to it is in their own files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from qpdsl.executor.remote.dialects.dialect import CompletionChunk, HTTPRequest, Messages, SampleRequest
from qpdsl.executor.remote.server.errors import MOST_WORDS, PASSING, Refused, Unreachable
from qpdsl.executor.requests.request import Constraint, ConstraintKind, SamplingParams

# No request takes so many tokens.
_MOST_TOKENS = 1 << 40
# Characters of an answer that are shown where it cannot be read.
_SHOWN = 120


class _Unreadable(ValueError):
    """An answer has the fields that it should have, but in one of them what makes no sense: this says what."""


class OpenAIDialect:
    """Only fields that api.openai.com knows: it refuses others. The base of the dialects that have more."""

    constraints: frozenset[ConstraintKind] = frozenset({"json_schema"})
    # What else than usage at its end a stream is asked for.
    _stream_options: Mapping[str, bool] = {}

    def write(self, request: SampleRequest) -> HTTPRequest:
        able = request.abilities
        body: dict[str, Any] = {"model": request.model, **self._sampling(request.sampling), "seed": request.seed}
        if isinstance(request.prompt, Messages):
            path, most = "chat/completions", able.max_tokens_name
            body["messages"] = self._messages(request.prompt)
            if request.prompt.begun:
                body |= self._prefill()
            if able.logprobs:
                body["logprobs"] = True
        else:
            path, most = "completions", "max_tokens"
            body["prompt"] = list(request.prompt) if isinstance(request.prompt, tuple) else request.prompt
            if able.logprobs:
                body |= self._logprobs()
        if request.max_tokens is not None:
            body[most] = request.max_tokens
        elif path == "completions":
            body |= self._unbounded()
        if able.token_ids and isinstance(request.prompt, tuple):
            body |= self._ids()
        if request.stops:
            body |= self._stops(request.stops)
        if request.constraint is not None:
            body |= self._held(request.constraint, chat=path == "chat/completions")
        return HTTPRequest(path, body)

    def streamed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {**body, "stream": True, "stream_options": {"include_usage": True, **self._stream_options}}

    def read(self, answer: Any) -> CompletionChunk:
        if not isinstance(answer, dict):
            raise Refused("the server answers with something else than an answer", 200)
        if answer.get("error"):
            raise _told(answer["error"])
        try:
            return self._answer(answer)
        except _Unreadable as error:
            raise Refused(f"the server's answer cannot be read: {error}", 200) from error
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
            beginning = json.dumps(answer)[:_SHOWN]
            message = f"the server's answer does not have the fields of OpenAI's API; it begins with {beginning}"
            raise Refused(message, 200) from error

    def counts(self, answer: Any) -> CompletionChunk:
        if not isinstance(answer, dict):
            return CompletionChunk()
        usage = answer.get("usage")
        return CompletionChunk(
            prompt_tokens=count_in(usage, "prompt_tokens"),
            cached_tokens=self._cached(answer),
            sampled_tokens=count_in(usage, "completion_tokens"),
        )

    def _sampling(self, sampling: SamplingParams) -> dict[str, Any]:
        """What is neutral is sent too: the defaults of servers are others, those of their models often."""
        if sampling.top_k is not None or sampling.min_p is not None:
            raise ValueError("this dialect has no top_k and no min_p")
        return {"temperature": _temperature(sampling), "top_p": _top_p(sampling)}

    def _messages(self, prompt: Messages) -> list[dict[str, str]]:
        turns = [*prompt.turns, *([("assistant", prompt.begun)] if prompt.begun else [])]
        return [{"role": role, "content": text} for role, text in turns]

    def _prefill(self) -> dict[str, Any]:
        """What has the server go on with the last turn; a server of this dialect does it by itself, or does not."""
        return {}

    def _logprobs(self) -> dict[str, Any]:
        return {"logprobs": 1}

    def _ids(self) -> dict[str, Any]:
        return {}

    def _unbounded(self) -> dict[str, Any]:
        return {"max_tokens": None}

    def _stops(self, stops: tuple[str, ...]) -> dict[str, Any]:
        return {"stop": list(stops)}

    def _held(self, constraint: Constraint, *, chat: bool) -> dict[str, Any]:
        if constraint.kind != "json_schema":
            raise ValueError(f"this dialect has no field for a {constraint.kind}")
        schema = {"name": "record", "schema": json.loads(constraint.source), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

    def _answer(self, answer: Mapping[str, Any]) -> CompletionChunk:
        counts = self.counts(answer)
        choices = answer.get("choices")
        if not choices:
            if choices is None and not answer.get("usage"):
                raise _Unreadable("it has no choices")
            return counts
        choice = choices[0]
        message = choice.get("message", choice.get("delta"))
        text = choice.get("text") if message is None else message.get("content")
        if not isinstance(text, str | None):
            raise _Unreadable("its text is no text")
        logprobs, sizes = _logprobs(choice.get("logprobs"))
        if not all(map(math.isfinite, logprobs)):
            raise _Unreadable("a log-probability is no number")
        return CompletionChunk(
            text or "",
            self._token_ids(choice),
            logprobs,
            sizes,
            _finish(choice.get("finish_reason")),
            self._stopped_by(choice),
            counts.prompt_tokens,
            counts.cached_tokens,
            counts.sampled_tokens,
        )

    def _token_ids(self, choice: Mapping[str, Any]) -> tuple[int, ...] | None:
        return None

    def _stopped_by(self, choice: Mapping[str, Any]) -> str | None:
        """The text that ended it, where it is told."""
        return None

    def _cached(self, answer: Mapping[str, Any]) -> int | None:
        usage = answer.get("usage")
        return count_in(usage.get("prompt_tokens_details") if isinstance(usage, dict) else None, "cached_tokens")


def count_in(counts: Any, name: str) -> int | None:
    """A number of tokens that a server tells; None where it tells none, or one that nothing has."""
    count = counts.get(name) if isinstance(counts, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= _MOST_TOKENS else None


def given_ids(choice: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The ids that vLLM and SGLang tell of what was drawn."""
    ids = choice.get("token_ids")
    return None if ids is None else tuple(map(int, ids))


def all_filters(sampling: SamplingParams, no_top_k: int) -> dict[str, Any]:
    """The parameters that servers of open models have; `no_top_k` stands for none."""
    return {
        "temperature": _temperature(sampling),
        "top_p": _top_p(sampling),
        "top_k": no_top_k if sampling.top_k is None else sampling.top_k,
        "min_p": sampling.min_p or 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


def _temperature(sampling: SamplingParams) -> float:
    return 0.0 if sampling.greedy else sampling.temperature


def _top_p(sampling: SamplingParams) -> float:
    return 1.0 if sampling.top_p is None else sampling.top_p


def _logprobs(told: Any) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Log-probabilities of tokens, and their sizes, in the form of completions or of chats; llama-server knows one."""
    if not told:
        return (), ()
    if (content := told.get("content")) is not None:
        return tuple(float(token["logprob"]) for token in content), tuple(map(_size, content))
    sizes = (len(text.encode("utf-8", "replace")) for text in told.get("tokens") or ())
    return tuple(map(float, told.get("token_logprobs") or ())), tuple(sizes)


def _size(token: Mapping[str, Any]) -> int:
    """A token may be a part of a character, which its text does not show."""
    own = token.get("bytes")
    return len(token["token"].encode("utf-8", "replace")) if own is None else len(own)


def _finish(reason: Any) -> Any:
    if reason in (None, "stop", "length"):
        return reason
    if reason in ("abort", "error"):
        raise Unreachable("the server gave the request up")
    raise Refused(f"the server ended the answer for another reason: {reason}", 200)


def _told(error: Any) -> Refused | Unreachable:
    """An error in an answer of status 200, or in a stream."""
    message = error.get("message", error) if isinstance(error, dict) else error
    status = error.get("code") if isinstance(error, dict) else None
    words = f"the server broke off: {' '.join(str(message).split())[:MOST_WORDS]}"
    if isinstance(status, int) and 400 <= status < 500 and status not in PASSING:
        return Refused(words, status)
    return Unreachable(words, status=status if isinstance(status, int) else None)
