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
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

from qpdsl.executor.checkpoint.cache_folder import cache_folder
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.server.abilities import Abilities
from qpdsl.executor.remote.server.abilities_json import abilities_from_json, abilities_json
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.errors import Refused, Unreachable
from qpdsl.executor.remote.server.retries import PATIENCE

_FILE = "servers.json"
# What is asked, and how it is judged: another number where either changes.
_FORM = 1
_AGE = 24 * 3600.0
_MOST, _LARGEST_FILE = 512, 8 << 20


def cached_abilities(address: Address) -> Abilities | None:
    """What was found out about a model on its server, however long ago; None where nothing is known."""
    kept = _read().get(_key(address))
    return None if kept is None else kept[1]


async def known_or_probed(
    address: Address, location: Path | str | None, *, again: bool = False, patience: float = PATIENCE
) -> Abilities:
    """What the server of a model can do: as it was found out today, or as it answers now, and always with `again`.

    `location` is where the tokenizer of the address lies, None where it has none; `patience`: seconds in which a
    request is answered. Needs httpx. Raises ModelError.
    """
    from qpdsl.executor.remote.probe.identity import identify
    from qpdsl.executor.remote.probe.server_probe import probe
    from qpdsl.executor.remote.server.connection import STALL, Connection

    kept = None if again else _read().get(_key(address))
    connection = Connection(address.url, stall=min(STALL, patience))
    try:
        if kept is not None:
            when, abilities = kept
            try:
                identity = await identify(connection, address.dialect)
            except Unreachable:
                return abilities
            except Refused as refused:
                raise ModelError(str(address), str(refused)) from refused
            is_the_same = (identity.named, identity.context_of(address.name)) == (abilities.version, abilities.context)
            if is_the_same and 0 <= time.time() - when < _AGE:
                return abilities
        tokenizer = None
        if location is not None:
            from qpdsl.executor.models.load import load_tokens

            tokenizer = load_tokens(str(address), location).tokenizer
        found = await probe(connection, address, tokenizer)
    finally:
        await connection.close()
    _keep(address, found)
    return found


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


def _read() -> dict[str, tuple[float, Abilities]]:
    """What is kept, with when it was found out, in seconds since 1970."""
    folder = cache_folder()
    if folder is None:
        return {}
    try:
        # Never what a link leads to, and nothing that would wait for a writer.
        descriptor = os.open(folder / _FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_FILE:
                return {}
            said = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return {}
    servers = said.get("servers") if isinstance(said, dict) and said.get("form") == _FORM else None
    found = {}
    for key, entry in servers.items() if isinstance(servers, dict) else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            when = float(entry["found"])
            if math.isfinite(when):
                found[key] = (when, abilities_from_json(entry["abilities"]))
    return found


def _keep(address: Address, abilities: Abilities) -> None:
    """Keeps what was found out; where that cannot be written it is found out again the next time."""
    folder = cache_folder()
    if folder is None:
        return
    known = {**_read(), _key(address): (time.time(), abilities)}
    latest = sorted(known.items(), key=lambda item: item[1][0])[-_MOST:]
    servers: dict[str, Any] = {
        key: {"found": when, "abilities": abilities_json(found)} for key, (when, found) in sorted(latest)
    }
    part: str | None = None
    with contextlib.suppress(OSError):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, part = tempfile.mkstemp(prefix=f".{_FILE}-", dir=folder)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"form": _FORM, "servers": servers}, file, indent=1)
            os.replace(part, folder / _FILE)
            part = None
        finally:
            if part is not None:
                os.unlink(part)
