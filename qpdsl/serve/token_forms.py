"""Tokens and their log-probabilities, in the forms of OpenAI's API and of vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from qpdsl.executor.models.text_model import TextModel
from qpdsl.serve.completion_request import Endpoint


class TokenForms:
    """Writes the tokens of one model; with `ids_as_text`, as `token_id:123` in place of their texts."""

    def __init__(self, model: TextModel, ids_as_text: bool = False) -> None:
        self._model = model
        self._ids_as_text = ids_as_text

    def text(self, token: int) -> str:
        """The text of one token, special ones included."""
        return f"token_id:{token}" if self._ids_as_text else self._model.marked_detokenizer.text((token,))

    def logprobs(
        self,
        endpoint: Endpoint,
        tokens: Sequence[int],
        logprobs: Sequence[float | None],
        tops: Mapping[int, float] | Literal["own", "none"],
        earlier: tuple[int, ...] = (),
    ) -> dict[str, Any]:
        """The `logprobs` of a choice. None is what the first token of a prompt has.

        `tops` are the log-probabilities by id that stand as those of the likeliest tokens, of a single token; "own" is
        each token's own. `earlier`: the tokens before, behind whose text that of a text completion comes. A token's
        place in it is where the letter begins that the token goes on with.
        """
        if endpoint == "chat":
            content = []
            for token, logprob in zip(tokens, logprobs, strict=True):
                likeliest = {token: logprob} if tops == "own" else {} if isinstance(tops, str) else tops
                entries = [self._entry(*top) for top in likeliest.items()]
                content.append({**self._entry(token, logprob), "top_logprobs": entries})
            return {"content": content, "refusal": None}
        texts = [self.text(token) for token in tokens]
        named = None if isinstance(tops, str) else {self.text(id): logprob for id, logprob in tops.items()}
        offsets, offset, growing = [], 0, self._model.detokenizer.begin(earlier)
        for token in tokens:
            offsets.append(offset)
            offset += len(growing.push(token))
        # As vLLM does, a text completion has the tokens' own where no others are asked for.
        own = [None if logprob is None else {text: logprob} for text, logprob in zip(texts, logprobs, strict=True)]
        all_tops = own if named is None else [{**(alone or {}), **named} for alone in own]
        return {"tokens": texts, "token_logprobs": list(logprobs), "top_logprobs": all_tops, "text_offset": offsets}

    def prompt_logprobs(self, tokens: Sequence[int], logprobs: Sequence[float | None]) -> list[dict[str, Any] | None]:
        """The log-probabilities of a prompt, as vLLM tells them: by id; nothing of the first token."""
        return [
            None if logprob is None else {str(token): {"logprob": logprob, "decoded_token": self.text(token)}}
            for token, logprob in zip(tokens, logprobs, strict=True)
        ]

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        data = self.text(token).encode() if self._ids_as_text else self._model.marked_detokenizer.bytes_of(token)
        return {"token": self.text(token), "logprob": logprob, "bytes": list(data)}
