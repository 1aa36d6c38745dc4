"""What a GGUF file says of itself: its metadata, and the name, type, shape and place of each tensor.

Source: ggml's `docs/gguf.md`. All numbers are little-endian. The file starts with "GGUF", its version, and the numbers
of tensors and of metadata; the metadata and the list of tensors follow, then, at a multiple of the alignment, the
tensors. Nothing of the tensors is read here.

A model may be split into files `NAME-00001-of-0000N.gguf` (llama.cpp's `llama-gguf-split`). The first one has all
metadata, and each has some of the tensors; they are read as one.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any

from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.checkpoint.safe_files import is_pointer

SUFFIX = ".gguf"
ARCHITECTURE = "general.architecture"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_PARTS, _PART_NUMBER, _TENSORS_OF_ALL = "split.count", "split.no", "split.tensors.count"
# Names of the parts of a model that was split.
_PART = re.compile(r"-(\d{5})-of-(\d{5})(\.gguf)$", re.IGNORECASE)
_MAX_DIMENSIONS = 4
# Longer than any entry that is no damage: a chat template has some ten thousand bytes.
_LONGEST_TEXT = 1 << 24
# No model has so many layers; a longer list is of a vocabulary.
_MOST_KEPT = 4096
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9


@dataclass(frozen=True, slots=True)
class BlockType:
    """A type of tensors: how many weights are in a block, and its bytes."""

    name: str
    weights: int
    size: int


# By the numbers that files have for them.
TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74),
    18: BlockType("IQ3_XXS", 256, 98),
    19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18),
    21: BlockType("IQ3_S", 256, 110),
    22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136),
    24: BlockType("I8", 1, 1),
    25: BlockType("I16", 1, 2),
    26: BlockType("I32", 1, 4),
    27: BlockType("I64", 1, 8),
    28: BlockType("F64", 1, 8),
    29: BlockType("IQ1_M", 256, 56),
    30: BlockType("BF16", 1, 2),
    34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66),
    39: BlockType("MXFP4", 32, 17),
}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor of a file: `type` as in "Q4_K", `shape` with the inputs last as in torch, and its place in bytes.

    `path` is the file that it is in: one of several where the model was split.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    start: int
    size: int
    path: Path


@dataclass(frozen=True)
class GGUFHeader:
    """The head of a GGUF file, checked against the file's size.

    `metadata` has numbers, texts, and lists of them, by name: tuples, and a `LongList` for one as long as a vocabulary.
    `tensors` are by name. `path` is the first file of several, and `parts` has the name of each, and where its tensors
    begin, in bytes. `digest` is that of everything before the tensors.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]
    parts: Mapping[str, int]
    digest: str

    @property
    def architecture(self) -> str:
        """What llama.cpp calls the family."""
        return str(self.metadata[ARCHITECTURE])

    @classmethod
    def of(cls, path: Path) -> GGUFHeader:
        """That of a file and, where it is a part of a model that was split, of the others in its folder.

        Raises CheckpointError where a file is no whole GGUF file or one is missing, and OSError.
        """
        paths = [path.with_name(name) for name in part_names(path.name)]
        for part in paths:
            if part != path and not part.exists():
                raise CheckpointError(
                    f"`{path.name}` is one of {len(paths)} parts of a model; `{part.name}` is missing"
                )
        headers = [_one(part) for part in paths]
        first = headers[0]
        for number, header in enumerate(headers):
            _check_part(header, number, len(paths))
        if not isinstance(first.metadata.get(ARCHITECTURE), str):
            raise CheckpointError(f"`{first.path.name}` does not say what model it holds (`{ARCHITECTURE}`)")
        if len(headers) == 1:
            return first
        tensors: dict[str, GGUFTensor] = {}
        for header in headers:
            if twice := tensors.keys() & header.tensors.keys():
                raise CheckpointError(f"`{header.path.name}` has the tensor `{min(twice)}`, as another part has")
            tensors |= header.tensors
        if first.metadata.get(_TENSORS_OF_ALL, len(tensors)) != len(tensors):
            wanted = first.metadata[_TENSORS_OF_ALL]
            raise CheckpointError(f"the parts of `{first.path.name}` have {len(tensors)} tensors; it tells of {wanted}")
        digest = blake2b("".join(header.digest for header in headers).encode(), digest_size=16).hexdigest()
        sizes = {name: size for header in headers for name, size in header.parts.items()}
        return cls(first.path, first.metadata, tensors, sizes, digest)


