"""A system that masks tokens, asked about schemas: `python mask_peers.py NAME QUESTIONS ANSWERS`, by its own Python.

Imports nothing of the project. NAME is `xgrammar` or `outlines-core`. QUESTIONS is a JSON file: `vocabulary` (the bytes
of each token as base64, empty for one that writes nothing), `eos`, `seconds` that a schema may take, `timed`, `clock`
and `cases`: a `schema` as text and `outputs`, lists of token ids. ANSWERS gets for each case `refused` (why, or null),
`accepted` for each output, `compile` in seconds, and, where `timed`, `masks`: the seconds that each mask took along the
outputs. Each schema is a process of its own, so that one that takes too long or crashes is its own fault alone.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np


class Matcher(Protocol):
    """Follows one output."""

    def fill(self) -> None: ...

    def take(self, token: int) -> bool: ...

    def complete(self) -> bool: ...


Compile = Callable[[str], Callable[[], Matcher]]

# Seconds on the wall's clock, or of this thread's work: the steadier of the two where others use the machine.
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}


class XGrammar:
    """xgrammar's matcher, with any white space and with objects as open as JSON Schema has them."""

    def __init__(self, compiled: Any, size: int, eos: int) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._bits = np.zeros((1, -(-size // 32)), dtype=np.int32)
        self._eos = eos

    def fill(self) -> None:
        self._matcher.fill_next_token_bitmask(self._bits)

    def take(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def complete(self) -> bool:
        return bool(self._matcher.accept_token(self._eos))

    @staticmethod
    def compiler(vocabulary: Sequence[bytes], eos: int) -> Compile:
        import xgrammar

        info = xgrammar.TokenizerInfo(
            list(vocabulary), xgrammar.VocabType.RAW, vocab_size=len(vocabulary), stop_token_ids=[eos]
        )
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

        def compile(schema: str) -> Callable[[], Matcher]:
            compiled = compiler.compile_json_schema(schema, strict_mode=False)
            return lambda: XGrammar(compiled, len(vocabulary), eos)

        return compile


class Outlines:
    """outlines-core's guide over an index of the schema's regex."""

    def __init__(self, index: Any, size: int) -> None:
        import outlines_core

        self._guide = outlines_core.Guide(index)
        self._bits = np.zeros(-(-size // 32), dtype=np.int32)

    def fill(self) -> None:
        self._guide.write_mask_into(self._bits.ctypes.data, self._bits.size, self._bits.itemsize)

    def take(self, token: int) -> bool:
        if not self._guide.accepts_tokens([token]):
            return False
        self._guide.advance(token, False)
        return True

    def complete(self) -> bool:
        return bool(self._guide.is_finished())

    @staticmethod
    def compiler(vocabulary: Sequence[bytes], eos: int) -> Compile:
        import outlines_core
        from outlines_core.json_schema import build_regex_from_schema

        ids: dict[bytes, list[int]] = {}
        for token, written in enumerate(vocabulary):
            if written and token != eos:
                ids.setdefault(written, []).append(token)
        tokens = outlines_core.Vocabulary(eos, ids)

        def compile(schema: str) -> Callable[[], Matcher]:
            index = outlines_core.Index(build_regex_from_schema(schema), tokens)
            return lambda: Outlines(index, len(vocabulary))

        return compile


SYSTEMS: dict[str, Callable[[Sequence[bytes], int], Compile]] = {
    "xgrammar": XGrammar.compiler,
    "outlines-core": Outlines.compiler,
}


def answer(compile: Compile, case: dict[str, Any], timed: bool, clock: str) -> dict[str, Any]:
    """What a system says to one schema."""
    now = CLOCKS[clock]
    start = now()
    try:
        matchers = compile(case["schema"])
    except BaseException as error:  # a panic of Rust code is one, too
        return {"refused": f"{type(error).__name__}: {error}"[:300]}
    taken = now() - start
    masks: list[float] = []
    accepted = [_accepts(matchers(), output, masks if timed else None, now) for output in case["outputs"]]
    return {"refused": None, "accepted": accepted, "compile": taken, "masks": masks}


def _accepts(matcher: Matcher, output: Sequence[int], masks: list[float] | None, now: Callable[[], float]) -> bool:
    for token in output:
        if masks is not None:
            start = now()
            matcher.fill()
            masks.append(now() - start)
        if not matcher.take(token):
            return False
    return matcher.complete()


def _in_child(compile: Compile, case: dict[str, Any], timed: bool, clock: str, seconds: float) -> dict[str, Any]:
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=lambda: theirs.send(answer(compile, case, timed, clock)), daemon=True)
    child.start()
    theirs.close()
    try:
        found: dict[str, Any] = ours.recv() if ours.poll(seconds) else {"refused": f"not done in {seconds:g} s"}
    except EOFError:
        found = {"refused": "it crashed"}
    child.kill()
    child.join()
    return found


def main(name: str, questions: Path, answers: Path) -> None:
    asked = json.loads(questions.read_text(encoding="utf-8"))
    vocabulary = [base64.b64decode(written) for written in asked["vocabulary"]]
    compile = SYSTEMS[name](vocabulary, asked["eos"])
    timed, clock, seconds = asked["timed"], asked["clock"], asked["seconds"]
    found = [_in_child(compile, case, timed, clock, seconds) for case in asked["cases"]]
    answers.write_text(json.dumps({"version": version(name), "answers": found}), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
