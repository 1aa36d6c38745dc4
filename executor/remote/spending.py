"""What a run may take of servers, and where what they wrote is cached."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qpdsl.executor.checkpoint.cache_folder import cache_folder
from qpdsl.executor.foreign.bounded_file import read_bounded
from qpdsl.executor.remote.server.failures import PATIENCE

# In the place of a file: completions are not cached.
NOWHERE = "none"
_STORE = "completions.sqlite"


@dataclass(frozen=True, slots=True)
class Spending:
    """The bounds of a session, all its runs together, and its files.

    `completions` is the file that caches completions, None for none, and `named` says that the user named it.
    `max_tokens` bounds the tokens that are sent and written, `max_cost` what they cost by the table in `prices`. A
    server that answers nothing for `patience` seconds is given up.
    """

    completions: Path | None = None
    named: bool = False
    max_tokens: int | None = None
    max_cost: float | None = None
    prices: Path | None = None
    patience: float = PATIENCE


def completions_file(name: str | Path | None) -> Path | None:
    """The file that a setting names: None for `NOWHERE`, and by default one in the user's cache folder."""
    if name == NOWHERE:
        return None
    if name is not None:
        return Path(name).expanduser().absolute()
    folder = cache_folder()
    return None if folder is None else folder / _STORE


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
            table = json.loads(read_bounded(path))
        except OSError as error:
            raise ValueError(f"cannot read the prices in `{path}`: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"`{path}` is not valid JSON: {error}") from error
        if not isinstance(table, dict):
            raise ValueError(f'`{path}` is not a price table such as {{"NAME": {{"input": 0.15, "output": 0.6}}}}')
        return cls({name: _price(name, row) for name, row in table.items()})


def _price(name: str, row: Any) -> Price:
    if not isinstance(row, dict) or not {"input", "output"} <= set(row):
        raise ValueError(f"the price of `{name}` needs `input` and `output`, per million tokens")
    if unknown := sorted(set(row) - set(_NAMES)):
        raise ValueError(f"the price of `{name}` has the unknown field `{unknown[0]}`; known are {', '.join(_NAMES)}")
    for key, value in row.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _HIGHEST:
            raise ValueError(f"`{key}` of `{name}` must be a number of at least 0, not {str(value)[:20]}")
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
                    raise ValueError(f"the cost is limited, and the price table has no price for `{name}`")

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
            return f"token limit reached: {self.tokens:,} of {self._most_tokens:,} tokens used"
        if self._most_cost is not None and self.cost >= self._most_cost:
            return f"cost limit reached: {self.cost:.4f} of {self._most_cost:.4f} spent"
        return None
