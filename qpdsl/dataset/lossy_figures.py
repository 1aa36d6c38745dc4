"""What ways to decode that lose something came to, for the summary of a run.

Of `via filter` who drew the tokens, and what the large model had to compute; of it and of early exits what their
shadows saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qpdsl.planner.cost.server_calls import SAVED_COUNTS
from qpdsl.planner.cost.way_losses import shadow_words

_BATCH = "flush_"
SHADOWS = ("shadowed", "differed")


@dataclass(frozen=True, slots=True)
class FilterFigures:
    """Sums over all samples that two models wrote.

    Of `draws` of the small model `decided` stood, and `alone` of `samples` never asked the large one. That drew
    `large_draws` tokens and computed `large_tokens` for them, prompts and what it caught up on, in `batches`.
    """

    samples: int
    alone: int
    draws: int
    decided: int
    large_draws: int
    large_tokens: int
    batches: int

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> FilterFigures | None:
        """Those of the counts of a `Usage`; None where nothing was filtered."""
        if not counts.get("filter_samples"):
            return None
        # Each request of a batch counts it by the batch's size.
        batches = sum(
            count / int(name.removeprefix(_BATCH)) for name, count in counts.items() if name.startswith(_BATCH)
        )
        return cls(
            counts["filter_samples"],
            counts.get("filter_alone", 0),
            counts.get("filter_draws", 0),
            counts.get("filter_sure", 0),
            counts.get("large_draws", 0),
            counts.get("large_tokens", 0),
            round(batches),
        )

    def facts(self) -> list[tuple[str, str]]:
        """For people: names and values."""
        decided = f"decided {self.decided:,} of {self.draws:,} draws ({self.decided / max(self.draws, 1):.1%})"
        small = f"{decided}, {self.alone:,} of {self.samples:,} samples alone"
        large = f"drew {self.large_draws:,} tokens, computed {self.large_tokens:,} with prompts and catching up"
        if self.batches:
            large += f", in {self.batches:,} batches of {self.large_draws / self.batches:.1f}"
        return [("small model", small), ("large model", large)]

    def to_json(self, *, timing: bool) -> dict[str, Any]:
        """For programs; the keys are stable. What depends on when requests came is there with `timing`."""
        figures = {
            "samples": self.samples,
            "alone": self.alone,
            "draws": self.draws,
            "decided": self.decided,
            "large_draws": self.large_draws,
        }
        return figures | ({"large_tokens": self.large_tokens, "batches": self.batches} if timing else {})


def lossy_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Those of the counts of a `Usage` that say something of filters, of shadows, and of calls that were saved."""
    kinds, names = ("filter_", "large_", _BATCH), (*SHADOWS, *SAVED_COUNTS)
    return {name: count for name, count in counts.items() if name.startswith(kinds) or name in names}


def shadow_facts(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """For people: how often the full model would have drawn another token; nothing where nobody looked."""
    shadowed, differed = (counts.get(name, 0) for name in SHADOWS)
    return [("shadows", shadow_words(shadowed, differed))] if shadowed else []


def shadow_json(counts: Mapping[str, int]) -> dict[str, Any]:
    """For programs; the keys are stable. Nothing where nobody looked."""
    shadows = {name: counts.get(name, 0) for name in SHADOWS}
    return {"shadow": shadows} if shadows["shadowed"] else {}
