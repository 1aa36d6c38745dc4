"""A device as JSON data, and back: what a file holds is checked, as it may be damaged or of another version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from qpdsl.planner.device import Curve, Device, KVProfile, ModelProfile, ModelShape, Table
from qpdsl.planner.reading import count, mapping, number, rising, text

VERSION = 2


def device_json(device: Device) -> dict[str, Any]:
    """As data that `device_from_json` reads."""
    return {"version": VERSION, **asdict(device)}


def device_from_json(data: Any) -> Device:
    """Raises ValueError for data of another version or shape."""
    try:
        if mapping(data)["version"] != VERSION:
            raise ValueError("it is of another version")
        if not isinstance(data["measured"], bool):
            raise ValueError("`measured` is true or false")
        return Device(
            text(data["name"]),
            text(data["kind"]),
            text(data["dtype"]),
            count(data["threads"]),
            number(data["bandwidth"], positive=True),
            number(data["peak"], positive=True),
            number(data["step_overhead"]),
            number(data["row_seconds"]),
            data["measured"],
            {name: _profile(mapping(value)) for name, value in mapping(data["models"]).items()},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is no profile of a device: {error}") from error


def _profile(data: Mapping[str, Any]) -> ModelProfile:
    return ModelProfile(
        _shape(mapping(data["shape"])),
        number(data["overhead"]),
        count(data["context"]),
        _curve(mapping(data["decode"])),
        _curve(mapping(data["prefill"])),
        _table(data["generate"]),
        _table(data["score"]),
        {name: _kv(mapping(value)) for name, value in mapping(data["kv_types"]).items()},
        None if data["read_seconds"] is None else number(data["read_seconds"]),
    )


def _shape(data: Mapping[str, Any]) -> ModelShape:
    kept = data["kv_token_bytes"]
    names = [field.name for field in fields(ModelShape) if field.name != "kv_token_bytes"]
    counts = {name: count(data[name]) for name in names}
    return ModelShape(**counts, kv_token_bytes=None if kept is None else number(kept, positive=True))


def _kv(data: Mapping[str, Any]) -> KVProfile:
    return KVProfile(
        number(data["token_bytes"], positive=True),
        number(data["epsilon"]),
        _curve(mapping(data["decode"])),
        _curve(mapping(data["prefill"])),
    )


def _curve(data: Mapping[str, Any]) -> Curve:
    points = tuple((number(size), number(seconds, positive=True)) for size, seconds in data["points"])
    rising(tuple(size for size, _ in points))
    return Curve(points)


def _table(data: Any) -> Table | None:
    if data is None:
        return None
    data = mapping(data)
    kv_tokens, batches = (tuple(count(value) for value in data[name]) for name in ("kv_tokens", "batches"))
    rising(kv_tokens)
    rising(batches)
    rates = tuple(tuple(number(rate) for rate in row) for row in data["rates"])
    if [len(row) for row in rates] != [len(batches)] * len(kv_tokens):
        raise ValueError("a table has a row for each memory and a column for each batch")
    return Table(kv_tokens, batches, rates)
