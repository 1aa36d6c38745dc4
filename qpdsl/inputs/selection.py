"""Which rows are taken, and in which order. All of it is the same on every machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

from qpdsl.inputs.read_options import ReadOptions

T = TypeVar("T")


def shuffled(items: Sequence[T], seed: int) -> list[T]:
    """The items in an order that depends on the seed and their places alone: by a digest of both."""

    def key(place: int) -> bytes:
        return blake2b(f"{seed}:{place}".encode(), digest_size=16).digest()

    return [items[place] for place in sorted(range(len(items)), key=key)]


def spread(groups: Sequence[Hashable], count: int) -> list[int]:
    """The places of `count` items, as many of each group as of the others where it has so many, in their order.

    Of a group its first items are taken. What does not come out even goes to the groups that sort first, and what a
    group lacks to the others.
    """
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        places[group].append(place)
    waiting = {group: iter(places[group]) for group in sorted(places, key=_order)}
    taken: list[int] = []
    while waiting and len(taken) < count:
        for group, left in list(waiting.items()):
            found = next(left, None)
            if found is None:
                del waiting[group]
            elif len(taken) < count:
                taken.append(found)
    return sorted(taken)


def selected(records: Sequence[Mapping[str, Any]], options: ReadOptions) -> list[int]:
    """The places of the records to take, in the order in which to take them, of those that fulfil the condition."""
    places = list(range(len(records)))
    if options.shuffle is not None:
        places = shuffled(places, options.shuffle)
    places = places[options.skip or 0 :]
    if options.spread is not None and options.limit is not None:
        groups = [group_of(records[place], options.spread) for place in places]
        return [places[at] for at in spread(groups, options.limit)]
    return places[: options.limit]


def group_of(record: Mapping[str, Any], field: str) -> Hashable:
    """The value of a field that rows are grouped by: a number, or else its text; None where the record lacks it."""
    value = record.get(field)
    return value if value is None or isinstance(value, int | float) else str(value)


def _order(group: Hashable) -> tuple[int, float, str]:
    if isinstance(group, int | float):
        return 0, float(group), ""
    return (2, 0.0, "") if group is None else (1, 0.0, str(group))
