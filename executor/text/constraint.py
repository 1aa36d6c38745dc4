"""Constrained decoding: which token may come next under a JSON Schema, a regex or a grammar, by llguidance."""

from __future__ import annotations

import itertools
import operator
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import (
    fill_next_token_bitmask,
    fill_next_token_bitmask_par,
    fill_next_token_bitmask_par_with_draft_tokens,
)

from qpdsl.executor.text.compile_check import COMPILE_CHECK
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.planner.names.json_schema import SPACING

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

Bits = np.ndarray[Any, np.dtype[np.int32]]

# Of those who write records in a way of their own.
_ANY_SPACING: JsonCompileOptions = {"whitespace_flexible": True}


def json_grammar(schema: str, *, any_spacing: bool = False) -> str:
    """The grammar of the records that a JSON Schema, as JSON text, describes.

    With `any_spacing` there may be white space wherever JSON permits it, else where `json.dumps` puts it.
    """
    spacing = _ANY_SPACING if any_spacing else cast("JsonCompileOptions", dict(SPACING))
    return LLMatcher.grammar_from_json_schema(schema, defaults=spacing)


_GRAMMARS: dict[str, Callable[[str], str]] = {
    "json_schema": json_grammar,
    "regex": LLMatcher.grammar_from_regex,
    "grammar": LLMatcher.grammar_from_lark,
}
# Of constraints that are kept, all together. What one takes was measured over schemas of several sizes.
_MAX_BYTES = 256 << 20
_BYTES_A_CHARACTER, _LEAST_BYTES = 80, 1 << 16
# More threads than this wait for each other.
_MAX_THREADS = 16
# For fewer bits one thread is done before others wake, unless it takes so many seconds.
_MIN_BITS, _LONG = 1 << 19, 0.005
# How many Earley items one step of a stranger's constraint may make: some 2 ms, for each sample of a batch. Ambiguous
# grammars take more, up to a second of a step under the library's own bound; no schema of MaskBench takes half of it.
_BOUNDED_ITEMS = 5_000


class _Key(NamedTuple):
    """A compiled constraint by what it was asked for."""

    kind: str
    source: str
    bounded: bool
    owner: str


class ConstraintError(Exception):
    """A constraint that a model's tokenizer cannot be held to; the message says why."""


class Constrainer:
    """Compiles constraints against one tokenizer, in any thread, and keeps those used last, in `most_bytes` or so.

    `vocabulary` is the width of the model's logits; `eos` are the ids that end its output. `any_spacing`: see
    `json_grammar`.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        vocabulary: int,
        eos: Collection[int],
        *,
        any_spacing: bool = False,
        most_bytes: int = _MAX_BYTES,
    ) -> None:
        try:
            backend = copy(tokenizer.backend_tokenizer)
            backend.no_padding()
            backend.no_truncation()
            self._tokens = LLTokenizer(
                backend.to_str(), n_vocab=vocabulary, eos_token=sorted(eos) or tokenizer.eos_token_id
            )
        except Exception as error:  # llguidance may raise anything for a tokenizer that it does not know
            raise ConstraintError(f"its tokenizer cannot be held to a constraint: {error}") from error
        self._threads = LLExecutor(min(os.cpu_count() or 1, _MAX_THREADS))
        self._vocabulary = vocabulary
        self._compiled: OrderedDict[_Key, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._most_bytes = most_bytes
        self.kept_bytes = 0
        own = partial(json_grammar, any_spacing=any_spacing)
        self._grammars: dict[str, Callable[[str], str]] = {**_GRAMMARS, "json_schema": own}

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token adds to a text, special or not."""
        data: bytes = self._tokens.decode_bytes([token])
        return data

    def masks(self, kind: str, source: str, *, bounded: bool = False, owner: str = "") -> Callable[[], TokenMask]:
        """Makes a fresh mask for each sample. `kind` is `json_schema`, `regex` or `grammar`. Raises ConstraintError.

        A `bounded` one compiles in about a second, and its masks fail where a step takes them more than a few
        milliseconds. Only those of the same `owner` are found again: who is fast knows that another was before.
        """
        key = _Key(kind, source, bounded, owner)
        with self._lock:
            matcher = self._compiled.get(key)
            if matcher is not None:
                self._compiled.move_to_end(key)
        if matcher is None:
            matcher = self._compile(key)
            self._keep(key, matcher)
        prototype = matcher
        return lambda: TokenMask(prototype.deep_copy(), self._threads)

    def _compile(self, key: _Key) -> LLMatcher:
        limits = LLParserLimits(step_max_items=_BOUNDED_ITEMS) if key.bounded else None
        try:
            grammar = self._grammars[key.kind](key.source)
            if key.bounded and (trouble := COMPILE_CHECK.trouble(grammar)) is not None:
                raise ConstraintError(trouble)
            matcher = LLMatcher(self._tokens, grammar, log_level=0, limits=limits)
        except ValueError as error:
            raise ConstraintError(_first_line(str(error))) from error
        if not matcher.is_error():
            # The first mask is the dearest, and copies have it from here.
            fill_next_token_bitmask(matcher, np.zeros((1, -(-self._vocabulary // 32)), dtype=np.int32), 0)
        if matcher.is_error():
            raise ConstraintError(_first_line(matcher.get_error()))
        return matcher

    def _keep(self, key: _Key, matcher: LLMatcher) -> None:
        # Clients of a server may each write schemas of their own.
        with self._lock:
            if key in self._compiled:
                return
            self._compiled[key] = matcher
            self.kept_bytes += _bytes_of(key.source)
            while self.kept_bytes > self._most_bytes:
                oldest, _ = self._compiled.popitem(last=False)
                self.kept_bytes -= _bytes_of(oldest.source)


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
        rest = [(mask._matcher, row) for row, mask in enumerate(masks)]
        if bits.size * 32 < _MIN_BITS:
            end = time.perf_counter() + _LONG
            while rest and time.perf_counter() < end:
                matcher, row = rest.pop()
                fill_next_token_bitmask(matcher, bits, row)
        if rest:
            fill_next_token_bitmask_par(self._threads, rest, bits)

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


def _bytes_of(source: str) -> int:
    """What a compiled constraint takes, by its length."""
    return _LEAST_BYTES + _BYTES_A_CHARACTER * len(source)


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "unknown error"
