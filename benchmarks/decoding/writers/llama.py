"""llama.cpp with its grammars, many sequences in one batch, as its own sampler uses them.

A token is drawn without the grammar first; only where the grammar forbids it are all tokens put to it (`grammar_first`
of `common/sampling.cpp`). It needs `llama_cpp` and numpy, and nothing else of this checkout's dependencies.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_grammar import json_schema_to_gbnf

from benchmarks.peers.llama import FLOAT16, FLOAT32, Llama, Weights
from benchmarks.peers.peer import Room, Tokens, Written

_RULE = re.compile(r"^space ::=.*$", re.MULTILINE)
_TOKEN = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def _grammar(schema: str) -> str:
    """The GBNF that llama.cpp converts the schema to, with a space after each comma and colon and nowhere else."""
    spaced = json_schema_to_gbnf(schema).replace('"," space', '", "').replace('":" space', '": "')
    return _RULE.sub('space ::= ""', spaced)


class _Grammar:
    """One sequence's state in a grammar."""

    def __init__(self, vocabulary: Any, gbnf: str) -> None:
        self._sampler = llama_cpp.llama_sampler_init_grammar(vocabulary, gbnf.encode(), b"root")
        if not self._sampler:
            raise RuntimeError("llama.cpp does not read its own grammar")

    def draw(self, logits: np.ndarray[Any, np.dtype[np.float32]]) -> int:
        """The allowed token with the largest of `logits`, float32 [V]."""
        best = int(logits.argmax())
        if self._allowed(np.array([best], np.int32), logits[best : best + 1])[0] == -np.inf:
            best = int(self._allowed(np.arange(len(logits), dtype=np.int32), logits).argmax())
        llama_cpp.llama_sampler_accept(self._sampler, best)
        return best

    def _allowed(
        self, ids: np.ndarray[Any, np.dtype[np.int32]], logits: np.ndarray[Any, np.dtype[np.float32]]
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The logits, −inf where the grammar forbids the token."""
        tokens = np.empty(len(ids), _TOKEN)
        tokens["id"], tokens["logit"], tokens["p"] = ids, logits, 0.0
        data = tokens.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
        array = llama_cpp.llama_token_data_array(data=data, size=len(ids), selected=-1, sorted=False)
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(array))
        allowed: np.ndarray[Any, np.dtype[np.float32]] = tokens["logit"]
        return allowed

    def free(self) -> None:
        llama_cpp.llama_sampler_free(self._sampler)


class LlamaCpp:
    """A context for each run, of the run's own size."""

    def __init__(self, model: str, dtype: str, room: Room, eos: Sequence[int]) -> None:
        self._threads = room.threads
        self._kv = FLOAT32 if dtype == "float32" else FLOAT16
        self._weights = Weights(Path(model))
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._weights.model)
        self._eos = frozenset(eos)

    def write(
        self,
        prompts: Tokens,
        schemas: Sequence[str],
        limit: int,
        plan: Mapping[str, Any],
        on_first: Callable[[], None],
    ) -> Written:
        """It has one way, so `plan` says nothing."""
        context = Llama(self._weights, Room(len(prompts), max(map(len, prompts)) + limit, self._threads), self._kv)
        grammars = [_Grammar(self._vocabulary, _grammar(schema)) for schema in schemas]
        try:
            return Written(context.drawn(prompts, [grammar.draw for grammar in grammars], self._eos, limit, on_first))
        finally:
            for grammar in grammars:
                grammar.free()
            context.free()
