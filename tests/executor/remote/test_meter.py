"""Prices and bounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qpdsl.executor.remote.meter import Meter, Prices


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
    assert meter.reached == "100 tokens are spent, and 100 are allowed"


def test_money_is_bounded_only_where_prices_are_known(tmp_path: Path) -> None:
    meter = Meter(cost=0.5, prices=prices(tmp_path, {"big": {"input": 1, "output": 1}}))
    meter.check(["big"])
    with pytest.raises(ValueError, match="none for `other`"):
        meter.check(["big", "other"])
    meter.note("big", 500_000, 0, 0)
    assert meter.reached == "0.5000 is spent, and 0.5000 is allowed"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("{", "is no JSON"),
        ([], "is no table of prices"),
        ({"a": {"input": 1}}, "the price of `a` is to have `input` and `output`"),
        ({"a": {"input": 1, "output": -1}}, "`output` of `a` is to be a number of at least 0, not -1"),
        ({"a": {"input": 1, "output": True}}, "not True"),
        ({"a": {"input": 1, "output": float("nan")}}, "not nan"),
        ({"a": {"input": 1, "output": 10**400}}, "not 1000"),
        ({"a": {"input": 1, "output": 1, "per": "day"}}, "has `per`"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, table: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prices(tmp_path, table)


def test_a_table_without_end(tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="is no JSON"):
        Prices.read(tmp_path / "prices.json")


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        Prices.read(tmp_path / "none.json")
