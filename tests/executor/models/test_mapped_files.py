"""What a load leaves in memory is given back, and what is run again comes back from its file."""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from pathlib import Path

import pytest
import torch

from qpdsl.executor.models.mapped_files import trim_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system says what is resident on Linux")


def resident_files() -> int:
    """Bytes of files' pages in this process."""
    found = re.search(r"^RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def test_code_is_given_back_and_runs_again() -> None:
    values = torch.arange(12.0).view(3, 4)
    before, product = resident_files(), values @ values.T
    trim_memory()
    assert resident_files() < 0.7 * before
    assert torch.equal(values @ values.T, product)


def test_changed_code_is_kept(tmp_path: Path) -> None:
    """A loader or a debugger writes into the code of a library: in its file that is not found again."""
    library = tmp_path / "changed.so"
    library.write_bytes(bytes(mmap.PAGESIZE))
    with library.open("rb") as file:
        code = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    code[:4] = b"mine"
    place = ctypes.addressof(first := ctypes.c_char.from_buffer(code))
    usable = ctypes.CDLL(None).mprotect(ctypes.c_void_p(place), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC)
    trim_memory()
    assert (usable, code[:4]) == (0, b"mine")
    del first
