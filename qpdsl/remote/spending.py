"""What a run may take of servers, and where what they wrote is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from qpdsl.executor.checkpoint.cache_folder import cache_folder
from qpdsl.executor.remote.server.retries import PATIENCE

# In the place of a file: completions are not kept.
NOWHERE = "none"
_STORE = "completions.sqlite"


@dataclass(frozen=True, slots=True)
class Spending:
    """The bounds of a session, all its runs together, and its files.

    `completions` is the file in which completions are kept, `NOWHERE` for none, None for one in the user's cache
    folder. `max_tokens_total` bounds the tokens that are sent and written, `max_cost` what they cost by `prices`, a
    file with a price table. A server that answers nothing for `server_timeout` seconds is given up.

    Raises ValueError, in words, for what is no bound.
    """

    completions: str | Path | None = None
    max_tokens_total: int | None = None
    max_cost: float | None = None
    prices: str | Path | None = None
    server_timeout: float = PATIENCE

    def __post_init__(self) -> None:
        if self.max_tokens_total is not None and self.max_tokens_total < 1:
            raise ValueError(f"`max_tokens_total` takes a whole number of at least 1, not {self.max_tokens_total}")
        if self.max_cost is not None and not (self.max_cost > 0 and math.isfinite(self.max_cost)):
            raise ValueError(f"`max_cost` takes a number above 0, not {self.max_cost:g}")
        if self.max_cost is not None and self.prices is None:
            raise ValueError("`max_cost` needs `prices`, a file that says what tokens cost")

    @property
    def store(self) -> Path | None:
        """The file of completions; None where there is none."""
        if self.completions == NOWHERE:
            return None
        if self.completions is not None:
            return Path(self.completions).expanduser().absolute()
        folder = cache_folder()
        return None if folder is None else folder / _STORE
