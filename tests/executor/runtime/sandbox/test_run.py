"""Where the sandbox can be built, what is refused where it cannot, and what bounds a folder without a file system."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from qpdsl.executor.runtime.sandbox import run
from qpdsl.executor.runtime.sandbox.run import NoSandbox, passes_tests, walls
from qpdsl.executor.runtime.sandbox.system_calls import filter_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the walls are those of Linux")


@pytest.mark.parametrize(
    ("present", "lacking"),
    [
        ({"namespaces", "Landlock"}, "the sandbox here lacks: seccomp (switched off)"),
        ({"seccomp"}, "the sandbox here lacks: namespaces (switched off), Landlock (switched off)"),
        (
            set(),
            "the sandbox here lacks: namespaces (switched off), Landlock (switched off), seccomp (switched off)",
        ),
    ],
)
def test_a_missing_wall_is_refused_by_name(
    present: set[str], lacking: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "_WALLS", frozenset(present))
    assert walls().refusal == lacking
    ran = tmp_path / "ran"
    with pytest.raises(NoSandbox) as refused:
        passes_tests(f"open({str(ran)!r}, 'w')", "", 1)
    assert str(refused.value) == lacking
    assert not ran.exists()
    assert passes_tests("x = 1", "assert x == 1", 1, unconfined=True)


# Files that lie in no folder, and the descriptor of one that is mapped is closed.
HOLDS = """
import ctypes, os
LARGE = b'x' * (15 << 20)
def written():
    file = open('name', 'wb+')
    file.write(LARGE); file.flush(); os.unlink('name')
    return file
def empty():
    return os.fdopen(os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600), 'wb', buffering=0)
def mapped(file):
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    place = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, file.fileno(), ctypes.c_long(0))
    file.close()
    return place
"""


@pytest.mark.parametrize(
    "code",
    [
        "for name in range(1000): open(str(name), 'w')",
        "import os\nfor depth in range(5000):\n    os.mkdir('deeper')\n    os.chdir('deeper')",
        "for name in range(9): open(str(name), 'w').write('x' * (15 << 20))",
        HOLDS + "held = [written() for _ in range(9)]",
        HOLDS + "held = [mapped(written()) for _ in range(9)]",
        HOLDS + "held = [empty() for _ in range(9)]\nfor file in held: file.write(LARGE)",
        "import os\nos.mkdir('hidden', 0o300)\nopen('hidden/a', 'w')\nos.mkdir('n' * 255)",
        "import os\nfor depth in range(40):\n    os.mkdir('n' * 255)\n    os.chdir('n' * 255)\nopen('large', 'w')",
    ],
)
def test_a_folder_is_bounded_without_a_file_system_of_its_own(
    code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "_WALLS", frozenset({"Landlock", "seccomp"}))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if walls().refusal is not None:
        pytest.skip("this machine has no Landlock")
    passed = passes_tests(code, "import time\ntime.sleep(0.5)", 1)
    # Root can look into what others hide.
    assert not passed or ("hidden" in code)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_looked_at_while_the_code_keeps_on_writing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte that it writes to the pipe of its answer came in the place of a look."""
    monkeypatch.setattr(run, "_WALLS", frozenset({"Landlock", "seccomp"}))
    if walls().refusal is not None:
        pytest.skip("this machine has no Landlock")
    clock, read, full = itertools.count(), run.os.read, itertools.count()
    monkeypatch.setattr(run.time, "monotonic", lambda: next(clock) * 0.03)
    monkeypatch.setattr(
        run.os, "read", lambda descriptor, size: b"x" if size == run._MAX_ANSWER else read(descriptor, size)
    )
    monkeypatch.setattr(run.select, "select", lambda ready, *_: (ready, [], []))
    monkeypatch.setattr(run, "_is_full", lambda folder, files: next(full) < 0)
    passes_tests("", "", 60)
    assert next(full) > 5


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_jump_of_the_filter_stays_in_it_and_every_end_returns(machine: str) -> None:
    program = filter_of(machine)
    assert program is not None
    assert len(program) <= 4096
    for at, (code, yes, no, operand) in enumerate(program):
        assert code == 0x06 or at + 1 + max(yes, no) < len(program)
        assert operand is None or 0 <= operand < 1 << 32
    assert program[-1][0] == 0x06
    assert filter_of("riscv64") is None


def test_files_that_are_unlinked_and_let_go_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_WALLS", frozenset({"Landlock", "seccomp"}))
    if walls().refusal is not None:
        pytest.skip("this machine has no Landlock")
    assert passes_tests(HOLDS + "for _ in range(20): written().close()\nheld = [written() for _ in range(3)]", "", 5)


def test_code_is_not_run_where_the_files_that_it_holds_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_WALLS", frozenset({"Landlock", "seccomp"}))
    if walls().refusal is not None:
        pytest.skip("this machine has no Landlock")

    def denied(files: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run._HeldFiles, "bytes", denied)
    with pytest.raises(NoSandbox, match="cannot see which files its code holds: Permission denied"):
        passes_tests("x = 1", "", 1)
    assert passes_tests("x = 1", "", 1, unconfined=True)
