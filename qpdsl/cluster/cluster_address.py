"""Where replicas run and how many: what `--cluster` names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self
from urllib.parse import parse_qsl

from qpdsl.errors import UsageError, shorten, unknown

# More than a run can use, and few enough that a slip of the finger starts no thousand processes here.
MAX_HERE = 256
MAX_ANYWHERE = 100_000
_EXAMPLES = "`local:4`, `local:1..4`, `ray:4` or `ray://HOST:PORT?replicas=8`"
_RANGE = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?")
_PLACE = re.compile(r"[^/?#\s]+:\d{1,5}")


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """`local` means processes of this machine; `ray` actors, of a Ray that is started here where `place` is None.

    There are never fewer than `least` replicas nor more than `most`. `place` is the address of a Ray that runs, as
    `HOST:PORT`. `cpus` and `gpus` are what Ray reserves for each replica, None for its share of this machine or, of a
    Ray that runs, for one core and no GPU.
    """

    kind: Literal["local", "ray"]
    least: int
    most: int
    place: str | None = None
    cpus: float | None = None
    gpus: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address in `local:N`, `local:N..M`, `ray:N`, `ray:N..M` or `ray://HOST:PORT?replicas=N..M&cpus=&gpus=`.

        Raises UsageError.
        """
        base, _, query = text.strip().partition("?")
        kind, colon, rest = base.partition(":")
        if kind not in ("local", "ray") or not colon:
            raise UsageError(f"`--cluster {shorten(text)}` names no cluster", f"there is {_EXAMPLES}")
        options = _options(text, query)
        if kind == "local":
            if options:
                raise UsageError(f"`--cluster local:…` takes no `{next(iter(options))}`", f"there is {_EXAMPLES}")
            return cls("local", *_replicas(text, rest, MAX_HERE))
        reserved = {name: _amount(name, options[name]) for name in ("cpus", "gpus") if name in options}
        if not rest.startswith("//"):
            if "replicas" in options:
                raise UsageError("`--cluster ray:N` says how many replicas by N", f"there is {_EXAMPLES}")
            return cls("ray", *_replicas(text, rest, MAX_HERE), None, reserved.get("cpus"), reserved.get("gpus"))
        place = rest.removeprefix("//").rstrip("/")
        if not _PLACE.fullmatch(place):
            raise UsageError(f"`--cluster {shorten(text)}` names no host and port", "write `ray://HOST:10001`")
        if "replicas" not in options:
            raise UsageError(
                f"`--cluster {shorten(text)}` does not say how many replicas", "add `?replicas=8` or `?replicas=1..8`"
            )
        replicas = _replicas(text, options["replicas"], MAX_ANYWHERE)
        return cls("ray", *replicas, place, reserved.get("cpus"), reserved.get("gpus"))

    @property
    def scales(self) -> bool:
        """Whether the number of replicas changes while the run goes on."""
        return self.least < self.most

    def __str__(self) -> str:
        count = f"{self.least}..{self.most}" if self.scales else str(self.most)
        options = "".join(
            f"&{name}={value:g}" for name, value in (("cpus", self.cpus), ("gpus", self.gpus)) if value is not None
        )
        if self.place is not None:
            return f"ray://{self.place}?replicas={count}{options}"
        return f"{self.kind}:{count}{'?' + options[1:] if options else ''}"


def _options(text: str, query: str) -> dict[str, str]:
    known = ("replicas", "cpus", "gpus")
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise UsageError(f"`--cluster {shorten(text)}`: {unknown(name, known, 'there is no option')}")
        if name in options:
            raise UsageError(f"`--cluster {shorten(text)}` says `{name}` twice")
        options[name] = value
    return options


def _replicas(text: str, count: str, most: int) -> tuple[int, int]:
    found = _RANGE.fullmatch(count)
    if found is None:
        raise UsageError(f"`--cluster {shorten(text)}` does not say how many replicas", f"there is {_EXAMPLES}")
    least, highest = int(found[1]), int(found[2] or found[1])
    if not 1 <= least <= highest <= most:
        raise UsageError(f"`--cluster {shorten(text)}`: there can be 1 to {most:,} replicas, the fewest named first")
    return least, highest


def _amount(name: str, value: str) -> float:
    try:
        amount = float(value)
    except ValueError:
        amount = -1.0
    if not 0 <= amount <= MAX_ANYWHERE:
        raise UsageError(f"`--cluster`: `{name}={shorten(value)}` is no number that a machine could have of it")
    return amount
