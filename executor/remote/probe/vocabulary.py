"""Whether a server's token ids are those of a tokenizer here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qpdsl.executor.remote.probe.probe_client import posted
from qpdsl.executor.remote.server.connection import Connection

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Words, figures, white space, letters beside a to z, and signs of code: what tokenizers cut in different ways.
_TEXTS = ("The answer is 42, not 1077.", "  two\n\n\tlines ", "naïve café, 日本語 🙂", "for x in y[2:]: z = {'a': x}")
# What gives the ids of a text, and the text of ids: path, name of what is sent, name of what comes back.
_TO_IDS = (
    ("/tokenize", "prompt", "tokens"),
    ("/tokenize", "content", "tokens"),
    ("/extras/tokenize", "input", "tokens"),
)
_TO_TEXT = (
    ("/detokenize", "tokens", "prompt"),
    ("/detokenize", "tokens", "content"),
    ("/detokenize", "tokens", "text"),
)
_PLAIN: Mapping[str, Any] = {"add_special_tokens": False, "add_special": False}


async def same_tokens(connection: Connection, model: str, tokenizer: PreTrainedTokenizerFast) -> bool | None:
    """Whether ids mean the same there and here, None where the server does not say.

    A server that reads our ids as our text has our vocabulary, whatever it makes of text itself: text is cut here.
    """
    here = [list(tokenizer.encode(text, add_special_tokens=False)) for text in _TEXTS]
    there = await _all(connection, model, _TO_TEXT, here)
    if there is not None:
        read = [tokenizer.decode(ids, clean_up_tokenization_spaces=False) for ids in here]
        return all(_alike(said, text) for said, text in zip(there, read, strict=True))
    ids = await _all(connection, model, _TO_IDS, _TEXTS)
    return None if ids is None else ids == here


async def _all(
    connection: Connection, model: str, forms: Sequence[tuple[str, str, str]], given: Sequence[Any]
) -> list[Any] | None:
    """What the server makes of all that is given, in the first form that it understands; None where in none."""
    for path, sent, told in forms:
        first = await _one(connection, model, path, sent, told, given[0])
        if first is not None:
            rest = [await _one(connection, model, path, sent, told, one) for one in given[1:]]
            return [first, *rest]
    return None


async def _one(connection: Connection, model: str, path: str, sent: str, told: str, given: Any) -> Any:
    plain = {} if sent == "tokens" else _PLAIN
    answer = await posted(connection, path, {"model": model, sent: given, **plain})
    return answer.get(told) if isinstance(answer, dict) else None


def _alike(said: object, text: str) -> bool:
    # SentencePiece tokenizers put a space in front, and take it away, in different places.
    return isinstance(said, str) and said.lstrip(" ") == text.lstrip(" ")
