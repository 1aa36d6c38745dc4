"""The journal of an unfinished run: every finished row, durable from the moment it counts as done.

JSON lines: a header with the fingerprint of the run, then one line a row in the order in which they finished. A run
that is killed leaves at most one torn line at the end, which is dropped when the run goes on.

MERGED: What a run's results depend on, digested, so that an unfinished run is only gone on with as the same run.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

from qpdsl.dataset.outcome import Outcome, dumps
from qpdsl.errors import UsageError, reason
from qpdsl.output import sync_folder
from qpdsl.planner.plan.physical import PhysicalOp

Fingerprint = Mapping[str, str]

_WHOLE = 64 << 20
_BLOCK = 64 << 10
_SAMPLES = 32
_TEXT_SUFFIXES = {".json", ".jinja", ".model", ".txt"}

# How a part of the fingerprint is called in messages, and whether its value says something to the user.
_PARTS = {
    "version": ("the qpdsl version", True),
    "program": ("the program", False),
    "python": ("the Python functions", False),
    "arguments": ("the arguments", False),
    "seed": ("the seed", True),
    "input": ("the input data", False),
    "plan": ("the plan", True),
    "device": ("the device", True),
    "dtype": ("the dtype", True),
    "kv type": ("the type of the KV cache", True),
    "deterministic": ("`--deterministic`", False),
    "compile": ("`--compile`", False),
    "options": ("what is recorded", True),
}


def digest(value: object) -> str:
    """A short digest of plain data; the order of a mapping's keys does not count."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def operators(nodes: Iterable[PhysicalOp]) -> list[Any]:
    """What a plan computes, as plain data that equal programs share: files that a program read are part of it."""
    found: list[Any] = []
    for node in nodes:
        parts = {one.name: getattr(node.op, one.name) for one in fields(node.op)}
        own = {name: repr(part) for name, part in parts.items() if name not in ("span", "body", "arms")}
        inner = [operators(block) for block in (node.body, *node.arms)]
        found.append([type(node.op).__name__, own, inner])
    return found


def changes(old: Fingerprint, new: Fingerprint) -> list[str]:
    """In words, every part in which two fingerprints differ."""
    found = []
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        name, telling = _PARTS.get(key, (f"the {key}", False))
        values = f" (was {before or 'default'}, is {after or 'default'})" if telling else ""
        found.append(f"{name}{values}")
    return found


def model_digest(folder: Path) -> str:
    """A digest of a model folder's content: quick for weights of any size.

    Configuration and tokenizer files count in full, and so do weight files up to 64 MiB. Of larger ones the size, the
    header (every tensor's name, type, shape and place) and 32 blocks spread evenly over the file count.
    """
    state = blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        weights = path.suffix == ".safetensors"
        if not path.is_file() or not (weights or path.suffix in _TEXT_SUFFIXES):
            continue
        size = path.stat().st_size
        state.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for start, length in _pieces(size, _header_length(file.read(8)) if weights else 0):
                file.seek(start)
                state.update(file.read(length))
    return state.hexdigest()


def _header_length(first: bytes) -> int:
    """A safetensors file starts with the length of its JSON header, which cannot exceed 100 MB."""
    return 8 + min(int.from_bytes(first, "little"), 100_000_000)


def _pieces(size: int, header: int) -> Iterable[tuple[int, int]]:
    if size <= _WHOLE:
        return [(0, size)]
    last = size - _BLOCK
    return [(0, header), *((index * last // (_SAMPLES - 1), _BLOCK) for index in range(_SAMPLES))]


def location_digest(location: Path | str) -> str:
    """A digest of what a located model holds: a folder, or a hub id whose files are in the cache by now."""
    if isinstance(location, Path):
        return model_digest(location)
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(location, "config.json")
    return model_digest(Path(config).parent) if isinstance(config, str) else "unknown"


FORMAT = 1


class Journal:
    """An open journal, locked against a second run. `done` maps the number of a row to its outcome."""

    def __init__(self, path: Path, handle: int, done: dict[int, Outcome]) -> None:
        self.path = path
        self.done = done
        self._handle = handle

    @classmethod
    def begin(cls, path: Path, fingerprint: Fingerprint) -> Journal:
        """A new journal in place of any that is there. Raises UsageError."""
        handle = _open_locked(path)
        journal = cls(path, handle, {})
        try:
            os.ftruncate(handle, 0)
            journal._write({"qpdsl_journal": FORMAT, "fingerprint": fingerprint})
        except BaseException:
            journal.close()
            raise
        sync_folder(path.parent)
        return journal

    @classmethod
    def resume(cls, path: Path, fingerprint: Fingerprint) -> Journal:
        """The journal that is there, to go on with. Raises UsageError where it belongs to another run."""
        handle = _open_locked(path)
        try:
            with path.open("rb") as file:
                header, records, whole = parse(file.read())
            if header is not None:
                _check(path, header, fingerprint)
            done = _outcomes(path, records)
            os.ftruncate(handle, whole)
            os.lseek(handle, 0, os.SEEK_END)
            journal = cls(path, handle, done)
            if header is None:
                journal._write({"qpdsl_journal": FORMAT, "fingerprint": fingerprint})
        except BaseException:
            os.close(handle)
            raise
        return journal

    def add(self, number: int, outcome: Outcome) -> None:
        """Records a finished row; when this returns, a power cut does not undo it."""
        self._write({"row": number, "outcome": outcome.to_json()})
        self.done[number] = outcome

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def remove(self) -> None:
        """Takes the journal away: the run is finished."""
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)
        self.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        data = (dumps(record) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._handle, data) :]
            os.fsync(self._handle)
        except OSError as error:
            raise UsageError(f"cannot write `{self.path}`: {reason(error)}") from error


def journal_path(output: Path) -> Path:
    """Where the journal of an output file lies."""
    return output.with_name(output.name + ".journal")


def begun(path: Path) -> Mapping[str, Any]:
    """The fingerprint of the run that a journal belongs to; empty where there is none that can be read."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return {}
    found = found.get("fingerprint") if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def parse(data: bytes) -> tuple[dict[str, Any] | None, list[dict[str, Any]], int]:
    """The header, the records, and how many bytes are whole lines. The header is None where not even it is whole.

    A last line without its newline is torn, whatever it holds. Raises UsageError where another line is no JSON object.
    """
    *lines, torn = data.split(b"\n")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise UsageError(f"the journal is damaged at line {number}", help="start over with `--overwrite`")
        records.append(record)
    whole = len(data) - len(torn)
    return (records[0], records[1:], whole) if records else (None, [], 0)


def _check(path: Path, header: Mapping[str, Any], fingerprint: Fingerprint) -> None:
    found = header.get("fingerprint")
    if header.get("qpdsl_journal") != FORMAT or not isinstance(found, dict):
        raise UsageError(f"`{path}` is not a journal that this version can read", help="start over with `--overwrite`")
    changed = changes(found, fingerprint)
    if changed:
        raise UsageError(
            f"cannot resume the run in `{path}`; changed since it began: {', '.join(changed)}",
            help="give what it was started with, or start over with `--overwrite`",
        )


def _outcomes(path: Path, records: list[dict[str, Any]]) -> dict[int, Outcome]:
    try:
        return {int(record["row"]): Outcome(**record["outcome"]) for record in records}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the journal `{path}` is damaged: {error}", help="start over with `--overwrite`") from error


def _open_locked(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {reason(error)}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UsageError(f"another run is writing to `{path}`") from None
    except OSError:
        # A file system without locks; the run goes on without this guard.
        return handle
    return handle
