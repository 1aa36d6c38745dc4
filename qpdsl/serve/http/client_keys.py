"""The keys of clients: made here, kept as hashes in a file, and compared in constant time.

Each line of the file is one key: its name, a salt, and the SHA-256 of salt and key. A key has 256 random bits, so it
needs no slow hash: nobody can try them all.
"""

from __future__ import annotations

import os
import re
import secrets
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import BinaryIO

from qpdsl.errors import UsageError, reason, shorten
from qpdsl.executor.foreign.bounded_file import read_bounded

_PREFIX = "sk-qpdsl-"
_LINE = re.compile(r"(?P<name>[\w.@-]{1,64}) (?P<salt>[0-9a-f]{32}) (?P<hash>[0-9a-f]{64})")
_NAME = re.compile(r"[\w.@-]{1,64}")


class ClientKeys:
    """The keys in a file. One that is added or taken out counts from the next request on. Raises UsageError."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: tuple[int, int] | None = None
        self._known: list[tuple[str, bytes, bytes]] = []
        self._read()
        if not self._known:
            help = f"`qpdsl serve --keys {file} --new-key NAME` makes one"
            raise UsageError(f"`--keys`: `{file}` holds no key", help)

    def client(self, key: str) -> str | None:
        """The name of a key; None where it is none of these."""
        try:
            self._read()
        except UsageError:
            # A file that cannot be read lets nobody in.
            return None
        found = None
        # All are compared, so that the time says nothing of where in the file a key stands.
        for name, salt, known in self._known:
            if compare_digest(_hash(salt, key), known):
                found = name
        return found

    def _read(self) -> None:
        try:
            status = self._file.stat()
            seen = (status.st_mtime_ns, status.st_size)
            if seen == self._seen:
                return
            text = read_bounded(self._file).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = reason(error) if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UsageError(f"`--keys`: cannot read `{self._file}`: {why}") from error
        known = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            if (match := _LINE.fullmatch(line.strip())) is None:
                raise UsageError(f"`--keys`: line {number} of `{self._file}` is no key: {shorten(line)}")
            known.append((match["name"], bytes.fromhex(match["salt"]), bytes.fromhex(match["hash"])))
        self._known, self._seen = known, seen


def begins_keys(file: BinaryIO) -> bool:
    """Whether an open file holds keys, as far as its first 64 KiB show."""
    text = file.read(1 << 16).decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines(keepends=True) if line.endswith("\n")] or [text.strip()]
    return all(not line or line.startswith("#") or _LINE.fullmatch(line) for line in lines)


def add_key(file: Path, name: str) -> str:
    """A new key, whose hash is appended to the file; only its owner can read the file. Raises UsageError."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"`--new-key` takes a name of letters, digits, `.`, `-`, `_` and `@`, not `{shorten(name)}`")
    key, salt = _PREFIX + secrets.token_urlsafe(32), secrets.token_bytes(16)
    line = f"{name} {salt.hex()} {_hash(salt, key).hex()}\n"
    try:
        text = read_bounded(file).decode("utf-8") if file.exists() else ""
        if any(other.partition(" ")[0] == name for other in text.splitlines()):
            raise UsageError(f"`{file}` has a key of the name `{name}`", "take its line out, or choose another name")
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(("\n" if text and not text.endswith("\n") else "") + line)
    except (OSError, UnicodeDecodeError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"`--keys`: cannot write `{file}`: {why}") from error
    return key


def _hash(salt: bytes, key: str) -> bytes:
    return sha256(salt + key.encode("utf-8", "surrogatepass")).digest()
