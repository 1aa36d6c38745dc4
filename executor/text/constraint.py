"""Constrained decoding: which token may come next under a JSON Schema, a regex or a grammar, by llguidance."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import llguidance.hf
import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import (
    fill_next_token_bitmask,
    fill_next_token_bitmask_par,
    fill_next_token_bitmask_par_with_draft_tokens,
)
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

Bits = np.ndarray[Any, np.dtype[np.int32]]

# What stands between the parts of a record: what `json.dumps` writes, which is what models have read most. With one way
# to write it, half of a record's tokens are forced. A schema may ask for any white space (`x-guidance`).
_SPACING: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


# Of those who write records in a way of their own.
_ANY_SPACING: JsonCompileOptions = {"whitespace_flexible": True}


def json_grammar(schema: str, *, any_spacing: bool = False) -> str:
    """The grammar of the records that a JSON Schema, as JSON text, describes.

    With `any_spacing` there may be white space wherever JSON permits it, else where `json.dumps` puts it.
    """
    return LLMatcher.grammar_from_json_schema(schema, defaults=_ANY_SPACING if any_spacing else _SPACING)


_GRAMMARS: dict[str, Callable[[str], str]] = {
    "json_schema": json_grammar,
    "regex": LLMatcher.grammar_from_regex,
    "grammar": LLMatcher.grammar_from_lark,
}
_MOST_COMPILED = 256
# More threads than this wait for each other.
_MOST_THREADS = 16
# For fewer bits one thread is done before others wake.
_LEAST_BITS = 1 << 19


class ConstraintError(Exception):
    """A constraint that a model's tokenizer cannot be held to; the message says why."""


class Constrainer:
    """Compiles constraints against one tokenizer, and keeps the latest.

    `vocabulary` is the width of the model's logits; `eos` are the ids that end its output. `any_spacing`: see
    `json_grammar`.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, vocabulary: int, eos: Collection[int], *, any_spacing: bool = False
    ) -> None:
        try:
            self._tokens: LLTokenizer = llguidance.hf.from_tokenizer(
                tokenizer, n_vocab=vocabulary, eos_token=sorted(eos) or None
            )
        except Exception as error:  # llguidance may raise anything for a tokenizer that it does not know
            raise ConstraintError(f"its tokenizer cannot be held to a constraint: {error}") from error
        self._threads = LLExecutor(min(os.cpu_count() or 1, _MOST_THREADS))
        self._compiled: dict[tuple[str, str], LLMatcher] = {}
        own = partial(json_grammar, any_spacing=any_spacing)
        self._grammars: dict[str, Callable[[str], str]] = {**_GRAMMARS, "json_schema": own}

    def masks(self, kind: str, source: str) -> Callable[[], TokenMask]:
        """Makes a fresh mask for each sample. `kind` is `json_schema`, `regex` or `grammar`. Raises ConstraintError."""
        matcher = self._compiled.get((kind, source))
        if matcher is None:
            try:
                matcher = LLMatcher(self._tokens, self._grammars[kind](source), log_level=0)
            except ValueError as error:
                raise ConstraintError(_first_line(str(error))) from error
            if matcher.is_error():
                raise ConstraintError(_first_line(matcher.get_error()))
            # Clients of a server may each write schemas of their own.
            while len(self._compiled) >= _MOST_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[kind, source] = matcher
        prototype = matcher
        return lambda: TokenMask(prototype.deep_copy(), self._threads)


class TokenMask:
    """An engine `Mask` that keeps one sample a prefix of an output that the constraint allows.

    It depends on the sample's tokens alone, so preemption and chunks do not change it.
    """

    def __init__(self, matcher: LLMatcher, threads: LLExecutor) -> None:
        self._matcher = matcher
        self._threads = threads

    @property
    def error(self) -> str | None:
        return _first_line(self._matcher.get_error()) if self._matcher.is_error() else None

    def push(self, token: int) -> bool:
        return self._matcher.consume_token(token) and self._matcher.is_stopped()

    def fork(self) -> TokenMask:
        return TokenMask(self._matcher.deep_copy(), self._threads)

    def forced(self) -> list[int]:
        return list(self._matcher.compute_ff_tokens())

    def admits(self, tokens: Sequence[int]) -> int:
        return self._matcher.validate_tokens(list(tokens))

    def fill(self, masks: Sequence[TokenMask], bits: Bits) -> None:
        if bits.size * 32 < _LEAST_BITS:
            for row, mask in enumerate(masks):
                fill_next_token_bitmask(mask._matcher, bits, row)
        else:
            pairs = [(mask._matcher, row) for row, mask in enumerate(masks)]
            fill_next_token_bitmask_par(self._threads, pairs, bits)

    def fill_ahead(self, masks: Sequence[TokenMask], paths: Sequence[Sequence[Sequence[int]]], bits: Bits) -> None:
        alone: list[tuple[LLMatcher, int]] = []
        chains: list[tuple[LLMatcher, int, list[int]]] = []
        row = 0
        for mask, own in zip(masks, paths, strict=True):
            if not own:
                alone.append((mask._matcher, row))
            elif all(len(path) == depth for depth, path in enumerate(own, start=1)):
                chains.append((mask._matcher, row, list(own[-1])))
            else:
                mask._fill_tree(own, bits[row : row + 1 + len(own)])
            row += 1 + len(own)
        if alone:
            fill_next_token_bitmask_par(self._threads, alone, bits)
        if chains:
            fill_next_token_bitmask_par_with_draft_tokens(self._threads, chains, bits)

    def _fill_tree(self, paths: Sequence[Sequence[int]], bits: Bits) -> None:
        """A row for itself and one after each path. Goes from path to path by way of what they share."""
        matcher = self._matcher
        fill_next_token_bitmask(matcher, bits, 0)
        taken: list[int] = []
        for row, path in enumerate(paths, start=1):
            shared = sum(itertools.takewhile(bool, map(operator.eq, taken, path)))
            matcher.rollback(len(taken) - shared)
            more = matcher.try_consume_tokens(list(path[shared:]))
            taken = list(path[: shared + more])
            if len(taken) == len(path):
                fill_next_token_bitmask(matcher, bits, row)
        matcher.rollback(len(taken))


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "unknown error"
