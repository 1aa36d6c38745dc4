"""The id of a model with an adapter, `ID adapter=PLACE`: one text, so that it is another model than ID alone."""

from __future__ import annotations

_SIGN = " adapter="


def with_adapter(id: str, adapter: str | None) -> str:
    """The id of a model with an adapter, in the place of any that it has; None leaves the id as it is."""
    return id if adapter is None else f"{base_of(id)}{_SIGN}{adapter}"


def base_of(id: str) -> str:
    """The id of a model without its adapter: a built-in name, a folder or a hub id."""
    return id.partition(_SIGN)[0].rstrip()


def adapter_of(id: str) -> str | None:
    """The adapter of a model, a folder or a hub id; None where it has none."""
    _, sign, adapter = id.partition(_SIGN)
    return adapter.strip() if sign else None
