"""Compiled kernels in the cache folder: found again for the same code and machine, and never in the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from llvmlite import ir

from qpdsl.executor.kernels.llvm import compile as compiler
from qpdsl.executor.kernels.llvm.compile import Library
from qpdsl.executor.kernels.llvm.kernel_code import KernelCode


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of kernels in a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler.surroundings.cache_clear()
    yield tmp_path / "qpdsl" / "kernels"
    compiler.surroundings.cache_clear()


def emit_double(module: ir.Module, name: str, times: int) -> None:
    """Multiplies float32 [4] by 2 so many times, in place."""
    code = KernelCode(module, name, ("numbers",), 4)
    value = code.load(code.arguments["numbers"])
    for _ in range(times):
        value = code.builder.fadd(value, value)
    code.store(value, code.arguments["numbers"])
    code.end()


def doubled(times: int) -> float:
    numbers, library = torch.ones(4), Library({"double": partial(emit_double, times=times)})
    library["double"](numbers.data_ptr())
    assert numbers.unique().numel() == 1
    return numbers[0].item()


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one with each compilation."""
    seen: list[object] = []
    compiled = compiler._compiled

    def counted(emitters: dict[str, compiler.Emitter], machine: object) -> bytes:
        seen.append(emitters)
        return compiled(emitters, machine)

    monkeypatch.setattr(compiler, "_compiled", counted)
    return seen


def test_the_same_kernels_are_compiled_once(compilations: list[object]) -> None:
    assert [doubled(times) for times in (1, 3, 1, 3)] == [2, 8, 2, 8]
    assert len(compilations) == 2


def test_damaged_entries_are_compiled_anew(folder: Path, compilations: list[object]) -> None:
    doubled(1)
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    for damaged in (b"", whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]):
        entry.write_bytes(damaged)
        assert doubled(1) == 2
    assert len(compilations) == 4 and entry.read_bytes()[:32] == whole[:32]


def test_other_sources_have_other_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: list[object]
) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for text in ("one", "two"):
        (sources / "kernel.py").write_text(text)
        monkeypatch.setattr(compiler, "_SOURCES", compiler.digest_of_sources(sources))
        compiler.surroundings.cache_clear()
        doubled(1)
    assert len(compilations) == 2


def test_kernels_run_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert doubled(2) == 4


def test_what_was_not_used_for_longest_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for age, what in ((300, "a"), (200, "b"), (100, "c")):
        compiler.cache_object(what, bytes(1000))
        (new,) = {path.name for path in folder.iterdir()}.difference(names)
        names.append(new)
        path = folder / new
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    # Found, and so used.
    assert compiler.cached_object("a") == bytes(1000)
    monkeypatch.setattr(compiler, "_MAX_BYTES", 3500)
    compiler.cache_object("d", bytes(1000))
    assert [compiler.cached_object(what) is not None for what in "abcd"] == [True, False, True, True]
    assert len([*folder.iterdir()]) == 3
