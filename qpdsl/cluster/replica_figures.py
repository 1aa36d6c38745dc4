"""What each replica did, for the summary of a run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ReplicaFigures:
    """A replica from its start. `seconds` is how long it could take rows; `lost` says why it is gone, where it is."""

    name: str
    machine: str = ""
    process: int = 0
    ready: float | None = None
    ended: float | None = None
    rows: int = 0
    tokens: int = 0
    lost: str | None = None
    differs: tuple[str, ...] = field(default=())

    @property
    def seconds(self) -> float:
        """From when its models were loaded to now, or to its end."""
        if self.ready is None:
            return 0.0
        return (time.monotonic() if self.ended is None else self.ended) - self.ready

    def words(self) -> str:
        """For people: one line, without the name."""
        rate = self.tokens / self.seconds if self.seconds else 0.0
        text = f"{self.rows:,} rows, {self.tokens:,} tokens out ({rate:,.0f} tokens/s)"
        where = f" on {self.machine}, process {self.process}" if self.machine else ""
        lost = f"; {self.lost}" if self.lost is not None else ""
        mixed = f"; differs in {', '.join(self.differs)}" if self.differs else ""
        return f"{text}{where}{lost}{mixed}"

    def to_json(self) -> dict[str, Any]:
        """For programs; the keys are stable."""
        return {
            "name": self.name,
            "machine": self.machine,
            "rows": self.rows,
            "tokens_out": self.tokens,
            "seconds": round(self.seconds, 3),
            "lost": self.lost,
            "differs": list(self.differs),
        }
