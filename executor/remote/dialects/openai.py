"""OpenAI's own API: chat completions and completions. What other servers add to it is in their own files."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Literal

from qpdsl.executor.remote.dialects.dialect import (
    BadAnswer,
    CompletionChunk,
    HTTPRequest,
    Messages,
    Question,
    SampleRequest,
    Tokens,
    Values,
    Want,
    field,
    number,
)
from qpdsl.executor.remote.server.failures import MAX_WORDS, PASSING, Refused, Unreachable
from qpdsl.executor.remote.server.server_capabilities import ScoreSource, ServerCapabilities
from qpdsl.executor.requests.request import ConstraintKind, SampleConstraint, SamplingParams
from qpdsl.grammar.words import THOUGHT_FIELDS

# No request takes so many tokens.
_MAX_TOKENS = 1 << 40
# Log-probabilities are cut off here, as vLLM does: JSON has no infinity.
_MIN_LOGPROB = -9999.0
_MAX_BIAS = 100
# Characters of an answer that are shown where it cannot be read.
_SHOWN = 120


class _Unreadable(ValueError):
    """An answer has the fields that it should have, but in one of them what makes no sense: this says what."""


class OpenAIDialect:
    """Writes requests and reads answers, with the fields alone that api.openai.com knows: it refuses others.

    It is the base of the dialects that have more, and has no state. `constraints` are the kinds that it has a field
    for; whether a server heeds it is for a probe to see. `reads_next`: a question about a path can ask what follows all
    of its tokens; `reads_likeliest`: and reads the likeliest ids too, up to a bound that the server has.
    `score_sources`: where the scores of a reward model may come from. `processors`: the options of `LogitProcessors`
    that its servers define as we do.
    """

    constraints: frozenset[ConstraintKind] = frozenset({"json_schema"})
    processors: frozenset[str] = frozenset({"presence_penalty", "frequency_penalty"})
    reads_next = False
    reads_likeliest = False
    score_sources: Sequence[ScoreSource] = ()
    # What else than usage at its end a stream is asked for.
    _stream_options: Mapping[str, bool] = {}
    # Fields that have the server go on with the last turn; one of this dialect does it by itself, or does not.
    _prefill: Mapping[str, Any] = {}
    # Fields that ask for log-probabilities, for token ids, and for the stop in the text; and which one names the stop.
    _logprobs: Mapping[str, Any] = {"logprobs": 1}
    _ids: Mapping[str, Any] = {}
    _stops: Mapping[str, Any] = {}
    _stopped_by: str | None = None

    def write(self, request: SampleRequest) -> HTTPRequest:
        """The request for one sample. Raises ValueError, in words, for what it has no field for."""
        able = request.capabilities
        body: dict[str, Any] = {"model": request.model, **self._sampling(request.sampling), "seed": request.seed}
        if isinstance(request.prompt, Messages):
            path, most = "chat/completions", able.max_tokens_name
            body["messages"] = self._messages(request.prompt, able)
            if request.prompt.begun is not None:
                body |= self._prefill
            body |= self._thinking(request.prompt, request.thought, able)
            if able.logprobs:
                body["logprobs"] = True
        else:
            path, most = "completions", "max_tokens"
            body["prompt"] = list(request.prompt) if isinstance(request.prompt, tuple) else request.prompt
            if able.logprobs:
                body |= self._logprobs
        if request.max_tokens is not None:
            body[most] = request.max_tokens
        elif path == "completions":
            body |= self._unbounded()
        if able.token_ids and isinstance(request.prompt, tuple):
            body |= self._ids
        if request.stops:
            body |= {"stop": list(request.stops), **self._stops}
        if isinstance(request.prompt, Messages) and (tools := _tools(request.prompt, request.constraint)):
            body |= tools
        elif request.constraint is not None:
            body |= self._held(request.constraint, chat=path == "chat/completions")
        return HTTPRequest(path, body)

    def streamed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The same request, with its answer as it is written."""
        return {**body, "stream": True, "stream_options": {"include_usage": True, **self._stream_options}}

    def read(self, answer: Any) -> CompletionChunk:
        """What an answer, or an event of a stream, says. Raises Refused and Unreachable."""
        if not isinstance(answer, dict):
            raise Refused("the server's answer is not a JSON object", 200)
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
        """The server's counts of tokens alone, also of an answer that `read` raises for."""
        if not isinstance(answer, dict):
            return CompletionChunk()
        usage = answer.get("usage")
        return CompletionChunk(
            prompt_tokens=count_in(usage, "prompt_tokens"),
            cached_tokens=self._cached(answer),
            sampled_tokens=count_in(usage, "completion_tokens"),
            thought_tokens=count_in(_details(usage, "completion"), "reasoning_tokens"),
        )

    def path_question(self, model: str, tokens: Tokens, wants: Sequence[Want], likeliest: int) -> Question:
        """About ids after several numbers of the `tokens`. Those that do not stand there may be left out.

        Here by `echo`, which has the log-probabilities of the tokens that stand there alone.
        """

        def read(answer: Any) -> Values:
            values = field(answer, "choices", 0, "logprobs", "token_logprobs")
            # With the token that is drawn, which some leave out.
            if not isinstance(values, list) or not 0 <= len(values) - len(tokens) <= 1:
                raise BadAnswer(f"returned no log-probabilities of the {len(tokens)} tokens that it was given")
            return tuple(
                tuple(as_logprob(values[length]) if id == tokens[length] else None for id in ids)
                for length, ids in wants
            )

        return Question("completions", {**reading(model, tokens), "echo": True, "logprobs": 1}, read)

    def next_question(self, model: str, tokens: Tokens, ids: Tokens) -> Question | None:
        """About ids as the token that follows `tokens`; None where the dialect has no such question."""
        return None

    def score_question(
        self, source: ScoreSource, model: str, tokens: Tokens, places: Sequence[int], outputs: Tokens, *, shares: bool
    ) -> Question:
        """About the `outputs` of a reward model's head: at each of `places` ("pooling"), or at the last token.

        `shares`: the server answers with probabilities; their logarithms are read.
        """
        raise ValueError("this dialect has no reward models")

    def _sampling(self, sampling: SamplingParams) -> dict[str, Any]:
        """What is neutral is sent too: the defaults of servers are others, those of their models often."""
        if sampling.top_k is not None or sampling.min_p is not None:
            raise ValueError("this dialect has no top_k and no min_p")
        own = sampling.processors
        penalties = {"presence_penalty": own.presence, "frequency_penalty": own.frequency}
        given = {name: value for name, value in penalties.items() if value}
        return {"temperature": _temperature(sampling), "top_p": _top_p(sampling), **given}

    def _messages(self, prompt: Messages, able: ServerCapabilities) -> list[dict[str, Any]]:
        field = able.thinking.field if able.thinking is not None and able.thinking.returned else None
        messages: list[dict[str, Any]] = []
        ids, called = map("call{:05d}".format, count()), deque[str]()
        for turn in (*prompt.turns, *([] if prompt.begun is None else [prompt.begun])):
            message: dict[str, Any] = {"role": turn.role, "content": turn.text}
            if field and turn.thought:
                message[field] = turn.thought
            if turn.calls:
                calls = [_call(spelt, next(ids)) for spelt in turn.calls]
                called = deque(call["id"] for call in calls)
                message |= {"content": turn.text or None, "tool_calls": calls}
            if turn.role == "tool":
                message["tool_call_id"] = called.popleft() if called else ""
            messages.append(message)
        return messages

    def _thinking(self, prompt: Messages, bound: int | None, able: ServerCapabilities) -> Mapping[str, Any]:
        """What says how the model is to think, in the fields that the server was seen to heed."""
        thinking, think = able.thinking, prompt.think
        if thinking is None:
            return {}
        if think not in ("", *thinking.switches):
            known = ", ".join(thinking.switches) or "none"
            raise ValueError(f"its server does not know `think={think}`; it knows {known}")
        if bound is None:
            return thinking.switches.get(think, {})
        if thinking.bound is None:
            raise ValueError("its server takes no bound on a thought")
        return {**thinking.switches.get(think, {}), thinking.bound: bound}

    def _unbounded(self) -> dict[str, Any]:
        return {"max_tokens": None}

    def _held(self, constraint: SampleConstraint, *, chat: bool) -> dict[str, Any]:
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
        thought = thought_in(message or {})[1]
        if not isinstance(text, str | None) or not isinstance(thought, str):
            raise _Unreadable("its text is not a string")
        logprobs, sizes = _logprobs(choice.get("logprobs"))
        if not all(map(math.isfinite, logprobs)):
            raise _Unreadable("a log-probability is not a number")
        stop = None if self._stopped_by is None else choice.get(self._stopped_by)
        return CompletionChunk(
            text or "",
            self._token_ids(choice),
            logprobs,
            sizes,
            _finish(choice.get("finish_reason")),
            stop if isinstance(stop, str) else None,
            counts.prompt_tokens,
            counts.cached_tokens,
            counts.sampled_tokens,
            thought,
            counts.thought_tokens,
            tuple(map(_spelt_call, (message or {}).get("tool_calls") or ())),
        )

    def _token_ids(self, choice: Mapping[str, Any]) -> tuple[int, ...] | None:
        return None

    def _cached(self, answer: Mapping[str, Any]) -> int | None:
        return count_in(_details(answer.get("usage"), "prompt"), "cached_tokens")