def part_names(name: str) -> list[str]:
    """The names of all parts of a model, by that of one; the name itself where it is no part."""
    if (part := _PART.search(name)) is None or not 1 <= int(part[1]) <= int(part[2]):
        return [name]
    stem, parts, suffix = name[: part.start()], part[2], part[3]
    return [f"{stem}-{number:05}-of-{parts}{suffix}" for number in range(1, int(parts) + 1)]


@dataclass(frozen=True, slots=True)
class LongList:
    """A list of a file, read where it lies whenever it is gone through: as Python's objects it takes ten times as much.

    kind:  of its entries, by the number that files have for it
    start: of the first of them, in bytes

    To go through it raises CheckpointError where the file is damaged, and OSError.
    """

    path: Path
    kind: int
    count: int
    start: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        with _reading(self.path, self.start) as reader:
            yield from reader.entries(self.kind, self.count)


def _one(path: Path) -> GGUFHeader:
    """That of one file, which need not be a whole model."""
    with path.open("rb") as file:
        start = file.read(32)
    if is_pointer(start):
        raise CheckpointError(f"`{path.name}` is a Git LFS pointer; fetch the file itself with `git lfs pull`")
    if start[:4] != _MAGIC:
        raise CheckpointError(f"`{path.name}` is no GGUF file")
    with _reading(path, len(_MAGIC)) as reader:
        return reader.header()


