"""What is said of data besides its name: what its fields mean, and which of its rows are taken."""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How data is read. `dataset` names a published form; `maps` are `NAME=SOURCE` strings, which go before it.

    Rows are chosen in this order: those that fulfil `where`; all in the order of the seed `shuffle`; those behind the
    first `skip`; then the first `limit`, or with `spread` as many of each value of that field as come to `limit`.
    `split` names the part of a folder or of a data set of the hub. `id` names the field that names the rows.
    """

    dataset: str | None = None
    maps: tuple[str, ...] = ()
    id: str | None = None
    split: str | None = None
    where: str | None = None
    shuffle: int | None = None
    skip: int | None = None
    limit: int | None = None
    spread: str | None = None

    def __post_init__(self) -> None:
        """Raises UsageError where the options do not go together."""
        if self.spread is not None and self.limit is None:
            raise UsageError("`--spread` needs `--limit`, which says how many rows there are to be")
        if self.id is not None and any(text.partition("=")[0].strip() == "id" for text in self.maps):
            raise UsageError("`--id` and `--map id=…` both say what names a row; give one of them")