def _tools(prompt: Messages, constraint: SampleConstraint | None) -> dict[str, Any]:
    """What asks for calls, or shows the tools of earlier ones; nothing where a conversation has none."""
    if constraint is None or not constraint.tools:
        return {"tools": json.loads(prompt.tools), "tool_choice": "none"} if prompt.tools and not constraint else {}
    asked = json.loads(constraint.tools)
    functions = [{**tool, "strict": True} if _is_strict(tool["parameters"]) else tool for tool in asked]
    choice = "auto" if constraint.or_text else "required"
    tools = [{"type": "function", "function": function} for function in functions]
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": constraint.most_calls > 1}


def _is_strict(schema: Any) -> bool:
    """Whether OpenAI's API holds arguments to a schema: each object in it has all of its fields and no others."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    fields = schema.get("properties")
    whole = not isinstance(fields, dict) or (
        schema.get("additionalProperties") is False and set(schema.get("required", ())) == set(fields)
    )
    return whole and all(map(_is_strict, schema.values()))


def _call(spelt: str, id: str) -> dict[str, Any]:
    call = json.loads(spelt)
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": call["name"], "arguments": arguments}}


def _spelt_call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    name, arguments = json.dumps(function["name"], ensure_ascii=False), function.get("arguments") or "{}"
    return f'{{"name": {name}, "arguments": {arguments}}}'


def reading(model: str, tokens: Tokens) -> dict[str, Any]:
    """The body of a question. One token is drawn in any case: what a server makes of `max_tokens` 0 differs."""
    return {"model": model, "prompt": list(tokens), "max_tokens": 1, "temperature": 0, "seed": 0}


def as_logprob(value: Any) -> float:
    """A log-probability of an answer. Raises BadAnswer."""
    logprob = number(value)
    if logprob > 1e-3:
        raise BadAnswer(f"returned {logprob} as a log-probability")
    return max(min(logprob, 0.0), _MIN_LOGPROB)


def as_outputs(row: Any, outputs: Tokens, *, shares: bool = False) -> tuple[float, ...]:
    """The numbers of a reward model's head. Raises BadAnswer."""
    numbers = [number(field(row, output)) for output in outputs]
    return tuple(math.log(one) if one > 0 else -745.0 for one in numbers) if shares else tuple(numbers)