@contextmanager
def _reading(path: Path, place: int) -> Iterator[_Reader]:
    """What reads the head of a file from a place on."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            yield _Reader(path, data, place)
        except (struct.error, UnicodeDecodeError) as error:
            raise CheckpointError(f"`{path.name}` is cut off or damaged: its head cannot be read") from error


def _check_part(header: GGUFHeader, number: int, parts: int) -> None:
    """Raises CheckpointError where a file is another part of a model than its name says."""
    own, given = header.metadata.get(_PARTS) or 1, header.metadata.get(_PART_NUMBER) or 0
    if own != parts:
        named = f"its name makes it one of {parts}" if parts > 1 else "its name does not say which (`-00001-of-…`)"
        raise CheckpointError(f"`{header.path.name}` is one of {own} parts of a model, and {named}")
    if given != number:
        raise CheckpointError(f"`{header.path.name}` is part {given + 1} of its model, whatever its name says")


class _Reader:
    """Reads the head of the file at `path` from its bytes, from a place on."""

    def __init__(self, path: Path, data: mmap.mmap, place: int) -> None:
        self.path = path
        self.data = data
        self.end = len(data)
        self.place = place

    def header(self) -> GGUFHeader:
        version = self._number("I")
        if version not in _VERSIONS:
            big = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            what = "is written for big-endian machines" if big else f"has the GGUF version {version}"
            raise self._error(f"{what}; versions 2 and 3, little-endian, are read")
        tensors, entries = self._number("Q"), self._number("Q")
        if max(tensors, entries) > self.end:
            raise self._error("is damaged: its head tells of more tensors than it has bytes")
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            name = self._text()
            if name in metadata:
                raise self._error(f"has `{name}` twice")
            metadata[name] = self._value(self._number("I"))
        stored = [self._tensor() for _ in range(tensors)]
        alignment = metadata.get(_ALIGNMENT, 32)
        if not isinstance(alignment, int) or not 8 <= alignment <= self.end or alignment % 8:
            raise self._error(f"has the `{_ALIGNMENT}` {alignment!r}")
        size = -(-self.place // alignment) * alignment
        digest = blake2b(self.data[: self.place], digest_size=16).hexdigest()
        tensors = self._placed(stored, size, alignment)
        return GGUFHeader(self.path, metadata, tensors, {self.path.name: size}, digest)

    def _placed(self, stored: list[GGUFTensor], begin: int, alignment: int) -> Mapping[str, GGUFTensor]:
        """The tensors by name, with places counted from the start of the file."""
        placed: dict[str, GGUFTensor] = {}
        for tensor in stored:
            if tensor.name in placed:
                raise self._error(f"has the tensor `{tensor.name}` twice")
            if tensor.start % alignment:
                raise self._error(f"is damaged: `{tensor.name}` does not start at a multiple of {alignment} bytes")
            start = begin + tensor.start
            if start + tensor.size > self.end:
                needed = max(begin + other.start + other.size for other in stored)
                raise self._error(f"is cut off: it has {self.end:,} bytes, and its head tells of {needed:,}")
            placed[tensor.name] = replace(tensor, start=start)
        return placed

    def _tensor(self) -> GGUFTensor:
        name = self._text()
        dimensions = self._number("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._error(f"is damaged: `{name}` has {dimensions} dimensions")
        shape = tuple(reversed([self._number("Q") for _ in range(dimensions)]))
        number, start = self._number("I"), self._number("Q")
        if number not in TYPES:
            raise self._error(f"has the tensor `{name}` in the type {number}, which qpdsl does not know")
        kind = TYPES[number]
        if shape[-1] % kind.weights or not all(shape):
            columns = f"`{name}` has {shape[-1]} columns, and {kind.name} has blocks of {kind.weights}"
            raise self._error(f"is damaged: {columns}")
        return GGUFTensor(name, kind.name, shape, start, prod(shape) // kind.weights * kind.size, self.path)

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind != _LIST:
            return self._number(self._format(kind))
        kind, count = self._number("I"), self._number("Q")
        if count > self.end:
            raise self._error("is damaged: a list is longer than the file")
        if count <= _MOST_KEPT:
            return tuple(self.entries(kind, count))
        found = LongList(self.path, kind, count, self.place)
        self._skip(kind, count)
        return found

    def entries(self, kind: int, count: int) -> Iterator[Any]:
        """Those of a list."""
        if kind == _TEXT:
            # As many as a vocabulary has would take long one by one.
            data, end, place = self.data, self.end, self.place
            for _ in range(count):
                begin = place + 8
                place = begin + _LENGTH(data, place)[0]
                if place - begin > _LONGEST_TEXT or place > end:
                    raise self._cut_off()
                yield data[begin:place].decode()
            self.place = place
        else:
            form = f"<{count}{self._format(kind)}"
            yield from struct.unpack_from(form, self.data, self.place)
            self.place += struct.calcsize(form)

    def _skip(self, kind: int, count: int) -> None:
        """Goes past a list."""
        data, end, place = self.data, self.end, self.place
        if kind == _TEXT:
            for _ in range(count):
                place += 8 + _LENGTH(data, place)[0]
                if place > end:
                    raise self._cut_off()
        else:
            place += struct.calcsize(f"<{count}{self._format(kind)}")
        if place > end:
            raise self._cut_off()
        self.place = place

    def _format(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise self._error(f"is damaged: there is no value of type {kind}")
        return _NUMBERS[kind]

    def _number(self, kind: str) -> Any:
        form = "<" + kind
        (value,) = struct.unpack_from(form, self.data, self.place)
        self.place += struct.calcsize(form)
        return value

    def _text(self) -> str:
        length: int = _LENGTH(self.data, self.place)[0]
        start = self.place + 8
        self.place = start + length
        if length > _LONGEST_TEXT or self.place > self.end:
            raise self._cut_off()
        return self.data[start : self.place].decode()

    def _cut_off(self) -> CheckpointError:
        return self._error("is cut off or damaged: a text or a list is longer than the file")

    def _error(self, what: str) -> CheckpointError:
        return CheckpointError(f"`{self.path.name}` {what}")


_LENGTH = struct.Struct("<Q").unpack_from
