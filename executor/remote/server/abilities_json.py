"""Abilities as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from qpdsl.executor.remote.server.abilities import Abilities, BoundName, Endpoint, ScoreSource
from qpdsl.executor.requests.request import ConstraintKind

# What may stand in a field beside values of its default's type.
_VALUES: Mapping[str, tuple[object, ...]] = {
    "endpoint": get_args(Endpoint),
    "scores": (None, *get_args(ScoreSource)),
    "max_tokens_name": get_args(BoundName),
}
# No server has a longer context, and no file of ours a larger number.
_LARGEST = 2**63 - 1


def abilities_json(abilities: Abilities) -> dict[str, Any]:
    """A JSON object with all fields, in their order."""
    values = {one.name: getattr(abilities, one.name) for one in fields(abilities)}
    return {**values, "constraints": sorted(abilities.constraints), "notes": list(abilities.notes)}


def abilities_from_json(value: object) -> Abilities:
    """Raises ValueError where a field is missing, unknown, or holds what it cannot."""
    if not isinstance(value, dict) or value.keys() != {one.name for one in fields(Abilities)}:
        raise ValueError("it has other fields")
    for name, one in value.items():
        if not _may_be(name, one):
            raise ValueError(f"`{name}` is {one!r}")
    return Abilities(**{**value, "constraints": frozenset(value["constraints"]), "notes": tuple(value["notes"])})


def _may_be(name: str, value: object) -> bool:
    if name in _VALUES:
        return value in _VALUES[name]
    if name == "constraints":
        return isinstance(value, list) and all(one in get_args(ConstraintKind) for one in value)
    if name == "notes":
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    default = getattr(Abilities(), name)
    if isinstance(default, bool | str):
        return type(value) is type(default)
    # The only number that may be missing is the context.
    return (value is None and default is None) or (type(value) is int and 0 <= value <= _LARGEST)