def thought_in(message: Mapping[str, Any]) -> tuple[str | None, Any]:
    """The field of a message, or of a piece of one, that has its thought, and the thought; none and "" without."""
    return next(((name, message[name]) for name in THOUGHT_FIELDS if message.get(name)), (None, ""))


def _details(usage: Any, of: Literal["prompt", "completion"]) -> Any:
    """What usage says of the parts of a count."""
    return usage.get(f"{of}_tokens_details") if isinstance(usage, dict) else None


def count_in(counts: Any, name: str) -> int | None:
    """A number of tokens that a server tells; None where it tells none, or one that nothing has."""
    count = counts.get(name) if isinstance(counts, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= _MAX_TOKENS else None


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
        "presence_penalty": sampling.processors.presence,
        "frequency_penalty": sampling.processors.frequency,
        **({"min_tokens": sampling.processors.min_tokens} if sampling.processors.min_tokens else {}),
        **({"logit_bias": _biases(sampling)} if sampling.processors.bias else {}),
    }


def _biases(sampling: SamplingParams) -> dict[str, float]:
    """By ids. Raises ValueError for what vLLM would cut off."""
    bias = {str(id): value for id, value in sampling.processors.bias}
    if any(abs(value) > _MAX_BIAS for value in bias.values()):
        raise ValueError(f"servers take a bias of {_MAX_BIAS} at the most")
    return bias


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
    if reason == "tool_calls":
        return "stop"
    if reason in (None, "stop", "length"):
        return reason
    if reason in ("abort", "error"):
        raise Unreachable("the server aborted the request")
    raise Refused(f"the server ended the answer for an unknown reason: {reason}", 200)


def _told(error: Any) -> Refused | Unreachable:
    """An error in an answer of status 200, or in a stream."""
    message = error.get("message", error) if isinstance(error, dict) else error
    status = error.get("code") if isinstance(error, dict) else None
    words = f"the server reported an error: {' '.join(str(message).split())[:MAX_WORDS]}"
    if isinstance(status, int) and 400 <= status < 500 and status not in PASSING:
        return Refused(words, status)
    return Unreachable(words, status=status if isinstance(status, int) else None)
