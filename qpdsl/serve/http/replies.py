"""Answers and chunks of a stream as OpenAI's API writes them, in bytes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from qpdsl.serve.served_model import Chosen, CompletionRequest, CompletionResponse, Piece, TokenUsage

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class Replies:
    """Writes what is said of one request.

    With `usage` a stream ends with a chunk of what the request cost, and with `always` each chunk says it so far.
    """

    def __init__(self, request: CompletionRequest, model: str, *, usage: bool = False, always: bool = False) -> None:
        self._chat = request.endpoint == "chat"
        self._usage = usage
        self._always = always
        kind = "chat.completion" if self._chat else "text_completion"
        self._head: dict[str, Any] = {
            "id": request.id,
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        # All chunks of a stream begin alike.
        self._lead = self._lead_of({})
        self._tail = '], "usage": null}\n\n' if usage else "]}\n\n"
        self._begun: dict[int, str] = {}

    def whole(self, answer: CompletionResponse) -> bytes:
        """The body of an answer that is not streamed."""
        choices = [self._choice(index, chosen) for index, chosen in enumerate(answer.choices)]
        body = {**self._head, "choices": choices, "usage": usage_of(answer.usage)}
        if answer.fingerprint is not None:
            body["system_fingerprint"] = answer.fingerprint
        return _json({**body, **answer.extra}).encode()

    def piece(self, piece: Piece) -> bytes:
        """The chunk of a piece; before the first one of a choice, that of the role."""
        lead = "" if piece.index in self._begun else self._role(piece.index)
        self._begun[piece.index] = self._begun.get(piece.index, "") + piece.text
        tail = None
        if self._always and piece.usage is not None:
            tail = f'], "usage": {_json(usage_of(piece.usage))}}}\n\n'
        return (lead + self._chunk(piece.index, piece.text, piece.logprobs, None, piece.extra, tail=tail)).encode()

    def end(self, answer: CompletionResponse) -> bytes:
        """What no piece has said yet, why each choice ended, the usage where it was asked for, and the end."""
        parts = []
        lead = self._lead_of({} if answer.fingerprint is None else {"system_fingerprint": answer.fingerprint})
        for index, chosen in enumerate(answer.choices):
            shown = self._begun.get(index)
            if shown is None:
                parts.append(self._role(index))
            rest = chosen.text[len(shown or "") :]
            if rest:
                logprobs = chosen.logprobs if shown is None else None
                parts.append(self._chunk(index, rest, logprobs, None, {}))
            parts.append(self._chunk(index, None, None, chosen.finish_reason, chosen.extra, lead))
        if self._usage:
            parts.append(f'{lead}], "usage": {_json(usage_of(answer.usage))}}}\n\n')
        return "".join(parts).encode() + DONE

    def _choice(self, index: int, chosen: Chosen) -> dict[str, Any]:
        said: dict[str, Any] = {"text": chosen.text}
        if self._chat:
            said = {"message": {"role": "assistant", "content": chosen.text, "refusal": None}}
        end = {"logprobs": chosen.logprobs, "finish_reason": chosen.finish_reason}
        return {"index": index, **said, **end, **chosen.extra}

    def _role(self, index: int) -> str:
        if not self._chat:
            return ""
        delta = '{"role": "assistant", "content": ""}'
        choice = f'{{"index": {index}, "delta": {delta}, "logprobs": null, "finish_reason": null}}'
        return f"{self._lead}{choice}{self._tail}"

    def _chunk(
        self,
        index: int,
        text: str | None,
        logprobs: Mapping[str, Any] | None,
        finish: str | None,
        extra: Mapping[str, Any],
        lead: str | None = None,
        tail: str | None = None,
    ) -> str:
        if self._chat:
            said = '"delta": {}' if text is None else f'"delta": {{"content": {json.dumps(text)}}}'
        else:
            said = f'"text": {json.dumps(text or "")}'
        probabilities = "null" if logprobs is None else _json(logprobs)
        ended = "null" if finish is None else f'"{finish}"'
        more = ", " + _json(extra)[1:-1] if extra else ""
        choice = f'{{"index": {index}, {said}, "logprobs": {probabilities}, "finish_reason": {ended}{more}}}'
        return f"{lead or self._lead}{choice}{tail or self._tail}"

    def _lead_of(self, more: Mapping[str, Any]) -> str:
        kind = "chat.completion.chunk" if self._chat else self._head["object"]
        return "data: " + _json({**self._head, "object": kind, **more})[:-1] + ', "choices": ['


def usage_of(usage: TokenUsage) -> dict[str, Any]:
    """The tokens of a request. Those that were sampled and are not in an answer count as reasoning."""
    answer = usage.completion_tokens if usage.answer_tokens is None else usage.answer_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": usage.completion_tokens - answer,
            "answer_tokens": answer,
        },
    }


def event(body: Mapping[str, Any]) -> bytes:
    """A JSON object as an event of a stream."""
    return f"data: {_json(body)}\n\n".encode()


def comment(text: str) -> bytes:
    """A comment in a stream, which clients skip."""
    return f": {' '.join(text.split())}\n\n".encode()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False)
