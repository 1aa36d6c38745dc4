"""What is counted as paid for, and what a bound on it ends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from qpdsl.executor.remote.remote_engine import RemoteEngine
from qpdsl.executor.remote.spending import Meter, Prices
from qpdsl.executor.requests.errors import BudgetReached, EngineError
from qpdsl.executor.requests.request import (
    Completion,
    ReadRequest,
)
from tests.support.remote.scripted_requests import by_seed, one, piece, stopping
from tests.support.remote.scripted_server import (
    CAPABILITIES,
    Body,
    Pieces,
    ScriptedServer,
    answer,
    driven,
    wanted,
)

pytestmark = pytest.mark.usefixtures("soon")


def test_a_budget_ends_what_was_not_sent() -> None:
    meter = Meter(tokens=60)
    server = ScriptedServer(by_seed)

    async def use(engine: RemoteEngine) -> None:
        assert len((await engine.submit("llm", wanted(keys=(1, 2)))).samples) == 2
        with pytest.raises(BudgetReached, match="of 60 tokens used"):
            await engine.submit("llm", wanted(keys=tuple(range(100))))
        with pytest.raises(BudgetReached):
            await engine.submit("llm", wanted())

    driven(server, use, meter=meter)
    # Eight were under way when the bound was reached.
    assert 60 <= meter.tokens <= 60 + 8 * 10 and len(server.bodies) < 20


def test_what_was_cut_is_paid_for_too() -> None:
    """The server's count comes last, so an answer that is closed has none."""

    def script(body: Body, number: int) -> httpx.Response:
        return Pieces(piece(" one"), piece(" two"), piece(";"), *[piece(" more")] * 100).response

    meter = Meter(tokens=20)

    async def use(engine: RemoteEngine) -> Completion:
        first = await engine.submit("llm", stopping(";", text="x" * 60))
        with pytest.raises(BudgetReached):
            await engine.submit("llm", stopping(";"))
        return first

    completion = driven(ScriptedServer(script), use, meter=meter)
    assert (completion.calls.prompt_tokens, completion.calls.sampled_tokens, meter.tokens) == (20, 3, 23)
    counted = [{**piece(" one;"), "usage": {"prompt_tokens": 9, "completion_tokens": 2}}, piece(" more")]
    told = driven(ScriptedServer(lambda _, number: Pieces(*counted).response), one(stopping(";")))
    assert (told.calls.prompt_tokens, told.calls.sampled_tokens) == (9, 2)


def test_what_the_server_gave_up_is_paid_for_too() -> None:
    """A whole answer that cannot be used tells what it took all the same."""
    useless = {"choices": [{"text": "a", "finish_reason": "content_filter"}]}
    useless["usage"] = {"prompt_tokens": 7, "completion_tokens": 4}
    meter = Meter()
    with pytest.raises(EngineError, match="content_filter"):
        driven(ScriptedServer(lambda _, number: useless), one(wanted()), meter=meter)
    assert meter.tokens == 11


def test_a_reading_that_tells_nothing_is_paid_for_too() -> None:
    able = replace(CAPABILITIES, endpoint="ids", scores="classify")
    server = ScriptedServer(lambda _, number: {"data": [{}], "usage": {"prompt_tokens": 3}})
    meter = Meter()
    with pytest.raises(EngineError):
        driven(server, one(ReadRequest((1, 2, 3), (2,), (0,))), capabilities=able, meter=meter)
    assert meter.tokens == 3


@pytest.mark.parametrize(
    "usage",
    [{}, {"prompt_tokens": "7"}, {"completion_tokens": -1}, {"prompt_tokens": None}, {"prompt_tokens": 10**400}],
)
def test_strange_counts_are_none(usage: Any) -> None:
    server = ScriptedServer(lambda _, number: {**answer(" It is 4."), "usage": usage})
    calls = driven(server, one(wanted())).calls
    # What is known is counted: the prompt's length, and one piece.
    assert (calls.prompt_tokens, calls.sampled_tokens) == (6, 1)


def prices(folder: Path, table: object) -> Prices:
    path = folder / "prices.json"
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    return Prices.read(path)


def test_cached_tokens_have_their_price(tmp_path: Path) -> None:
    table = prices(
        tmp_path, {"big": {"input": 2.0, "cached_input": 0.5, "output": 8.0}, "small": {"input": 1, "output": 2}}
    )
    meter = Meter(prices=table)
    assert meter.note("big", 1_000_000, 400_000, 100_000) == pytest.approx(1.2 + 0.2 + 0.8)
    assert meter.note("small", 1_000_000, 400_000, 0) == pytest.approx(1.0)
    assert meter.note("unknown", 1000, 0, 1000) == 0.0
    assert meter.cost == pytest.approx(3.2) and meter.reached is None


def test_tokens_are_bounded() -> None:
    meter = Meter(tokens=100)
    meter.note("any", 60, 0, 39)
    assert meter.reached is None
    meter.note("any", 0, 0, 1)
    assert meter.reached == "token limit reached: 100 of 100 tokens used"


def test_money_is_bounded_only_where_prices_are_known(tmp_path: Path) -> None:
    meter = Meter(cost=0.5, prices=prices(tmp_path, {"big": {"input": 1, "output": 1}}))
    meter.check(["big"])
    with pytest.raises(ValueError, match="no price for `other`"):
        meter.check(["big", "other"])
    meter.note("big", 500_000, 0, 0)
    assert meter.reached == "cost limit reached: 0.5000 of 0.5000 spent"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("{", "is not valid JSON"),
        ([], "is not a price table"),
        ({"a": {"input": 1}}, "the price of `a` needs `input` and `output`"),
        ({"a": {"input": 1, "output": -1}}, "`output` of `a` must be a number of at least 0, not -1"),
        ({"a": {"input": 1, "output": True}}, "not True"),
        ({"a": {"input": 1, "output": float("nan")}}, "not nan"),
        ({"a": {"input": 1, "output": 10**400}}, "not 1000"),
        ({"a": {"input": 1, "output": 1, "per": "day"}}, "unknown field `per`"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, table: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prices(tmp_path, table)


def test_a_table_without_end(tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="is not valid JSON"):
        Prices.read(tmp_path / "prices.json")


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read the prices in .*: No such file"):
        Prices.read(tmp_path / "none.json")
