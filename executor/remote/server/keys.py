"""Keys of servers: from the environment alone, each bound to the origin that it is for.

    OPENAI_API_KEY   for https://api.openai.com, and for the origin of OPENAI_BASE_URL
    QPDSL_API_KEYS   for others: `https://host:8000=KEY http://127.0.0.1:8000=KEY`, between white space

A program names servers, so a key that went to whatever server a program names could be stolen by one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from qpdsl.executor.checkpoint.errors import ModelError

_OPENAI = "https://api.openai.com"
_PORTS = {"http": 80, "https": 443}


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL, written in one way. Raises ValueError for what is no URL of a server."""
    parts = urlsplit(url)
    port = parts.port or _PORTS.get(parts.scheme)
    if port is None or not parts.hostname:
        raise ValueError(f"`{url}` is no URL of a server")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


def key_of(url: str, environment: Mapping[str, str] | None = None) -> str | None:
    """The key for the server of a URL, None without one.

    Raises ModelError where the environment's variables cannot be read.
    """
    environment = os.environ if environment is None else environment
    origin = origin_of(url)
    for entry in environment.get("QPDSL_API_KEYS", "").split():
        place, sign, key = entry.partition("=")
        try:
            given = origin_of(place)
        except ValueError:
            given = ""
        # What stands there may be a key, so it is not shown.
        if not sign or not key or not given:
            raise ModelError(url, "QPDSL_API_KEYS is to hold entries such as `https://host:8000=KEY`, and one is none")
        if given == origin:
            return _checked(url, key)
    key = environment.get("OPENAI_API_KEY", "").strip()
    return _checked(url, key) if key and origin in _openai_origins(environment) else None


def variable_of(url: str, environment: Mapping[str, str] | None = None) -> str:
    """What to set in the environment for a server that wants a key."""
    environment = os.environ if environment is None else environment
    origin = origin_of(url)
    if origin in _openai_origins(environment):
        return "OPENAI_API_KEY"
    parts = urlsplit(url)
    return f'QPDSL_API_KEYS="{parts.scheme}://{parts.netloc}=KEY"'


def _openai_origins(environment: Mapping[str, str]) -> set[str]:
    origins = {origin_of(_OPENAI)}
    try:
        origins.add(origin_of(environment.get("OPENAI_BASE_URL", "").strip() or _OPENAI))
    except ValueError:
        return origins
    return origins


def _checked(url: str, key: str) -> str:
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ModelError(url, f"the key in {variable_of(url).partition('=')[0]} has characters that no key has")
    return key
