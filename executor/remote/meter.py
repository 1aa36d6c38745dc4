"""What may be spent at servers: tokens, money by a table of prices that the user gives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MILLION = 1_000_000
# No million tokens cost more, in any currency.
_HIGHEST = 1e18
_NAMES = ("input", "cached_input", "output")


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost; those that the server's cache had may cost less."""

    input: float
    cached_input: float
    output: float

    def cost(self, prompt: int, cached: int, sampled: int) -> float:
        """What a request costs, in the currency of the table."""
        new = max(0, prompt - cached)
        return (new * self.input + cached * self.cached_input + sampled * self.output) / _MILLION


@dataclass(frozen=True, slots=True)
class Prices:
    """The price of each model, by the name that its server knows it by."""

    models: Mapping[str, Price]

    @classmethod
    def read(cls, path: Path) -> Prices:
        """A table as JSON: `{"NAME": {"input": 0.15, "cached_input": 0.075, "output": 0.6}}`, for a million tokens.

        Without `cached_input`, cached tokens cost what others do. Raises ValueError, which says what is wrong.
        """
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"the prices in `{path}` cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"`{path}` is no JSON: {error}") from error
        if not isinstance(table, dict):
            raise ValueError(f'`{path}` is no table of prices such as {{"NAME": {{"input": 0.15, "output": 0.6}}}}')
        return cls({name: _price(name, row) for name, row in table.items()})


def _price(name: str, row: Any) -> Price:
    if not isinstance(row, dict) or not {"input", "output"} <= set(row):
        raise ValueError(f"the price of `{name}` is to have `input` and `output`, each for a million tokens")
    if unknown := sorted(set(row) - set(_NAMES)):
        raise ValueError(f"the price of `{name}` has `{unknown[0]}`, and only {', '.join(_NAMES)} are known")
    for key, value in row.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _HIGHEST:
            raise ValueError(f"`{key}` of `{name}` is to be a number of at least 0, not {str(value)[:20]}")
    cached = row["cached_input"] if "cached_input" in row else row["input"]
    return Price(row["input"], cached, row["output"])


class Meter:
    """Counts what servers were paid for, and says when a bound is reached.

    `tokens` bounds prompt and sampled tokens together, `cost` their price; None for no bound. What was under way when
    the bound was reached is counted too, so a run ends somewhat above it.
    """

    def __init__(self, tokens: int | None = None, cost: float | None = None, prices: Prices | None = None) -> None:
        self._most_tokens = tokens
        self._most_cost = cost
        self._prices = prices or Prices({})
        self.tokens = 0
        self.cost = 0.0

    def check(self, names: Iterable[str]) -> None:
        """Raises ValueError where money is bounded and one of these models has no price."""
        if self._most_cost is not None:
            for name in names:
                if name not in self._prices.models:
                    raise ValueError(f"money is bounded, and the table of prices has none for `{name}`")

    def note(self, name: str, prompt: int, cached: int, sampled: int) -> float:
        """A request to a model took so many tokens; what it cost, 0 for a model without a price."""
        self.tokens += prompt + sampled
        price = self._prices.models.get(name)
        cost = 0.0 if price is None else price.cost(prompt, cached, sampled)
        self.cost += cost
        return cost

    @property
    def reached(self) -> str | None:
        """Which bound is reached, in words; None where there is something left."""
        if self._most_tokens is not None and self.tokens >= self._most_tokens:
            return f"{self.tokens:,} tokens are spent, and {self._most_tokens:,} are allowed"
        if self._most_cost is not None and self.cost >= self._most_cost:
            return f"{self.cost:.4f} is spent, and {self._most_cost:.4f} is allowed"
        return None
