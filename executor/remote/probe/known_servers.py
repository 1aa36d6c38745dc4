"""What was found out about servers, kept for a day in the user's cache folder.

It is asked for anew where a server has another version. The file is written whole and checked when it is read: one
that cannot be used counts as absent. A server that does not answer now is taken to be what it was, so that a run whose
completions were kept needs no server, and one whose server comes back goes on.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpdsl.executor.checkpoint.cache_folder import cache_folder, keep_file, opened
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.failures import PATIENCE, Refused, ServerError, Unreachable
from qpdsl.executor.remote.server.server_capabilities import (
    ServerCapabilities,
    capabilities_from_json,
    capabilities_json,
)
from qpdsl.grammar.model_id import DialectName

if TYPE_CHECKING:
    from qpdsl.executor.remote.probe.identity import Identity

_FILE = "servers.json"
# What is asked, and how it is judged: another number where either changes.
_FORM = 3
_AGE = 24 * 3600.0
_MOST, _LARGEST_FILE = 512, 8 << 20
# So many requests a probe has, and after so many it is said how far it is.
_ABOUT, _TOLD_EVERY = 50, 10
# Seconds after which it is said also where it is not so far.
_SLOW = 10.0


def cached_capabilities(address: Address) -> ServerCapabilities | None:
    """What was found out about a model on its server, however long ago; None where nothing is known."""
    kept = _read().get(_key(address))
    return None if kept is None else kept[1]


async def known_or_probed(
    address: Address,
    location: Path | str | None,
    *,
    again: bool = False,
    patience: float = PATIENCE,
    tell: Callable[[str], object] = lambda words: None,
) -> ServerCapabilities:
    """What the server of a model can do: as it was found out today, or as it answers now, and always with `again`.

    `location` is where the tokenizer of the address lies, None where it has none; `patience`: seconds in which a
    request is answered, and for which a probe waits for a server that is busy; `tell` is told what takes time, and how
    far it is. Needs httpx. Raises ModelError.
    """
    from qpdsl.executor.remote.probe.identity import identify
    from qpdsl.executor.remote.probe.patient_connection import PatientConnection
    from qpdsl.executor.remote.probe.server_probe import probe
    from qpdsl.executor.remote.server.connection import STALL, Connection

    kept = None if again else _read().get(_key(address))
    connection = Connection(address.url, stall=min(STALL, patience))
    what = f"probing `{address.name}` at {address.url}"
    probing = PatientConnection(
        address.url, patience=patience, asked=_in_tens(lambda so_far: tell(f"{what}: {so_far}"))
    )
    try:
        if kept is not None:
            when, capabilities = kept
            tell(f"asking {address.url} for its version")
            try:
                identity = await identify(connection, address.dialect)
            except Unreachable:
                return capabilities
            except Refused as refused:
                raise ModelError(str(address), str(refused)) from refused
            is_the_same = (identity.named, identity.context_of(address.name)) == (
                capabilities.version,
                capabilities.context,
            )
            if is_the_same and 0 <= time.time() - when < _AGE:
                return capabilities
        tokenizer = None
        if location is not None:
            from qpdsl.executor.models.load import load_tokens

            tokenizer = load_tokens(str(address), location).tokenizer
        tell(what)
        found = await probe(probing, address, tokenizer, lambda kind: tell(f"{what}, which {kind}"))
    finally:
        await connection.close()
        await probing.close()
    _keep(address, found)
    return found


def _in_tens(tell: Callable[[str], object]) -> Callable[[int], None]:
    """Takes how many requests a probe has sent, and tells it now and then, of a slow server more often."""
    told = time.monotonic()

    def asked(requests: int) -> None:
        nonlocal told
        if requests % _TOLD_EVERY == 0 or time.monotonic() - told > _SLOW:
            told = time.monotonic()
            tell(f"{requests}{f' of about {_ABOUT}' if requests < _ABOUT else ''} requests")

    return asked


def _key(address: Address) -> str:
    """An address, with the state of the tokenizer that it names."""
    if address.tokenizer is None:
        return str(address)
    place = Path(os.path.abspath(os.path.expanduser(address.tokenizer)))
    for file in (place / "tokenizer.json", place):
        with contextlib.suppress(OSError):
            status = file.stat()
            return f"{address.dialect}:{address.url}#{address.name} {file} {status.st_size} {status.st_mtime_ns}"
    return str(address)


def _read() -> dict[str, tuple[float, ServerCapabilities]]:
    """What is kept, with when it was found out, in seconds since 1970."""
    folder = cache_folder()
    if folder is None:
        return {}
    try:
        with open(opened(folder / _FILE, os.O_RDONLY), "rb") as file:
            # What is cut off there is no JSON.
            said = json.loads(file.read(_LARGEST_FILE))
    except (OSError, ValueError, RecursionError):
        return {}
    servers = said.get("servers") if isinstance(said, dict) and said.get("form") == _FORM else None
    found = {}
    for key, entry in servers.items() if isinstance(servers, dict) else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            when = float(entry["found"])
            if math.isfinite(when):
                found[key] = (when, capabilities_from_json(entry["abilities"]))
    return found


def _keep(address: Address, capabilities: ServerCapabilities) -> None:
    """Keeps what was found out; where that cannot be written it is found out again the next time."""
    folder = cache_folder()
    if folder is None:
        return
    known = {**_read(), _key(address): (time.time(), capabilities)}
    latest = sorted(known.items(), key=lambda item: item[1][0])[-_MOST:]
    servers: dict[str, Any] = {
        key: {"found": when, "abilities": capabilities_json(found)} for key, (when, found) in sorted(latest)
    }
    keep_file(folder / _FILE, json.dumps({"form": _FORM, "servers": servers}, indent=1).encode())


@dataclass(frozen=True, slots=True)
class Probed:
    """A server under `url`, with the `models` that it lists.

    `address` and `capabilities` are those of the one asked for: None where the target names none of several.
    """

    url: str
    server: str
    models: tuple[str, ...]
    address: Address | None = None
    capabilities: ServerCapabilities | None = None


async def probed(
    target: str, locate: Callable[[Address], Path | str | None], tell: Callable[[str], None] = lambda _: None
) -> Probed:
    """Asks the server of a model id, or of a URL, whose only model is meant then, in the dialect of what answers there.

    `locate` says where the tokenizer of an address lies; `tell` is told what takes long. Needs httpx.
    Raises ModelError.
    """

    address = Address.of(target)
    if address is None:
        address, identity = await _found(_bare(target))
    else:
        identity = await _identity(address)
    if not address.name and len(identity.models) == 1:
        address = replace(address, name=identity.models[0])
    if not address.name:
        if not identity.models:
            raise ModelError(target, f"the server lists no models; `{address.url}#NAME` names one")
        return Probed(address.url, identity.named, identity.models)
    capabilities = await known_or_probed(address, locate(address), again=True, tell=tell)
    return Probed(address.url, capabilities.version, identity.models, address, capabilities)


async def only_model(url: str) -> Address | None:
    """The address of the only model at a URL, in the dialect of its server; None where that lists none, or several.

    Needs httpx. Raises ModelError.
    """
    address, identity = await _found(_bare(url))
    models = [name for name in identity.models if name not in identity.programs]
    return replace(address, name=models[0]) if len(models) == 1 else None


def _bare(url: str) -> Address:
    """The address of a URL in any dialect, with no name where it has none. Raises ModelError."""
    named = "#" in url
    try:
        address = Address.of(f"openai:{url}" if named else f"openai:{url}#any")
    except ModelError:
        raise ModelError(url, "it is not the URL of a server, such as `http://127.0.0.1:8000/v1`") from None
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
