"""Memory in large pages for what a step reads or writes much of: it would wait for page tables."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading

import numpy as np
import torch

_LINE = 64
_LARGE_PAGE = 2 << 20
# What is asked of the system at once: matrices share large pages, so that few of those are half empty.
_CHUNK = 64 << 20
# Less than this is not worth a place among weights that may live longer.
_LEAST = 1 << 20
_MADV_DONTNEED, _MADV_HUGEPAGE = 4, 14


class _Chunk:
    """A part of memory that is given away from its beginning on."""

    def __init__(self, size: int) -> None:
        memory = torch.empty(size + _LARGE_PAGE, dtype=torch.uint8)
        start = -memory.data_ptr() % _LARGE_PAGE
        self._memory, self._used = memory[start : start + size], 0
        # Advice alone: where it is not taken, pages are small.
        ctypes.CDLL(None).madvise(ctypes.c_void_p(self._memory.data_ptr()), ctypes.c_size_t(size), _MADV_HUGEPAGE)

    def take(self, size: int) -> torch.Tensor | None:
        begin = -(-self._used // _LINE) * _LINE
        if begin + size > len(self._memory):
            return None
        self._used = begin + size
        return self._memory[begin : begin + size]


_lock = threading.Lock()
_newest: _Chunk | None = None


def aligned_bytes(size: int) -> torch.Tensor:
    """uint8 [size], not filled, that begins with a line of the cache; on Linux in large pages, if there is much of it.

    What shares a chunk with others is given back with the last of them.
    """
    global _newest
    if size < _LEAST or sys.platform != "linux":
        memory = torch.empty(size + _LINE, dtype=torch.uint8)
        start = -memory.data_ptr() % _LINE
        return memory[start : start + size]
    # Others may write to the rest of a chunk later, outside of the mode that this is in.
    with _lock, torch.inference_mode(False):
        taken = None if _newest is None else _newest.take(size)
        if taken is None:
            chunk = _Chunk(-(-max(size, _CHUNK) // _LARGE_PAGE) * _LARGE_PAGE)
            taken = chunk.take(size)
            assert taken is not None
            _newest = chunk
        return taken


def zero_bytes(size: int) -> torch.Tensor:
    """uint8 [size] of zeros that begins with a line of the cache, in large pages as numpy's. Raises MemoryError.

    The system gives a page when it is touched; torch would write the zeros, which takes seconds for gigabytes.
    """
    memory = np.zeros(size + _LINE, dtype=np.uint8)
    start = -memory.ctypes.data % _LINE
    return torch.from_numpy(memory[start : start + size])


def give_back(values: torch.Tensor) -> None:
    """Gives back the memory of a tensor that lies in a file's own pages, unchanged: if need be, it is read again.

    Any other memory would be filled with zeros.
    """
    if values.is_contiguous():
        give_back_pages(values.data_ptr(), values.data_ptr() + values.nbytes)


def give_back_pages(begin: int, end: int) -> None:
    """The same for the pages that lie between two addresses."""
    first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if sys.platform == "linux" and last > first:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_DONTNEED)
