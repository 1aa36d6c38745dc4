"""Digests of Python functions: equal for what computes the same, another for any change, none where it is not told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import qpdsl as qp
from qpdsl.session.function_digest import functions_digest

HEAD = "import re\nimport math\nWORDS = ['a', 'b']\nDIGIT = re.compile('[0-9]')\n"
BODY = """
def helper(text):
    return DIGIT.findall(text) or [math.sqrt(2), *WORDS]

class Reader:
    def read(self, text):
        return helper(text)

def grade(answer, limit=3):
    def inner(word):
        return word in helper(answer)
    return [inner(word) for word in WORDS][:limit] and Reader().read(answer)
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Callable[..., Any]]]:
    """Imports the module `own` with a text, and the module `beside` that it may import, anew; gives its `grade`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def make(text: str, beside: str = "") -> Callable[..., Any]:
        for name, content in (("beside", beside), ("own", text)):
            (tmp_path / f"{name}.py").write_text(content, "utf-8")
            sys.modules.pop(name, None)
        import own  # type: ignore[import-not-found]

        grade: Callable[..., Any] = own.grade
        return grade

    yield make
    for name in ("own", "beside"):
        sys.modules.pop(name, None)


def test_the_same_text_has_the_same_digest(made: Callable[..., Callable[..., Any]]) -> None:
    first = functions_digest([made(HEAD + BODY)])
    assert first is not None and first == functions_digest([made(HEAD + BODY)])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'b'", "'c'"),
        ("[0-9]", "[1-9]"),
        ("limit=3", "limit=4"),
        ("sqrt(2)", "sqrt(3)"),
        ("math.sqrt", "math.exp"),
        ("in helper", "not in helper"),
        ("return helper(text)", "return helper(text[1:])"),
    ],
)
def test_any_change_is_told(made: Callable[..., Callable[..., Any]], old: str, new: str) -> None:
    assert old in HEAD + BODY
    first = functions_digest([made(HEAD + BODY)])
    assert functions_digest([made((HEAD + BODY).replace(old, new))]) not in (None, first)


@pytest.mark.parametrize(
    "text",
    [
        "import beside\ndef grade(answer): return beside.K",
        "from beside import right\ndef grade(answer): return right(answer)",
        "from beside import Right\ndef grade(answer): return Right(answer)",
        "from beside import K\nclass Right:\n    k = K\ndef grade(answer): return Right.k",
    ],
)
def test_what_own_modules_have_is_told(made: Callable[..., Callable[..., Any]], text: str) -> None:
    beside = "K = 1\ndef right(answer): return K\nclass Right(str): k = K\n"
    first = functions_digest([made(text, beside)])
    assert first is not None and first == functions_digest([made(text, beside)])
    assert functions_digest([made(text, beside.replace("K = 1", "K = 2"))]) not in (None, first)


def test_what_is_registered_is_told_by_its_function() -> None:
    def scorers(k: int) -> list[Callable[..., Any]]:
        @qp.scorer
        def score(text: str) -> float:
            return len(text) + k

        return [score]

    assert functions_digest(scorers(1)) == functions_digest(scorers(1)) != functions_digest(scorers(2))


@pytest.mark.parametrize("state", [object(), Path("f.txt"), sys.stdin, [object()], {object()}, {"a": iter(())}])
def test_what_cannot_be_told(state: Any) -> None:
    assert functions_digest([lambda answer: state]) is None
    assert functions_digest([lambda answer, state=state: state]) is None


def test_functions_may_call_each_other() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    assert functions_digest([even]) not in (None, functions_digest([odd]))
