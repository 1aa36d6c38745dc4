"""The tests of LiveCodeBench: what a program reads and is to write, or what a function takes and is to give back.

Public tests are JSON; private ones are JSON too, or that pickled, compressed by zlib and in base 64, as in
`code_generation_lite`. A pickle of a text is read, and nothing else that one may hold.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from collections.abc import Mapping
from typing import Any

# Bytes of the tests of a problem, at the most.
_MAX_BYTES = 256 << 20
# What a solution of a contest may use without an import.
_IMPORTS = (
    "import collections, heapq, bisect, math, itertools, functools, string, re, random, operator\n"
    "from collections import *\nfrom heapq import *\nfrom bisect import *\nfrom math import *\n"
    "from itertools import *\nfrom functools import *\nfrom typing import *\n"
)


def contest_tests(public: str, private: str, metadata: str) -> list[Any]:
    """The tests of a problem as the grader `code` takes them.

    A program's are records with an `input` and an `output`. A function's are Python texts, which call it by the name in
    `metadata` with a line of JSON for each argument. Raises ValueError for what is no test.
    """
    cases = [*_cases(json.loads(public)), *_cases(_private(private))]
    name = json.loads(metadata or "{}").get("func_name")
    return [_call(str(name), case) if case.get("testtype") == "functional" else _streams(case) for case in cases]


def _private(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    inflating = zlib.decompressobj()
    try:
        data = inflating.decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
        unpickled = _Texts(io.BytesIO(data)).load()
        if inflating.unconsumed_tail or not isinstance(unpickled, str):
            raise ValueError("the private tests are too long, or no text")
        return json.loads(unpickled)
    except (ValueError, zlib.error, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"the private tests cannot be read: {error}") from error


class _Texts(pickle.Unpickler):
    """Reads texts, and what Python is made of, and imports nothing."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"they name `{module}.{name}`, and a text names nothing")


def _cases(found: Any) -> list[Mapping[str, Any]]:
    if not isinstance(found, list) or not all(
        isinstance(case, dict) and isinstance(case.get("input"), str) and isinstance(case.get("output"), str)
        for case in found
    ):
        raise ValueError("a test has an `input` and an `output`, which are texts")
    return found


def _streams(case: Mapping[str, Any]) -> dict[str, str]:
    return {"input": case["input"], "output": case["output"]}


def _call(name: str, case: Mapping[str, Any]) -> str:
    """Python that calls a function, or the method of `Solution`, and compares what it gives back."""
    arguments = [json.loads(line) for line in case["input"].split("\n")]
    return (
        f"_call = getattr(Solution() if 'Solution' in globals() else __import__('sys').modules[__name__], {name!r})\n"
        f"_found = _call(*{arguments!r})\n"
        f"assert (list(_found) if isinstance(_found, tuple) else _found) == {json.loads(case['output'])!r}\n"
    )
