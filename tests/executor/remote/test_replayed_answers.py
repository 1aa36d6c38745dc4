"""Answers that were kept are given again, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from qpdsl.executor.remote.completion_store import CompletionStore
from qpdsl.executor.remote.spending import Meter
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import (
    SamplingParams,
)
from qpdsl.executor.text.stop import StopWatch
from tests.support.remote.scripted_requests import by_seed, one, piece, stopping, text_of
from tests.support.remote.scripted_server import (
    ADDRESS,
    CAPABILITIES,
    Pieces,
    ScriptedServer,
    driven,
    model_of,
    wanted,
)

pytestmark = pytest.mark.usefixtures("soon")


def test_a_rerun_asks_for_nothing(store: CompletionStore) -> None:
    server = ScriptedServer(by_seed)
    first = driven(server, one(wanted(keys=(1, 2, 3))), store=store)
    again = driven(server, one(wanted(keys=(1, 2, 3))), store=store)
    assert len(server.bodies) == 3 and again.samples == first.samples
    assert (again.calls.requests, again.calls.replayed, again.calls.sampled_tokens) == (0, 3, 9)
    # A plan that asks for them one by one, and shows them, gets the same.
    shown: list[str] = []
    watched = wanted(keys=(2,), watch=lambda index: StopWatch(model_of().detokenizer, None, shown.append))
    alone = driven(server, one(watched), store=store)
    assert len(server.bodies) == 3 and alone.samples[0].tokens == first.samples[1].tokens
    assert "".join(shown) == text_of(alone)[0]


@pytest.mark.parametrize(
    "other",
    [
        {"text": "another"},
        {"keys": (4,)},
        {"drawn": 1},
        {"max_tokens": 51},
        {"sampling": SamplingParams(0.7)},
        {"sampling": SamplingParams(0.8, top_p=0.9)},
        {"stops": ("x",)},
    ],
)
def test_another_request_is_asked(store: CompletionStore, other: dict[str, Any]) -> None:
    server = ScriptedServer(by_seed)
    driven(server, one(wanted()), store=store)
    driven(server, one(wanted(**other)), store=store)
    assert len(server.bodies) == 2


def test_another_server_or_version_is_asked(store: CompletionStore) -> None:
    server = ScriptedServer(by_seed)
    driven(server, one(wanted()), store=store)
    driven(server, one(wanted()), store=store, capabilities=replace(CAPABILITIES, version="2"))
    driven(server, one(wanted()), store=store, address=replace(ADDRESS, url="http://127.0.0.1:8001/v1"))
    assert len(server.bodies) == 3


def test_an_answer_that_was_cut_serves_where_it_is_cut_again(store: CompletionStore) -> None:
    server = ScriptedServer(lambda _, number: Pieces(piece(" one;"), piece(" two;", "stop")).response)
    for expected in (1, 1):
        assert text_of(driven(server, one(stopping(";")), store=store)) == [" one;"]
        assert len(server.bodies) == expected
    # The same stops in the request, and a watch that goes on: what was kept does not reach.
    on = wanted(watch=lambda index: StopWatch(model_of().detokenizer, None), stops=(";",))
    assert text_of(driven(server, one(on), store=store)) == [" one; two;"] and len(server.bodies) == 2


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\0\0",
        b"{}",
        b'["a", null, ["x"], [1], "stop", null, 1, 0, 1]',
        b'["a", ["x"], [], [], "stop", null, 1, 0, 1]',
        b'["a", null, [], [null], "stop", null, 1, 0, 1]',
        b'["a", null, [], [], "stop", null, "1", 0, 1]',
    ],
)
def test_what_is_kept_and_no_answer_is_asked_again(
    store: CompletionStore, damaged: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "find", lambda key: damaged)
    server = ScriptedServer(by_seed)
    assert driven(server, one(wanted()), store=store).calls.replayed == 0 and len(server.bodies) == 1


def test_only_whole_answers_are_kept(store: CompletionStore) -> None:
    broken = [httpx.Response(500), httpx.Response(200, json=piece(" It")), httpx.Response(400)]
    server = ScriptedServer(lambda body, number: broken[number] if number < 3 else by_seed(body, number))
    with pytest.raises(EngineError):
        driven(server, one(wanted()), store=store)
    driven(server, one(wanted()), store=store)
    assert len(server.bodies) == 4


def test_a_store_that_fails_is_told_once_and_the_run_goes_on(store: CompletionStore) -> None:
    store._file.close()
    told: list[str] = []
    completion = driven(ScriptedServer(by_seed), one(wanted(keys=(1, 2, 3))), store=store, tell=told.append)
    assert len(completion.samples) == 3
    assert len(told) == 1 and told[0].startswith("completions are no longer cached")


def test_a_replay_costs_nothing(store: CompletionStore) -> None:
    driven(ScriptedServer(by_seed), one(wanted()), store=store)
    meter = Meter(tokens=1)
    meter.note("name", 1, 0, 0)
    assert len(driven(ScriptedServer(by_seed), one(wanted()), store=store, meter=meter).samples) == 1
    assert meter.tokens == 1
