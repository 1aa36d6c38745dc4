"""What a run came to, by operator and by model: filled from the events, read by EXPLAIN ANALYZE and the statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OperatorFigures:
    """Sums over all runs of one operator, of all problems; tokens and `counts` as the runtime's `Usage` has them.

    `runs` counts how often it ran: for what is inside a `repeat` the rounds, over all problems.
    """

    runs: int = 0
    rows_in: int = 0
    rows_out: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    seconds: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def computed_tokens(self) -> int:
        """Tokens that went through the model: what was drawn, and what was not cached of what was given."""
        return self.prompt_tokens - self.cached_tokens + self.sampled_tokens

    @property
    def cached_share(self) -> float | None:
        """Of the prompts' tokens; None where there were none."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    def count(self, name: str) -> int:
        return self.counts.get(name, 0)


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """Sums over the forwards of one model. The seconds of a forward are parted by its tokens of either kind.

    `peak_pages` of `pages` were held at once, `page_bytes` each (0 where that is not known).
    """

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    preemptions: int = 0
    evictions: int = 0
    thrashed: int = 0
    peak_pages: int = 0
    pages: int = 0
    page_bytes: int = 0

    @property
    def seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run of a plan over `problems` rows of input, `in_flight` at once.

    `seconds` is wall time from the first instance's start to the last one's end. `peak_kv` and `kv_budget` are bytes,
    None where not known; `longest` is how many times as many steps the longest problem took as the average one.
    """

    problems: int
    failed: int
    in_flight: int
    seconds: float
    operators: Mapping[str, OperatorFigures]
    models: Mapping[str, ModelFigures]
    peak_kv: int | None = None
    kv_budget: int | None = None
    longest: float = 1.0

    @property
    def forward_seconds(self) -> float:
        """What of the wall time went into forwards; the rest went into the runtime around them."""
        return sum(model.seconds for model in self.models.values())
