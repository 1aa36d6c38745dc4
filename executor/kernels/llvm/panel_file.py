"""Weights in panels, kept in the user's cache folder, and mapped from there by every later start.

To lay a model's weights out anew takes as long as to read them, and memory of each process for itself. So the first
start that does writes them to a file as it goes, and reads them there itself. Whoever maps the file holds what it
touches, together with all others who do, and nothing of the checkpoint that it was made from.

A file: the weights, each from a line of the cache on; JSON that says what they are and whose; its length in eight
bytes; and a digest of both.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qpdsl.executor.checkpoint.cache_folder import opened
from qpdsl.executor.kernels.data.weights import Weight, read
from qpdsl.executor.kernels.llvm.large_pages import give_back
from qpdsl.executor.kernels.llvm.panels import FloatPanels, GroupedPanels, PanelForm

_LINE, _DIGEST, _LENGTH = 64, 32, 8
# Written so many bytes at a time, from a multiple of them on: the system then keeps the file in large pages, if it can.
_AT_ONCE = 4 << 20
_MAX_HEADER = 16 << 20
# Files that were not used for longest are removed beyond these bytes; and no file is written that would take more than
# this share of what is free.
_MAX_BYTES, _SHARE = 32 << 30, 4
# A file that nobody has finished for so many seconds is nobody's.
_ABANDONED = 24 * 3600
_PART = ".part-"


class NotKept(Exception):
    """The file cannot be written on, or holds something else than it is asked for."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where something lies. `form`: of weights, None of other bytes."""

    start: int
    size: int
    form: PanelForm | None

    @classmethod
    def from_json(cls, said: Any) -> _Entry:
        form = said["form"]
        if form is not None:
            panels = form["panels"]
            own = FloatPanels(getattr(torch, panels["dtype"])) if "dtype" in panels else GroupedPanels(**panels)
            form = PanelForm(**{**form, "panels": own})
        return cls(said["start"], said["size"], form)


