"""A sample out of what a server writes: tokens, where it ends, and whether it holds to its constraint.

Where it ends is said here, by the request's own watch and mask over its tokens, whatever the server did. So the sample
is cut at one place, whether the server knew the stop, its answer was streamed and closed, or it came out of the store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.remote.dialects.dialect import CompletionChunk, joined
from qpdsl.executor.remote.remote_model import ANSWER, BYTES, CALL, THOUGHT, is_text, messages_of, tokens_of
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import (
    CONSTRAINT_NAMES,
    Finish,
    GenerateRequest,
    Mask,
    Sample,
    StepCounts,
    Watch,
)
from qpdsl.executor.text.thought_marks import Place

# The fields of an answer that was kept before thoughts were among them, and before calls of tools were.
_WITHOUT_THOUGHTS, _WITHOUT_CALLS = 9, 11


class WrittenSample:
    """Sample `index` of a request, from the pieces of an answer.

    With `told`, the answer has the ids of its tokens. A text model's tokens are the bytes of the text, and of the
    thought before it, with marks around that. Otherwise text is encoded once it is whole, and until then only the
    request's stop texts are looked for.
    """

    def __init__(self, request: GenerateRequest, index: int, model: TextModel, *, told: bool) -> None:
        self._request = request
        self._index = index
        self._model = model
        self._told = told
        self._bytes = is_text(model.tokenizer)
        messages = messages_of(request.prompt) if self._bytes and request.thought is None else None
        self._goes_on_with_answer = messages is not None and messages.begun is not None
        self._pushed: list[int] = []
        self._watch: Watch | None = None
        self.restart()
        self._follow()

    def restart(self) -> None:
        """The answer comes again from its beginning. Where it says the same, its watch has seen it already."""
        self._pieces: list[CompletionChunk] = []
        self._tokens: list[int] = []
        self._finish: Finish | None = None
        self._mistaken = False
        self._place: Place = "answer" if self._request.thought is None else self._begins

    @property
    def _begins(self) -> Place:
        """Where a sample begins that has a thought."""
        return "thought" if self._request.prompt[-1] == THOUGHT else "opening"

    @property
    def answer(self) -> CompletionChunk:
        """What has come. Where the server does not count its tokens, each piece is one."""
        answer = joined(self._pieces)
        if answer.sampled_tokens is not None:
            return answer
        return replace(answer, sampled_tokens=len(answer.logprobs) or sum(map(_has_token, self._pieces)))

    @property
    def begun(self) -> bool:
        """Whether anything was written yet."""
        return any(map(_has_token, self._pieces))

    @property
    def goes_on(self) -> bool:
        """Whether the last piece had a token."""
        return bool(self._pieces) and _has_token(self._pieces[-1])

    @property
    def ended_by_model(self) -> bool:
        """Whether the model ended it, so that the server says next what it took."""
        return self._finish == "eos"

    def push(self, piece: CompletionChunk) -> bool:
        """Takes what comes next; True where the sample ends in it. Raises EngineError where a constraint is broken."""
        self._pieces.append(piece)
        if self._finish is not None:
            return True
        if self._told:
            self._take(self._told_ids(piece))
        elif self._bytes:
            self._take(self._written(piece))
        elif self._request.stops:
            text = "".join(piece.text for piece in self._pieces)
            return any(stop in text for stop in self._request.stops)
        return self._finish is not None

    def sample(self) -> Sample | None:
        """The sample, once no more comes; None where it would go on. Raises EngineError."""
        answer = self.answer
        if not self._told and not self._bytes:
            self._take(self._model.encode(answer.text))
        if self._finish is None and answer.finish == "stop":
            if answer.named is not None:
                raise EngineError(f"the server stopped at {answer.named!r}, which is not in its answer")
            self._end()
        finish = self._finish or answer.finish
        if finish is None:
            return None
        if self._request.thought is not None and finish in ("eos", "length"):
            finish = self._bounded(answer, finish)
        whole = self._finish is None or finish == "eos"
        tokens, (logprobs, size) = tuple(self._tokens), self._counted(answer, whole)
        own = logprobs if len(logprobs) == len(tokens) and not self._bytes else ()
        billed = size if self._bytes else None
        draws = len(tokens) if billed is None else billed
        steps = StepCounts(draws=draws, rounds=draws)
        thought = None if self._request.thought is None else self._thought_size(answer, size)
        return Sample(tokens, finish, float(sum(logprobs)), 0, self._watch, own, steps, billed=billed, thought=thought)

    def _written(self, piece: CompletionChunk) -> tuple[int, ...]:
        """The tokens of a piece: a thought stands between its marks, and no white space between it and the answer."""
        if self._goes_on_with_answer:
            # A server that looks at what it writes alone takes the rest of an answer for a thought.
            self._mistaken = self._mistaken or bool(piece.thought)
            if self._mistaken and piece.text:
                raise EngineError("the server returned a thought after the answer had begun")
            return (*tokens_of(piece.thought + piece.text), *self._called(piece))
        tokens: tuple[int, ...] = ()
        if piece.thought:
            if self._request.thought is None:
                raise EngineError("the server returned a thought where none was asked for")
            if self._place == "answer":
                raise EngineError("the server returned a thought after the answer had begun")
            tokens = (*((THOUGHT,) if self._place == "opening" else ()), *tokens_of(piece.thought))
            self._place = "thought"
        text = piece.text if self._place == "answer" else piece.text.lstrip()
        calls, held = self._called(piece), self._request.constraint
        if held is not None and held.tools and not held.or_text:
            # What a model says beside a call that it was to make alone, or of one that was cut off.
            text = ""
        if not text and not calls:
            return tokens
        closed = self._place == "thought"
        self._place = "answer"
        return (*tokens, *((ANSWER,) if closed else ()), *tokens_of(text), *calls)

    def _called(self, piece: CompletionChunk) -> tuple[int, ...]:
        """The tokens of calls, of as many as were asked for."""
        held = self._request.constraint
        if held is None or not held.tools or not piece.calls:
            return ()
        schemas = {tool["name"]: tool["parameters"] for tool in json.loads(held.tools)}
        calls = (_as_held(call, schemas) for call in piece.calls[: held.most_calls])
        return tuple(token for call in calls for token in (CALL, *tokens_of(call)))

    def _bounded(self, answer: CompletionChunk, finish: Finish) -> Finish:
        """Why a sample with a thought ends, whose answer is cut here: its server bounds both together, or neither.

        Only the server knows the answer's tokens, so its share of them is that of its text.
        """
        if self._place != "answer":
            return "thought" if finish == "length" else finish
        size, most = answer.sampled_tokens or 0, self._request.max_tokens
        size -= self._thought_size(answer, size)
        if size <= most:
            return finish
        start = self._tokens.index(ANSWER) + 1 if ANSWER in self._tokens else 0
        written = bytes(token for token in self._tokens[start:] if token < BYTES)
        kept = written[: len(written) * most // size].decode("utf-8", "ignore")
        self._tokens[start:] = tokens_of(kept)
        return "length"

    def _thought_size(self, answer: CompletionChunk, size: int) -> int:
        """How many of the sampled tokens the thought took: by its share of the text where the server does not say."""
        # vLLM's older parsers count none of a thought that the template opens.
        if answer.thought_tokens is not None and not (answer.thought and answer.thought_tokens == 0):
            return min(answer.thought_tokens, size)
        thought, text = (len(tokens_of(part)) for part in (answer.thought, answer.text))
        return size * thought // max(1, thought + text)

    def _told_ids(self, piece: CompletionChunk) -> Sequence[int]:
        if piece.ids is None and piece.text:
            raise EngineError("the server's answer has no token ids")
        for id in piece.ids or ():
            if not 0 <= id < self._model.width:
                raise EngineError(f"the server returned token {id}, which is not in the model's vocabulary")
        return piece.ids or ()

    def _follow(self) -> None:
        """Fresh eyes on the tokens that have come."""
        self._watch = None if self._request.watch is None else self._request.watch(self._index)
        self._mask: Mask | None = None if self._request.mask is None else self._request.mask()
        self._held = self._request.thought is None or self._begins != "thought"
        self._pushed.clear()

    def _take(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._finish is not None:
                return
            self._tokens.append(token)
            if token in self._request.eos:
                self._may_end()
                self._finish = "eos"
            elif len(self._tokens) > len(self._pushed):
                self._finish = self._look(token)
            elif self._pushed[len(self._tokens) - 1] != token:
                self._differs()

    def _look(self, token: int) -> Finish | None:
        """Shows a token to mask and watch."""
        if self._bytes and token in (THOUGHT, ANSWER):
            self._held = token == ANSWER
        mask = self._mask if self._held and not (self._bytes and token >= BYTES and token != CALL) else None
        if mask is not None and mask.admits((token,)) != 1:
            raise EngineError(self._broken())
        self._pushed.append(token)
        matched = mask is not None and mask.push(token)
        stopped = self._watch is not None and self._watch.push(token)
        return "match" if matched else "stop" if stopped else None

    def _differs(self) -> None:
        """Another answer than before the break: it is looked at from its beginning."""
        tokens, self._tokens = self._tokens, []
        self._follow()
        self._take(tokens)

    def _end(self) -> None:
        """The model ended it. Servers that tell no ids, and some that do, leave its mark out."""
        self._may_end()
        if self._request.eos:
            self._tokens.append(min(self._request.eos))
        self._finish = "eos"

    def _may_end(self) -> None:
        if self._mask is None or not self._request.eos or not self._held:
            return
        bits = np.zeros((1, -(-self._model.width // 32)), dtype=np.int32)
        self._mask.fill([self._mask], bits)
        if not any(int(bits[0, id // 32]) >> (id % 32) & 1 for id in self._request.eos):
            raise EngineError(self._broken())

    def _broken(self) -> str:
        return f"the server did not enforce {CONSTRAINT_NAMES[self._request.held_to]}"

    def _counted(self, answer: CompletionChunk, whole: bool) -> tuple[tuple[float, ...], int]:
        """The log-probabilities of the tokens that the sample has, and how many the server drew for it.

        Of an answer that was cut, what was kept alone counts: how far the server had got is chance. The model's mark of
        the end is no text, and some tell of it in one kind of answer and not in another: text counts without it.
        """
        logprobs, size = answer.logprobs, answer.sampled_tokens or 0
        if self._told:
            return (logprobs, size) if whole else (logprobs[: len(self._tokens)], len(self._tokens))
        if len(answer.sizes) == len(logprobs) > 0:
            left, kept = len(self._model.decode(tuple(self._tokens)).encode()), 0
            for own in answer.sizes:
                if left <= 0:
                    break
                left -= own
                kept += 1
            return logprobs[:kept], size if whole else kept
        return logprobs, size


def _has_token(piece: CompletionChunk) -> bool:
    return bool(piece.text or piece.ids or piece.thought or piece.calls)


def _as_held(call: str, schemas: Mapping[str, Any]) -> str:
    """A call as the constraint has it: servers space JSON, and order its fields, as their models like."""
    try:
        spelt = json.loads(call)
    except ValueError:
        # It was cut off.
        return call
    arguments = _in_order(spelt["arguments"], schemas.get(spelt["name"]))
    return json.dumps({"name": spelt["name"], "arguments": arguments}, ensure_ascii=False)


def _in_order(value: Any, schema: Any) -> Any:
    """A value of JSON with the fields of its records in the order of their schema."""
    told = schema if isinstance(schema, dict) else {}
    if isinstance(value, list):
        return [_in_order(item, told.get("items")) for item in value]
    if not isinstance(value, dict):
        return value
    fields = told.get("properties", {})
    names = [*(name for name in fields if name in value), *(name for name in value if name not in fields)]
    return {name: _in_order(value[name], fields.get(name)) for name in names}


def answer_of(record: Any) -> CompletionChunk | None:
    """An answer that was kept as its fields in their order; None for what is none."""
    if isinstance(record, list) and len(record) == _WITHOUT_THOUGHTS:
        record = [*record, "", None]
    if isinstance(record, list) and len(record) == _WITHOUT_CALLS:
        record = [*record, []]
    match record:
        case [
            str(),
            None | list(),
            list(),
            list(),
            None | "stop" | "length",
            None | str(),
            prompt,
            cached,
            sampled,
            str(thought),
            thought_tokens,
            list(calls),
        ]:
            text, ids, logprobs, sizes, finish, named = record[:6]
            own = None if ids is None else tuple(ids)
            counts = [count for count in (prompt, cached, sampled, thought_tokens) if count is not None]
            if not all(isinstance(number, int) for number in (*(ids or ()), *sizes, *counts)):
                return None
            if not all(isinstance(logprob, int | float) for logprob in logprobs):
                return None
            if not all(isinstance(call, str) for call in calls):
                return None
            told = (prompt, cached, sampled, thought, thought_tokens, tuple(calls))
            return CompletionChunk(text, own, tuple(logprobs), tuple(sizes), finish, named, *told)
    return None
