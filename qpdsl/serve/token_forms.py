"""Tokens and their log-probabilities, in the forms of OpenAI's API and of vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from typing import Literal as OneOf

from qpdsl.executor.models.text_model import TextModel
from qpdsl.serve.served_model import Endpoint


class TokenForms:
    """Writes the tokens of one model; with `ids_as_text`, as `token_id:123` in place of their texts."""

    def __init__(self, model: TextModel, ids_as_text: bool = False) -> None:
        self._model = model
        self._ids_as_text = ids_as_text

    def text(self, token: int) -> str:
        """The text of one token, special ones included."""
        if self._ids_as_text:
            return f"token_id:{token}"
        piece = self._model.pieces.get(token)
        if piece is None:
            piece = self._model.pieces[token] = self._model.backend.decode([token], skip_special_tokens=False)
        return piece

    def logprobs(
        self,
        endpoint: Endpoint,
        tokens: Sequence[int],
        logprobs: Sequence[float | None],
        tops: Mapping[int, float] | OneOf["own", "none"],
        offset: int = 0,
    ) -> dict[str, Any]:
        """The `logprobs` of a choice. None is what the first token of a prompt has.

        `tops` are the log-probabilities by id that stand as those of the likeliest tokens, of a single token; "own" is
        each token's own. `offset`: how many characters stand before, in a text completion.
        """
        texts = [self.text(token) for token in tokens]
        named = None if isinstance(tops, str) else {self.text(id): logprob for id, logprob in tops.items()}
        if endpoint == "chat":
            content = []
            for text, logprob in zip(texts, logprobs, strict=True):
                likeliest: Mapping[str, float | None] = named or ({text: logprob} if tops == "own" else {})
                entries = [_entry(*top) for top in likeliest.items()]
                content.append({**_entry(text, logprob), "top_logprobs": entries})
            return {"content": content, "refusal": None}
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
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


def _entry(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
