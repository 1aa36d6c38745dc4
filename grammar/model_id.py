"""What the id of a model says by itself: whether it has an adapter, and whether a server elsewhere runs it.

With an adapter it is `ID adapter=PLACE`: one text, so that it is another model than ID alone. On a server it is
`DIALECT:URL#NAME`; `executor/remote/server/address.py` takes it apart.
"""

from __future__ import annotations

from typing import Literal as OneOf
from typing import get_args

# How servers are spoken to.
DialectName = OneOf["openai", "vllm", "sglang", "llamacpp"]
DIALECTS: tuple[DialectName, ...] = get_args(DialectName)
_SIGN = " adapter="


def dialect_of(id: str) -> DialectName | None:
    """How the server that runs the model is spoken to; None for a model of this machine or the hub."""
    name, colon, _ = id.partition(":")
    return next((dialect for dialect in DIALECTS if colon and dialect == name), None)


def is_remote(id: str) -> bool:
    """Whether a server elsewhere runs the model."""
    return dialect_of(id) is not None


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
