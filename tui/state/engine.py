"""What the engine did, model by model, over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qpdsl.executor.events.events import REPLICA_SIGN, EngineFigures, EngineStepped
from qpdsl.executor.requests.latencies import Waits, percentiles
from qpdsl.tui.state.time_spent import MemoryNeed

_MOST = 512
_SUMMED = ("prefill", "decode", "steps", "sequences", "seconds")


@dataclass(slots=True)
class Bucket:
    """One stretch of time: sums over its steps; `pages` and `waiting` are what its last step left."""

    prefill: int = 0
    decode: int = 0
    steps: int = 0
    sequences: int = 0
    seconds: float = 0.0
    pages: int = 0
    waiting: int = 0


@dataclass(slots=True)
class Series:
    """Buckets of equal width in seconds, from time 0 on. When there are too many, pairs of neighbours become one."""

    width: float = 0.25
    buckets: list[Bucket] = field(default_factory=list)

    @property
    def begun(self) -> int:
        """The index of the first bucket in which anything ran."""
        return next((at for at, bucket in enumerate(self.buckets) if bucket.steps), 0)

    def at(self, time: float) -> Bucket:
        while time >= self.width * _MOST:
            self._halve()
        index = max(0, int(time / self.width))
        while len(self.buckets) <= index:
            last = self.buckets[-1] if self.buckets else Bucket()
            self.buckets.append(Bucket(pages=last.pages))
        return self.buckets[index]

    def shown(self, window: tuple[float, float] | None) -> list[Bucket]:
        """The buckets from a time to another; without a window those of the whole run, from the first step on."""
        if window is None:
            return self.buckets[self.begun :]
        first, last = (int(time / self.width) for time in window)
        return self.buckets[max(first, 0) : last + 1]

    def rate(self, now: float, kind: str, window: float = 5.0) -> float:
        """Tokens a second over the last `window` seconds; `kind` is `prefill` or `decode`."""
        return self.since(now - window, kind) / (min(now, max(window, self.width)) or 1.0)

    def since(self, first: float, kind: str) -> float:
        """The sum of what a field of the buckets counts from a time on."""
        at = 0 if first < 0 else int(first / self.width)
        return float(sum(getattr(bucket, kind) for bucket in self.buckets[at:]))

    def trend(self, now: float, count: int) -> list[float]:
        """How many sequences each of so many equal parts of the time had, from the first step on."""
        first, last = self.begun, max(int(now / self.width), len(self.buckets) - 1) + 1
        parts = [0.0] * count
        for at, bucket in enumerate(self.buckets[first:], first):
            parts[(at - first) * count // max(last - first, count)] += bucket.sequences
        return parts

    def _halve(self) -> None:
        pairs = [self.buckets[at : at + 2] for at in range(0, len(self.buckets), 2)]
        self.width *= 2
        self.buckets = [
            replace(pair[-1], **{name: sum(getattr(bucket, name) for bucket in pair) for name in _SUMMED})
            for pair in pairs
        ]


@dataclass(slots=True)
class ModelState:
    """The latest report of one model, its sums since the beginning, and its series over time.

    `most_pages` is the most that were held after any step; the series has what is held at each time; `waits` has those
    for tokens, since the beginning; `stepped` is when its last step ended.
    """

    name: str
    latest: EngineFigures
    prefill_tokens: int = 0
    decode_tokens: int = 0
    steps: int = 0
    stepped: float = 0.0
    busy: float = 0.0
    most_pages: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    series: Series = field(default_factory=Series)
    waits: Waits = field(default_factory=Waits)
    need: MemoryNeed = field(default_factory=MemoryNeed)

    def add_earlier(self, sums: tuple[float, ...]) -> None:
        """What came before anybody watched: steps, prefill and decode tokens, seconds; none where it is not known."""
        if len(sums) == 4:
            steps, prefill, decode, seconds = sums
            self.steps += int(steps)
            self.prefill_tokens += int(prefill)
            self.decode_tokens += int(decode)
            self.busy += seconds

    def add(self, event: EngineStepped) -> None:
        report = event.report
        assert isinstance(report, EngineFigures)
        self.latest = report
        self.prefill_tokens += report.prefill_tokens
        self.decode_tokens += report.decode_tokens
        self.steps += int(report.others.get("steps", 1))
        self.stepped = event.at
        self.busy += report.others.get("seconds", 0.0)
        self.most_pages = max(self.most_pages, report.pages_held)
        self.need.step(report)
        self.waits.add(report.first_waits, report.waits)
        bucket = self.series.at(event.at)
        bucket.prefill += report.prefill_tokens
        bucket.decode += report.decode_tokens
        bucket.steps += 1
        bucket.sequences += int(report.others.get("sequences", 0))
        bucket.seconds += report.others.get("seconds", 0.0)
        bucket.pages = report.pages_held
        bucket.waiting = report.waiting

    @property
    def kv(self) -> tuple[float, float, float] | None:
        """Bytes of keys and values that are live, cached and free; None where its engine does not tell."""
        # A report leaves out what is 0.
        live, cached, free = (self.latest.others.get(f"{part}_bytes", 0.0) for part in ("live", "cached", "free"))
        return (live, cached, free) if live or cached or free else None

    @property
    def first_token(self) -> tuple[float, ...]:
        """How long samples waited for their first tokens: percentiles 50, 95 and 99 in seconds; empty for none."""
        return percentiles(self.waits.first)

    @property
    def between_tokens(self) -> tuple[float, ...]:
        """Likewise, from each token to the next."""
        return percentiles(self.waits.between)

    @property
    def replica(self) -> str:
        """The replica that it is in, empty for this process."""
        return self.name.partition(REPLICA_SIGN)[2]

    @property
    def rested(self) -> ModelState:
        """The same with nothing to do: what sequences held is in the prefix cache."""
        others = dict(self.latest.others)
        if "live_bytes" in others and "cached_bytes" in others:
            others["cached_bytes"] += others["live_bytes"]
        others |= {name: 0.0 for name in ("sequences", "running", "live_bytes") if name in others}
        return replace(self, latest=replace(self.latest, waiting=0, others=others))

    @property
    def others(self) -> Mapping[str, float]:
        return self.latest.others
