"""Asking a server what it has and what it can do, for people who want to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.server.abilities import Abilities
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.errors import ServerError
from qpdsl.grammar.model_id import DialectName

if TYPE_CHECKING:
    from qpdsl.executor.remote.probe.identity import Identity


@dataclass(frozen=True, slots=True)
class Probed:
    """A server under `url`, with the `models` that it lists. `address` and `abilities` are those of the one asked for.

    They are None where the target names no model and there are several.
    """

    url: str
    server: str
    models: tuple[str, ...]
    address: Address | None = None
    abilities: Abilities | None = None


async def probed(
    target: str, locate: Callable[[Address], Path | str | None], tell: Callable[[str], None] = lambda _: None
) -> Probed:
    """Asks the server of a model id, or of a URL, whose only model is meant then, in the dialect of what answers there.

    `locate` says where the tokenizer of an address lies; `tell` is told what takes long. Needs httpx.
    Raises ModelError.
    """
    from qpdsl.executor.remote.probe.known_servers import known_or_probed

    address = Address.of(target)
    if address is None:
        address, identity = await _found(_bare(target))
    else:
        identity = await _identity(address)
    if not address.name and len(identity.models) == 1:
        address = replace(address, name=identity.models[0])
    if not address.name:
        if not identity.models:
            raise ModelError(target, f"the server lists no models; `{address.url}#NAME` says which is meant")
        return Probed(address.url, identity.named, identity.models)
    tell(f"asking `{address.url}` what it can do with `{address.name}`")
    abilities = await known_or_probed(address, locate(address), again=True)
    return Probed(address.url, abilities.version, identity.models, address, abilities)


def _bare(url: str) -> Address:
    """The address of a URL in any dialect, with no name where it has none. Raises ModelError."""
    named = "#" in url
    try:
        address = Address.of(f"openai:{url}" if named else f"openai:{url}#any")
    except ModelError:
        raise ModelError(url, "it is no URL of a server, such as `http://127.0.0.1:8000/v1`") from None
    assert address is not None
    return address if named else replace(address, name="")


async def _found(address: Address) -> tuple[Address, Identity]:
    """The address of a URL in the dialect of its server, with `/v1` where its models are there."""
    identity = await _identity(address)
    if not identity.models and not address.url.endswith("/v1"):
        below = replace(address, url=f"{address.url}/v1")
        there = await _identity(below)
        if there.models:
            address, identity = below, there
    dialect: DialectName = identity.dialect or "openai"
    return replace(address, dialect=dialect), identity


async def _identity(address: Address) -> Identity:
    from qpdsl.executor.remote.probe.identity import identify
    from qpdsl.executor.remote.server.connection import Connection

    connection = Connection(address.url)
    try:
        return await identify(connection, address.dialect)
    except ServerError as error:
        raise ModelError(str(address) if address.name else address.url, str(error)) from error
    finally:
        await connection.close()
