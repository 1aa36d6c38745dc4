"""How the KV cache of one model lies in memory: rows, each of which is one page of one layer.

A page is `layers` consecutive rows, and its id is the index of its first row: layer l of page p is row p + l. Where
layers keep different shapes, a row is a whole page, and each layer has a part of it.

Keys and values may be kept in eight bits, int8 or e4m3, with one float32 scale for each token and head. The scale maps
the largest magnitude of a head's vector to the largest number of the format, as in KVQuant (Hooper et al., NeurIPS
2024, section 3) and vLLM's per-head scales. A scale per token needs no calibration and no second pass. Because of the
scales the memory holds not twice as many tokens as in 16 bits, but 1.78 times (heads 32 wide) to 1.94 times (128 wide).
"int4" keeps values in four bits, as `int4_groups.py` says, and keys in int8, since most of the error of four bits is
the keys': 2.3 to 2.4 times as many tokens as in 16 bits.
Attention always reads what was stored, so a sample still does not depend on the schedule; but its tokens are those of a
slightly different model (class `epsilon`). The errors are measured in `benchmarks/results/kv_types.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from qpdsl.executor.kernels.data import int4_groups
from qpdsl.grammar.words import KVType

# What the elements of a row are: numbers of the model's type, of one of the two eight-bit formats, or values of four
# bits beside keys in int8.
RowKind = Literal["plain"] | KVType
# The largest magnitudes. e4m3 has no infinity; 448 is its largest finite number.
LARGEST = {"int8": 127.0, "fp8": 448.0}
# A vector without a larger magnitude counts as zero: the reciprocal of its scale would overflow.
SMALLEST = 1e-30


def reads_fp8(major: int, minor: int) -> bool:
    """Whether a GPU of a compute capability has an instruction from e4m3 to float16."""
    return (major, minor) >= (8, 9)


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a layer keeps of a token: keys and values of `kv_heads` heads, `key` and `value` numbers wide.

    `latent`: values are the first numbers of the keys, so keys alone are stored: the latent vector of multi-head latent
    attention and the rotated part that all heads share (DeepSeek-V2, 2024, section 2.1).
    """

    kv_heads: int
    key: int
    value: int
    latent: bool = False

    @property
    def is_even(self) -> bool:
        """Whether keys and values are stored in equal pairs."""
        return self.key == self.value and not self.latent

    def row_bytes(self, kind: RowKind, dtype: torch.dtype, page_size: int) -> int:
        """Bytes of a page. `dtype` matters for plain rows only. Raises ValueError where the kind does not suit."""
        if self.is_even:
            return row_bytes(kind, dtype, page_size, self.kv_heads, self.key)
        if kind != "plain":
            raise ValueError(f"{kind} takes keys and values of one width")
        return page_size * self.kv_heads * (self.key + (0 if self.latent else self.value)) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class KVRows:
    """A model's view of the arena. Build it with `plain`, `quantized` or `of`.

    data:    plain: [R, page_size, 2, KV, D] of the model's dtype (0: key, 1: value), or [R, page_size, numbers], keys
             [KV, D] and then values [KV, value], where these are not equal pairs; quantized: uint8 [R, bytes a row]:
             of eight bits, the int8 or e4m3 data [page_size, 2, KV, D] first, then float32 scales [page_size, 2, KV];
             of four bits, for each of page_size tokens its int8 keys [KV, D] and its values' records
             [KV, record_bytes(D)], then the keys' float32 scales [page_size, KV]
    scales:  the same memory as float32 [R, bytes a row / 4]; for plain rows `data` itself, which is not read as scales
    dim:     numbers of a key, D
    kind:    what an element is
    value:   numbers of a value where they are not as many
    latent:  as in `KVShape`
    """

    data: torch.Tensor
    scales: torch.Tensor
    page_size: int
    kv_heads: int
    dim: int
    kind: RowKind
    value: int | None = None
    latent: bool = False

    @classmethod
    def of(cls, part: torch.Tensor, shape: KVShape, page_size: int, kind: RowKind, dtype: torch.dtype) -> KVRows:
        """Rows of one shape in uint8 [R, `shape.row_bytes`], which may be a part of larger rows."""
        heads, key = shape.kv_heads, shape.key
        if kind != "plain":
            return cls(part, part.view(torch.float32), page_size, heads, key, kind)
        numbers = part.view(dtype)
        if shape.is_even:
            pairs = torch.unflatten(numbers, 1, (page_size, 2, heads, key))
            return cls(pairs, pairs, page_size, heads, key, kind)
        tokens = torch.unflatten(numbers, 1, (page_size, -1))
        return cls(tokens, tokens, page_size, heads, key, kind, shape.value, shape.latent)

    @classmethod
    def plain(cls, data: torch.Tensor) -> KVRows:
        """Rows [R, page_size, 2, KV, D] in float32, bfloat16 or float16. Raises ValueError for another shape."""
        if data.dim() != 5 or data.shape[2] != 2 or not data.is_contiguous():
            raise ValueError(f"rows are contiguous [R, page_size, 2, KV, D], not {list(data.shape)}")
        return cls(data, data, data.shape[1], data.shape[3], data.shape[4], "plain")

    @classmethod
    def quantized(cls, data: torch.Tensor, kind: RowKind, page_size: int, kv_heads: int, dim: int) -> KVRows:
        """Rows uint8 [R, row_bytes(...)]. Raises ValueError for another size or a row that float32 cannot divide."""
        size = row_bytes(kind, data.dtype, page_size, kv_heads, dim)
        if data.dim() != 2 or data.shape[1] != size or not data.is_contiguous() or size % 4:
            raise ValueError(f"a row of {kind} is {size} bytes, not {list(data.shape[1:])}")
        return cls(data, data.view(torch.float32), page_size, kv_heads, dim, kind)

    @property
    def value_dim(self) -> int:
        """Numbers of a value."""
        return self.dim if self.value is None else self.value

    @property
    def row_elements(self) -> int:
        """Elements of `data` from one row to the next."""
        return self.data.stride(0)

    def split(self) -> tuple[torch.Tensor, ...]:
        """Views that begin [R, page_size]: of plain rows the data itself, or keys [..., KV, D] and the values
        [..., KV, V] that are stored beside them; of eight bits data uint8 [..., 2, KV, D] and scales float32
        [..., 2, KV]; of four bits keys uint8 [..., KV, D], their scales float32 [..., KV] and values uint8
        [..., KV, record_bytes(D)].
        """
        if self.kind == "plain":
            return (self.data,) if self.value is None else self._uneven()
        pages, heads = (self.data.shape[0], self.page_size), self.kv_heads
        key, value = head_bytes(self.kind, self.data.dtype, self.dim)
        count = self.page_size * heads * (key + value)
        data, scales = self.data[:, :count], self.scales[:, count // 4 :]
        if self.kind != "int4":
            return data.view(*pages, 2, heads, self.dim), scales.view(*pages, 2, heads)
        both, first = data.view(*pages, -1), heads * key
        keys = torch.unflatten(both[..., :first], -1, (heads, key))
        values = torch.unflatten(both[..., first:], -1, (heads, value))
        return keys, scales.view(*pages, heads), values

    def write(self, row: torch.Tensor, place: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Stores keys [N, KV, D] and values [N, KV, V] at places int64 [N] of rows int64 [N], in place."""
        parts = (key, value) if self.value is not None else _encoded(torch.stack((key, value), dim=-3), self.kind)
        for part, stored in zip(self.split(), parts, strict=not self.latent):
            part[row, place] = stored.to(part.dtype)

    def read(self, row: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys float32 [N, KV, D] and values [N, KV, V] at places int64 [N] of rows int64 [N]."""
        parts = [part[row, place] for part in self.split()]
        if self.value is None:
            pairs = _decoded(parts, self.kind, self.dim)
            return pairs[:, 0], pairs[:, 1]
        keys = parts[0].float()
        return keys, keys[..., : self.value] if self.latent else parts[1].float()

    def _uneven(self) -> tuple[torch.Tensor, ...]:
        keys = self.kv_heads * self.dim
        key = torch.unflatten(self.data[..., :keys], -1, (self.kv_heads, self.dim))
        if self.latent:
            return (key,)
        return key, torch.unflatten(self.data[..., keys:], -1, (self.kv_heads, self.value_dim))

    def decoded(self) -> torch.Tensor:
        """All keys and values float32 [R, page_size, 2, KV, D], where these are equal pairs."""
        return _decoded(self.split(), self.kind, self.dim)


def head_bytes(kind: RowKind, dtype: torch.dtype, dim: int) -> tuple[int, int]:
    """Bytes of a key [D] and of a value [D], without scales of eight bits. `dtype` matters for plain rows only.

    Raises ValueError for heads that do not suit four bits.
    """
    if kind == "int4":
        return dim, int4_groups.record_bytes(dim)
    size = dim * dtype.itemsize if kind == "plain" else dim
    return size, size


def scale_count(kind: RowKind) -> int:
    """How many scales of eight bits a token has for each head: of its key, or of its key and its value."""
    return {"plain": 0, "int4": 1}.get(kind, 2)


def row_bytes(kind: RowKind, dtype: torch.dtype, page_size: int, kv_heads: int, dim: int) -> int:
    """Bytes of one row. `dtype` matters for plain rows only. Raises ValueError for heads that do not suit four bits."""
    return page_size * kv_heads * (sum(head_bytes(kind, dtype, dim)) + 4 * scale_count(kind))


def quantize(values: torch.Tensor, kind: RowKind) -> tuple[torch.Tensor, torch.Tensor]:
    """`values` [..., D] in eight bits: bytes uint8 [..., D] and scales float32 [...], rounding half to even."""
    wide = values.float()
    largest = wide.abs().amax(dim=-1)
    zero = largest < SMALLEST
    safe = torch.where(zero, torch.ones_like(largest), largest)
    # Both are tensors: with a number on one side torch may multiply by a reciprocal, which rounds twice.
    bound = torch.full_like(safe, LARGEST[kind])
    scale = torch.where(zero, torch.zeros_like(largest), safe / bound)
    inverse = torch.where(zero, torch.zeros_like(largest), bound / safe)
    scaled = (wide * inverse[..., None]).clamp(-LARGEST[kind], LARGEST[kind])
    if kind == "int8":
        return scaled.round().to(torch.int8).view(torch.uint8), scale
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8), scale


def dequantize(data: torch.Tensor, scale: torch.Tensor, kind: RowKind) -> torch.Tensor:
    """The values [..., D] float32 of what `quantize` gave."""
    wide = data.view(torch.int8 if kind == "int8" else torch.float8_e4m3fn).float()
    return wide * scale[..., None]


def _encoded(values: torch.Tensor, kind: RowKind) -> tuple[torch.Tensor, ...]:
    """The parts of `KVRows.split` for keys and values [..., 2, KV, D]."""
    if kind == "plain":
        return (values,)
    if kind == "int4":
        key, value = values.unbind(-3)
        return *quantize(key, "int8"), int4_groups.pack(value)
    return quantize(values, kind)


def _decoded(parts: Sequence[torch.Tensor], kind: RowKind, dim: int) -> torch.Tensor:
    if kind == "plain":
        return parts[0].float()
    if kind == "int4":
        return torch.stack((dequantize(parts[0], parts[1], "int8"), int4_groups.unpack(parts[2], dim)), dim=-3)
    return dequantize(parts[0], parts[1], kind)
