"""What users are told, and what they can catch."""

from __future__ import annotations

import importlib.metadata
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import qpdsl as qp
from qpdsl.api.results import Result, Tokens
from qpdsl.errors import DataError, installing, is_out_of_memory
from qpdsl.executor.engine.paged_engine import PagedEngine
from tests.support.cli import Run

greedy = qp.load("greedy")
RESULT: Any = Result(None, (), Tokens(0, 0), 0, 0.0, None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: qp.Session(devic="cpu"), "`Session` takes no keyword `devic`; did you mean `device`?"),  # type: ignore[call-arg]
        (lambda: qp.using(sed=1), "`using` takes no keyword `sed`; did you mean `seed`?"),  # type: ignore[call-arg]
        (lambda: qp.scorer(row="all"), "`scorer` takes no keyword `row`; did you mean `rows`?"),  # type: ignore[call-overload]
        (lambda: qp.parse("", functons=[]), "`parse` takes no keyword `functons`; did you mean `functions`?"),  # type: ignore[call-arg]
        (
            lambda: greedy.using(row_timout=1),  # type: ignore[call-arg]
            "`Program.using` takes no keyword `row_timout`; did you mean `row_timeout`?",
        ),
        (
            lambda: greedy.map([], worker=1),
            "`greedy.map` takes no keyword `worker`; there is `rows`, `concurrency`, `seeds`, `problem`, `system` and "
            "`max_tokens`",
        ),
        (
            lambda: qp.evaluate("greedy", [], limt=3),
            "`evaluate` takes no keyword `limt`; did you mean `limit`?",
        ),
    ],
)
def test_a_keyword_that_is_not_there(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (lambda: qp.eval, "`qpdsl` has no attribute `eval`; `qp.evaluate` compares programs on data"),
        (lambda: qp.verifier, "`qp.scorer` is the decorator"),
        (lambda: qp.evaluat, "`qpdsl` has no attribute `evaluat`; did you mean `evaluate`?"),
        (lambda: RESULT.answer, "`Result` has no attribute `answer`; `value` is what the program gave back"),
        (lambda: RESULT.samples, "`candidates` are the final rows"),
        (lambda: RESULT.tokns, "`Result` has no attribute `tokns`; did you mean `tokens`?"),
        (lambda: greedy.evaluate, "`qp.evaluate(program, data)` does"),
        (lambda: greedy.zzz, "`Program` has no attribute `zzz`"),
        (lambda: qp.Evaluation.__new__(qp.Evaluation).to_pandas, 'pandas.DataFrame(table.to_json()["cells"])'),
    ],
)
def test_an_attribute_that_is_tried_first(look: Callable[[], Any], message: str) -> None:
    with pytest.raises(AttributeError) as caught:
        look()
    assert message in str(caught.value)


def test_a_keyword_that_a_stage_does_not_take() -> None:
    with pytest.raises(TypeError, match="takes no keyword `temprature`; did you mean `temperature`"):

        @qp.program
        def p(problem: str) -> str:
            rows = qp.chat(user=problem)
            return rows.generate("zoo/counting", temprature=1)  # type: ignore[call-overload, no-any-return]


def _raised(call: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


FAILED: Result[Any] = Result(None, (), Tokens(1, 2), 0, 0.1, "no row is left")


@pytest.mark.parametrize(
    "error",
    [
        _raised(lambda: qp.load("nope")),
        _raised(lambda: qp.parse("program p() { }")),
        _raised(lambda: FAILED.value),
        _raised(lambda: qp.Session(device="tpu")),
        qp.ModelError("zoo/nope", "it is not there"),
        DataError("row 3: not so"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_goes_from_one_process_to_another(error: Exception) -> None:
    """A process pool hangs for ever over an error that cannot be read back."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error)


def test_a_file_that_is_not_there_can_be_caught() -> None:
    with pytest.raises(qp.UsageError, match="there is no file or shipped program `nope`"):
        qp.load("nope")
    assert issubclass(qp.UsageError, qp.UserError)


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("can't start new thread"), True),
        (ImportError("libtorch.so: failed to map segment from shared object"), True),
        (RuntimeError("a shape does not fit"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_says_that_there_is_no_memory(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) is is_memory


def test_a_run_without_memory_ends_with_a_code_of_its_own(qpdsl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(engine: PagedEngine) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(PagedEngine, "step", step)
    ran = qpdsl("run", "greedy", "--model", "llm=zoo/counting-mini", "--set", "problem=Mia has 3 boxes.")
    assert ran.code == 5 and "error: out of memory" in ran.err and "internal" not in ran.err


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'qpdsl[serve]'"),
        ({"url": "file:///a%20b/qpdsl", "dir_info": {}}, "pip install '/a b/qpdsl[serve]'"),
        ({"url": "file:///qpdsl", "dir_info": {"editable": True}}, "pip install -e '/qpdsl[serve]'"),
        (
            {"url": "https://host/qpdsl.git", "vcs_info": {"vcs": "git", "commit_id": "3f2a"}},
            "pip install 'qpdsl[serve] @ git+https://host/qpdsl.git@3f2a'",
        ),
    ],
)
def test_an_extra_is_installed_from_where_the_package_came(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, command: str
) -> None:
    def read_text(self: importlib.metadata.Distribution, name: str) -> str | None:
        return None if origin is None else json.dumps(origin)

    monkeypatch.setattr(importlib.metadata.PathDistribution, "read_text", read_text)
    assert installing("serve") == f"`{command}`"