class KeptPanels:
    """The weights of a file, as a `Shelf`."""

    def __init__(self, bytes_: torch.Tensor, entries: Mapping[str, _Entry]) -> None:
        self._bytes, self._entries = bytes_, entries

    @classmethod
    def of(cls, path: Path, key: str) -> KeptPanels | None:
        """Those that were kept by this key; None where there are none, or where the file is not whole."""
        try:
            handle = opened(path, os.O_RDONLY)
        except OSError:
            return None
        try:
            size = os.fstat(handle).st_size
            end = size - _LENGTH - _DIGEST
            tail = os.pread(handle, _LENGTH + _DIGEST, end)
            length = int.from_bytes(tail[:_LENGTH], "little")
            header = os.pread(handle, min(length, _MAX_HEADER), end - length)
            if _digest(header) != tail[_LENGTH:]:
                return None
            said = json.loads(header)
            entries = {name: _Entry.from_json(entry) for name, entry in said["entries"].items()}
            if said["key"] != key or said["start"] != end - length:
                return None
            with contextlib.suppress(OSError):
                os.utime(path)
            return cls(_mapped(handle, size), entries)
        except Exception:  # whatever a damaged file provokes
            return None
        finally:
            os.close(handle)

    def place(self, name: str, weight: Weight, width: int) -> tuple[PanelForm, Callable[[], torch.Tensor]]:
        """See `Shelf`. Raises NotKept where these are no weights of this shape and type."""
        entry = self._entries.get(name)
        form = None if entry is None else entry.form
        if entry is None or form is None:
            raise NotKept(name)
        if (form.outputs, form.inputs, form.width, form.kind) != (*weight.shape, width, weight.kind):
            raise NotKept(name)
        data = self._bytes[entry.start : entry.start + entry.size].view(form.count, form.panel_bytes)
        return form, lambda: data

    def beside(self, name: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """See `Shelf`."""
        entry = self._entries.get(name)
        return make() if entry is None else self._bytes[entry.start : entry.start + entry.size]

    def spare(self) -> None:
        """See `Shelf`."""
        give_back(self._bytes)


class PanelWriter:
    """Writes such a file, as a `Shelf` of what is written so far; whole or not at all.

    Raises OSError where the file cannot be made, or is too large for what is free.
    """

    def __init__(self, path: Path, key: str, expected: int, spare_sources: Callable[[], None] = lambda: None) -> None:
        """`expected`: about how many bytes it will have. `spare_sources`: as `Shelf.spare`, of what it is made from."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        space = os.statvfs(path.parent)
        if expected * _SHARE > space.f_bavail * space.f_frsize or expected > _MAX_BYTES:
            raise OSError("there is no room for it")
        self._path, self._key, self._spare_sources = path, key, spare_sources
        self._handle, self._part = tempfile.mkstemp(prefix=_PART, dir=path.parent)
        self._drop = weakref.finalize(self, _dropped, self._handle, self._part)
        self._entries: dict[str, _Entry] = {}
        # What is not written yet follows the first `_written` bytes.
        self._rest, self._used, self._written = np.zeros(_AT_ONCE, dtype=np.uint8), 0, 0
        # The file as it was and as it is now: what was placed early may be used where the first of them has it.
        self._maps = [torch.empty(0, dtype=torch.uint8)]

    def place(self, name: str, weight: Weight, width: int) -> tuple[PanelForm, Callable[[], torch.Tensor]]:
        """See `Shelf`. Raises NotKept where it cannot be written."""
        weight = read(weight)
        form = PanelForm.of(weight, width)
        start = self._begin()
        for rows in form.pieces(weight):
            self._write(rows)
        self._entries[name] = _Entry(start, form.nbytes, form)
        self._spare_sources()
        return form, self.panels(name)

    def beside(self, name: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """See `Shelf`. What is made once the file is finished stays in memory. Raises NotKept."""
        made = make()
        if not self._drop.alive:
            return made
        self.spare()
        self._entries[name] = _Entry(self._begin(), made.nbytes, None)
        self._write(made)
        return self._view(self._entries[name])

    def spare(self) -> None:
        """See `Shelf`."""
        self._spare_sources()
        for known in self._maps:
            give_back(known)

    def form(self, name: str) -> PanelForm | None:
        """What the panels of that name are."""
        return self._entries[name].form

    def panels(self, name: str) -> Callable[[], torch.Tensor]:
        """What gives them; see `Shelf`."""

        def bytes_() -> torch.Tensor:
            entry = self._entries[name]
            assert entry.form is not None
            return self._view(entry).view(entry.form.count, entry.form.panel_bytes)

        return bytes_

    def keep(self) -> None:
        """Finishes the file and gives it its name; where that cannot be, it is dropped."""
        entries = {name: asdict(entry) for name, entry in self._entries.items()}
        for entry in entries.values():
            if entry["form"] is not None and "dtype" in entry["form"]["panels"]:
                panels = entry["form"]["panels"]
                panels["dtype"] = str(panels["dtype"]).removeprefix("torch.")
        with contextlib.suppress(OSError, NotKept):
            start = self._begin()
            header = json.dumps({"key": self._key, "start": start, "entries": entries}).encode()
            tail = header + len(header).to_bytes(_LENGTH, "little") + _digest(header)
            self._write(torch.frombuffer(bytearray(tail), dtype=torch.uint8))
            self._flush()
            # Or a machine that stops now could leave a file of the right length full of zeros.
            os.fsync(self._handle)
            os.replace(self._part, self._path)
            _trim(self._path)
        self.drop()

    def drop(self) -> None:
        """Gives up the file, if it has no name yet. What was placed in it stays there as long as it is used."""
        self._map_all()
        self._drop()
        self._rest = np.zeros(0, dtype=np.uint8)

    def _begin(self) -> int:
        """Where the next entry begins."""
        self._write(torch.zeros(-(self._written + self._used) % _LINE, dtype=torch.uint8))
        return self._written + self._used

    def _write(self, values: torch.Tensor) -> None:
        given = values.contiguous().reshape(-1).view(torch.uint8).numpy()
        while len(given):
            # Up to the next multiple.
            room = _AT_ONCE - self._written % _AT_ONCE - self._used
            count = min(len(given), room)
            self._rest[self._used : self._used + count] = given[:count]
            self._used += count
            given = given[count:]
            if count == room:
                self._flush()

    def _flush(self) -> None:
        try:
            left = memoryview(self._rest[: self._used])  # type: ignore[arg-type]
            while left:
                count = os.pwrite(self._handle, left, self._written)
                left, self._written, self._used = left[count:], self._written + count, self._used - count
        except OSError as error:
            raise NotKept(str(error)) from error

    def _map_all(self) -> None:
        if self._written + self._used > len(self._maps[-1]) and self._drop.alive:
            self._flush()
            self._maps.append(_mapped(self._handle, self._written))

    def _view(self, entry: _Entry) -> torch.Tensor:
        if entry.start + entry.size > len(self._maps[-1]):
            self._map_all()
        return self._maps[-1][entry.start : entry.start + entry.size]


class CheckedPanels:
    """A `Shelf` of weights that are written already: they are laid out once more, to see whether they are the same."""

    def __init__(self, written: PanelWriter) -> None:
        self._written = written

    def place(self, name: str, weight: Weight, width: int) -> tuple[PanelForm, Callable[[], torch.Tensor]]:
        """See `Shelf`. Raises NotKept where they are not."""
        weight = read(weight)
        form, panels = PanelForm.of(weight, width), self._written.panels(name)
        own, first = panels(), 0
        if form != self._written.form(name):
            raise NotKept(name)
        for rows in form.pieces(weight):
            last = first + len(rows)
            if not torch.equal(rows, own[first:last]):
                raise NotKept(name)
            give_back(own[first:last])
            first = last
        return form, panels

    def beside(self, name: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """See `Shelf`. It is written behind them."""
        return self._written.beside(name, make)

    def spare(self) -> None:
        """See `Shelf`."""
        self._written.spare()


def _mapped(handle: int, size: int) -> torch.Tensor:
    """uint8 [size]: a file, to be read alone."""
    pages = mmap.mmap(handle, size, mmap.MAP_SHARED, mmap.PROT_READ)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    with warnings.catch_warnings():
        # torch asks for memory that can be written.
        warnings.simplefilter("ignore")
        return torch.from_numpy(np.frombuffer(pages, dtype=np.uint8))


def _digest(header: bytes) -> bytes:
    return blake2b(len(header).to_bytes(_LENGTH, "little") + header, digest_size=_DIGEST).digest()


def _dropped(handle: int, part: str) -> None:
    os.close(handle)
    with contextlib.suppress(OSError):
        os.unlink(part)


def _trim(kept: Path) -> None:
    """Removes files of the model that was just `kept` that are older than it, and those that go beyond the bound."""
    model, now, total = kept.name.partition("-")[0], time.time(), 0
    states = [(entry, entry.stat()) for entry in kept.parent.iterdir()]
    for entry, state in sorted(states, key=lambda pair: pair[1].st_mtime, reverse=True):
        if entry.name.startswith(_PART):
            is_old = now - state.st_mtime > _ABANDONED
        else:
            total += state.st_size
            is_old = entry != kept and (total > _MAX_BYTES or entry.name.startswith(f"{model}-"))
        if is_old:
            entry.unlink(missing_ok=True)
